"""One file per command: each joins rooms and reads and writes folders, with plain keyword arguments and no config."""
