"""Edges of a new table, scored by a finished run: nothing is trained, and no graph is read again.

Each row is judged by itself against the graph of the run, as if its edge were one more of it (edges/surprise.py).
A row whose edge the run has gets the numbers of that edge. Of any other pair the hop is predicted by every parameter
sample, from embeddings of all nodes that are kept beside the stages:

    run/embeddings/  VIEW-00000.npy ...   (n, width) float32, one a view and sample: 4 n width bytes each
                     surprises.npy        those of all edges of the run in order, which tell ranks: 8 bytes an edge
                     manifest.json        the key of the scores that it is of, the p that flags end at, hashes

The folder is made when edges are first scored, and again after the run was; nothing else reads it. An id that the run
does not know is a later node: its embedding is the mean of those of the nodes that the table joins it to, and it has no
attributes. Where an end has no such node nothing is told of the edge, nor of one from a node to itself.

Where the run keeps rows, as of payments, each row is judged by itself too (edges/stream.py): rank, surprise, p, flag
and evidence are the row's then, and those of its pair of ends are called pair_rank and so on.

The table is read twice, its ends first, then all rows in parts of about 262,144. `write_scored` keeps each as a file
beside the output, and joins them after the last; the same call after a kill goes on behind those that are whole.
Memory: what `EdgeData` takes, the ids, 16 bytes a node, and a part: its rows, and embeddings under one sample.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pyarrow.csv import WriteOptions, write_csv
from scipy import sparse

from hcm_scale.base import files
from hcm_scale.base.names import Hop
from hcm_scale.base.npy import FINITE, open_array, save_npy
from hcm_scale.base.parquet import Group, join
from hcm_scale.base.sheets import check_flat, quoted
from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import prefetch, run_in_threads
from hcm_scale.edges.rows import EdgeRows, Rows, with_edge_columns
from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.edges.stream import NewRows, open_new_rows
from hcm_scale.edges.surprise import NewNodes
from hcm_scale.ingest.table_files import TableSource, open_table
from hcm_scale.score.edge_index import EdgeIndex, PairHead
from hcm_scale.score.edges import EdgeHops, predict_edges

FOLDER, KIND, FORMAT = "embeddings", "hcm_scale embeddings", 1
CHUNK_ROWS = 1 << 18
STATUS = pa.array(["edge", "new", "new account", "unknown", "self"])
_SURPRISES = "surprises.npy"
Nodes = NDArray[np.int64]
Sample = tuple[NDArray[np.float32], PairHead]
Run = Any  # run.finished.FinishedRun, in a room above


@dataclass(frozen=True, eq=False)
class NewEdges:
    """The rows of a table of new edges, and the run that they are scored by."""

    rows: EdgeRows
    new_nodes: NewNodes
    edges: StrangeEdges
    key: str  # of the run, the table and its columns
    folder: Path  # of the embeddings
    views: Sequence[Sequence[Sample]]  # by view: embeddings and head of each sample
    surprises: NDArray[np.float64]  # of the edges of the run, in order
    flags_end: float
    hop: Hop
    payments: NewRows | None = None  # where the run keeps rows

    def table(self) -> pa.Table:
        """All rows, scored."""
        table = pa.concat_tables(self.scored(*chunk) for chunk in self.chunks())
        self.keep()
        return table

    def keep(self) -> None:
        """Has the run keep rows that tables which come later are judged by."""
        if self.payments is not None:
            self.payments.keep()

    def chunks(self) -> Iterator[tuple[int, list[Rows]]]:
        """Streams the rows, about `CHUNK_ROWS` at a time after the number of the first; the next are read meanwhile."""
        return prefetch(_in_chunks(self.rows.batches()), lambda chunk: chunk, depth=1)

    def scored(self, first: int, chunk: list[Rows]) -> pa.Table:
        """Rows with their numbers and those of their edges; `first` is the number of the first in the table."""
        batches, left, right = zip(*chunk, strict=True)
        numbers = self.score(np.concatenate(left), np.concatenate(right))
        if self.payments is not None:
            own = self.payments.columns(slice(first, first + len(numbers)))
            of_pair = {f"pair_{name}" if name in own else name: numbers[name] for name in numbers.column_names}
            numbers = pa.table({"rank": own["rank"], "status": of_pair.pop("status")} | own | of_pair)
        return with_edge_columns(pa.Table.from_batches(batches), numbers)

    def score(self, left: Nodes, right: Nodes) -> pa.Table:
        """The numbers of edges between nodes of the run and later ones, a row each; nulls where nothing is told."""
        data, has_any = self.edges.data, np.diff(self._embedded_by.indptr) > 0
        size, num_nodes = self._embedded_by.shape
        ends = (left, right) if data.edges.directed else (np.minimum(left, right), np.maximum(left, right))
        pairs, pair_of_row = np.unique(ends[0] * size + ends[1], return_inverse=True)
        left, right = np.divmod(pairs, size)
        edge, has_numbers = data.edges.find(left, right), (left != right) & has_any[left] & has_any[right]
        status = np.select(
            [left == right, ~has_numbers, edge >= 0, np.maximum(left, right) < num_nodes], [4, 3, 0, 1], 2
        )
        rows, at = np.flatnonzero(has_numbers), np.cumsum(has_numbers) - 1
        left, right, edge, new = left[rows], right[rows], edge[rows], np.flatnonzero(edge[rows] < 0)
        hop, var = data.hop[edge], data.var[edge]
        if len(new):
            hop[new], var[new] = self.predict(left[new], right[new])
        columns = self.edges.columns(data.compare(left, right, hop, var), self.flags_end)
        rank = 1 + len(self.surprises) - np.searchsorted(self.surprises, columns["surprise"], side="right")
        rows = pa.table({"rank": rank} | columns).take(pa.array(at[pair_of_row], mask=~has_numbers[pair_of_row]))
        return rows.add_column(1, "status", STATUS.take(pa.array(status[pair_of_row])))

    @cached_property
    def _embedded_by(self) -> sparse.csr_array:
        """The nodes whose mean embedding a node has, a row each: itself alone, of a later one those it is joined to."""
        nodes = np.arange(num_nodes := self.edges.evidence.graph.num_nodes)
        indptr, indices = np.append(nodes, num_nodes + self.new_nodes[0]), np.append(nodes, self.new_nodes[1])
        return sparse.csr_array((np.ones(len(indices), bool), indices, indptr), shape=(len(indptr) - 1, num_nodes))

    def predict(self, left: Nodes, right: Nodes) -> EdgeHops:
        """Mean and variance of the hops of pairs, which come in ascending order, over the samples."""
        nodes, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        of_left, of_right = places.reshape(2, -1).astype(np.int32)
        indptr = np.searchsorted(of_left, np.arange(len(nodes) + 1))  # of a graph whose rows hold right ends alone
        pairs = EdgeIndex(indptr, of_right, indptr, self.edges.data.edges.directed)
        rows = self._embedded_by[nodes]
        z = np.empty((len(nodes), self.views[0][0][0].shape[1]), np.float32)

        def embedded(samples: Sequence[Sample]) -> Iterator[tuple[torch.Tensor, PairHead]]:
            for whole, head in samples:
                run_in_threads(len(z), mean_rows, rows.indptr.astype(np.int64), rows.indices, whole, 0, z)
                yield torch.from_numpy(z), head

        views = [predict_edges(pairs, embedded(samples), hop=self.hop) for samples in self.views]
        return EdgeHops(*(np.mean(of_views, axis=0) for of_views in zip(*views, strict=True)))


def _in_chunks(batches: Iterator[Rows]) -> Iterator[tuple[int, list[Rows]]]:
    num_rows = first = 0

    def chunk_of(rows: Rows) -> int:
        nonlocal num_rows
        num_rows += len(rows[0])
        return (num_rows - len(rows[0])) // CHUNK_ROWS

    for _, group in groupby(batches, chunk_of):
        yield first, (chunk := list(group))
        first += sum(len(batch) for batch, _, _ in chunk)


def open_new_edges(run: Run, table: TableSource, source: str | None = None, target: str | None = None) -> NewEdges:
    """The rows of a table, whose ends are in columns called as in the run, or as given; makes embeddings if need be."""
    columns = run.edge_columns()
    columns = replace(columns, source=source or columns.source, target=target or columns.target)
    names, opened = [columns.source, columns.target], open_table("table", table)
    for option, name in zip(("source_column", "target_column"), names, strict=True):
        opened.check_columns(option, [name])
    run.stage("scores")  # checked before the table is read
    rows = EdgeRows(opened, columns, run.graph)
    new_nodes = rows.add_new_nodes()
    edges = StrangeEdges(run.evidence, new_nodes) if len(new_nodes[0]) > 1 else run.edges
    payments = open_new_rows(run, opened, rows, columns)
    state = None if payments is None else payments.state_key
    hashes = [[str(path), files.hash_once(path)] for path in opened.paths]
    key = files.hash_value([run.keys["scores"], hashes, names, state])
    return NewEdges(rows, new_nodes, edges, key, **_open_embeddings(run, edges), payments=payments)


def _open_embeddings(run: Run, edges: StrangeEdges) -> dict[str, Any]:
    """The last fields of `NewEdges`; embeddings are made where there are none of the scores of this run."""
    key, folder = run.keys["scores"], run.folder / FOLDER
    with files.file_lock(files.path_inside(run.folder, f"records/{FOLDER}.lock")):
        if not (folder / files.MANIFEST).is_file() or files.read_manifest(folder, KIND, FORMAT).get("of") != key:
            files.remove_temporary(run.folder, FOLDER)
            with files.replacing_folder(folder) as fresh:
                for name in run.views:
                    for i, (z, _) in enumerate(run.embedded(name)):
                        save_npy(fresh / f"{name}-{i:05d}.npy", z.numpy())
                save_npy(fresh / _SURPRISES, np.sort(edges.ranked.surprise))
                body = {"of": key, "flags_end": edges.flags_end, "files": files.hash_folder(fresh)}
                files.write_manifest(fresh, KIND, FORMAT, body)
    remedy, opened = f"remove {folder} to have it made again", []
    manifest = files.read_manifest(folder, KIND, FORMAT, remedy, {"files": dict[str, str], "flags_end": float})
    files.check_folder(folder, manifest["files"], remedy)
    for name, view in run.views.items():
        paths = (folder / f"{name}-{i:05d}.npy" for i in range(len(view.samples)))
        shape = edges.evidence.graph.num_nodes, view.samples.model["width"]
        made = (open_array(path, np.float32, shape, remedy, FINITE) for path in paths)
        opened.append(list(zip(made, map(PairHead.of, view.samples), strict=True)))
    num_edges = edges.evidence.graph.num_edges
    surprises = open_array(folder / _SURPRISES, np.float64, (num_edges,), remedy, FINITE)
    ranks = {"surprises": surprises, "flags_end": manifest["flags_end"]}
    return {"folder": folder, "views": opened, "hop": run.hop} | ranks


def write_scored(edges: NewEdges, out: Path) -> tuple[int, int]:
    """Writes all rows, scored, in their order, to a .csv or .parquet; how many they are, and were written before."""
    check_flat(edges.rows.files.schema, out)
    if out.is_file() and any(path.samefile(out) for path in edges.rows.files.paths):
        raise ValueError(f"{out} is the table itself; name another file for its rows with scores")
    parts, paths, num_rows, num_kept = out.with_name(f".{out.name}.parts"), list[Path](), 0, 0
    if parts.is_symlink():  # what it leads to would be emptied
        raise ValueError(
            f"{parts} is a link, where rows are kept until {out.name} is whole; remove it, or name another"
        )
    with files.file_lock(parts / "lock"):
        if not (parts / edges.key).exists():  # parts of another table, if any
            for path in [path for path in parts.iterdir() if path.name != "lock"]:
                path.unlink()
            files.write_bytes(parts / edges.key, b"")
        for first, chunk in edges.chunks():
            num_rows = first + sum(len(batch) for batch, _, _ in chunk)
            paths.append(parts / f"rows-{first}-{num_rows}")
            if paths[-1].exists():
                num_kept += num_rows - first
            else:
                with files.replacing_file(paths[-1]) as fresh:
                    if out.suffix == ".parquet":
                        pq.write_table(edges.scored(first, chunk), fresh, row_group_size=num_rows)
                    else:
                        write_csv(quoted(edges.scored(first, chunk))[0], fresh, WriteOptions(include_header=first == 0))
        with files.replacing_file(out) as fresh, open(fresh, "wb") as stream:
            if out.suffix == ".parquet":
                join(stream, (Group.of(memoryview(path.read_bytes())) for path in paths))
            for path in paths if out.suffix == ".csv" else ():
                with open(path, "rb") as source:
                    shutil.copyfileobj(source, stream)
        edges.keep()
        shutil.rmtree(parts)
    return num_rows, num_kept
