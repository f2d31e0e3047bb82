"""Edge rows to a CSR on disk: symmetric unless directed, sorted, loop-free, without repeats, and counted.

The rows pass once through an external sort (spill.py). Its distinct edges go to one file; two passes over that file
count degrees and place the neighbours, straight into the mapped `indices.npy`. Peak memory: the finished CSR plus two
sort blocks; the number of repeats in the input does not matter.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import map_new, save_new
from hcm_scale.base.progress import bar
from hcm_scale.graph import kernels
from hcm_scale.graph.spill import RUN_KEYS, Spill

MAX_NODES = 1 << 31
_READ_EDGES = 1 << 19
Chunk = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class EdgeCounts:
    """What became of the edge rows: rows = self loops + repeated + reversed + edges."""

    edge_rows: int
    self_loops: int
    repeated_edges: int
    reversed_edges: int
    num_edges: int
    isolated_nodes: int


def build_csr(
    folder: Path, chunks: Iterable[Chunk], num_nodes: int, directed: bool = False, run_keys: int = RUN_KEYS
) -> EdgeCounts:
    """Writes indptr.npy and indices.npy into `folder`; of a directed graph they hold the arcs that go out.

    `chunks` are pairs of equally long integer arrays of node numbers in 0 .. num_nodes - 1.
    """
    if not 0 < num_nodes <= MAX_NODES:
        raise ValueError(f"num_nodes={num_nodes:,} must be between 1 and {MAX_NODES:,}")
    with tempfile.TemporaryDirectory(prefix="spill-", dir=folder) as scratch:
        spill = Spill(Path(scratch), directed, run_keys)
        with bar(None, "row", "edges", unit_scale=True) as progress:
            for u, v in chunks:
                spill.add(np.asarray(u, np.int64), np.asarray(v, np.int64))
                progress.update(len(u))
        edges = Path(scratch) / "edges"
        num_arcs, num_edges = _write_edges(spill, edges)
        if not num_edges:
            raise ValueError(
                f"the graph has no edges: {spill.num_rows:,} rows read, {spill.num_loops:,} of them self loops"
            )
        num_isolated = _write_csr(folder, edges, num_nodes, directed)
    return EdgeCounts(
        edge_rows=spill.num_rows,
        self_loops=spill.num_loops,
        repeated_edges=spill.num_rows - spill.num_loops - num_arcs,
        reversed_edges=num_arcs - num_edges,
        num_edges=num_edges,
        isolated_nodes=num_isolated,
    )


def _write_edges(spill: Spill, path: Path) -> tuple[int, int]:
    """Writes the distinct edges as u << 32 | v, sorted; returns the number of distinct arcs and of distinct edges."""
    num_arcs = num_edges = 0
    with open(path, "wb") as stream:
        for keys in spill.merged():
            num_arcs += len(keys)
            keys >>= np.uint64(1)
            edges = keys[: kernels.drop_repeats(keys)]
            num_edges += len(edges)
            edges.tofile(stream)
    return num_arcs, num_edges


def _write_csr(folder: Path, edges: Path, num_nodes: int, directed: bool) -> int:
    """Writes the CSR; returns how many nodes have no edge, in or out."""
    indptr = np.zeros(num_nodes + 1, np.int64)
    degree = np.zeros(num_nodes, np.int64) if directed else indptr[1:]
    for block in _blocks(edges):
        kernels.count_ends(block, True, degree)
        if directed:
            kernels.count_ends(block, False, indptr[1:])
    num_isolated = int(np.count_nonzero(degree == 0))
    np.cumsum(indptr, out=indptr)
    save_new(folder / "indptr.npy", indptr)
    dtype = np.int32 if num_nodes < MAX_NODES else np.int64
    indices = map_new(folder / "indices.npy", dtype, (int(indptr[-1]),))
    for block in _blocks(edges):
        kernels.scatter_ends(block, not directed, indptr, indices)  # indptr is saved: now each entry is a row's cursor
    indices.flush()
    return num_isolated


def _blocks(path: Path) -> Iterator[NDArray[np.uint64]]:
    """Yields a file of packed edges piece by piece, by plain reads."""
    with open(path, "rb") as stream:
        while len(block := np.fromfile(stream, np.uint64, _READ_EDGES)):
            yield block
