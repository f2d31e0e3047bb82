"""Edge rows to a CSR on disk: symmetric unless directed, sorted, loop-free, without repeats, and counted.

The rows pass once through an external sort. An edge becomes a key `u << 33 | v << 1 | flipped` with u < v (undirected;
`flipped` says that the row was (v, u)) or u -> v (directed). Sorted keys are therefore sorted edges, an edge and its
reverse stand side by side, and shifting the last bit out merges them. Node numbers must be under 2^31. Keys fill a
buffer; a full one is sorted, freed of repeats and written as a run. The runs are merged range by range of the key
space, each range holding about two buffers' worth of keys at most, whatever the skew.

The distinct edges go to one file; two passes over it count degrees and place the neighbours, straight into the mapped
`indices.npy`. Peak memory: the finished CSR plus two sort buffers (16 bytes times `run_keys`); the number of repeats in
the input does not matter. Disk: 8 bytes an edge, removed at the end.
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.console import Progress
from hcm_scale.base.jit import kernel, prefetch
from hcm_scale.base.npy import create_npy, save_npy

MAX_NODES = 1 << 31
RUN_KEYS = 1 << 21  # 16 MiB: a billion edges in 500 runs, and little enough for a small machine
_READ_EDGES = 1 << 19
_AHEAD = 16  # edges between asking for a row and writing to it
_ONE, _U_SHIFT, _EDGE_SHIFT, _LOW32 = np.uint64(1), np.uint64(33), np.uint64(32), np.uint64(0xFFFFFFFF)

Chunk = tuple[NDArray[Any], NDArray[Any]]  # node numbers u, v of some edge rows
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class EdgeCounts:
    """Counts of the edge rows: rows = self loops + repeated + reversed + edges."""

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
        with Progress(None, "row", "edges", unit_scale=True) as progress:
            for u, v in chunks:
                spill.add(np.asarray(u, np.int64), np.asarray(v, np.int64))
                progress.update(len(u))
        edges = Path(scratch) / "edges"
        num_arcs = num_edges = 0
        with open(edges, "wb") as stream:
            for keys in spill.merged():
                num_arcs += len(keys)
                keys >>= _ONE  # u << 32 | v: an edge and its reverse are equal now
                num_distinct = drop_repeats(keys)
                keys[:num_distinct].tofile(stream)
                num_edges += num_distinct
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


def _write_csr(folder: Path, edges: Path, num_nodes: int, directed: bool) -> int:
    """Writes the CSR; returns how many nodes have no edge, in or out."""
    indptr = np.zeros(num_nodes + 1, np.int64)
    degree = np.zeros(num_nodes, np.int64) if directed else indptr[1:]
    for block in _read_blocks(edges):
        count_ends(block, True, degree)
        if directed:
            count_ends(block, False, indptr[1:])
    num_isolated = int(np.count_nonzero(degree == 0))
    np.cumsum(indptr, out=indptr)
    save_npy(folder / "indptr.npy", indptr)
    dtype = np.int32 if num_nodes < MAX_NODES else np.int64
    indices = create_npy(folder / "indices.npy", dtype, (int(indptr[-1]),))
    for block in _read_blocks(edges):
        scatter_ends(block, not directed, indptr, indices)  # indptr is saved: now each entry is a row's cursor
    indices.flush()
    return num_isolated


def _read_blocks(path: Path) -> Iterator[NDArray[np.uint64]]:
    """Yields a file of packed edges piece by piece, by plain reads."""
    with open(path, "rb") as stream:
        while len(block := np.fromfile(stream, np.uint64, _READ_EDGES)):
            yield block


def symmetric_csr(
    u: NDArray[np.int32], v: NDArray[np.int32], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(indptr, indices) of the undirected graph of the pairs (u[e], v[e]), in memory: 8 bytes a pair beside the CSR.

    >>> indptr, indices = symmetric_csr(np.array([0, 2, 1], np.int32), np.array([2, 0, 1], np.int32), 3)
    >>> indptr.tolist(), indices.tolist()
    ([0, 1, 1, 2], [2, 0])
    """
    keys = np.empty(len(u), np.uint64)
    keys = keys[: pack_edges(u, v, False, keys)]
    keys >>= _ONE
    keys.sort()
    keys = keys[: drop_repeats(keys)]
    indptr = np.zeros(num_nodes + 1, np.int64)
    count_ends(keys, True, indptr[1:])
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], np.int32)
    scatter_ends(keys, True, indptr[:-1].copy(), indices)
    return indptr, indices


