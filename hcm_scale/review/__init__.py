"""What people say about nodes, and a list that learns from it."""
