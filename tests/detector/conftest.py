"""A small graph in the forms that people bring, and settings that fit it in a second or two."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from hcm_scale.graph import Graph
from hcm_scale.synthetic import families as synthetic

SMALL = {
    "hops.num_sources": 100,
    "hops.pairs_per_class": 30,
    "sampling.batch_pairs": 256,
    "model.width": 8,
    "model.head_width": 8,
    "posterior.burn_in_steps": 5,
    "posterior.num_samples": 2,
    "posterior.thin_steps": 1,
}


class World(NamedTuple):
    graph: Graph
    edges: pd.DataFrame
    nodes: pd.DataFrame


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    return SMALL


@pytest.fixture(scope="session")
def world() -> World:
    """200 nodes named n000 ..., whose ids stand in the column `account` of the node table."""
    graph = synthetic.community(200, num_attributes=3, seed=0)
    rows = np.repeat(np.arange(200), np.diff(graph.indptr))
    once = rows < graph.indices
    ids = np.array([f"n{node:03}" for node in range(200)])
    edges = pd.DataFrame({"from": ids[rows[once]], "to": ids[graph.indices[once]]})
    attributes = {f"a{column}": graph.x[:, column] for column in range(3)}
    return World(graph, edges, pd.DataFrame({"town": np.where(rows[:200] % 2, "x", "y"), "account": ids, **attributes}))
