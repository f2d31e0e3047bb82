"""Edge numbers against the obvious list, and the seeded draw of neighbours."""

import numpy as np
import pytest

from hcm_scale.score.edge_index import edge_index


def all_edges(indptr, indices, directed=False):
    """The slow twin: every edge as a pair, in CSR order."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    keep = np.full(len(rows), True) if directed else indices > rows
    return list(zip(rows[keep].tolist(), indices[keep].tolist(), strict=True))


def listed(index, chunk: int):
    """Everything `edges` lists, chunk by chunk, as (number, left, right)."""
    found = []
    for first in range(0, index.num_edges, chunk):
        left, right, number = index.edges(first, min(first + chunk, index.num_edges))
        found += zip(number.tolist(), left.tolist(), right.tolist(), strict=True)
    return found


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
def test_edges__lists_the_csr_in_order_for_any_chunk(random_csr, directed, chunk):
    indptr, indices = random_csr(60, 200, seed=1, directed=directed)
    index = edge_index(indptr, indices, directed=directed)
    expected = [(e, u, v) for e, (u, v) in enumerate(all_edges(indptr, indices, directed))]
    assert listed(index, chunk) == expected


@pytest.mark.parametrize("directed", [False, True])
def test_of_node__numbers_the_edge_to_each_neighbour(random_csr, directed):
    indptr, indices = random_csr(40, 150, seed=2, directed=directed)
    index = edge_index(indptr, indices, directed=directed)
    pairs = all_edges(indptr, indices, directed)
    for v in range(40):
        for u, e in zip(indices[indptr[v] : indptr[v + 1]].tolist(), index.of_node(v).tolist(), strict=True):
            assert pairs[e] == ((v, u) if directed else (min(u, v), max(u, v)))


def test_edges__a_graph_without_edges():
    index = edge_index(np.zeros(4, np.int64), np.empty(0, np.int32))
    assert (index.num_nodes, index.num_edges) == (3, 0)
    assert index.of_node(1).tolist() == []


@pytest.fixture(scope="module")
def random_csr_module():
    """A graph per seed, without a function-scoped fixture inside a property."""
    from scipy import sparse

    def make(num_nodes, num_edges, seed):
        u, v = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
        u, v = u[u != v], v[u != v]
        matrix = sparse.csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])), shape=(num_nodes, num_nodes))
        matrix.sum_duplicates()
        matrix.sort_indices()
        return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)

    return make
