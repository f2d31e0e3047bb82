"""NumPy, scipy and MATLAB files: every way of saying the same graph gives the same graph."""

import os
import struct

import numpy as np
import pytest
from scipy import io, sparse

from hcm_scale.graph import SparseRows
from hcm_scale.ingest import matrices
from hcm_scale.ingest.readers import InputError, Policy, ingest_summary, read_matrix


@pytest.fixture
def parts(random_csr):
    """indptr, indices, edge_index, dense x with many zeros, y."""
    indptr, indices = random_csr(40, 150, seed=3)
    edge_index = np.stack([np.repeat(np.arange(40), np.diff(indptr)), indices])
    rng = np.random.default_rng(0)
    x = np.where(rng.random((40, 6)) < 0.3, rng.normal(size=(40, 6)), 0).astype(np.float32)
    return indptr, indices, edge_index, x, (np.arange(40) % 9 == 0).astype(np.int64)


@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_read_matrices__takes_an_edge_index_of_any_type(parts, tmp_path, pack, dtype, order):
    indptr, indices, edge_index, x, y = parts
    pack(tmp_path / "g.npz", edge_index=np.asarray(edge_index, dtype, order=order), x=np.asarray(x, order=order), y=y)
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz")
    np.testing.assert_array_equal(g.indptr, indptr)
    np.testing.assert_array_equal(g.indices, indices)
    np.testing.assert_array_equal(g.x, x)
    np.testing.assert_array_equal(g.y, y)


def test_read_matrices__takes_csr_with_sparse_attributes(parts, tmp_path):
    indptr, indices, _, x, _ = parts
    rows = SparseRows.of(sparse.csr_array(x))
    np.savez(
        tmp_path / "g.npz",
        indptr=indptr,
        indices=indices,
        x_indptr=rows.indptr,
        x_indices=rows.indices,
        x_data=rows.data,
        x_shape=[40, 9],
    )
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz")
    np.testing.assert_array_equal(g.indices, indices)
    assert g.x.shape == (40, 9)
    np.testing.assert_array_equal(g.x.csr().toarray()[:, :6], x)


def test_read_matrices__sorts_and_merges_sparse_attributes(parts, tmp_path):
    indptr, indices, _, _, _ = parts
    x_indptr = np.concatenate([[0, 3, 4], np.full(38, 4)])
    arrays = {"x_indptr": x_indptr, "x_indices": [2, 0, 2, 1]}  # without x_data: ones
    np.savez(tmp_path / "g.npz", indptr=indptr, indices=indices, **arrays)
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz")
    assert (g.x.indices.tolist(), g.x.data.tolist(), g.x.num_columns) == ([0, 2, 1], [1, 2, 1], 3)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("directed", [False, True])
def test_read_matrices__takes_scipy_files(random_csr, tmp_path, layout, directed):
    indptr, indices = random_csr(30, 80, seed=5, directed=True)
    matrix = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(30, 30))
    sparse.save_npz(tmp_path / "a.npz", matrix.asformat(layout))
    g = read_matrix(tmp_path / "g", tmp_path / "a.npz", policy=Policy(directed=directed, featureless="degree"))
    expected = matrix if directed else sparse.csr_array(matrix + matrix.T)
    expected.sort_indices()
    np.testing.assert_array_equal(g.indptr, expected.indptr)
    np.testing.assert_array_equal(g.indices, expected.indices)


def test_read_matrices__takes_stored_zeros_for_no_edges(tmp_path):
    matrix = sparse.csr_array(([1.0, 0.0], ([0, 1], [1, 2])), shape=(3, 3))
    assert matrix.nnz == 2
    sparse.save_npz(tmp_path / "a.npz", matrix)
    g = read_matrix(tmp_path / "g", tmp_path / "a.npz", policy=Policy(featureless="degree"))
    assert (g.num_edges, ingest_summary(g).isolated_nodes) == (1, 1)


