"""A graph at rest: what is saved is what is opened, and what is damaged is refused by name."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from hcm_scale.base import files
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.graph.store import NodeTypes


@pytest.fixture
def graph(random_csr):
    indptr, indices = random_csr(50, 200)
    rng = np.random.default_rng(0)
    return Graph(
        indptr,
        indices,
        x=rng.normal(size=(50, 4)).astype(np.float32),
        y=(np.arange(50) % 7 == 0).astype(np.uint8),
        kind=(np.arange(50) % 3).astype(np.uint8),
        ids=pa.array([f"node ü {i}" for i in range(50)]),
        columns=("a", "b", "c", "d"),
        info={"seed": 3},
    )


def assert_same(left: Graph, right: Graph) -> None:
    for part in ("indptr", "indices", "x", "y", "kind", "ids", "edge_types", "weights"):
        for a, b in zip(*(np_arrays(getattr(graph, part)) for graph in (left, right)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert (left.columns, left.directed, left.info) == (right.columns, right.directed, right.info)


def np_arrays(part: object) -> list[np.ndarray]:
    return [part.indptr, part.indices, part.data] if isinstance(part, SparseRows) else [np.asarray(part)]


def test_save__round_trips_all_parts(graph, tmp_path):
    opened = graph.save(tmp_path / "g")
    assert_same(graph, opened)
    assert opened.path == tmp_path / "g"
    assert opened.external_id(7) == "node ü 7"
    assert opened.node_of("node ü 7") == 7


def test_fingerprint__is_equal_in_memory_and_on_disk(graph, tmp_path):
    opened = graph.save(tmp_path / "g")
    assert opened.fingerprint == graph.fingerprint
    assert opened.save(tmp_path / "again").fingerprint == graph.fingerprint


def test_fingerprint__does_not_depend_on_memory_layout(graph, tmp_path):
    long = pa.array([f"node ü {i}" for i in range(60)])
    turned = replace(graph, x=np.asfortranarray(graph.x), ids=long.slice(0, 50))
    assert turned.fingerprint == graph.fingerprint
    assert turned.save(tmp_path / "g").fingerprint == graph.fingerprint
    shifted = replace(graph, ids=pa.array(["z", *graph.ids.to_pylist()]).slice(1))
    assert shifted.fingerprint == graph.fingerprint


@pytest.mark.parametrize("change", [{"columns": ("a", "b", "c", "e")}, {"y": None}, {"directed": True}])
def test_fingerprint__depends_on_content(graph, change):
    assert replace(graph, **change).fingerprint != graph.fingerprint


def test_fingerprint__does_not_depend_on_info(graph):
    assert replace(graph, info={}).fingerprint == graph.fingerprint


def test_save__round_trips_sparse_attributes(graph, tmp_path):
    matrix = sparse.random_array((50, 9), density=0.2, rng=np.random.default_rng(1), dtype=np.float32)
    sparse_graph = replace(graph, x=SparseRows.of(matrix), columns=())
    opened = sparse_graph.save(tmp_path / "g")
    assert_same(sparse_graph, opened)
    assert opened.x.shape == (50, 9)
    np.testing.assert_array_equal(opened.x.csr().toarray(), matrix.toarray())


def test_sparse_rows__sums_repeats_and_drops_zeros():
    rows = SparseRows.of(sparse.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [2, 2, 0])), shape=(2, 3)))
    assert (rows.indptr.tolist(), rows.indices.tolist(), rows.data.tolist()) == ([0, 1, 1], [2], [3.0])


def test_save__round_trips_directed_graphs(random_csr, tmp_path):
    indptr, indices = random_csr(30, 90, directed=True)
    graph = Graph(indptr, indices, directed=True)
    opened = graph.save(tmp_path / "g")
    assert_same(graph, opened)
    assert opened.directed
    assert opened.num_edges == opened.num_arcs == len(indices)


def test_node_of__takes_a_number_for_a_node_and_nothing_like_a_number():
    graph = Graph(np.zeros(21, np.int64), np.zeros(0, np.int32))
    assert graph.node_of("10") == graph.node_of(10) == 10
    for odd in ("1_0", "-1", "abc", "1.5", "20", "", 20):
        with pytest.raises(ValueError, match="is not in this graph; ids run from 0 to 19"):
            graph.node_of(odd)


def test_save__round_trips_integer_ids_and_no_edges(tmp_path):
    graph = Graph(np.zeros(4, np.int64), np.zeros(0, np.int32), ids=pa.array([30, 10, 20]))
    opened = graph.save(tmp_path / "g")
    assert opened.node_of(10) == opened.node_of("10") == 1
    assert opened.num_edges == 0
    with pytest.raises(ValueError, match="node=11 is not in this graph; ids look like 30"):
        opened.node_of(11)


def test_open__without_verify_compares_no_hashes(graph, tmp_path):
    graph.save(tmp_path / "g")
    path = tmp_path / "g" / "x.npy"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(7).tobytes()
    path.write_bytes(data)  # a flipped bit that makes another number: the workspace has hashes of its own
    opened = Graph.open(tmp_path / "g", verify=False)
    assert opened.x[-1, -1] == 7
    assert opened.fingerprint == graph.fingerprint


def test_open__refuses_a_flipped_bit(graph, tmp_path):
    graph.save(tmp_path / "g")
    for path in sorted((tmp_path / "g").glob("*.npy")):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(files.FolderError, match=f"{path.name} is damaged: its hash"):
            Graph.open(tmp_path / "g")
        path.write_bytes(whole)
    Graph.open(tmp_path / "g")


def test_open__refuses_a_torn_file(graph, tmp_path):
    graph.save(tmp_path / "g")
    path = tmp_path / "g" / "x.npy"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(files.FolderError, match=r"x\.npy is torn: 200 bytes"):
        Graph.open(tmp_path / "g")


def test_open__refuses_a_missing_file(graph, tmp_path):
    graph.save(tmp_path / "g")
    (tmp_path / "g" / "y.npy").unlink()
    with pytest.raises(files.FolderError, match=r"y\.npy is missing; have the folder written"):
        Graph.open(tmp_path / "g")


def test_open__refuses_another_array_under_the_same_name(graph, tmp_path):
    graph.save(tmp_path / "g")
    np.save(tmp_path / "g" / "indices.npy", graph.indices.astype(np.int64))
    with pytest.raises(files.FolderError, match="holds int64"):
        Graph.open(tmp_path / "g")


def test_open__refuses_a_pickle(graph, tmp_path):
    graph.save(tmp_path / "g")
    np.save(tmp_path / "g" / "y.npy", np.array([object()] * 50), allow_pickle=True)
    with pytest.raises(files.FolderError, match=r"y\.npy holds object"):
        Graph.open(tmp_path / "g")


@pytest.mark.parametrize(
    ("change", "message"), [({"kind": "labels"}, "holds 'labels'"), ({"format": 99}, "has format 99; this version")]
)
def test_open__refuses_foreign_folders_and_other_formats(graph, tmp_path, change, message):
    graph.save(tmp_path / "g")
    path = tmp_path / "g" / files.MANIFEST
    files.write_sealed(path, files.read_sealed(path) | change)
    with pytest.raises(files.FolderError, match=message):
        Graph.open(tmp_path / "g")


def test_open__refuses_an_unfinished_folder(graph, tmp_path):
    graph.save(tmp_path / "g")
    (tmp_path / "g" / files.MANIFEST).unlink()
    with pytest.raises(files.FolderError, match="unfinished"):
        Graph.open(tmp_path / "g")


def test_node_types__are_kept_and_checked(tmp_path):
    pair = Graph(np.array([0, 1, 2]), np.array([1, 0], np.int32), node_types=NodeTypes.of(["shop", None]))
    opened = pair.save(tmp_path / "graph")
    assert opened.node_types.encode(opened.node_types.codes).to_pylist() == ["shop", None]
    assert Graph.open(tmp_path / "graph").fingerprint == pair.fingerprint
    renamed = replace(pair, node_types=NodeTypes(pair.node_types.codes, ("bank",)))
    assert renamed.fingerprint != pair.fingerprint
    wrong = replace(pair, node_types=NodeTypes(np.array([0, 3], np.uint8), ("shop",)))
    with pytest.raises(ValueError, match="node_types holds 3 at node 1; legal are 0 to 0, and 255 for none"):
        wrong.check()
    with pytest.raises(ValueError, match=r"node_type has 65 values, .*; legal are up to 64 types of nodes"):
        NodeTypes.of(range(65))
