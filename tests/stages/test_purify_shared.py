"""Purification by ranks: the bytes of one process, whatever a killed run left."""

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.stages import purify

HOW = {"scale": "auto", "pca": None, "standardise": True, "similarity": "euclidean", "attributes": "transformed"}


def make_graph(random_csr, *, directed=False, weighted=False, is_sparse=False, seed=0) -> Graph:
    rng = np.random.default_rng(seed)
    indptr, indices = random_csr(60, 150, seed=seed)
    x = rng.standard_normal((60, 5)).astype(np.float32)
    weights = None
    if weighted:
        row = np.repeat(np.arange(60), np.diff(indptr))
        weights = (1.0 + np.minimum(row, indices) % 7).astype(np.float32)
    rows = SparseRows.of(sparse.csr_array(x * (x > 0.5))) if is_sparse else x
    return Graph(indptr, indices, x=rows, weights=weights, directed=directed)


def files_of(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CASES = {
    "usual": ({}, {}),
    "directed": ({"directed": True}, {}),
    "weights": ({"weighted": True}, {}),
    "raw sparse": ({"is_sparse": True}, {"attributes": "raw", "similarity": "jaccard", "scale": "none"}),
    "nothing dropped": ({}, {"ratio": 0.0}),
}


@pytest.mark.parametrize("num_ranks", [2, 3, 7])
@pytest.mark.parametrize("case", CASES)
def test_purify__any_number_of_ranks_writes_the_same(random_csr, together, tmp_path, case, num_ranks):
    of_graph, of_options = CASES[case]
    graph, options = make_graph(random_csr, **of_graph), {"ratio": 0.3} | HOW | of_options
    purify.purify(graph, tmp_path / "alone", **options)
    (tmp_path / "shared" / "parts").mkdir(parents=True)
    (tmp_path / "shared" / "parts" / "similarity-9.npy").write_bytes(b"of a killed run")
    made = together(num_ranks, lambda world: purify.purify(graph, tmp_path / "shared", **options, world=world))
    assert all(np.array_equal(found.graph.indices, made[0].graph.indices) for found in made)
    assert files_of(tmp_path / "shared" / "graph") == files_of(tmp_path / "alone" / "graph")
    if options["ratio"]:  # else nobody looks for parts
        assert files_of(tmp_path / "shared") == files_of(tmp_path / "alone")


def test_purify_like__any_number_of_ranks_writes_the_same(random_csr, together, tmp_path):
    before = purify.purify(make_graph(random_csr), tmp_path / "before", **HOW, ratio=0.3)
    graph = make_graph(random_csr, seed=1)
    purify.purify_like(graph, tmp_path / "alone", before, attributes="transformed")

    def like(world):
        return purify.purify_like(graph, tmp_path / "shared", before, attributes="transformed", world=world)

    together(3, like)
    assert files_of(tmp_path / "shared") == files_of(tmp_path / "alone")


@pytest.mark.parametrize("num_shares", [1, 2, 5, 100])
def test_shares__make_up_all_edges(random_csr, num_shares):
    graph = make_graph(random_csr)
    arrays = graph.indptr, graph.indices, graph.x, "cosine"
    parts = [edge_similarity(*arrays, share=(i, num_shares)) for i in range(num_shares)]
    assert np.array_equal(np.concatenate(parts), edge_similarity(*arrays))
