"""A networkx graph as two Arrow tables: its edges, and its nodes with their attributes.

Nodes that are all whole numbers or all text keep their names; others go by `str`. An attribute that is a list of equal
length in every node becomes as many columns, `NAME_0`, `NAME_1`, ...; one that a node lacks is null there, and so are
the NaN, NaT and NA that a pandas table holds for gaps. Attributes of edges that hold numbers alone are columns of the
edge table, for graph.weight_column to name one.
"""

from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any

import pyarrow as pa

from hcm_scale.ingest.errors import reading

ID = "networkx node"  # the column of the node table
ENDS = ("source", "target")  # the columns of the edge table that are no attributes


def is_networkx(data: Any) -> bool:
    """Whether it is a graph of networkx, or acts as one."""
    return all(hasattr(data, name) for name in ("nodes", "edges", "is_directed", "adj"))


def tables_of(graph: Any) -> tuple[pa.Table, pa.Table]:
    """(edges, nodes) of a networkx graph, nodes in its own order."""
    attributes = dict(graph.nodes(data=True))
    named = dict(zip(attributes, _names(list(attributes)), strict=True))
    ends = [(named[edge[0]], named[edge[1]]) for edge in graph.edges()]
    held_by_edges = [held for *_, held in graph.edges(data=True)]
    columns = {ID: _column("the nodes' names", list(named.values()))}
    for key in dict.fromkeys(key for held in attributes.values() for key in held):
        columns |= _columns(str(key), [held.get(key) for held in attributes.values()])
    kind = columns[ID].type
    edges = {name: pa.array([end[side] for end in ends], kind) for side, name in enumerate(ENDS)}
    for key in dict.fromkeys(key for held in held_by_edges for key in held if str(key) not in ENDS):
        values = [held.get(key) for held in held_by_edges]
        if any(value is not None for value in values) and all(isinstance(value, Real | None) for value in values):
            edges[str(key)] = pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.table(edges), pa.table(columns)


def _names(nodes: Sequence[Any]) -> Iterator[int | str]:
    """The nodes' names: numbers where all are whole, else text."""
    are_numbers = all(isinstance(node, Integral) for node in nodes)
    return (int(node) if are_numbers else str(node) for node in nodes)


def _columns(name: str, values: list[Any]) -> dict[str, pa.Array]:
    """One column, or one for each place of lists that are all of one length."""
    lengths = {len(value) if isinstance(value, list | tuple) or hasattr(value, "shape") else None for value in values}
    length = next(iter(lengths))
    if len(lengths) > 1 or length is None:
        return {name: _column(f"attribute {name!r}", values)}
    places = range(length)
    return {f"{name}_{place}": _column(f"attribute {name!r}", [value[place] for value in values]) for place in places}


def _column(what: str, values: list[Any]) -> pa.Array:
    with reading(f"{what} of the networkx graph is of several types"):
        return pa.array([value.item() if hasattr(value, "item") else value for value in values], from_pandas=True)
