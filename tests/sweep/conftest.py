"""Words of the command line for a run of a second, with planted anomalies."""

import pytest
from helpers import FAST, as_words


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    graph = ["graph=community", "graph.num_nodes=300", "inject=paper", "inject.num_cliques=1"]
    options = {key: value for key, value in FAST.items() if not key.startswith("hops.")}
    return [*graph, "hops=all", *as_words(options)]  # from all nodes: then the labels do not depend on the seed
