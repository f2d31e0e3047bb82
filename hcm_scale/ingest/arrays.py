"""Edges as positions, attributes as a matrix: the common way of .npz, .npy, .mat and torch_geometric input to a folder.

Edge chunks may be of any numeric type; they are checked (whole, not negative, under n) as they stream by. Peak memory:
the finished CSR and what the caller holds of the attributes, plus two sort blocks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.graph.build import MAX_NODES, Chunk, build_csr
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest import attributes as features
from hcm_scale.ingest.edge_weights import Weighed, write_weights
from hcm_scale.ingest.errors import naming
from hcm_scale.ingest.policy import Offenders, Policy
from hcm_scale.ingest.seal import seal

_FEW_NODES = 1 << 20  # so many are made without a question
_NODES_PER_END = 16


@dataclass(frozen=True)
class DenseRows:
    """A dense attribute matrix that yields its rows in blocks, as often as it is asked; `columns` are its names."""

    shape: tuple[int, int]
    blocks: Callable[[], Iterable[NDArray[Any]]]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edges:
    """Chunks of positions, `num_rows` in all, as often as asked; `num_nodes` None = as many as are named.

    `weighed` yields the same with the values that the source has for edges, if it has any.
    """

    chunks: Callable[[], Iterator[Chunk]]
    num_rows: int
    num_nodes: int | None = None
    weighed: Callable[[], Iterator[Weighed]] | None = None


def write_arrays(
    out: Path | str,
    origin: str,
    edges: Edges,
    x: DenseRows | SparseRows | None,
    y: NDArray[Any] | None,
    policy: Policy,
    *,
    ids: pa.Array | None = None,
) -> Graph:
    """Writes the graph folder `out` and returns it opened; rows of `x`, entries of `y` and `ids` must be the nodes."""
    with naming(origin):
        width = 0 if x is None else x.shape[1]
        features.require(width, policy)
        if policy.weights and edges.weighed is None:
            raise ValueError(
                "graph.weights=true and there are no weights; legal are the values of a matrix, edge_weight beside "
                "edge_index or indptr, and an edge_attr of one column"
            )
        known, num_nodes = _count_nodes(edges, x, policy)
        added = num_nodes - known
        with files.replacing(Path(out)) as folder:
            num_anomalies = None if y is None else features.write_labels(folder, y, known, added)
            written = features.FeatureCounts()
            if isinstance(x, SparseRows) and width:
                written = features.write_sparse(folder, x, policy.nonfinite, added)
            elif isinstance(x, DenseRows) and width:
                written = features.write_dense(folder, x.blocks(), x.shape, policy.nonfinite, added)
                written = replace(written, columns=x.columns)
            outside = Offenders(f"rows name a node outside 0 .. {num_nodes - 1:,}", "the edges")
            chunks = checked(edges.chunks(), num_nodes, outside, policy.unknown == "drop")
            counts = build_csr(folder, chunks, num_nodes, policy.directed)
            if policy.weights and edges.weighed is not None:
                write_weights(folder, edges.weighed(), "the edges", directed=policy.directed, adds_up=False)
            seal(
                folder,
                origin,
                policy,
                counts,
                written,
                ids=ids,
                unknown_edges=outside.count,
                added_nodes=added,
                num_anomalies=num_anomalies,
                weights="weight" if policy.weights else None,
            )
    return Graph.open(out, verify=False)


def checked(chunks: Iterable[Chunk], num_nodes: int, outside: Offenders, drop: bool = False) -> Iterator[Chunk]:
    """The chunks as int64 node numbers; raises at the end, with the count and the first rows, where some were none.

    >>> next(checked([(np.array([0.0, 9.0]), np.array([1, 1]))], 2, Offenders("outside", "edges"), drop=True))
    (array([0]), array([1]))
    """
    fractional, negative = (
        Offenders("rows with node numbers that are not finite whole numbers", "the edges"),
        Offenders("negative node numbers", "the edges"),
    )
    row = 0
    for u, v in chunks:
        broken = ~(_whole(u) & _whole(v))
        below, above = (u < 0) | (v < 0), (u >= num_nodes) | (v >= num_nodes)
        for offenders, mask in ((fractional, broken), (negative, below), (outside, above)):
            offenders.add(mask, lambda i: f"row {row + i:,}: {u[i]} -> {v[i]}")  # noqa: B023
        good = ~(broken | below | above)
        row += len(u)
        if good.all():
            yield u.astype(np.int64, copy=False), v.astype(np.int64, copy=False)
        else:
            yield u[good].astype(np.int64), v[good].astype(np.int64)
    fractional.check()
    negative.check()
    if not drop:
        outside.check()


def _whole(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind in "iub":
        return np.ones(len(values), np.bool_)
    if values.dtype.kind != "f":
        raise ValueError(f"edges are of type {values.dtype}; legal are integers, or floats that are whole")
    return np.asarray(np.isfinite(values) & (values == np.floor(values)))


def _count_nodes(edges: Edges, x: DenseRows | SparseRows | None, policy: Policy) -> tuple[int, int]:
    """(nodes that have rows, all nodes): what the matrix has, what `x` has, what is said, or the largest name and 1."""
    said = policy.num_nodes
    for what, rows in (("x", None if x is None else x.shape[0]), ("the adjacency matrix", edges.num_nodes)):
        if said is not None and rows not in (None, said):
            raise ValueError(f"{what} has {rows:,} rows; graph.num_nodes={said} must be equal or left out")
    if x is not None and edges.num_nodes not in (None, x.shape[0]):
        raise ValueError(f"x has {x.shape[0]:,} rows for {edges.num_nodes:,} nodes; they must be equal")
    known = edges.num_nodes if x is None else x.shape[0]
    if known is None:
        known = said
    if known is None or (policy.unknown == "add" and edges.num_nodes is None):
        top = max((max(_largest(u), _largest(v)) for u, v in edges.chunks()), default=0.0)
        named = int(min(top, 2.0**64)) + 1
        known, total = (named, named) if known is None else (known, max(known, named))
    else:
        total = known
    if said is None:
        _check_plausible(total, edges.num_rows)
    return known, total


def _largest(values: NDArray[Any]) -> float:
    """The largest finite number, 0 where there is none: what is wrong with the others is told later."""
    return float(values.max(where=np.isfinite(values), initial=0))


def _check_plausible(num_nodes: int, num_rows: int) -> None:
    """Refuses far more nodes than edges can name: one damaged number must not ask for all memory."""
    if num_nodes > max(_FEW_NODES, _NODES_PER_END * 2 * num_rows):
        meant = f"; graph.num_nodes={num_nodes} says that it is meant" if num_nodes <= MAX_NODES else ""
        raise ValueError(
            f"{num_rows:,} edge rows, which name at most {2 * num_rows:,} nodes, would make a graph of {num_nodes:,}, "
            f"and {MAX_NODES:,} are the most that can be{meant}"
        )
