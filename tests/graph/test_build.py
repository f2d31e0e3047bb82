"""Edge rows to CSR: the external sort against scipy, in any chunking, with counts that add up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from hcm_scale.graph.build import Spill, build_csr

PAIRS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), hnp.arrays(np.int64, st.tuples(st.integers(0, 80), st.just(2)), elements=st.integers(0, n - 1))
    )
)


def slow_csr(pairs, num_nodes, directed):
    """The obvious way."""
    arcs = {(u, v) for u, v in pairs.tolist() if u != v}
    if not directed:
        arcs |= {(v, u) for u, v in arcs}
    rows = [sorted(v for u, v in arcs if u == w) for w in range(num_nodes)]
    return np.cumsum([0, *map(len, rows)]), [v for row in rows for v in row]


def slow_counts(pairs, directed):
    arcs = [(u, v) for u, v in pairs.tolist() if u != v]
    edges = set(arcs) if directed else {tuple(sorted(arc)) for arc in arcs}
    return len(pairs) - len(arcs), len(arcs) - len(set(arcs)), len(set(arcs)) - len(edges), len(edges)


@given(PAIRS, st.booleans(), st.integers(1, 9), st.integers(1, 7))
def test_build_csr__equals_the_slow_twin(tmp_path_factory, case, directed, chunk, run_keys):
    num_nodes, pairs = case
    folder = tmp_path_factory.mktemp("csr")
    chunks = [(pairs[i : i + chunk, 0], pairs[i : i + chunk, 1]) for i in range(0, len(pairs), chunk)]
    loops, repeated, back, edges = slow_counts(pairs, directed)
    if not edges:
        with pytest.raises(ValueError, match=f"no edges: {len(pairs)} rows read, {loops} of them self loops"):
            build_csr(folder, chunks, num_nodes, directed, run_keys)
        return
    counts = build_csr(folder, chunks, num_nodes, directed, run_keys)
    found = (counts.self_loops, counts.repeated_edges, counts.reversed_edges, counts.num_edges)
    assert found == (loops, repeated, back, edges)
    indptr, indices = slow_csr(pairs, num_nodes, directed)
    np.testing.assert_array_equal(np.load(folder / "indptr.npy"), indptr)
    np.testing.assert_array_equal(np.load(folder / "indices.npy"), indices)
    isolated = np.setdiff1d(np.arange(num_nodes), pairs[pairs[:, 0] != pairs[:, 1]])
    assert counts.isolated_nodes == len(isolated)
    assert {p.name for p in folder.iterdir()} == {"indptr.npy", "indices.npy"}


@pytest.mark.parametrize("run_keys", [100, 1_000, 1 << 20])
def test_build_csr__does_not_depend_on_the_length_of_runs(tmp_path, run_keys):
    rng = np.random.default_rng(0)
    u = (rng.random(20_000) ** 4 * 3_000).astype(np.int32)  # skewed: most edges share few nodes
    v = rng.integers(0, 3_000, 20_000, dtype=np.int32)
    build_csr(tmp_path, [(u, v)], 3_000, run_keys=run_keys)
    keep = u != v
    matrix = sparse.csr_array((np.ones(keep.sum()), (u[keep], v[keep])), shape=(3_000, 3_000))
    matrix = matrix + matrix.T
    matrix.sum_duplicates()
    indices = np.load(tmp_path / "indices.npy")
    assert indices.dtype == np.int32
    np.testing.assert_array_equal(np.load(tmp_path / "indptr.npy"), matrix.indptr)
    np.testing.assert_array_equal(indices, matrix.indices)


def test_spill__yields_bounded_blocks_whatever_the_skew(tmp_path):
    rng = np.random.default_rng(1)
    spill = Spill(tmp_path, directed=True, run_keys=500)
    for _ in range(20):
        spill.add(np.zeros(400, np.int64), rng.integers(1, 2**31, 400))
    blocks = list(spill.merged())
    assert max(map(len, blocks)) <= 3 * 500
    keys = np.concatenate(blocks)
    assert (keys[1:] > keys[:-1]).all()


def test_build_csr__holds_the_largest_node_numbers(tmp_path):
    spill = Spill(tmp_path, directed=False)
    spill.add(np.array([2**31 - 1]), np.array([2**31 - 2]))
    (keys,) = spill.merged()
    assert int(keys[0]) == (2**31 - 2) << 33 | (2**31 - 1) << 1 | 1


@pytest.mark.parametrize("num_nodes", [0, -1, 2**31 + 1])
def test_build_csr__refuses_impossible_sizes(tmp_path, num_nodes):
    with pytest.raises(ValueError, match=f"num_nodes={num_nodes:,} must be between 1 and"):
        build_csr(tmp_path, [], num_nodes)