class Spill:
    """An external sort of one graph's edges: rows in, sorted distinct keys out."""

    def __init__(self, folder: Path, directed: bool, run_keys: int = RUN_KEYS):
        self.num_rows = 0
        self.num_loops = 0
        self._folder, self._directed = folder, directed
        self._buffer: Keys = np.empty(run_keys, np.uint64)
        self._used = 0
        self._runs: list[Path] = []

    def add(self, u: NDArray[np.int64], v: NDArray[np.int64]) -> None:
        """Adds rows (u[i], v[i]) of valid node numbers; self loops are counted and dropped."""
        start = 0
        while start < len(u):
            if self._used == len(self._buffer):
                self._write_run()
            stop = min(len(u), start + len(self._buffer) - self._used)
            kept = pack_edges(u[start:stop], v[start:stop], self._directed, self._buffer[self._used :])
            self._used += kept
            self.num_rows += stop - start
            self.num_loops += stop - start - kept
            start = stop

    def _write_run(self) -> None:
        keys = self._buffer[: self._used]
        keys.sort()
        path = self._folder / f"run-{len(self._runs):05d}"
        keys[: drop_repeats(keys)].tofile(path)
        self._runs.append(path)
        self._used = 0

    def merged(self) -> Iterator[Keys]:
        """Yields the distinct keys of all runs in ascending order, an edge and its reverse in the same block."""
        block_keys = len(self._buffer)
        if self._used:
            self._write_run()
        self._buffer = np.empty(0, np.uint64)
        if not self._runs:
            return
        mapped = [np.memmap(run, np.uint64, "r") for run in self._runs]
        bounds = _bounds(mapped, block_keys)
        cuts = np.array([[0, *np.searchsorted(run, bounds), len(run)] for run in mapped])
        del mapped  # plain reads from here on: a mapped page would count as our memory
        for starts, stops in itertools.pairwise(cuts.T):
            keys, filled = np.empty((stops - starts).sum(), np.uint64), 0
            for run, start, stop in zip(self._runs, starts, stops, strict=True):
                read = np.fromfile(run, np.uint64, stop - start, offset=8 * start)
                keys[filled : filled + len(read)] = read
                filled += len(read)
            if filled < len(keys):
                raise OSError(f"{self._folder} holds less than what was written to it: is the disk full?")
            keys.sort()
            yield keys[: drop_repeats(keys)]


def _bounds(runs: list[Any], block_keys: int) -> Keys:
    """Ascending even keys, never between an edge and its reverse, that cut the runs into ranges of <= 2 buffers."""
    step = max(1, block_keys // len(runs))
    samples = np.sort(np.concatenate([np.asarray(run[::step]) for run in runs]))
    return np.unique(samples[len(runs) :: len(runs)] & ~_ONE)


@kernel
def pack_edges(u, v, directed, keys):
    """Writes one key per row that is not a self loop; returns how many."""
    count = 0
    for i in range(len(u)):
        a = np.uint64(u[i])
        b = np.uint64(v[i])
        if a == b:
            continue
        flipped = np.uint64(0)
        if not directed and b < a:
            a, b = b, a
            flipped = _ONE
        keys[count] = (a << _U_SHIFT) | (b << _ONE) | flipped
        count += 1
    return count


@kernel
def drop_repeats(keys):
    """Keeps the first of each group of equal neighbours, in place; returns how many are left."""
    count = 0
    for i in range(len(keys)):
        if count == 0 or keys[i] != keys[count - 1]:
            keys[count] = keys[i]
            count += 1
    return count


@kernel
def count_ends(edges, symmetric, degree):
    """Adds to `degree` the arcs u -> v, and v -> u where `symmetric`, of edges packed as u << 32 | v."""
    for i in range(len(edges)):
        degree[np.int64(edges[i] >> _EDGE_SHIFT)] += 1
        if symmetric:
            degree[np.int64(edges[i] & _LOW32)] += 1


@kernel
def scatter_ends(edges, symmetric, cursor, indices):
    """Places the arcs of sorted edges into CSR rows, moving each row's cursor on.

    Rows come out sorted without sorting: row w meets the edges (u, w), u < w, by u, before its own (w, v), by v.
    """
    last = len(edges) - 1
    for i in range(len(edges)):
        u = np.int64(edges[i] >> _EDGE_SHIFT)
        v = np.int64(edges[i] & _LOW32)
        indices[cursor[u]] = v
        cursor[u] += 1
        if symmetric:
            prefetch(cursor, np.int64(edges[min(i + 2 * _AHEAD, last)] & _LOW32))
            prefetch(indices, cursor[np.int64(edges[min(i + _AHEAD, last)] & _LOW32)])
            indices[cursor[v]] = u
            cursor[v] += 1


@kernel
def join_directions(indptr, indices, adds_up, cursor, sums):
    """Gives both entries of an edge of a symmetric CSR the sum of their two numbers, or else the larger of them.

    `cursor` (n,) holds the starts of the rows: rows u are walked upwards, so row v > u meets its entries below v in
    their order.
    """
    for u in range(len(cursor)):
        for at in range(indptr[u], indptr[u + 1]):
            v = indices[at]
            if v > u:
                mirror = cursor[v]
                cursor[v] += 1
                both = sums[at] + sums[mirror] if adds_up else max(sums[at], sums[mirror])
                sums[at] = both
                sums[mirror] = both
