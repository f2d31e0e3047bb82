"""The processes that work on one run: who is who, how they meet, how they are started and watched."""
