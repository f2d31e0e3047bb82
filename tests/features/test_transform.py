"""Claims about rescaling, PCA and standardising, each against a plain dense computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import io, sparse, stats

from hcm_scale.features.transform import transform
from hcm_scale.graph import SparseRows

small = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.sampled_from([0, 0, 1, 2, 3.5, 100])
)


def dense_scale(x, scale):
    """The obvious twin."""
    x = x.astype(np.float64)
    totals = np.abs(x).sum(axis=1, keepdims=True)
    return {"none": x, "log1p": np.log1p(np.abs(x)), "binary": x != 0, "row": x / np.where(totals == 0, 1, totals)}[
        scale
    ]


def dense_pca(x, q):
    """The obvious twin: the SVD of the centred rows, largest loading positive."""
    x = np.asarray(x, np.float64)
    x = x - x.mean(axis=0)
    _, _, vectors = np.linalg.svd(x, full_matrices=False)
    vectors = vectors[:q]
    signs = np.sign(vectors[np.arange(q), np.abs(vectors).argmax(axis=1)])
    return x @ (vectors * signs[:, None]).T


def counts(num_rows, num_columns, seed=0, density=0.2):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 9, (num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < density)
    return (x * np.linspace(1, 3, num_columns)).astype(np.float32)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Makes every array span many blocks of rows."""
    monkeypatch.setattr("hcm_scale.features.parts._BLOCK_VALUES", 1)


@given(small, st.sampled_from(("none", "log1p", "binary", "row")))
def test_scale__equals_the_dense_formula_for_dense_and_sparse(x, scale):
    for rows in (x, SparseRows.of(sparse.csr_array(x))):
        scaled = transform(rows, scale=scale, standardise=False).x
        np.testing.assert_allclose(scaled, dense_scale(x, scale), rtol=1e-6)


def test_scale__shares_of_a_row_with_negative_values():
    x = np.array([[-1, 3], [0, 0]], np.float32)
    for rows in (x, SparseRows.of(sparse.csr_array(x))):
        np.testing.assert_allclose(transform(rows, scale="row", standardise=False).x, [[-0.25, 0.75], [0, 0]])


def test_normal_scores__keep_the_order_and_nothing_else(tiny_blocks):
    x = np.random.default_rng(0).lognormal(sigma=4, size=(301, 3)).astype(np.float32)
    x[:, 2] = 7
    x[:5, 1] = x[0, 1]
    out = transform(x, scale="normal", standardise=False).x
    np.testing.assert_array_equal(np.argsort(out[:, 0]), np.argsort(x[:, 0]))
    np.testing.assert_allclose(np.sort(out[:, 0]), stats.norm.ppf((np.arange(301) + 0.5) / 301), atol=1e-6)
    assert len(set(out[:5, 1].tolist())) == 1
    assert not out[:, 2].any()
    np.testing.assert_array_equal(transform(np.sqrt(x), scale="normal", standardise=False).x[:, 0], out[:, 0])


def test_normal_scores__of_sparse_attributes_are_those_of_dense_ones():
    x = counts(60, 4)
    rows = SparseRows.of(sparse.csr_array(x))
    np.testing.assert_array_equal(transform(rows, scale="normal").x, transform(x, scale="normal").x)


