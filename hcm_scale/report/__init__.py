"""A ranked list shown to a person: the evidence about a node, its words, and the page."""
