"""Purification and the first propagation by ranks: the bytes of one process, whatever a killed run left."""

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.features import propagate
from hcm_scale.graph import Graph, SparseRows
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


@pytest.mark.parametrize("num_ranks", [1, 2, 5, 12])
def test_propagate_shared__any_number_of_ranks_writes_the_same(random_csr, together, tmp_path, monkeypatch, num_ranks):
    monkeypatch.setattr(propagate, "CHUNK_ROWS", 7)
    graph = Graph(*random_csr(60, 150))
    x = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    propagate.propagate_features(graph, x, tmp_path / "alone")
    (tmp_path / "shared" / "parts").mkdir(parents=True)
    (tmp_path / "shared" / "parts" / "rows-20.npy").write_bytes(b"of a killed run")
    made = together(num_ranks, lambda world: purify.propagate_shared(graph, x, tmp_path / "shared", world))
    assert all(np.array_equal(found, made[0]) for found in made)
    for path in (tmp_path / "alone").iterdir():
        assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "shared" / "parts").exists()


def test_propagate_shared__features_of_another_graph_are_refused_by_all(random_csr, together, tmp_path):
    graph, x = Graph(*random_csr(60, 150)), np.zeros((59, 5), np.float32)
    with pytest.raises(ValueError, match="60 rows"):
        together(2, lambda world: purify.propagate_shared(graph, x, tmp_path, world))
