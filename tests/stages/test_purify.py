"""The folder of the purify stage: what it holds is what was made, and what does not fit is refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.base.files import FolderError
from hcm_scale.base.memory import Budget
from hcm_scale.base.npy import new_array
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.stages import purify

HOW = {"scale": "auto", "pca": None, "similarity": "euclidean", "attributes": "transformed"}


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


CASES = {
    "usual": ({}, {}),
    "directed": ({"directed": True}, {}),
    "weights": ({"weighted": True}, {}),
    "raw sparse": ({"is_sparse": True}, {"attributes": "raw", "similarity": "jaccard", "scale": "none"}),
    "nothing dropped": ({}, {"ratio": 0.0}),
}


SCALES = {"auto": {}, "none": {}, "log1p": {}, "normal": {}}
SCALES |= {"components": {"scale": "none", "pca": 2}, "components of half": {"scale": "none", "pca": 3}}


@pytest.mark.parametrize("case", [*CASES, *SCALES])
def test_opened_folder__makes_the_graph_and_features_that_were_made(random_csr, tmp_path, monkeypatch, case):
    """By bits and rows of attributes where that is enough, in memory or where there is none in files without names."""
    of_graph, of_options = CASES.get(case, ({}, {"scale": case} | SCALES.get(case, {})))
    graph = make_graph(random_csr, **of_graph)
    if not of_graph.get("is_sparse"):
        x = np.abs(np.asarray(graph.x))
        x[:, 0] **= 9  # a heavy tail
        x[::2, 1] = 0
        x[:, 4] = 7  # constant
        graph = replace(graph, x=x.astype(np.float16 if "half" in case else np.float32))
    options = {"ratio": 0.3} | HOW | of_options
    made = purify.purify(graph, tmp_path / "made", **options)
    is_stored = case in ("components", "log1p", "raw sparse")
    assert (tmp_path / "made" / "x.npy").exists() == is_stored
    for allowed in (None, 1):
        allocate = partial(new_array, near=tmp_path, budget=Budget(allowed))
        opened = purify.open_purified(tmp_path / "made", graph, allocate)
        np.testing.assert_array_equal(opened.features, made.features, strict=True)
        for name in ("indptr", "indices"):
            np.testing.assert_array_equal(getattr(opened.graph, name), getattr(made.graph, name), strict=True)
        if graph.weights is not None:
            np.testing.assert_array_equal(opened.graph.weights, made.graph.weights, strict=True)
        bare = Graph(made.graph.indptr, made.graph.indices, weights=made.graph.weights, directed=graph.directed)
        assert opened.graph.fingerprint == bare.fingerprint == opened.fingerprint
        assert opened.graph.info["purified"] == made.info
        if allowed and options["ratio"]:
            assert isinstance(opened.graph.indices.base, np.memmap), "memory is short, and it was taken"
    assert {path.name for path in tmp_path.iterdir()} == {"made"}


def test_opened_folder__refuses_bits_of_another_graph(random_csr, tmp_path):
    graph = make_graph(random_csr)
    purify.purify(graph, tmp_path / "made", **HOW, ratio=0.3)
    with pytest.raises(FolderError, match=r"is not of .* another graph"):
        purify.open_purified(tmp_path / "made", make_graph(random_csr, seed=1))
    path = tmp_path / "made" / "dropped.npy"
    bits = np.unpackbits(np.load(path), bitorder="little")
    for change, told in ((np.flatnonzero(bits)[:4], "keeps"), (slice(0, 8), "bytes; .* are expected")):
        changed = bits.copy()
        changed[change] = 0
        np.save(path, np.packbits(changed if told == "keeps" else changed[8:], bitorder="little"))
        with pytest.raises(FolderError, match=rf"dropped\.npy .*{told}"):
            _ = purify.open_purified(tmp_path / "made", graph).graph
    one, other = np.flatnonzero(bits)[0], np.flatnonzero(bits[: graph.num_arcs] == 0)[0]
    bits[[one, other]] = 0, 1
    np.save(path, np.packbits(bits, bitorder="little"))
    with pytest.raises(FolderError, match=r"dropped\.npy is damaged: indices holds the arc"):
        _ = purify.open_purified(tmp_path / "made", graph).graph
