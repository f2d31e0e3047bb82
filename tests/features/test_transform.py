"""Claims about scales that are one for all columns, and about components, against a plain dense computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import io, linalg, sparse, stats

from hcm_scale.features.transform import transform
from hcm_scale.graph import SparseRows

small = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.sampled_from([0, 0, 1, 2, 3.5, 100])
)


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


def scaled(scores):
    return scores / scores.std(axis=0)


def both(x):
    return x, SparseRows.of(sparse.csr_array(x))


def test_normal_scores__keep_the_order_and_nothing_else(tiny_blocks):
    x = np.random.default_rng(0).lognormal(sigma=4, size=(301, 3)).astype(np.float32)
    x[:, 2] = 7
    x[:5, 1] = x[0, 1]
    out = transform(x, scale="normal").x
    np.testing.assert_array_equal(np.argsort(out[:, 0]), np.argsort(x[:, 0]))
    np.testing.assert_allclose(np.sort(out[:, 0]), scaled(stats.norm.ppf((np.arange(301) + 0.5) / 301)), atol=1e-5)
    assert len(set(out[:5, 1].tolist())) == 1
    assert not out[:, 2].any()
    np.testing.assert_array_equal(transform(np.sqrt(x), scale="normal").x[:, 0], out[:, 0])


@pytest.mark.parametrize("scale", ["none", "normal"])
def test_scale__of_sparse_attributes_is_that_of_dense_ones(scale):
    x, rows = both(counts(60, 4))
    np.testing.assert_array_equal(transform(rows, scale=scale).x, transform(x, scale=scale).x)


@pytest.mark.parametrize("scale", ["none", "normal"])
def test_scale__that_would_make_many_sparse_attributes_dense_names_the_options_that_do_not(scale):
    empty = SparseRows(np.zeros(100_001, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 10_000)
    said = rf"attributes\.scale={scale} would .* dense \(3.7 GiB.*attributes\.scale=auto or attributes=log1p_pca"
    with pytest.raises(ValueError, match=said):
        transform(empty, scale=scale)


def test_log1p__names_the_column_and_the_negative_value():
    x = np.zeros((200, 3), np.float32)
    x[150, 1] = -2.5
    for rows in both(x):
        with pytest.raises(ValueError, match=r"column size holds -2.5 in row 150"):
            transform(rows, scale="log1p", columns=("age", "size", "kind"))
        with pytest.raises(ValueError, match=r"column number 1 holds -2.5"):
            transform(rows, scale="log1p")


def test_log1p__is_the_components_of_logarithms():
    x = counts(200, 30, seed=3)
    np.testing.assert_allclose(transform(x, scale="log1p", pca=4).x, scaled(dense_pca(np.log1p(x), 4)), atol=1e-3)
    assert transform(x, scale="log1p").x.shape == (200, 20)


LIMITS = [8_192, 10]  # sides up to which products are formed: all, none


@pytest.fixture(params=LIMITS)
def limit(request, monkeypatch):
    """Components by products that are formed, and by products that are applied."""
    monkeypatch.setattr("hcm_scale.features.components._MAX_FORMED", {True: request.param, False: request.param})
    return request.param


@pytest.mark.parametrize("shape", [(300, 12), (30, 50), (150, 300), (300, 150)])
def test_pca__equals_the_svd(shape, limit, tiny_blocks):
    """With more rows than columns and fewer, in blocks, and the same each time."""
    x = counts(*shape)
    for rows in both(x):
        features, again = (transform(rows, scale="none", pca=5) for _ in range(2))
        np.testing.assert_allclose(features.x, scaled(dense_pca(x, 5)), atol=1e-4)
        np.testing.assert_array_equal(features.x, again.x)
        assert features.columns == ("pc0", "pc1", "pc2", "pc3", "pc4")
        variance = dense_pca(x, 5).var(axis=0) / x.astype(np.float64).var(axis=0).sum()
        np.testing.assert_allclose(features.record["explained_variance"]["sparse"], variance, atol=1e-6)


def test_pca__beyond_the_rank_is_cut_and_said(limit, caplog):
    caplog.set_level("INFO")
    x = np.outer(np.arange(60), np.arange(40)).astype(np.float32)
    for table in (x, x.T.copy()):
        for rows in both(table):
            features = transform(rows, scale="none", pca=3)
            assert features.columns == ("pc0",)
            assert abs(features.x[:, 0].std() - 1) < 1e-5
    assert caplog.text.count("attributes.pca=3 is cut to 1") == 4


def test_pca__of_more_components_than_columns_is_all_of_them():
    x = np.random.default_rng(0).standard_normal((50, 18)).astype(np.float32)
    np.testing.assert_allclose(transform(x, scale="none", pca=20).x, scaled(dense_pca(x, 18)), atol=1e-4)


def test_pca__of_equal_rows_is_zero(limit):
    x = np.tile(np.arange(40, dtype=np.float32), (50, 1))
    for rows in both(x):
        assert not transform(rows, scale="none", pca=2).x.any()


def test_pca__centres_before_it_multiplies():
    x = np.random.default_rng(0).standard_normal((200, 4)) * [1, 2, 3, 4] + 1e5
    x = x.astype(np.float32)
    np.testing.assert_allclose(transform(x, scale="none", pca=2).x, scaled(dense_pca(x, 2)), atol=1e-4)


@pytest.mark.parametrize("shape", [(30, 5_000), (5_000, 30)])
def test_pca__never_makes_a_matrix_of_the_larger_side(shape, monkeypatch):
    sides, whole = [], linalg.eigh
    monkeypatch.setattr(linalg, "eigh", lambda a, **o: sides.append(len(a)) or whole(a, **o))
    for rows in both(counts(*shape)):
        transform(rows, scale="none", pca=3)
    assert sides == [30, 30]


@given(small)
def test_none__gives_mean_0_variance_1_and_constant_columns_0(x):
    features = transform(x, scale="none")
    constant = (x == x[0]).all(axis=0)
    assert not features.x[:, constant].any()
    np.testing.assert_allclose(features.x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(features.x.std(axis=0)[~constant], 1, rtol=1e-4)
    assert features.record["num_constant"] == constant.sum()


def test_transform__leaves_its_input_alone_and_reads_a_memory_map(tmp_path, tiny_blocks):
    x = counts(300, 7)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r").view(np.ndarray)
    for settings in ({}, {"scale": "log1p", "pca": 3}, {"scale": "normal"}, {"scale": "none"}):
        np.testing.assert_array_equal(transform(mapped, **settings).x, transform(x, **settings).x)
    np.testing.assert_array_equal(x, counts(300, 7))


def test_transform__names_columns():
    assert transform(counts(5, 2), scale="none", columns=("u", "v")).columns == ("u", "v")
    assert transform(counts(5, 2), scale="none").columns == ("a0", "a1")


@pytest.mark.parametrize("name", ["BlogCatalog.mat", "Flickr.mat"])
def test_transform__of_real_counts_gives_uncorrelated_features(real_data, name):
    x = SparseRows.of(io.loadmat(real_data(name))["Attributes"])
    features = transform(x, scale="log1p", pca=20)
    assert features.x.shape == (x.shape[0], 20)
    np.testing.assert_allclose(features.x.T @ features.x / len(features.x), np.eye(20), atol=1e-4)
    shares = features.record["explained_variance"]["sparse"]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("name", "num_constant"), [("Enron.mat", 2), ("Amazon.mat", 1)])
def test_transform__of_real_continuous_attributes(real_data, name, num_constant):
    x = io.loadmat(real_data(name))["X"]
    x = np.asarray(x.todense() if sparse.issparse(x) else x, np.float32)
    for scale in ("none", "normal"):
        features = transform(x, scale=scale)
        assert features.record["num_constant"] == num_constant
        assert np.isfinite(features.x).all()
