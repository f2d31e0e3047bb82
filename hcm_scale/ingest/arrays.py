"""Edges as positions, attributes as a matrix: how .npz, .npy, .mat, scipy and torch_geometric input becomes a folder.

`write_arrays` writes the whole folder; its steps serve tables too: `write_weights`, `finish_folder`.

Edges stream in chunks of any numeric type, checked to be whole, not negative and under n. Attributes are dense, written
row block by row block through a map, or sparse as CSR, copied only where it came unsorted or with repeats; values that
are not finite as float32 are counted, and refused or replaced. Peak memory: the finished CSR and what the caller holds
of the attributes, plus two sort blocks.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.names import DEGREE, GAP_SUFFIX, NO_COLUMN
from hcm_scale.base.npy import create_npy, open_npy, save_npy
from hcm_scale.graph import store
from hcm_scale.graph.build import MAX_NODES, Chunk, EdgeCounts, build_csr, join_directions
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.policy import IngestSummary, InputError, Offenders, Policy, naming_origin, not_finite, shown_names

_BLOCK_ROWS, _BLOCK_NUMBERS, _CHUNK_ROWS = 1 << 14, 1 << 20, 1 << 18  # of attributes, of edges
_FEW_NODES = 1 << 20  # so many are made without a question
_NODES_PER_END = 16
_MIN_WEIGHT, _MAX_WEIGHT = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
WeightedChunk = tuple[NDArray[Any], NDArray[Any], Any]  # both ends of some rows as node numbers; weights or None


@dataclass(frozen=True)
class Edges:
    """Chunks of positions, `num_rows` in all, as often as asked; `num_nodes` None = as many as are named."""

    chunks: Callable[[], Iterator[WeightedChunk]]
    num_rows: int
    num_nodes: int | None = None
    has_weights: bool = False

    @staticmethod
    def of(u: NDArray[Any], v: NDArray[Any], weights: NDArray[Any] | None, num_nodes: int | None = None) -> "Edges":
        def chunks() -> Iterator[WeightedChunk]:
            for start in range(0, len(u), _CHUNK_ROWS):
                rows = slice(start, start + _CHUNK_ROWS)
                yield u[rows], v[rows], None if weights is None else weights[rows]

        return Edges(chunks, len(u), num_nodes, weights is not None)


@dataclass(frozen=True, eq=False)
class DenseRows:
    """A dense attribute matrix, of which blocks of rows are converted to numpy arrays; `columns` are its names."""

    matrix: Any
    columns: tuple[str, ...] = ()
    convert: Callable[[Any], Any] = np.asarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    def blocks(self) -> Iterator[NDArray[Any]]:
        step = max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // max(1, self.shape[1])))
        return (self.convert(self.matrix[start : start + step]) for start in range(0, self.shape[0], step))


@dataclass(frozen=True)
class FeatureCounts:
    """What was written as attributes: names (where known), width, and what was filled in."""

    columns: tuple[str, ...] = ()
    num_columns: int = 0
    imputed: int = 0
    nonfinite: int = 0
    details: tuple[dict[str, Any], ...] = ()


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
    with naming_origin(origin):
        require(0 if x is None else x.shape[1], policy)
        if policy.weights and not edges.has_weights:
            raise ValueError(
                "graph.weights=true and there are no weights; legal are the values of a matrix, edge_weight beside "
                "edge_index or indptr, and an edge_attr of one column"
            )
        num_rows, num_nodes = _count_nodes(edges, x, policy)
        added = num_nodes - num_rows
        with files.replacing_folder(Path(out)) as folder:
            num_anomalies = None if y is None else _write_labels(folder, y, num_rows, added)
            written = FeatureCounts()
            if x is not None and x.shape[1]:
                write: Any = _write_sparse if isinstance(x, SparseRows) else _write_dense
                written = write(folder, x, policy.nonfinite, added)
            outside = Offenders(f"rows name a node outside 0 .. {num_nodes - 1:,}", "the edges")
            chunks = _checked(edges.chunks(), num_nodes, outside, policy.unknown == "drop")
            counts = build_csr(folder, chunks, num_nodes, policy.directed)
            if policy.weights:
                write_weights(folder, edges.chunks(), "the edges", directed=policy.directed, adds_up=False)
            finish_folder(
                *(folder, origin, policy, counts, written),
                ids=ids,
                weights="weight" if policy.weights else None,
                unknown_edges=outside.count,
                added_nodes=added,
                num_anomalies=num_anomalies,
            )
    return Graph.open(out, verify=False)


def _checked(chunks: Iterable[WeightedChunk], num_nodes: int, outside: Offenders, drop: bool) -> Iterator[Chunk]:
    """The chunks as int64 node numbers; raises at the end, with the count and the first rows, where some were none."""
    fractional = Offenders("rows with node numbers that are not finite whole numbers", "the edges")
    negative = Offenders("negative node numbers", "the edges")
    row = 0
    for u, v, _ in chunks:
        broken = ~(_whole(u) & _whole(v))
        below, above = (u < 0) | (v < 0), (u >= num_nodes) | (v >= num_nodes)
        for offenders, mask in ((fractional, broken), (negative, below), (outside, above)):
            offenders.add(mask, lambda i: f"row {row + i:,}: {u[i]} -> {v[i]}")  # noqa: B023
        good = ~(broken | below | above)
        row += len(u)
        u, v = (u, v) if good.all() else (u[good], v[good])
        yield u.astype(np.int64, copy=False), v.astype(np.int64, copy=False)
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
    """(nodes that have rows, all nodes): what the matrix, `x` or graph.num_nodes says, else 1 + the largest number."""
    given, rows, side = policy.num_nodes, None if x is None else x.shape[0], edges.num_nodes
    for what, count in (("x", rows), ("the adjacency matrix", side)):
        if given is not None and count not in (None, given):
            raise ValueError(f"{what} has {count:,} rows; graph.num_nodes={given} must be equal or left out")
    if rows is not None and side not in (None, rows):
        raise ValueError(f"x has {rows:,} rows for {side:,} nodes; they must be equal")
    stated = next((number for number in (rows, side, given) if number is not None), None)
    total = stated or 0
    if stated is None or (policy.unknown == "add" and side is None):
        ends = (end for u, v, _ in edges.chunks() for end in (u, v))
        largest = max((float(end.max(where=np.isfinite(end), initial=0)) for end in ends), default=0.0)
        total = max(total, int(min(largest, 2.0**64)) + 1)
    if given is None and total > max(_FEW_NODES, _NODES_PER_END * 2 * edges.num_rows):
        # one damaged number must not ask for all memory
        meant = f"; graph.num_nodes={total} says that it is meant" if total <= MAX_NODES else ""
        raise ValueError(
            f"{edges.num_rows:,} edge rows, which name at most {2 * edges.num_rows:,} nodes, would make a graph of "
            f"{total:,}, and {MAX_NODES:,} are the most that can be{meant}"
        )
    return total if stated is None else stated, total


def _write_dense(folder: Path, rows: DenseRows, nonfinite: str, added: int) -> FeatureCounts:
    """Writes x.npy; added rows get the column means, values that are not finite what `nonfinite` says."""
    num_rows, num_columns = rows.shape
    x = create_npy(folder / "x.npy", np.float32, (num_rows + added, num_columns))
    bad = not_finite("the rows of x")
    start = 0
    for block in rows.blocks():
        stop = start + len(block)
        x[start:stop] = block  # the next line finds what overflows float32
        wrong = ~np.isfinite(x[start:stop])
        bad.add(wrong.ravel(), lambda i: f"row {start + i // num_columns:,} column {i % num_columns}")  # noqa: B023
        start = stop
    if nonfinite == "error":
        bad.check()
    if bad.count or added:
        blocks = [x[start : min(start + _BLOCK_ROWS, num_rows)] for start in range(0, num_rows, _BLOCK_ROWS)]
        total = sum(np.where(np.isfinite(block), block, 0).sum(axis=0, dtype=np.float64) for block in blocks)
        present = sum(np.isfinite(block).sum(axis=0) for block in blocks)
        mean = (total / np.maximum(present, 1)).astype(np.float32)
        for block in blocks:
            block[...] = np.where(np.isfinite(block), block, mean if nonfinite == "mean" else 0)
        x[num_rows:] = mean
    x.flush()
    return FeatureCounts(rows.columns, num_columns, imputed=added * num_columns, nonfinite=bad.count)


def _write_sparse(folder: Path, rows: SparseRows, nonfinite: str, added: int) -> FeatureCounts:
    """Writes x_indptr.npy, x_indices.npy and x_data.npy; added rows are empty."""
    ascending = np.diff(rows.indices) > 0
    starts = rows.indptr[1:-1]
    ascending[starts[(starts > 0) & (starts < len(rows.indices))] - 1] = True  # a new row may start anywhere
    if not (ascending.all() and rows.data.all()):
        rows = SparseRows.of(rows.csr())
    wrong = ~np.isfinite(rows.data)
    bad = not_finite("the rows of x")
    bad.add(wrong, lambda i: f"row {np.searchsorted(rows.indptr, i, 'right') - 1:,} column {rows.indices[i]}")
    if nonfinite == "error":
        bad.check()
    if bad.count:  # they become zero, and vanish, or the mean of their column over all other rows
        data = np.where(wrong, 0, rows.data).astype(np.float32)
        if nonfinite == "mean":
            used, columns = np.unique(rows.indices, return_inverse=True)  # there may be far more columns than entries
            total = np.bincount(columns, data.astype(np.float64), len(used))
            good = rows.shape[0] - np.bincount(columns[wrong], minlength=len(used))
            data[wrong] = (total / np.maximum(good, 1))[columns[wrong]]
        rows = SparseRows.of(scipy.sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape))
    indptr = np.concatenate([rows.indptr, np.full(added, rows.indptr[-1])]) if added else rows.indptr
    save_npy(folder / "x_indptr.npy", np.asarray(indptr, np.int64))
    save_npy(folder / "x_indices.npy", np.asarray(rows.indices, np.int32))
    save_npy(folder / "x_data.npy", np.asarray(rows.data, np.float32))
    return FeatureCounts(num_columns=rows.num_columns, imputed=added, nonfinite=bad.count)


def check_keys(keys: Mapping[str, str], roles: Iterable[str], held: Iterable[str], file: str) -> None:
    """Refuses graph.keys that name an unknown role, or something that the file does not hold."""
    for role, name in keys.items():
        if role not in roles:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(roles)}")
        if name not in held:
            raise InputError(f"graph.keys={{{role!r}: {name!r}}} is not in {file}; it holds {shown_names([*held])}")


def check_indptr(indptr: NDArray[Any], num_entries: int, name: str) -> NDArray[np.int64]:
    """Row starts as int64, refused where they do not rise from 0 to `num_entries`."""
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != num_entries or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{name} must rise from 0 to the {num_entries:,} entries of indices")
    return indptr.astype(np.int64, copy=False)


def require(num_columns: int, policy: Policy, remedy: str = "", has_others: bool = False) -> None:
    """Refuses a graph without attributes, before the work of reading its edges; `has_others`: edges give it some."""
    if not num_columns and not has_others and policy.featureless == "error":
        raise ValueError(
            f"the graph has zero attributes; {remedy}graph.featureless=degree gives it {DEGREE} as its one attribute"
        )


def degree_attribute(indptr: NDArray[np.int64], indices: NDArray[Any], *, directed: bool) -> NDArray[np.float32]:
    """log1p(degree) of every node, in + out where arcs are directed, (n, 1)."""
    degree = np.diff(indptr)
    if directed:
        degree = degree + np.bincount(indices, minlength=len(degree))
    return np.log1p(degree).astype(np.float32)[:, None]


def _write_labels(folder: Path, labels: NDArray[Any], num_nodes: int, added: int) -> int:
    """Writes y.npy from 0/1 or booleans, one a node, as a row, a column or flat; returns the number of ones."""
    if labels.size != num_nodes:
        raise ValueError(f"y has {labels.size:,} entries for {num_nodes:,} nodes; they must be equal")
    if labels.shape not in ((num_nodes,), (num_nodes, 1), (1, num_nodes)):
        raise ValueError(f"y has shape {labels.shape}; legal are (n), (n, 1) and (1, n) for n={num_nodes:,} nodes")
    if labels.dtype.kind not in "iufb":
        raise ValueError(f"y is {labels.dtype}; legal are the numbers 0 and 1")
    flat = labels.ravel()
    bad = Offenders("labels are not 0 or 1", "y")
    bad.add((flat != 0) & (flat != 1), lambda i: f"row {i:,}: {flat[i]}")
    bad.check()
    y = np.concatenate([flat == 1, np.zeros(added, np.bool_)]).astype(np.uint8)
    save_npy(folder / "y.npy", y)
    return int(y.sum())


def write_types(folder: Path, types: store.NodeTypes, columns: Sequence[str]) -> None:
    """Writes the types of nodes and their names, beside x.npy if there are `columns`.

    Where no node of a type has a value, as shops have no age, that is no gap: the flag of it becomes NO_COLUMN.
    """
    for name, array in store.type_arrays(types).items():
        save_npy(folder / f"{name}.npy", array)
    flags = [k for k, name in enumerate(columns) if name.endswith(GAP_SUFFIX)]
    if not flags:
        return
    x = np.lib.format.open_memmap(folder / "x.npy", mode="r+")
    blocks = [slice(start, start + _BLOCK_ROWS) for start in range(0, len(x), _BLOCK_ROWS)]
    num_values = np.zeros((NO_TYPE + 1, len(flags)), np.int64)
    for rows in blocks:
        np.add.at(num_values, types.codes[rows], x[rows][:, flags] == 0)
    num_values[NO_TYPE] = 1
    for rows in blocks:
        x[rows, flags] = np.where(num_values[types.codes[rows]] == 0, NO_COLUMN, x[rows][:, flags])
    x.flush()


def write_weights(folder: Path, rows: Iterable[WeightedChunk], where: str, *, directed: bool, adds_up: bool) -> None:
    """Writes weights.npy beside the CSR in `folder`: for each entry the sum over the rows that join the two nodes.

    A binary search finds the entry of a row; sums are float64, in a mapped file. Of an undirected graph the directions
    are joined then: rows of a table add up whichever way they point (`adds_up`), as transfers there and back do; a
    matrix holds an edge and its mirror image, of which the larger counts. Rows whose ends are no nodes are skipped.
    `where` names the column or array in messages.
    """
    indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
    bad = Offenders("weights are missing, not finite or not above 0", where)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as scratch:
        sums = create_npy(Path(scratch) / "sums.npy", np.float64, indices.shape).view(np.ndarray)
        num_rows = 0
        for u, v, given in rows:
            weights = np.asarray(given, np.float64)
            is_bad = ~((weights >= _MIN_WEIGHT) & (weights <= _MAX_WEIGHT))
            bad.add(is_bad, lambda i: f"row {num_rows + i:,}: {weights[i]}")  # noqa: B023
            num_rows += len(weights)
            is_node = (u >= 0) & (v >= 0) & (u < len(indptr) - 1) & (v < len(indptr) - 1)
            at, is_arc = find_arcs(indptr, indices, u[is_node], v[is_node])
            np.add.at(sums, at[is_arc], weights[is_node][is_arc])
        bad.check()
        if not directed:
            join_directions(indptr, indices, adds_up, np.array(indptr[:-1]), sums)
        if (largest := float(sums.max(initial=0.0))) > _MAX_WEIGHT:
            raise ValueError(
                f"the weights of an edge in {where} add up to {largest:.3g}; legal are up to {_MAX_WEIGHT:.3g}"
            )
        out = create_npy(folder / "weights.npy", np.float32, indices.shape)
        out[:] = sums
        out.flush()


def finish_folder(
    folder: Path,
    origin: str,
    policy: Policy,
    edges: EdgeCounts,
    features: FeatureCounts,
    *,
    ids: pa.Array | None = None,
    column_lines: Sequence[Mapping[str, Any]] = (),
    edge_types: Sequence[str] | None = None,
    weights: str | None = None,
    rows: Mapping[str, Any] | None = None,
    new_values: Mapping[str, int] | None = None,
    **counts: Any,
) -> None:
    """Finishes a folder that holds the CSR and the attributes; `counts` are the other fields of the summary.

    A graph without attributes gets log1p(degree), in + out where it is directed, as its one. `column_lines` say what
    became of the columns of tables, `edge_types` are the names of the bits of edge_types, `weights` is what the user
    calls the weights, `rows` is what is said of kept rows, `new_values` counts rows by column.
    """
    if not features.num_columns:
        csr = open_npy(folder / "indptr.npy"), open_npy(folder / "indices.npy")
        save_npy(folder / "x.npy", degree_attribute(*csr, directed=policy.directed))
        features = FeatureCounts((DEGREE,), 1, details=({"name": DEGREE, "method": "degree"},))
    for name, array in {} if ids is None else store.id_arrays(ids).items():
        save_npy(folder / f"{name}.npy", array)
    edge_fields = asdict(edges)
    edge_fields["edge_rows"] += counts.get("unknown_edges", 0)
    summary = IngestSummary(
        origin=origin,
        num_nodes=open_npy(folder / "indptr.npy").shape[0] - 1,
        num_attributes=features.num_columns,
        imputed_values=features.imputed,
        nonfinite_values=features.nonfinite,
        **edge_fields,
        **counts,
    )
    details = {"counts": asdict(summary), "policy": asdict(policy), "columns": list(features.details)}
    details |= {"new_values": dict(new_values)} if new_values else {}
    named = {
        "ingest": details | {"told": list(column_lines)},
        "edge_types": edge_types,
        "weights": weights,
        "rows": rows,
    }
    info = {name: value for name, value in named.items() if value is not None}
    store.seal_folder(folder, features.num_columns, features.columns, policy.directed, info)
