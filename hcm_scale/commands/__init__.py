"""Commands that look after runs: each is a file with `main(arguments) -> text to print`, and imports what it needs."""
