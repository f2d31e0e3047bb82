"""A run: its configuration becomes stages, which a workspace makes once and finds again."""
