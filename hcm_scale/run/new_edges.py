"""Edges of a new table, scored by a finished run: nothing is trained, and no graph is read again.

Each row is judged by itself against the graph of the run, as if its edge were one more of it; what that means is said
in `score/edge_surprise.py`. A row whose edge the run has gets the numbers of that edge. Of any other pair the hop is
predicted by every parameter sample, from embeddings of all nodes that are kept beside the stages:

    run/embeddings/  VIEW-00000.npy ...   (n, width) float32, one a view and sample: 4 n width bytes each
                     surprises.npy        those of all edges of the run in order, which tell ranks: 8 bytes an edge
                     manifest.json        the key of the scores that it is of, the p that flags end at, hashes

The folder is made when edges are first scored, and again after the run was; nothing else reads it. An id that the run
does not know is a later node: its embedding is the mean of those of the nodes that the table joins it to, and it has no
attributes. Where an end has no such node nothing is told of the edge, nor of one from a node to itself.

The table is read twice, its ends first, then all rows in parts of 262,144. `write_scored` keeps every part as a file
beside the output, and after the last joins them; the same call after a kill goes on behind the parts that are whole.
Memory: what `EdgeData` takes, the ids, and a part: its rows, and the embeddings of its nodes under one sample.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base import files
from hcm_scale.base import parquet as row_groups
from hcm_scale.base.names import Hop
from hcm_scale.base.npy import open_npy, save_npy
from hcm_scale.base.spmm import mean_rows
from hcm_scale.base.threads import prefetch, run_in_threads
from hcm_scale.config import Config, TablesGraph, stored_options, with_options
from hcm_scale.ingest.edge_rows import EdgeRows, check_flat, with_edge_columns
from hcm_scale.ingest.policy import Columns
from hcm_scale.ingest.table_files import TableFiles, TableSource, open_table
from hcm_scale.report.edges import StrangeEdges
from hcm_scale.run import pipeline
from hcm_scale.run.sources import open_trained
from hcm_scale.run.stages import RunContext, scoring_of
from hcm_scale.run.workspace import Workspace, open_stages, record_path, repair_hint, stage_keys
from hcm_scale.score.edge_index import EdgeIndex, PairHead
from hcm_scale.score.edge_surprise import EdgeNumbers, Partners
from hcm_scale.score.edges import EdgeHops, predict_edges
from hcm_scale.stages.edges import View
from hcm_scale.stages.embedding import embed_samples

FOLDER, KIND, FORMAT = "embeddings", "hcm_scale embeddings", 1
PART_ROWS = 1 << 18
STATUS = ("edge", "new", "new account", "unknown", "self")
_SURPRISES = "surprises.npy"
Nodes = NDArray[np.int64]
Sample = tuple[NDArray[np.float32], PairHead]
Part = tuple[pa.Table, Nodes, Nodes]


class Stored(NamedTuple):
    """The folder of embeddings: by view those of each sample, and its head; surprises in order; where flags end."""

    folder: Path
    samples: Sequence[Sequence[Sample]]
    surprises: NDArray[np.float64]
    flags_end: float
    hop: Hop


@dataclass(frozen=True, eq=False)
class NewEdges:
    """The rows of a table of new edges, and the run that they are scored by."""

    rows: EdgeRows
    found: StrangeEdges
    stored: Stored
    key: str  # of the run, the table and its columns

    def table(self) -> pa.Table:
        """All rows, scored."""
        return pa.concat_tables(map(self.scored, self.parts()))

    def parts(self) -> Iterator[Part]:
        """Streams the rows and the nodes of their ends, `PART_ROWS` at a time; the next are read meanwhile."""
        return prefetch(_in_parts(self.rows.batches(), PART_ROWS), lambda part: part, depth=1)

    def scored(self, part: Part) -> pa.Table:
        """Rows with the numbers of their edges."""
        return with_edge_columns(part[0], self.score(*part[1:]))

    def score(self, left: Nodes, right: Nodes) -> pa.Table:
        """The numbers of edges between nodes of the run and later ones, (k) rows."""
        data, later = self.found.data, self.found.later
        num_nodes, size = data.edges.num_nodes, len(data.features)
        ends = (left, right) if data.edges.directed else (np.minimum(left, right), np.maximum(left, right))
        pairs, place = np.unique(ends[0] * size + ends[1], return_inverse=True)
        left, right = np.divmod(pairs, size)
        edge, is_told = data.edges.find(left, right), left != right
        status = np.where(edge >= 0, 0, np.where(np.maximum(left, right) < num_nodes, 1, 2))
        if later is not None:
            has_none = np.append(np.zeros(num_nodes, bool), np.diff(later.indptr) == 0)
            is_told &= ~(has_none[left] | has_none[right])
        status[~is_told] = np.where(left == right, 4, 3)[~is_told]
        told, at = np.flatnonzero(is_told), np.cumsum(is_told) - 1
        numbers = self._numbers(left[told], right[told], edge[told])
        columns = self.found.columns(numbers, self.stored.flags_end)
        usual = self.stored.surprises
        rank = 1 + len(usual) - np.searchsorted(usual, columns["surprise"], side="right")
        rows = pa.table({"rank": rank} | columns).take(pa.array(at[place], mask=~is_told[place]))
        return rows.add_column(1, "status", pa.array(STATUS).take(pa.array(status[place])))

    def _numbers(self, left: Nodes, right: Nodes, edge: Nodes) -> EdgeNumbers:
        data, new = self.found.data, np.flatnonzero(edge < 0)
        hop, var = data.hop[edge], data.var[edge]
        if len(new):
            hop[new], var[new] = self._predict(left[new], right[new])
        return data.compare(left, right, hop, var)

    def _predict(self, left: Nodes, right: Nodes) -> EdgeHops:
        """Mean and variance of the hops of pairs in ascending order."""
        num_nodes, later = self.found.data.edges.num_nodes, self.found.later
        nodes, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        left, right = places.reshape(2, -1)
        pairs = _as_edges(left, right, len(nodes), self.found.data.edges.directed)
        known = indices = nodes[nodes < num_nodes]
        indptr = np.arange(len(known) + 1)
        if later is not None:
            shape = len(later.indptr) - 1, num_nodes
            rows = sparse.csr_array((np.ones(len(later.indices), bool), later.indices, later.indptr), shape=shape)
            rows = rows[nodes[len(known) :] - num_nodes]
            indptr = np.append(indptr, indptr[-1] + rows.indptr[1:])
            indices = np.append(indices, rows.indices)
        z = np.empty((len(nodes), self.stored.samples[0][0][0].shape[1]), np.float32)

        def embedded(samples: Sequence[Sample]) -> Iterator[tuple[torch.Tensor, PairHead]]:
            for whole, head in samples:
                run_in_threads(len(z), mean_rows, indptr, indices, whole, 0, z)
                yield torch.from_numpy(z), head

        views = [predict_edges(pairs, embedded(samples), hop=self.stored.hop) for samples in self.stored.samples]
        return EdgeHops(*(np.mean(of_views, axis=0) for of_views in zip(*views, strict=True)))


def _as_edges(left: Nodes, right: Nodes, num_nodes: int, directed: bool) -> EdgeIndex:
    """Pairs in ascending order as the edges of a graph, numbered as they come: its rows hold right ends alone."""
    indptr = np.searchsorted(left, np.arange(num_nodes + 1))
    return EdgeIndex(indptr, right.astype(np.int32), indptr, directed, np.empty(0, np.uint64), 0)


def open_new_edges(run_dir: Path, table: TableSource, source: str | None = None, target: str | None = None) -> NewEdges:
    """The rows of a table, its path or an Arrow table, to be scored by the run; its embeddings are made if need be.

    The columns of the ends are called as in the table of the run, unless names are given.
    """
    options = stored_options(run_dir)
    own = {name: options.get(f"graph.{name}", getattr(TablesGraph(), name)) for name in ("max_bytes", "id_type")}
    given = {"source_column": source, "target_column": target}
    names = {name: value or options.get(f"graph.{name}") or name.split("_")[0] for name, value in given.items()}
    opened = open_table("table", table, own["max_bytes"])
    for name, value in names.items():
        opened.check_columns(name, [value])
    found = pipeline.open_edges(run_dir)
    columns = Columns(names["source_column"], names["target_column"], id_type=own["id_type"])
    rows = EdgeRows(opened, columns, found.evidence.graph)
    later = Partners(*rows.add_later())
    found = StrangeEdges(found.evidence, later if len(later.indptr) > 1 else None)
    key = files.hash_value([_scores_key(run_dir), _stamp(opened), names, PART_ROWS, FORMAT])
    return NewEdges(rows, found, _open_stored(run_dir, found), key)


def _stamp(table: TableFiles) -> list[list[str]]:
    return [[str(path), files.hash_once(path)] for path in table.paths]


def _scores_key(run_dir: Path) -> str:
    return stage_keys(run_dir).get("scores", "")


def _open_stored(run_dir: Path, found: StrangeEdges) -> Stored:
    """The embeddings of the run, which are made where there are none of its scores."""
    config = with_options(Config(), {k: v for k, v in stored_options(run_dir).items() if not k.startswith("graph.")})
    trained, folder = open_trained(config), run_dir / FOLDER
    parts = ["propagated", *([] if trained else ["train"])] if config.sampling.first_hop == "exact" else ["train"]
    names = ["graph", "purified", *(f"{part}-{view}" for part in parts for view in config.score.views)]
    context = RunContext(config, Workspace(run_dir), "cpu", trained=trained)
    context.workspace.folders.update(zip(names, open_stages(run_dir, *names), strict=True))
    views = {name: context.view(name) for name in config.score.views}
    with files.file_lock(record_path(folder, ".lock")):
        if not _is_of(folder, _scores_key(run_dir)):
            files.remove_temporary(run_dir, FOLDER)
            with files.replacing_folder(folder) as fresh:
                _make(fresh, views, context.exact_first_hop, found, _scores_key(run_dir))
    manifest = files.read_manifest(folder, KIND, FORMAT)
    files.check_folder(folder, manifest["files"], repair_hint(folder))
    samples = [
        [(open_npy(folder / _name(name, i)), PairHead.of(sample)) for i, sample in enumerate(view.samples)]
        for name, view in views.items()
    ]
    return Stored(folder, samples, open_npy(folder / _SURPRISES), manifest["flags_end"], scoring_of(config).hop)


def _is_of(folder: Path, key: str) -> bool:
    return (folder / files.MANIFEST).is_file() and files.read_manifest(folder, KIND, FORMAT).get("of") == key


def _name(view: str, sample: int) -> str:
    return f"{view}-{sample:05d}.npy"


def _make(folder: Path, views: dict[str, View], propagated: bool, found: StrangeEdges, key: str) -> None:
    for name, view in views.items():
        made = embed_samples(
            view.samples.model, view.samples, view.structure, view.x, propagated=propagated, device="cpu"
        )
        for i, (z, _) in enumerate(made):
            save_npy(folder / _name(name, i), z.numpy())
    save_npy(folder / _SURPRISES, np.sort(found.ranked.surprise))
    body = {"of": key, "flags_end": found.flags_end, "files": files.hash_folder(folder)}
    files.write_manifest(folder, KIND, FORMAT, body)


def _in_parts(batches: Iterator[tuple[pa.RecordBatch, Nodes, Nodes]], num_rows: int) -> Iterator[Part]:
    """Joins batches into parts of exactly so many rows, but for the last."""
    held: list[tuple[pa.RecordBatch, Nodes, Nodes]] = []
    count = 0
    for batch, left, right in batches:
        while len(batch):
            some = slice(0, num_rows - count)
            held.append((batch[some], left[some], right[some]))
            batch, left, right = batch[some.stop :], left[some.stop :], right[some.stop :]
            if (count := count + len(held[-1][0])) == num_rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(held: Sequence[tuple[pa.RecordBatch, Nodes, Nodes]]) -> Part:
    batches, left, right = zip(*held, strict=True)
    return pa.Table.from_batches(batches), np.concatenate(left), np.concatenate(right)


def write_scored(edges: NewEdges, out: Path) -> tuple[int, int]:
    """Writes all rows, scored, in their order, to a .csv or .parquet; how many they are, and were written before."""
    parts, is_csv = out.with_name(f".{out.name}.parts"), out.suffix == ".csv"
    check_flat(edges.rows.schema, out)
    write = _write_csv if is_csv else _write_parquet
    with files.file_lock(parts / "lock"):
        if not (parts / edges.key).exists():
            for path in [path for path in parts.iterdir() if path.name != "lock"]:
                path.unlink()
            files.write_bytes(parts / edges.key, b"")
        paths, num_rows, num_kept = list[Path](), 0, 0
        for number, part in enumerate(edges.parts()):
            paths.append(parts / f"part-{number:06d}")
            num_rows += len(part[0])
            if paths[-1].exists():
                num_kept = num_rows
            else:
                with files.replacing_file(paths[-1]) as fresh:
                    write(edges.scored(part), fresh, number == 0)
        with files.replacing_file(out) as fresh, open(fresh, "wb") as stream:
            if is_csv:
                for path in paths:
                    with open(path, "rb") as source:
                        shutil.copyfileobj(source, stream)
            else:
                row_groups.join(stream, (row_groups.Group.of(memoryview(path.read_bytes())) for path in paths))
        shutil.rmtree(parts)
    return num_rows, num_kept


def _write_csv(table: pa.Table, path: Path, is_first: bool) -> None:
    pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(include_header=is_first))


def _write_parquet(table: pa.Table, path: Path, is_first: bool) -> None:
    pq.write_table(table, path, row_group_size=PART_ROWS)
