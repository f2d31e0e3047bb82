"""What the report counts in slices of many nodes: equal to the plain formulas, at any number of threads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.graph.store import KIND_NAMES, Graph
from hcm_scale.report import digest
from hcm_scale.report.evidence import Evidence, count_scored, highest_hop, usual_hop
from hcm_scale.report.reasons import first_by_kind
from hcm_scale.report.write import read_first, write_report
from hcm_scale.score.evidence import KINDS
from hcm_scale.score.table import FILE, kind_rank, write_scores

World = Callable[..., Any]
MANY = 2 * (1 << 18) + 5  # nodes: more than two slices
EMPTY = Graph(np.zeros(MANY + 1, np.int64), np.zeros(0, np.int32))


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "get_num_threads", lambda: request.param)


@pytest.fixture(scope="module")
def pair() -> tuple[Graph, Graph]:
    """A graph of three kinds of nodes, of degrees 0 to 4, and the same without some of its edges."""
    rng = np.random.default_rng(0)
    had = rng.integers(0, 5, MANY)
    has = rng.integers(0, had + 1)
    graphs = [Graph(np.r_[0, np.cumsum(degrees)], np.zeros(degrees.sum(), np.int32)) for degrees in (had, has)]
    kind = rng.choice(3, MANY, p=[0.9, 0.06, 0.04]).astype(np.uint8)
    return Graph(graphs[0].indptr, graphs[0].indices, kind=kind, y=(kind > 0).astype(np.uint8)), graphs[1]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("labelled", [True, False])
def test_distribution__is_that_of_all_values_at_once(labelled: bool, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    values, y = rng.normal(size=MANY).round(2), rng.random(MANY) < 0.03
    values[rng.integers(0, MANY, 100)] = np.nan
    values[7] = np.inf
    monkeypatch.setattr(digest, "_LOOKED_AT", 10_000)
    found = digest.distribution(values, y if labelled else None, bins=20)
    known = np.isfinite(values)
    groups = (
        {"normal": values[known & ~y], "anomalous": values[known & y]} if labelled else {"all nodes": values[known]}
    )
    seen = [np.quantile(group[:: 1 + len(group) // 10_000], [0.002, 0.998]) for group in groups.values()]
    edges = np.linspace(np.min(seen), np.max(seen), 21)
    every = np.concatenate(list(groups.values()))
    assert found == {
        "edges": edges.round(6).tolist(),
        "groups": {
            name: (np.histogram(group.clip(edges[0], edges[-1]), edges)[0] / len(group)).round(6).tolist()
            for name, group in groups.items()
        },
        "sizes": {name: len(group) for name, group in groups.items()},
        "folded": [int((every < edges[0]).sum()), int((every > edges[-1]).sum())],
    }


@pytest.mark.usefixtures("threads")
def test_degrees__are_counted_over_all_nodes(pair: tuple[Graph, Graph]):
    graph, purified = pair
    had, has = graph.degrees, purified.degrees
    assert digest.max_degree(graph) == 4
    assert count_scored(graph) == (had > 0).sum()
    found = digest.purification(graph, purified)
    assert found is not None
    assert found["num_isolated"] == ((has == 0) & (had > 0)).sum()
    own = [graph.kind == code for code in range(3)]
    assert found["dropped_share"] == {
        name: round(1 - has[mask].sum() / had[mask].sum(), 6) for name, mask in zip(KIND_NAMES, own, strict=True)
    }


@pytest.mark.parametrize("most", [3, MANY])
def test_heads__are_the_first_of_all_slices(most: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(2)
    node, places = rng.permutation(MANY), rng.integers(0, most, MANY).astype(np.int32)
    first = np.lexsort((node, places))[:10]
    wanted = [
        {"id": u, "node": u, "rank": row + 1, "place": place}
        for u, row, place in zip(node[first].tolist(), first.tolist(), places[first].tolist(), strict=True)
    ]
    ranks = {kind_rank(kind): places if kind == "context" else np.full(MANY, 5) for kind in KINDS}
    table = pa.table(ranks | {"node": node, "evidence": node})
    for count in (1, 2, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=count: count)
        assert first_by_kind(EMPTY, table, 10) == {"context": wanted}


@pytest.mark.usefixtures("threads")
def test_hops__are_those_of_all_edges():
    hops = np.random.default_rng(3).uniform(1, 4, MANY).astype(np.float32)
    hops[::3] = np.nan
    hops[-2] = 5
    assert highest_hop(hops) == 5
    assert highest_hop(hops[:0]) == highest_hop(np.full(3, np.nan, np.float32)) == 0
    assert usual_hop(hops) == np.nanmedian(hops)


@pytest.mark.usefixtures("threads")
def test_evidence__finds_the_row_of_every_node():
    node = np.random.default_rng(4).permutation(MANY)
    none = np.zeros(0, np.float32)
    evidence = Evidence.of(EMPTY, None, pa.table({"node": node}), none, none)
    assert (node[evidence.row_of_node] == np.arange(MANY)).all()


def test_report__of_a_file_is_that_of_the_whole_table(scored_world: World, tmp_path: Path):
    world = scored_world(2500, rank_by="score")
    table = world.scores.append_column("p", [np.linspace(0, 1, 2500)])
    table = table.append_column("flagged", [np.arange(2500) % 3 == 0])
    write_scores(tmp_path / FILE, [partial(table.slice, first, 300) for first in range(0, 2500, 300)])
    options: dict[str, Any] = {"run": {}, "top": 12, "table_rows": 1400, "csv": True}
    of_table = write_report(tmp_path / "table", **options, **world._asdict() | {"scores": table})
    of_file = write_report(tmp_path / "file", **options, **world._asdict() | {"scores": tmp_path / FILE})
    assert of_file == of_table
    assert (tmp_path / "file" / "scores.csv").read_bytes() == (tmp_path / "table" / "scores.csv").read_bytes()
    for count in (1, 300, 301, 9999):
        assert read_first(tmp_path / FILE, count).equals(table.slice(0, count))