def test_read_matrices__takes_npy_files_and_folders(parts, tmp_path):
    _, indices, edge_index, x, y = parts
    (tmp_path / "f").mkdir()
    for name, array in {"edge_index": edge_index, "x": x, "y": y}.items():
        np.save(tmp_path / "f" / f"{name}.npy", array)
    g = read_matrix(tmp_path / "g", tmp_path / "f")
    h = read_matrix(tmp_path / "h", tmp_path / "f" / "edge_index.npy", policy=Policy(featureless="degree"))
    np.testing.assert_array_equal(g.indices, indices)
    np.testing.assert_array_equal(h.indices, indices)
    np.testing.assert_array_equal(g.x, x)
    np.testing.assert_array_equal(g.y, y)


def test_read_matrices__renames_by_keys(parts, tmp_path):
    _, indices, edge_index, x, y = parts
    np.savez(tmp_path / "g.npz", links=edge_index, features=x, target=y)
    keys = {"edge_index": "links", "x": "features", "y": "target"}
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz", keys=keys)
    np.testing.assert_array_equal(g.indices, indices)
    assert g.y.sum() == y.sum()


@pytest.mark.parametrize("sparse_x", [False, True])
@pytest.mark.parametrize(("nonfinite", "filler"), [("zero", 0.0), ("mean", 2.0)])
def test_read_matrices__replaces_values_that_are_not_finite(tmp_path, sparse_x, nonfinite, filler):
    x = np.array([[1.0, 5.0], [np.nan, 5.0], [3.0, np.inf]])
    parts = {"x": x}
    if sparse_x:
        parts = {"x_indptr": [0, 2, 4, 6], "x_indices": [0, 1] * 3, "x_data": x.ravel()}
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 2]], **parts)
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz", policy=Policy(nonfinite=nonfinite))
    found = g.x.csr().toarray() if sparse_x else g.x
    np.testing.assert_array_equal(found, [[1, 5], [filler, 5], [3, 5.0 if nonfinite == "mean" else 0.0]])
    assert ingest_summary(g).nonfinite_values == 2


def test_read_matrices__drops_or_adds_nodes_outside(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1, 4], [1, 0, 0]], x=[[1.0], [3.0]], y=[0, 1])
    dropped = read_matrix(tmp_path / "d", tmp_path / "g.npz", policy=Policy(unknown="drop"))
    assert (dropped.num_nodes, ingest_summary(dropped).unknown_edges) == (2, 1)
    added = read_matrix(tmp_path / "a", tmp_path / "g.npz", policy=Policy(unknown="add"))
    assert added.x.ravel().tolist() == [1, 3, 2, 2, 2]
    assert added.y.tolist() == [0, 1, 0, 0, 0]
    assert ingest_summary(added).added_nodes == 3


