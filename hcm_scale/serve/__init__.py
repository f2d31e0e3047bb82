"""A local web page over all nodes of a finished run."""
