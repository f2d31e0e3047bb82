"""The command line: `hcm-scale COMMAND [key=value ...]`, from its words to an exit status."""
