"""Verdicts of people about nodes, and the list that they teach."""