EDGES = [[0, 1], [1, 2]]
X = np.ones((3, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edge_index": [[0, 3], [1, 9]], "x": X}, r"1 rows name a node outside 0 \.\. 2 in the edges: row 1: 3 -> 9"),
        ({"edge_index": [[0, -1], [1, 1]], "x": X}, "1 negative node numbers in the edges: row 1: -1 -> 1"),
        ({"edge_index": [[0, 0.5], [1, 1]], "x": X}, r"1 rows with .* not finite whole .*: row 1: 0\.5 -> 1\.0"),
        ({"edge_index": [[0, np.nan], [1, 1]], "x": X}, "1 rows with node numbers that are not finite whole numbers"),
        (
            {"edge_index": [["a"], ["b"]], "x": X},
            r"g\.npz:edge_index is <U1 of shape \(2, 1\); legal are whole numbers",
        ),
        ({"edge_index": [[0, 1], [1, 2], [2, 0]], "x": X}, r"has shape \(3, 2\); legal is \(2, E\)"),
        ({"edge_index": np.zeros((2, 0), int), "x": X}, "no edges: 0 rows read"),
        ({"edge_index": np.zeros((2, 0), int)}, "zero attributes"),
        ({"edge_index": EDGES}, r"zero attributes; graph\.featureless=degree"),
        ({"edge_index": EDGES, "x": np.ones((3, 0))}, "zero attributes"),
        ({"edge_index": EDGES, "x": np.ones(3)}, r"shape \(3,\); legal are numbers of shape \(n, d\)"),
        ({"edge_index": EDGES, "x": np.full((3, 1), "a")}, "legal are numbers"),
        (
            {"edge_index": EDGES, "x": [[1.0], [np.nan], [np.inf]]},
            "2 attribute values .*: row 1 column 0; row 2 column 0",
        ),
        ({"edge_index": EDGES, "x": X, "y": [0, 1]}, "y has 2 entries for 3 nodes"),
        ({"edge_index": [[0, 1], [1, 3]], "x": np.ones((4, 1)), "y": [[0, 1], [1, 0]]}, r"y has shape \(2, 2\); legal"),
        ({"edge_index": EDGES, "x": X, "y": [[[0, 1, 0]]]}, r"y has shape \(1, 1, 3\); legal are \(n\), .* n=3 nodes"),
        ({"edge_index": EDGES, "x": X, "y": [0, 1, 2]}, "1 labels are not 0 or 1 in y: row 2: 2"),
        ({"indptr": [0, 1, 2], "indices": [1, 0], "x": X}, "x has 3 rows for 2 nodes"),
        ({"indptr": [0, 2, 1], "indices": [1, 0], "x": X}, "indptr must rise from 0 to the 2 entries"),
        ({"indptr": [0, 1, 2], "indices": [1, 5], "x": X[:2]}, r"1 rows name a node outside 0 \.\. 1"),
        ({"x": X}, r"holds no edges: .* it holds \['x'\]"),
        ({"edge_index": EDGES, "x_indptr": [0, 1, 2, 2], "x_indices": [0, -1]}, "x_indices run from -1 to 0"),
        ({"edge_index": EDGES, "x_indptr": [0, 1, 2, 3], "x_indices": [0, 1]}, "x_indptr must rise from 0 to the 2"),
        ({"edge_index": EDGES, "x_indptr": [0, 1, 1, 1], "x_indices": [0], "x_data": [1, 2]}, "x_data has 2 entries"),
        ({"edge_index": EDGES, "x_indptr": [0, 1, 1, 1], "x_indices": [4], "x_shape": [3, 4]}, r"legal are 0 \.\. 3"),
        (
            {"edge_index": EDGES, "x_indptr": [0, 1, 1, 1], "x_indices": [0], "x_data": [np.nan]},
            "1 attribute value is not",
        ),
        ({"edge_index": np.array(EDGES, object), "x": X}, "holds Python objects"),
    ],
)
def test_read_matrices__refuses(tmp_path, arrays, message):
    np.savez(tmp_path / "g.npz", **{name: np.asarray(array) for name, array in arrays.items()})
    with pytest.raises(ValueError, match=message):
        read_matrix(tmp_path / "g", tmp_path / "g.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["g.npz"]


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        ([[0, np.nan, 1], [1, 1, 2]], r"1 rows with .* not finite whole numbers in the edges: row 1: nan -> 1\.0"),
        ([[0, 1], [1, np.inf]], r"1 rows with .* not finite whole numbers in the edges: row 1: 1\.0 -> inf"),
        ([[np.nan], [-np.inf]], r"1 rows with .* not finite whole numbers in the edges: row 0: nan -> -inf"),
        ([[-1], [-2]], "1 negative node numbers in the edges: row 0: -1 -> -2"),
        (np.zeros((2, 0)), "the graph has no edges: 0 rows read"),
    ],
)
def test_read_matrices__says_what_is_wrong_where_only_edges_name_nodes(tmp_path, edge_index, message):
    np.save(tmp_path / "e.npy", edge_index)
    with pytest.raises(InputError, match=rf"e\.npy: {message}"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=Policy(featureless="degree"))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "mat"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_matrix__with_values_that_are_not_finite_is_refused(tmp_path, layout, value):
    matrix = np.array([[0, 1, 0], [1, 0, value], [0, 0, 0]])
    path = tmp_path / ("a.mat" if layout == "mat" else "a.npz")
    if layout == "mat":
        io.savemat(path, {"A": matrix})
    else:
        sparse.save_npz(path, sparse.coo_array(matrix).asformat(layout))
    message = (
        rf"{path.name}: 1 values are not finite in the adjacency matrix: row 1 column 2: {value}\. legal are numbers"
    )
    with pytest.raises(InputError, match=message):
        read_matrix(tmp_path / "g", path, policy=Policy(featureless="degree"))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_labels__are_flat_a_column_or_a_row(tmp_path, shape):
    np.savez(tmp_path / "g.npz", edge_index=EDGES, x=X, y=np.array([0, 1, 0]).reshape(shape))
    assert read_matrix(tmp_path / "g", tmp_path / "g.npz").y.tolist() == [0, 1, 0]


