"""Adjacency lists: a line is a node and its neighbours, with spaces between them; # begins a comment."""

from pathlib import Path

import pyarrow as pa


def read_adjlist(path: Path) -> pa.Table:
    """The edges; a tuple of edges and nodes would bring attributes too."""
    pairs = []
    for line in path.read_text().splitlines():
        node, *others = line.partition("#")[0].split() or [""]
        pairs += [(node, other) for other in others]
    return pa.table({"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]})
