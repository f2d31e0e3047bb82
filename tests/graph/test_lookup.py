"""Numbers of edges and of entries, against loops."""

import numpy as np
import pytest

from bench.weights import spread_to_entries
from hcm_scale.graph.lookup import first_entries


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_nodes", [1, 30, 300])
def test_spread__gives_every_entry_the_number_of_its_edge(random_csr, num_nodes, directed):
    indptr, indices = random_csr(num_nodes, 4 * num_nodes, directed=directed)
    rows = np.repeat(np.arange(num_nodes), np.diff(indptr))
    first = first_entries(indptr, indices, directed)
    assert first.tolist() == [directed or u < v for u, v in zip(rows.tolist(), indices.tolist(), strict=True)]
    values = np.random.default_rng(0).random(np.count_nonzero(first)) + 0.1
    of_edge = dict(zip(zip(rows[first], indices[first], strict=True), values, strict=True))
    wanted = [of_edge[(u, v) if directed else (min(u, v), max(u, v))] for u, v in zip(rows, indices, strict=True)]
    assert spread_to_entries(indptr, indices, values, directed).tolist() == wanted