def test_folder_named_as_a_file__is_read_as_a_folder(tmp_path):
    folder = tmp_path / "dir.npy"
    folder.mkdir()
    with pytest.raises(InputError, match=r"dir\.npy holds no edges: edge_index, .* it holds \[\]"):
        read_matrix(tmp_path / "g", folder, policy=Policy(featureless="degree"))
    np.save(folder / "another.npy", [[0], [5]])
    np.save(folder / "edge_index.npy", EDGES)
    assert read_matrix(tmp_path / "g", folder, policy=Policy(featureless="degree")).num_nodes == 3


def test_read_matrices__refuses_files_that_are_torn_or_foreign(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(ValueError, match=r"cannot be read as \.npz"):
        read_matrix(tmp_path / "g", tmp_path / "a.npz")
    np.save(tmp_path / "e.npy", np.zeros((2, 1000), np.int64))
    (tmp_path / "e.npy").write_bytes((tmp_path / "e.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"e\.npy is torn"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=Policy(featureless="degree"))
    (tmp_path / "e.npy").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"e\.npy is not a \.npy array"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy")
    sparse.save_npz(tmp_path / "r.npz", sparse.csr_array((2, 3)))
    with pytest.raises(ValueError, match="must be square"):
        read_matrix(tmp_path / "g", tmp_path / "r.npz", policy=Policy(featureless="degree"))
    np.savez(tmp_path / "k.npz", a=[1])
    with pytest.raises(ValueError, match="must be one of edge_index"):
        read_matrix(tmp_path / "g", tmp_path / "k.npz", keys={"edges": "a"})
    with pytest.raises(ValueError, match=r"is not in k\.npz; it holds \['a'\]"):
        read_matrix(tmp_path / "g", tmp_path / "k.npz", keys={"x": "b"})


@pytest.mark.parametrize("entries", [1, 7, 1000])
@pytest.mark.parametrize("form", ["csr", "csc", "edge_index", "pairs"])
def test_edges__are_the_same_in_pieces_of_any_length(tmp_path, monkeypatch, entries, form):
    monkeypatch.setattr(matrices, "_SLICE_ENTRIES", entries)
    rng = np.random.default_rng(0)
    wanted = sparse.csr_array(np.triu(rng.integers(0, 3, (20, 20)), 1))  # with empty rows at the end
    path = tmp_path / "a.npz"
    if form in ("csr", "csc"):
        sparse.save_npz(path, wanted.asformat(form))
    else:
        ends = np.array(wanted.nonzero(), order="C" if form == "edge_index" else "F")
        np.savez_compressed(path, edge_index=ends, edge_weight=wanted.tocoo().data)
    policy = Policy(featureless="degree", directed=True, weights=True, num_nodes=20)
    g = read_matrix(tmp_path / "g", path, policy=policy)
    found = sparse.csr_array((g.weights, g.indices, g.indptr), shape=(20, 20))
    np.testing.assert_array_equal(found.toarray(), wanted.toarray())


@pytest.mark.parametrize("compress", [False, True])
def test_read_mat__takes_dense_and_sparse_under_either_family_of_names(parts, tmp_path, compress):
    indptr, indices, _, x, y = parts
    adjacency = sparse.csc_array(sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(40, 40)))
    first = {"A": adjacency.toarray(), "X": x, "gnd": y[:, None]}
    second = {"Network": adjacency, "Attributes": sparse.csc_array(x), "Label": np.arange(40)[:, None]}
    io.savemat(tmp_path / "first.mat", first, do_compression=compress)
    io.savemat(tmp_path / "second.mat", second, do_compression=compress)
    g, h = (read_matrix(tmp_path / n, tmp_path / f"{n}.mat") for n in ("first", "second"))
    for graph in (g, h):
        np.testing.assert_array_equal(graph.indices, indices)
    np.testing.assert_array_equal(g.x, x)
    np.testing.assert_array_equal(h.x.csr().toarray(), x)
    np.testing.assert_array_equal(g.y, y)
    assert h.y is None  # a class label is not an anomaly label


def test_read_mat__takes_other_names_by_keys(parts, tmp_path):
    _, indices, edge_index, x, y = parts
    adjacency = sparse.csc_array((np.ones(len(indices)), edge_index), shape=(40, 40))
    io.savemat(tmp_path / "a.mat", {"W": adjacency, "F": x, "t": y, "A": np.eye(3)})
    g = read_matrix(tmp_path / "g", tmp_path / "a.mat", keys={"adjacency": "W", "attributes": "F", "label": "t"})
    np.testing.assert_array_equal(g.indices, indices)
    np.testing.assert_array_equal(g.y, y)


def test_read_mat__asks_which_of_two_known_names_is_meant(parts, tmp_path):
    x = parts[3]
    ring = np.roll(np.eye(40), 1, axis=0)
    io.savemat(tmp_path / "a.mat", {"A": np.eye(40), "Network": ring, "X": x})
    with pytest.raises(InputError, match=r"a\.mat holds A and Network; graph\.keys=\{'adjacency': name\} says which"):
        read_matrix(tmp_path / "g", tmp_path / "a.mat")
    assert read_matrix(tmp_path / "g", tmp_path / "a.mat", keys={"adjacency": "Network"}).num_edges == 40


def test_read_mat__refuses_too_large_foreign_and_unknown(parts, tmp_path):
    x = parts[3]
    io.savemat(tmp_path / "bomb.mat", {"A": np.zeros((1500, 1500)), "X": x}, do_compression=True)
    assert (tmp_path / "bomb.mat").stat().st_size < 100_000
    with pytest.raises(ValueError, match="1,000,000 are the most"):
        read_matrix(tmp_path / "g", tmp_path / "bomb.mat", policy=Policy(max_bytes=1_000_000))
    io.savemat(tmp_path / "other.mat", {"B": np.eye(3)})
    with pytest.raises(ValueError, match=r"holds none of \('A', 'Network'\); .* one of \['B'\]"):
        read_matrix(tmp_path / "g", tmp_path / "other.mat")
    with pytest.raises(ValueError, match=r"is not in other\.mat; it holds \['B'\]"):
        read_matrix(tmp_path / "g", tmp_path / "other.mat", keys={"adjacency": "C"})
    with pytest.raises(ValueError, match="must be one of adjacency, attributes, label"):
        read_matrix(tmp_path / "g", tmp_path / "other.mat", keys={"A": "B"})
    io.savemat(tmp_path / "old.mat", {"A": np.eye(3)}, format="4")
    with pytest.raises(ValueError, match="is no MATLAB v5 file; legal is v5"):
        read_matrix(tmp_path / "g", tmp_path / "old.mat")
    (tmp_path / "new.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF")
    with pytest.raises(ValueError, match=r"is MATLAB v7\.3"):
        read_matrix(tmp_path / "g", tmp_path / "new.mat")
    io.savemat(tmp_path / "wide.mat", {"A": np.ones((2, 3)), "X": x})
    with pytest.raises(ValueError, match="must be square"):
        read_matrix(tmp_path / "g", tmp_path / "wide.mat")
    with pytest.raises(ValueError, match="does not exist"):
        read_matrix(tmp_path / "g", tmp_path / "nowhere.mat")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "?"])
