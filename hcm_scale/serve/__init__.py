"""A local page over a finished run: every node, paged, filtered and explained on click."""
