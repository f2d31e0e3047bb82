"""Summaries: equal to the plain formulas on the whole arrays, at any number of threads and block size."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from hcm_scale.graph import Graph
from hcm_scale.report import digest
from hcm_scale.report.evidence import highest_hop

World = Callable[..., Any]
MANY = 2 * (1 << 18) + 5  # nodes: more than two slices


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


def test_distribution__counts_every_node_once():
    rng = np.random.default_rng(0)
    values, y = rng.normal(size=1000), np.arange(1000) % 10 == 0
    values[5], values[6] = 1e9, np.nan
    shown = digest.distribution(values, y, bins=20)
    assert shown is not None
    assert len(shown["edges"]) == 21
    assert shown["sizes"] == {"normal": 899, "anomalous": 100}
    assert [sum(shares) for shares in shown["groups"].values()] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert shown["edges"][-1] < 10  # one outlier does not flatten the rest
    known = values[np.isfinite(values)]
    beyond = [int(np.sum(known < shown["edges"][0])), int(np.sum(known > shown["edges"][-1]))]
    assert shown["folded"] == beyond
    assert beyond[1] >= 1
    assert digest.distribution(np.full(3, np.nan)) is None
    assert digest.distribution(np.ones(5)) is not None


@pytest.mark.parametrize(
    "values",
    [np.arange(4800) % 49, 0.1 * (np.arange(4800) % 49), 1.0 + np.spacing(1.0) * (np.arange(600) % 6), [1e17, 1e17]],
)
def test_distribution__counts_values_on_and_between_the_ends_of_bins(values: Any):
    values = np.asarray(values, np.float64)
    found = digest.distribution(values)
    low, high = np.quantile(values, [0.002, 0.998])
    edges = np.linspace(low, high if high > low else low + 1.0, 49)
    assert found is not None
    assert found["groups"]["all nodes"] == (np.histogram(values, edges)[0] / len(values)).round(6).tolist()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("labelled", [True, False])
def test_distribution__is_that_of_all_values_at_once(labelled: bool, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    values, y = rng.normal(size=MANY).round(2), rng.random(MANY) < 0.03
    values[rng.integers(0, MANY, 100)] = np.nan
    values[7] = np.inf
    monkeypatch.setattr(digest, "_QUANTILE_SAMPLE", 10_000)
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


def test_hop_distribution__does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch):
    hops = np.random.default_rng(0).uniform(1, 4, 1000).astype(np.float32)
    hops[3] = np.nan
    whole = digest.hop_distribution(hops, highest_hop(hops))
    monkeypatch.setattr(digest, "_BLOCK_EDGES", 7)
    assert digest.hop_distribution(hops, highest_hop(hops)) == whole
    assert digest.hop_distribution(hops[:0], 0.0) is None
    assert digest.hop_distribution(np.full(3, np.nan, np.float32), 0.0) is None


@pytest.mark.usefixtures("threads")
def test_degrees__are_counted_over_all_nodes(pair: tuple[Graph, Graph]):
    graph, purified = pair
    had, has = graph.degrees, purified.degrees
    assert digest.max_degree(graph) == 4
    found = digest.purification(graph, purified)
    assert found is not None
    assert found["num_isolated"] == ((has == 0) & (had > 0)).sum()


def test_purification__counts_the_dropped_edges(scored_world: World):
    world = scored_world()
    found = digest.purification(world.graph, world.purified)
    assert found is not None
    assert found["num_dropped"] == world.graph.num_edges - world.purified.num_edges
