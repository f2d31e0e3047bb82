"""The ingest stage: any source in, one graph folder out, with anomalies planted if an experiment asks for them.

A reader writes the folder it is given. If anomalies are to be planted the graph is first read into a temporary folder
beside the target, so that the target never holds a graph without them.
"""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base import files
from hcm_scale.base.names import DEGREE
from hcm_scale.graph import Graph
from hcm_scale.graph.size import Size
from hcm_scale.ingest import arrays, readers
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import inject

FORMAT = 13  # of how a source becomes a graph; the graph's files have a version of their own
Reader = Callable[[Path], Graph]


def ingest(out: Path, read: Reader, injection: dict[str, Any] | None = None) -> Graph:
    """Reads a graph into the folder `out`; `injection` holds the arguments of `inject`, or None."""
    if injection is None:
        return read(out)
    raw = out.with_name(f".{out.name}-raw.{os.getpid()}.tmp")
    try:
        return inject(read(raw), **injection).save(out)
    finally:
        shutil.rmtree(raw, ignore_errors=True)


def is_ordered_like(graph: Graph, before: Graph) -> bool:
    """Whether the nodes that both graphs have, by their ids, stand in the same order in both."""
    own, other = (pa.array(np.arange(g.num_nodes)) if g.ids is None else g.ids for g in (graph, before))
    positions = pc.index_in(own, other).drop_null().to_numpy() if own.type == other.type else np.arange(0)
    return bool((np.diff(positions) > 0).all())


def copy_folder(source: Path | str, featureless: str = "error") -> Reader:
    """A reader of an existing graph folder: all of it is checked before it is copied."""
    return lambda out: copy_graph(with_attributes(Graph.open(source), featureless))(out)


def with_attributes(graph: Graph, featureless: str) -> Graph:
    """The graph; one without attributes is refused, or given its degree as `featureless` says."""
    if graph.num_attributes:
        return graph
    arrays.require(0, readers.Policy(featureless=featureless))
    x = arrays.degree_attribute(graph.indptr, graph.indices, directed=graph.directed)
    return replace(graph, x=x, columns=(DEGREE,))


def copy_graph(graph: Graph) -> Reader:
    """A reader of an open graph; FolderError if its `info` holds an `ingest` that is no summary of ours."""
    if "ingest" in graph.info:
        try:
            readers.ingest_summary(graph).table(), readers.column_report(graph)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            where = "info" if graph.path is None else f"{graph.path / files.MANIFEST}: info"
            raise files.FolderError(f"{where} holds an `ingest` that is no summary of ours; remove it there") from error
    return graph.save


def make_default() -> Reader:
    """A reader that makes the embedded data set."""
    return lambda out: synthetic.default().save(out)


def make_synthetic(
    family: str, *, num_nodes: int, edges_per_node: int, num_attributes: int, attributes_dtype: str
) -> Reader:
    """A reader that makes a seeded graph; a grid rounds the nodes up to a square."""
    scale, side = (num_nodes - 1).bit_length(), math.ceil(math.sqrt(num_nodes))
    make = {
        "community": partial(synthetic.community, num_nodes, edges_per_node=edges_per_node),
        "rmat": partial(synthetic.rmat, scale, num_nodes=num_nodes, edge_factor=edges_per_node),
        "grid": partial(synthetic.grid, side, side),
    }[family]
    return lambda out: make(num_attributes=num_attributes, dtype=attributes_dtype).save(out)


def needed_bytes(size: Size, *, generates: bool, injects: bool) -> int:
    """Of a graph that is generated: its pairs (8 bytes), their arcs twice (16 and 8); or the CSR beside the attributes.

    Of one into which anomalies are planted: a second CSR, with weights, and a second copy of all attribute values.
    """
    n, m, values = size.num_nodes, size.num_edges, size.value_bytes * size.num_values
    generated = (8 << 20) + 8 * n + max(32 * m, 8 * m + values)
    injected = (8 << 20) + 24 * n + (16 if size.weighted else 12) * size.num_arcs + values
    return generates * generated + injects * injected
