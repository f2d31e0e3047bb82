"""A small graph, and the tables that it was made into."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from helpers import small_graph

from hcm_scale.graph import Graph


class World(NamedTuple):
    graph: Graph
    edges: pd.DataFrame
    nodes: pd.DataFrame

    def ends(self) -> np.ndarray:
        """(2, entries): both ends of every entry of the adjacency."""
        return np.stack([np.repeat(np.arange(200), np.diff(self.graph.indptr)), self.graph.indices])


@pytest.fixture(scope="session")
def world() -> World:
    """200 nodes named n000 ..., whose ids are in the column `account` of the node table."""
    graph = small_graph()
    rows, columns = World(graph, None, None).ends()
    once = rows < columns
    ids = np.array([f"n{node:03}" for node in range(200)])
    edges = pd.DataFrame({"from": ids[rows[once]], "to": ids[columns[once]]})
    attributes = {f"a{column}": graph.x[:, column] for column in range(3)}
    return World(graph, edges, pd.DataFrame({"town": np.where(rows[:200] % 2, "x", "y"), "account": ids, **attributes}))
