"""The command line: from its words to a run and an exit status."""
