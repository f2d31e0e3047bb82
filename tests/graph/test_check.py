"""What a graph must be before a kernel walks over it; a fault is told with its array, its place and what is legal."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from hcm_scale.base import files
from hcm_scale.graph import Graph, SparseRows, store
from hcm_scale.graph.store import seal_folder


@pytest.fixture
def graph(random_csr):
    rng = np.random.default_rng(0)
    indptr, indices = random_csr(50, 200)
    x = rng.random((50, 4), np.float32)
    y = (np.arange(50) % 7 == 0).astype(np.uint8)
    ids = pa.array([f"node ü {i}" for i in range(50)])
    ends = np.repeat(np.arange(50), np.diff(indptr)), indices
    weights = (1 + np.minimum(*ends) + 50 * np.maximum(*ends)).astype(np.float32)
    return Graph(indptr, indices, x, y, y, ids, ("a", "b", "c", "d"), weights=weights)


def changed(array: np.ndarray, at: int, value: float) -> np.ndarray:
    out = array.copy()
    out.flat[at] = value
    return out


def one_way(indptr: np.ndarray, indices: np.ndarray) -> list[tuple[int, int]]:
    """The slow twin: the arcs without their reverse."""
    arcs = {(u, int(v)) for u in range(len(indptr) - 1) for v in indices[indptr[u] : indptr[u + 1]]}
    return sorted((u, v) for u, v in arcs if (v, u) not in arcs)


@pytest.mark.parametrize("seed", range(6))
def test_check__names_the_arc_without_its_reverse(random_csr, seed):
    indptr, indices = random_csr(30, 80, seed)
    for at in range(len(indices)):
        left = np.delete(indices, at)
        starts = indptr - (indptr > at)
        ((u, v),) = one_way(starts, left)
        with pytest.raises(ValueError, match=rf"indices holds the arc {u} -> {v} and not {v} -> {u}; .* directed"):
            Graph(starts, left).check()
        Graph(starts, left, directed=True).check()


def test_check__lets_graphs_pass(graph, random_csr):
    graph.check()
    replace(graph, indices=graph.indices.astype(np.int64)).check()
    uneven = np.arange(1, graph.num_arcs + 1, dtype=np.float32)
    replace(graph, directed=True, weights=uneven).check()
    Graph(*random_csr(20, 60, directed=True), directed=True).check()
    Graph(np.zeros(3, np.int64), np.zeros(0, np.int32)).check()
    replace(graph, x=SparseRows.of(sparse.csr_array(graph.x)), ids=pa.array(range(7, 57))).check()


ROW = "holds .* in row .*; a row's entries are 0 to 49, each larger than the one before it, and none is"
FAULTS = {
    "falls": (lambda g: {"indptr": changed(g.indptr, 9, 0)}, "indptr falls from .* to 0 at row 8; it must never fall"),
    "past": (
        lambda g: {"indptr": changed(g.indptr, 50, 10**9)},
        "indptr runs from 0 to 1000000000; it must run from 0",
    ),
    "short": (lambda g: {"indices": g.indices[:-1]}, "it must run from 0 to .*, the length of indices"),
    "negative": (lambda g: {"indices": changed(g.indices, 3, -1)}, f"indices {ROW}"),
    "outside": (lambda g: {"indices": changed(g.indices, 3, 50)}, f"indices {ROW}"),
    "repeat": (lambda g: {"indices": changed(g.indices, 1, g.indices[0])}, f"indices {ROW}"),
    "loop": (lambda g: {"indptr": np.array([0, 1]), "indices": np.zeros(1, np.int32)}, "none is 0 itself"),
    "type": (lambda g: {"indices": g.indices.astype(np.int16)}, "indices is of type '<i2'; legal is <i4 or <i8"),
    "order": (lambda g: {"indptr": g.indptr.astype(">i8")}, "indptr is of type '>i8'; legal is <i8"),
    "empty": (lambda g: {"indptr": g.indptr[:1]}, "a graph has one node at least"),
    "nan": (lambda g: {"x": changed(g.x, 7, np.nan)}, "x holds nan as its value 7; values must be finite"),
    "rows": (lambda g: {"x": g.x[1:]}, "x has 49 entries; 50 were expected"),
    "names": (lambda g: {"columns": ("a",)}, "columns holds 1 names for 4 attributes"),
    "label": (lambda g: {"y": changed(g.y, 5, 2)}, "y holds 2 at node 5; legal are 0 to 1"),
    "kind": (lambda g: {"kind": changed(g.kind, 5, 3)}, "kind holds 3 at node 5; legal are 0 to 2"),
    "few": (lambda g: {"y": g.y[1:]}, "y has 49 entries; 50 were expected"),
    "ids": (lambda g: {"ids": g.ids[1:]}, "ids_offsets has 50 entries; 51 were expected"),
    "twice": (lambda g: {"ids": pa.array([7] * 50)}, "ids holds 1 different ids for 50 nodes; each node has its own"),
    "weights": (lambda g: {"weights": g.weights[1:]}, "weights has .* entries; .* were expected"),
    "zero": (lambda g: {"weights": changed(g.weights, 4, 0)}, "weights holds 0.0 as its value 4; .* above 0"),
    "below": (lambda g: {"weights": changed(g.weights, 4, -1)}, "weights holds -1.0 as its value 4"),
    "endless": (lambda g: {"weights": changed(g.weights, 4, np.inf)}, "weights holds inf as its value 4; .* finite"),
    "no weight": (lambda g: {"weights": changed(g.weights, 4, np.nan)}, "weights holds nan as its value 4"),
    "wide": (lambda g: {"weights": g.weights.astype(float)}, "weights is of type '<f8'; legal is <f4"),
    "null": (lambda g: {"ids": pa.array([None, *range(49)])}, "ids holds 1 nulls"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check__names_the_array_the_place_and_what_is_legal(graph, fault):
    make, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        replace(graph, **make(graph)).check()


def test_check__refuses_a_weight_that_its_reverse_does_not_have(graph):
    rows = np.repeat(np.arange(50), graph.degrees)
    for at, (u, v) in enumerate(zip(rows, graph.indices, strict=True)):
        low, high = min(u, v), max(u, v)
        with pytest.raises(ValueError, match=f"for {low} -> {high} and another weight for {high} -> {low}; they must"):
            replace(graph, weights=changed(graph.weights, at, 0.5)).check()


def test_weights__are_part_of_what_a_graph_is_known_by(graph, tmp_path):
    assert replace(graph, weights=None).fingerprint != graph.fingerprint
    assert graph.save(tmp_path / "g").fingerprint == graph.fingerprint
    assert Graph.open(tmp_path / "g").weights.tolist() == graph.weights.tolist()


@pytest.mark.parametrize(
    ("part", "at", "value", "message"),
    [
        ("indices", 2, 4, "x_indices holds 4 in row .*; a row's entries are 0 to 3"),
        ("indptr", 3, 10**9, "x_indptr falls"),
        ("data", 2, np.inf, "x_data holds inf"),
    ],
)
def test_check__looks_at_sparse_attributes_alike(graph, part, at, value, message):
    rows = SparseRows.of(sparse.csr_array(graph.x))
    rows = replace(rows, **{part: changed(getattr(rows, part), at, value)})
    with pytest.raises(ValueError, match=message):
        replace(graph, x=rows).check()


def seal(folder: Path, **values: object) -> None:
    """Other values in a manifest, under a seal that fits them."""
    path = folder / files.MANIFEST
    files.write_sealed(path, files.read_sealed(path) | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"directed": "no"}, "directed is 'no'; it must be of type bool"),
        ({"files": {}}, "indptr is missing"),
        ({"files": {"../x": {}}}, "'../x' is no array of a graph"),
        ({"num_columns": -1}, "num_columns is -1; legal are 0 to"),
        ({"columns": [1]}, r"columns is \[1\]; it must be of type"),
        ({"info": None}, "info is None; it must be of type dict"),
    ],
)
def test_open__refuses_manifests_by_the_value(graph, tmp_path, values, message):
    graph.save(tmp_path / "g")
    seal(tmp_path / "g", **values)
    with pytest.raises(
        files.FolderError, match=rf"g/manifest\.json is damaged: {message}.*have the folder written again"
    ):
        Graph.open(tmp_path / "g")


def test_open__refuses_fortran_order(graph, tmp_path):
    graph.save(tmp_path / "g")
    np.save(tmp_path / "g" / "x.npy", np.asfortranarray(graph.x))
    with pytest.raises(files.FolderError, match=r"x\.npy is in Fortran order; legal is C order"):
        Graph.open(tmp_path / "g")


@pytest.mark.parametrize("verify", [True, False])
def test_open__names_the_folder_of_a_graph_that_is_none(graph, tmp_path, verify):
    graph.save(tmp_path / "g")
    assert Graph.open(tmp_path / "g", verify=verify).num_nodes == 50
    np.save(tmp_path / "g" / "indices.npy", changed(graph.indices, 3, 50))
    seal_folder(tmp_path / "g", 4, graph.columns, graph.directed, {})  # every hash is right
    with pytest.raises(files.FolderError, match=rf"{tmp_path}/g is no graph: indices {ROW}"):
        Graph.open(tmp_path / "g", verify=verify)


def test_open__looks_at_a_large_folder_once_and_again_when_it_changes(graph, tmp_path, monkeypatch):
    graph.save(tmp_path / "g")
    long_ago = time.time_ns() + 10**9
    monkeypatch.setattr(files.time, "time_ns", lambda: long_ago)
    looked = []
    monkeypatch.setattr(store, "check_arrays", lambda *given, **how: looked.append(1))
    for _ in range(3):
        Graph.open(tmp_path / "g", verify=False)
    assert len(looked) == 1
    os.utime(tmp_path / "g" / "x.npy")
    Graph.open(tmp_path / "g", verify=False)
    assert len(looked) == 2
