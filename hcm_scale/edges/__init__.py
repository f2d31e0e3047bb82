"""Strange edges: ranks, reasons, rows of tables, new edges."""
