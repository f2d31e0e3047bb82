"""The hint that attributes say little: where they are noise, and not where they belong to communities."""

from dataclasses import replace

import numpy as np
import pytest

from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import attribute_signal, cosine_distance, weak_attributes_text
from hcm_scale.synthetic import families


@pytest.fixture(scope="module")
def graph() -> Graph:
    return families.community(1000, num_attributes=8, seed=1)


def test_weak_text__is_said_of_noise_and_of_nothing_else(graph):
    noise = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    said = weak_attributes_text(graph, noise, [{"step": 1}, {"loss": 1.17}], 4)
    assert said.startswith("The attributes say little about distances in this graph (loss 1.17 of 1.39): neighbours")
    assert "graph:" in weak_attributes_text(graph, noise)
    assert weak_attributes_text(graph, np.asarray(graph.x)) == weak_attributes_text(graph, None) == ""


def test_likeness__is_the_share_of_pairs_that_are_farther_than_an_edge(graph):
    x = np.asarray(graph.x)
    sources = np.repeat(np.arange(1000), np.diff(graph.indptr))
    joined = cosine_distance(x[sources], x[graph.indices])
    pairs = np.random.default_rng(0).integers(0, len(sources), (2, 20_000))
    apart = cosine_distance(x[sources[pairs[0]]], x[graph.indices[pairs[1]]])
    slow = np.mean([(apart > distance).mean() for distance in joined[::7]])
    assert attribute_signal(graph, x) == pytest.approx(slow, abs=0.02)
    assert attribute_signal(graph, np.ones((1000, 3), np.float32)) == 0.5
    assert attribute_signal(replace(graph, indptr=np.zeros(1001, np.int64), indices=graph.indices[:0]), x) is None
