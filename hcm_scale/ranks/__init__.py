"""The processes that work on one run: who is who, how they connect and wait for each other."""
