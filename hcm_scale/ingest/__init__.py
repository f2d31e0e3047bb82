"""What a user brings, read and checked: tables, matrices, torch_geometric data; `readers` is the door."""
