"""A small scored graph for the tests of report, page and explain."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from kinds import hops_of, inputs_of, scores_of

from hcm_scale.edges.payments import edges_of_report
from hcm_scale.features import purify as purification
from hcm_scale.graph import Graph
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.write import AboutRun, ScoredGraph, write_report
from hcm_scale.score import table as ranked_table
from hcm_scale.score.edge_index import edge_index


class ScoredWorld(NamedTuple):
    """A scored graph: the arguments that `write_report` and `Evidence.of` share."""

    graph: Graph
    purified: Graph
    scores: pa.Table
    edge_mean: np.ndarray
    edge_var: np.ndarray
    x: np.ndarray | None

    def evidence(self) -> Evidence:
        return Evidence.of(*self)

    def report(self, out: Path, group_rows: int = 1000, **options: Any) -> dict[str, Any]:
        """Writes scores.parquet and the report into a folder; returns the report."""
        starts = range(0, len(self.scores), group_rows)
        path = out / "scores.parquet"
        ranked_table.write_scores(path, [partial(self.scores.slice, first, group_rows) for first in starts])
        scored = ScoredGraph(**self._asdict() | {"scores": path})
        about = {name: options.pop(name) for name in [*options] if name in AboutRun.__dataclass_fields__}
        edges = partial(edges_of_report, ranks=True, count_rows=None)
        return write_report(out, scored, AboutRun(**{"run": {}} | about), **{"strange_edges": edges} | options)


def csr(pairs: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    arcs = np.r_[pairs, pairs[:, ::-1]]
    arcs = arcs[np.lexsort((arcs[:, 1], arcs[:, 0]))]
    counts = np.bincount(arcs[:, 0], minlength=num_nodes)
    return np.r_[0, np.cumsum(counts)].astype(np.int64), arcs[:, 1].astype(np.int32)


@pytest.fixture(scope="session")
def scored_world() -> Callable[..., ScoredWorld]:
    """Makes a ring with chords, random predictions, every fifth edge dropped; the top 5 % are the known anomalies."""

    def make(
        num_nodes: int = 60,
        *,
        columns: tuple[str, ...] = ("size", "age", "colour"),
        first_ids: tuple[str, ...] = (),
        labelled: bool = True,
        rank_by: str = "ahp",
        seed: int = 0,
    ) -> ScoredWorld:
        rng = np.random.default_rng(seed)
        ring = np.arange(num_nodes)
        pairs = np.r_[np.c_[ring, (ring + 1) % num_nodes], rng.integers(0, num_nodes, (2 * num_nodes, 2))]
        pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
        indptr, indices = csr(pairs, num_nodes)
        kept = np.arange(len(pairs)) % 5 > 0
        mean = rng.uniform(1, 4, len(pairs)).astype(np.float32)
        var = rng.uniform(0, 0.3, len(pairs)).astype(np.float32)
        x = rng.normal(size=(num_nodes, len(columns))).astype(np.float32)
        edges = edge_index(indptr, indices)
        distance = 1 - purification.edge_similarity(indptr, indices, x, "cosine")
        scores = scores_of(inputs_of(edges, x, distance=distance, hops=hops_of(edges, mean, var)))
        ids = [f"node-{i}" for i in range(num_nodes)]
        for node, name in zip(np.argsort(-scores.by(rank_by), kind="stable"), first_ids, strict=False):
            ids[node] = name
        y = (scores.by("ahp") > np.quantile(scores.by("ahp"), 0.95)).astype(np.uint8) if labelled else None
        graph = Graph(indptr, indices, x=x, y=y, ids=pa.array(ids), columns=columns)
        purified = Graph(*csr(pairs[kept], num_nodes))
        table = pa.concat_tables(make() for make in ranked_table.row_groups(graph, scores, rank_by))
        return ScoredWorld(graph, purified, table, mean, var, x)

    return make