def test_normal_scores__of_large_sparse_attributes_name_the_options_that_can():
    empty = SparseRows(np.zeros(100_001, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 10_000)
    with pytest.raises(
        ValueError, match=r"attributes\.scale=normal ranks .*attributes\.scale=auto or attributes=log1p_pca"
    ):
        transform(empty, scale="normal")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_log1p__names_the_column_and_the_negative_value(kind):
    x = np.zeros((200, 3), np.float32)
    x[150, 1] = -2.5
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    with pytest.raises(ValueError, match=r"column size holds -2.5 in row 150"):
        transform(rows, scale="log1p", columns=("age", "size", "kind"))
    with pytest.raises(ValueError, match=r"column number 1 holds -2.5"):
        transform(rows, scale="log1p")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("shape", [(300, 12), (30, 50)])
def test_pca__equals_the_svd(kind, shape, tiny_blocks):
    x = counts(*shape)
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    features = transform(rows, pca=5, standardise=False)
    np.testing.assert_allclose(features.x, dense_pca(x, 5), atol=1e-4)
    assert features.columns == ("pc0", "pc1", "pc2", "pc3", "pc4")
    variance = dense_pca(x, 5).var(axis=0) / x.astype(np.float64).var(axis=0).sum()
    np.testing.assert_allclose(features.record["explained_variance"], variance, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_pca__by_lanczos_equals_the_svd(kind, monkeypatch, tiny_blocks):
    monkeypatch.setattr("hcm_scale.features.parts._MAX_COVARIANCE_COLUMNS", {True: 10, False: 10})
    x = counts(150, 300, seed=1)
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    first, again = (transform(rows, pca=6, standardise=False).x for _ in range(2))
    np.testing.assert_allclose(first, dense_pca(x, 6), atol=1e-4)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("limit", [10, 100])
def test_pca__beyond_the_rank_is_cut_and_said(kind, limit, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("hcm_scale.features.parts._MAX_COVARIANCE_COLUMNS", {True: limit, False: limit})
    x = np.outer(np.arange(60), np.arange(40)).astype(np.float32)
    rows = x if kind == "dense" else SparseRows.of(sparse.csr_array(x))
    features = transform(rows, pca=3)
    assert features.columns == ("pc0",)
    assert abs(features.x[:, 0].std() - 1) < 1e-5
    assert "attributes.pca=3 is cut to 1" in caplog.text


def test_pca__of_more_components_than_columns_is_all_of_them():
    x = np.random.default_rng(0).standard_normal((50, 18)).astype(np.float32)
    np.testing.assert_allclose(transform(x, pca=20, standardise=False).x, dense_pca(x, 18), atol=1e-4)


@pytest.mark.parametrize("limit", [10, 100])
def test_pca__of_equal_rows_is_zero(limit, monkeypatch):
    monkeypatch.setattr("hcm_scale.features.parts._MAX_COVARIANCE_COLUMNS", {True: limit, False: limit})
    x = np.tile(np.arange(40, dtype=np.float32), (50, 1))
    for rows in (x, SparseRows.of(sparse.csr_array(x))):
        assert not transform(rows, pca=2).x.any()


def test_pca__centres_before_it_multiplies():
    x = np.random.default_rng(0).standard_normal((200, 4)) * [1, 2, 3, 4] + 1e5
    x = x.astype(np.float32)
    np.testing.assert_allclose(transform(x, pca=2, standardise=False).x, dense_pca(x, 2), atol=1e-4)


def test_order__is_scale_then_pca_then_standardise():
    x = counts(200, 15, seed=3)
    expected = dense_pca(np.log1p(x), 4)
    features = transform(x, scale="log1p", pca=4)
    np.testing.assert_allclose(features.x, (expected - expected.mean(axis=0)) / expected.std(axis=0), atol=1e-3)
    assert features.record["scale"] == "log1p"


@given(small)
def test_standardise__gives_mean_0_variance_1_and_constant_columns_0(x):
    features = transform(x)
    constant = (x == x[0]).all(axis=0)
    assert not features.x[:, constant].any()
    np.testing.assert_allclose(features.x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(features.x.std(axis=0)[~constant], 1, rtol=1e-4)
    assert features.record["num_constant_columns"] == constant.sum()


def test_transform__leaves_its_input_alone_and_reads_a_memory_map(tmp_path, tiny_blocks):
    x = counts(300, 7)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r").view(np.ndarray)
    for settings in ({}, {"pca": 3}, {"scale": "binary"}, {"standardise": False}):
        np.testing.assert_array_equal(transform(mapped, **settings).x, transform(x, **settings).x)
    np.testing.assert_array_equal(transform(mapped, standardise=False).x, x)
    np.testing.assert_array_equal(x, counts(300, 7))


def test_transform__names_columns():
    assert transform(counts(5, 2), columns=("u", "v")).columns == ("u", "v")
    assert transform(counts(5, 2)).columns == ("a0", "a1")


def test_transform__sparse_equals_dense():
    x = counts(100, 9)
    np.testing.assert_allclose(transform(SparseRows.of(sparse.csr_array(x))).x, transform(x).x, atol=1e-6)


def test_transform__refuses_no_rows_and_no_columns():
    for shape in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="at least one row and one column"):
            transform(np.zeros(shape, np.float32))


def test_transform__refuses_to_make_a_large_sparse_matrix_dense():
    empty = SparseRows(np.zeros(100_001, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 10_000)
    with pytest.raises(ValueError, match=r"pca=None would make 100000 x 10000 sparse attributes dense \(3.7 GiB"):
        transform(empty)


@pytest.mark.parametrize("name", ["BlogCatalog.mat", "Flickr.mat"])
def test_transform__of_real_counts_gives_uncorrelated_features(real_data, name):
    x = SparseRows.of(io.loadmat(real_data(name))["Attributes"])
    features = transform(x, scale="log1p", pca=20)
    assert features.x.shape == (x.shape[0], 20)
    np.testing.assert_allclose(features.x.T @ features.x / len(features.x), np.eye(20), atol=1e-4)
    shares = features.record["explained_variance"]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("name", "num_constant"), [("Enron.mat", 2), ("Amazon.mat", 1)])
def test_transform__of_real_continuous_attributes(real_data, name, num_constant):
    x = io.loadmat(real_data(name))["X"]
    x = np.asarray(x.todense() if sparse.issparse(x) else x, np.float32)
    for scale in ("none", "log1p"):
        features = transform(x, scale=scale)
        assert features.record["num_constant_columns"] == num_constant
        assert np.isfinite(features.x).all()