def test_read_mat__takes_every_type_of_number(tmp_path, compress, kind):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 99, (3, 5)).astype(kind)
    variables = {"A": np.eye(3, k=1).astype(kind), "X": x, "text": "skipped", "cell": np.array([[1, "a"]], object)}
    io.savemat(tmp_path / "a.mat", variables, do_compression=compress)
    np.testing.assert_array_equal(read_matrix(tmp_path / "g", tmp_path / "a.mat").x, x)
    for name in ("text", "cell"):
        with pytest.raises(InputError, match=rf"a\.mat:{name} is no matrix of real numbers"):
            read_matrix(tmp_path / "g", tmp_path / "a.mat", keys={"adjacency": name})


def test_read_mat__takes_values_stored_small_and_the_other_byte_order(tmp_path):
    """MATLAB keeps doubles that are small whole numbers as bytes, in their tag where they are four at most."""

    def element(kind, data):
        if len(data) <= 4:
            return struct.pack(">HH", len(data), kind) + data.ljust(4, b"\0")
        return struct.pack(">II", kind, len(data)) + data.ljust(-(-len(data) // 8) * 8, b"\0")

    parts = [(6, struct.pack(">II", 6, 0)), (5, struct.pack(">ii", 2, 2)), (1, b"A"), (2, bytes([0, 3, 1, 0]))]
    body = b"".join(element(*part) for part in parts)
    (tmp_path / "a.mat").write_bytes(b"MATLAB".ljust(124) + b"\x01\x00MI" + struct.pack(">II", 14, len(body)) + body)
    policy = Policy(featureless="degree", directed=True, weights=True)
    g = read_matrix(tmp_path / "g", tmp_path / "a.mat", policy=policy)
    assert (g.indices.tolist(), g.weights.tolist()) == ([1, 0], [1, 3])
    np.testing.assert_array_equal(io.loadmat(tmp_path / "a.mat")["A"], [[0, 1], [3, 0]])


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "attributes", "anomalies"),
    [
        ("Amazon", 1_418, 3_695, 21, 28),
        ("Enron", 13_533, 176_987, 18, 5),
        ("BlogCatalog", 5_196, 171_743, 8_189, None),
        ("Flickr", 7_575, 239_738, 12_047, None),
    ],
)
def test_read_mat__takes_the_real_files(real_data, tmp_path, name, nodes, edges, attributes, anomalies):
    g = read_matrix(tmp_path / "g", real_data(f"{name}.mat"))
    counts = ingest_summary(g)
    found = (counts.num_nodes, counts.num_edges, counts.num_attributes, counts.num_anomalies)
    assert found == (nodes, edges, attributes, anomalies)
    assert counts.reversed_edges == (0 if anomalies else edges)  # Amazon and Enron hold one direction per edge
    directed = read_matrix(tmp_path / "d", real_data(f"{name}.mat"), policy=Policy(directed=True))
    assert directed.num_edges == counts.edge_rows


def test_read_matrices__takes_the_files_of_debian(real_data, tmp_path):
    g = read_matrix(tmp_path / "g", real_data("debian_files_arm64.npz"))
    assert (g.num_nodes, g.num_edges, g.num_attributes) == (1_773_230, 3_375_955, 273)
    with np.load(real_data("debian_files_arm64.npz"), allow_pickle=False) as raw:
        for name in ("indptr", "indices"):
            np.testing.assert_array_equal(getattr(g, name), raw[name])
        np.testing.assert_array_equal(g.x.indices, raw["x_indices"])


def test_pipe_or_nothing__in_the_place_of_an_array_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("pipe.npy", "none.npy"):
        with pytest.raises(InputError, match=rf"{name}' does not exist, or is neither a file nor a folder"):
            read_matrix(tmp_path / "out", tmp_path / name)
