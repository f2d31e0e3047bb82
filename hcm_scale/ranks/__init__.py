"""The processes of one run: who is who, and what they do together."""
