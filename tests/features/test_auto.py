"""Claims about attributes.scale=auto: which rule a column falls under and what it becomes, against plain twins."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse, stats

from hcm_scale.features.auto import table as as_text
from hcm_scale.features.transform import transform
from hcm_scale.graph import SparseRows

N = 2000
RNG = np.random.default_rng(0)
COLUMNS = {
    "normal": RNG.normal(5, 3, N),
    "uniform": RNG.uniform(-1, 1, N),
    "exponential": RNG.exponential(1, N),
    "lognormal": RNG.lognormal(0, 2, N),
    "one giant": np.where(np.arange(N) == 7, 5e11, RNG.normal(0, 1, N)),
    "rare count": RNG.poisson(0.15, N) + 0.0,
    "common count": RNG.poisson(4, N) + 0.0,
    "flag": RNG.random(N) < 0.01,
    "two sizes": np.where(RNG.random(N) < 0.4, -3.0, 8.0),
    "same": np.full(N, 4.0),
}
RULES = {
    "normal": "standard",
    "uniform": "standard",
    "exponential": "standard",
    "lognormal": "heavy tail",
    "one giant": "heavy tail",
    "rare count": "heavy tail",
    "common count": "standard",
    "flag": "two values",
    "two sizes": "two values",
    "same": "constant",
}


def table(names=tuple(COLUMNS)):
    return np.column_stack([COLUMNS[name] for name in names]).astype(np.float32)


def bag(num_rows=300, num_columns=150, seed=0, values=None):
    """Sparse counts, or presence where `values` is 1."""
    rng = np.random.default_rng(seed)
    held = rng.random((num_rows, num_columns)) < np.linspace(0.02, 0.15, num_columns)
    return (held * (rng.geometric(0.4, held.shape) if values is None else values)).astype(np.float32)


def twin_components(x, q):
    """The scores on the first components by SVD, each of deviation 1, largest loading positive."""
    x = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, _, vectors = np.linalg.svd(x, full_matrices=False)
    vectors = vectors[:q]
    scores = x @ (vectors * np.sign(vectors[np.arange(q), np.abs(vectors).argmax(axis=1)])[:, None]).T
    return scores / scores.std(axis=0)


def rules_of(features):
    return {row["columns"]: row["rule"] for row in features.record["columns"]}


def as_sparse(x):
    return SparseRows.of(sparse.csr_array(x))


@pytest.fixture
def tiny_blocks(monkeypatch):
    monkeypatch.setattr("hcm_scale.features.parts._BLOCK_VALUES", 1)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rule__of_every_kind_of_column(kind):
    x = table() if kind == "dense" else as_sparse(table())
    features = transform(x, scale="auto", columns=tuple(COLUMNS))
    assert rules_of(features) == RULES
    assert features.record["left_out"] == ["same"]
    assert [rule for rule, count in features.record["rules"] for _ in range(count)] == list(RULES.values())
    assert features.columns == tuple(name for name in COLUMNS if name != "same")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_columns__become_what_their_rule_says(kind, tiny_blocks):
    x = table()
    features = transform(x if kind == "dense" else as_sparse(x), scale="auto", columns=tuple(COLUMNS))
    out = dict(zip(features.columns, features.x.T, strict=True))
    for name, values in out.items():
        raw = x[:, list(COLUMNS).index(name)].astype(np.float64)
        expected = {
            "standard": (raw - raw.mean()) / raw.std(),
            "heavy tail": stretched(stats.norm.ppf((stats.rankdata(raw) - 0.5) / N)),
            "two values": (raw - raw.min()) / np.ptp(raw) - ((raw - raw.min()) / np.ptp(raw)).mean(),
        }[RULES[name]]
        np.testing.assert_allclose(values, expected, atol=1e-5, err_msg=name)


def test_rare_flag__does_not_become_huge():
    x = np.zeros((N, 2), np.float32)
    x[3, 0] = 1
    x[:, 1] = COLUMNS["normal"]
    assert np.abs(transform(x, scale="auto").x[:, 0]).max() < 1


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 20), st.integers(1, 5)),
        elements=st.sampled_from([0, 0, 1, 2, -3.5, 100, 5e11]),
    )
)
def test_auto__of_any_table_is_finite_centred_and_the_same_sparse_or_dense(x):
    features, again = transform(x, scale="auto"), transform(as_sparse(x), scale="auto")
    np.testing.assert_array_equal(features.x, again.x)
    assert np.isfinite(features.x).all()
    np.testing.assert_allclose(features.x.mean(axis=0), 0, atol=1e-4)
    assert features.x.shape == (len(x), len(features.columns))
    assert bool(features.columns) == bool((x != x[0]).any())
    assert json.loads(json.dumps(features.record)) == features.record


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_sparse_counts__are_the_components_of_their_logarithms(kind, tiny_blocks):
    x = bag()
    features = transform(x if kind == "dense" else as_sparse(x), scale="auto")
    assert features.columns == tuple(f"pc{k}" for k in range(20))
    np.testing.assert_allclose(features.x, twin_components(np.log1p(x), 20), atol=1e-3)
    np.testing.assert_allclose(features.x, transform(x, scale="log1p", pca=20).x, atol=1e-4)
    assert len(features.record["columns"]) == 1
    assert "log1p, 20 components" in features.record["columns"][0]["done"]


def test_sparse_presence__is_told_from_counts_whatever_its_value():
    ones, sevens = (transform(as_sparse(bag(values=value)), scale="auto") for value in (1, 7))
    np.testing.assert_allclose(ones.x, sevens.x, atol=1e-4)
    assert "presence" in ones.record["columns"][0]["done"]


def test_sparse_values_below_zero__stay_as_they_are():
    x = bag() * np.where(np.random.default_rng(1).random((300, 150)) < 0.5, -1, 1)
    features = transform(as_sparse(x.astype(np.float32)), scale="auto")
    np.testing.assert_allclose(features.x, twin_components(x, 20), atol=1e-3)


def test_common_words__belong_to_the_bag_where_storage_is_sparse():
    x = np.hstack([bag(), np.ceil(np.random.default_rng(0).lognormal(1, 1, (300, 2)))]).astype(np.float32)
    assert transform(as_sparse(x), scale="auto").columns == tuple(f"pc{k}" for k in range(20))


def stretched(scores):
    """Mean 0 and deviation 1; what varies less than half of that keeps its order of size."""
    return (scores - scores.mean()) / max(scores.std(), 0.5)


def embedding(num_rows=500, width=48, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(num_rows, width)) @ rng.normal(size=(width, width)) + 3).astype(np.float32)


def test_embedding__keeps_its_distances_but_for_one_number():
    x = embedding()
    features = transform(x, scale="auto")
    assert features.x.shape == x.shape
    ours, theirs = (np.linalg.norm(rows[:-1] - rows[1:], axis=1) for rows in (features.x, x.astype(np.float64)))
    np.testing.assert_allclose(ours / theirs, (ours / theirs)[0], rtol=1e-4)
    np.testing.assert_allclose((features.x**2).mean(), 1, rtol=1e-4)
    assert features.x.var(axis=0)[0] > 2 * features.x.var(axis=0)[-1]


def test_embedding__is_not_what_has_columns_of_many_scales():
    x = embedding() * np.logspace(-3, 3, 48)
    assert {row["rule"] for row in transform(x.astype(np.float32), scale="auto").record["columns"]} == {"standard"}


def test_mixture__each_group_by_its_own_rule():
    x = np.hstack([bag(N), embedding(N), table()]).astype(np.float32)
    features = transform(x, scale="auto", columns=(*(f"w{k}" for k in range(198)), *COLUMNS))
    expected = [f"sparse_pc{k}" for k in range(20)] + [f"embedding_pc{k}" for k in range(53)]  # five are like it
    assert list(features.columns) == ["one giant", "two sizes", *expected]
    np.testing.assert_allclose((features.x[:, 22:] ** 2).mean(), 1, rtol=1e-4)


def test_pca__overrides_the_number_of_components_and_is_cut_at_the_rank(caplog):
    caplog.set_level("INFO")
    assert transform(as_sparse(bag()), scale="auto", pca=7).x.shape[1] == 7
    copies = np.tile(bag(num_columns=10), 12)
    assert transform(as_sparse(copies), scale="auto", pca=30).x.shape[1] == 10
    assert "attributes.pca=30 is cut to 10" in caplog.text


def test_settings_without_effect__are_warned_about(caplog):
    x = np.random.default_rng(0).normal(size=(50, 18)).astype(np.float32)
    assert transform(x, scale="auto", pca=20).x.shape[1] == 18
    assert "attributes.pca=20 has no effect" in caplog.text


def test_constant_table__has_no_features():
    features = transform(np.full((5, 3), 2, np.float32), scale="auto")
    assert (features.x.shape, features.columns) == ((5, 0), ())
    assert [row["done"] for row in features.record["columns"]] == ["left out"] * 3


def test_gaps__alone_are_no_anomaly():
    x = table(("normal", "exponential", "uniform", "flag"))
    gap = np.random.default_rng(3).random(x.shape) < 0.03
    means = np.array([column[~missing].mean() for column, missing in zip(x.T, gap.T, strict=True)])
    names = ("normal", "exponential", "uniform", "flag")
    filled = np.hstack([np.where(gap, means, x), gap]).astype(np.float32)
    features = transform(filled, scale="auto", columns=(*names, *(f"{name} is null" for name in names)))
    norms = np.linalg.norm(features.x, axis=1)
    with_gap = gap.any(axis=1)
    assert norms[with_gap].mean() < norms[~with_gap].mean()
    assert np.quantile(norms[with_gap], 0.95) < 1.05 * np.quantile(norms[~with_gap], 0.95)
    whole = transform(x[~with_gap], scale="auto", columns=names).x
    assert np.abs(features.x[~with_gap, :4] - whole).mean() < 0.02


def test_gap__of_a_category_sits_in_the_middle_of_its_columns():
    rng = np.random.default_rng(0)
    code = rng.choice(4, N, p=[0.6, 0.3, 0.09, 0.01])
    gap = rng.random(N) < 0.03
    shares = np.bincount(code[~gap]) / (~gap).sum()
    x = np.hstack([np.where(gap[:, None], shares, np.eye(4)[code]), gap[:, None]]).astype(np.float32)
    features = transform(x, scale="auto", columns=("c=a", "c=b", "c=c", "c=d", "c is null"))
    assert set(rules_of(features).values()) == {"two values", "gap flag"}
    assert np.linalg.norm(features.x[gap], axis=1).max() < np.linalg.norm(features.x[~gap], axis=1).min()


def test_gap__of_a_wide_category_is_no_anomaly_either():
    rng = np.random.default_rng(0)
    code, gap = rng.integers(0, 120, N), rng.random(N) < 0.03
    shares = np.bincount(code[~gap], minlength=120) / (~gap).sum()
    x = np.hstack([np.where(gap[:, None], shares, np.eye(120)[code]), gap[:, None]]).astype(np.float32)
    features = transform(x, scale="auto", columns=(*(f"c={k}" for k in range(120)), "c is null"))
    assert features.columns == ("c is null", *(f"pc{k}" for k in range(20)))
    assert np.linalg.norm(features.x[gap], axis=1).max() < np.median(np.linalg.norm(features.x[~gap], axis=1))


def test_large_table__is_decided_on_evenly_spaced_rows(monkeypatch, tiny_blocks):
    monkeypatch.setattr("hcm_scale.features.auto.MAX_ROWS", 500)
    monkeypatch.setattr("hcm_scale.features.auto._MIN_ROWS", 1)
    names = ("normal", "lognormal", "flag")
    x = table(names)
    x[1, 0] = 1e30  # row 1 of every four is not in the sample
    x[1, 1] = 1e30
    features = transform(x, scale="auto", columns=names)
    fitted, rest = transform(x[::4].copy(), scale="auto", columns=names), np.arange(N) != 1
    np.testing.assert_allclose(features.x[::4], fitted.x, atol=1e-6)
    np.testing.assert_array_equal(transform(as_sparse(x), scale="auto", columns=names).x, features.x)
    assert np.abs(features.x).max() < 12
    order = np.argsort(x[:, 1])
    assert (np.diff(features.x[order, 1]) >= 0).all()
    np.testing.assert_allclose(features.x[rest, 0], transform(x[rest], scale="none", columns=names).x[:, 0], atol=0.3)


def test_lines__one_a_column_where_they_are_few_and_one_a_rule_where_they_are_many():
    few = transform(table(), scale="auto", columns=tuple(COLUMNS)).record["columns"]
    assert [row["columns"] for row in few] == list(COLUMNS)
    many = np.tile(table(("normal", "flag")), 20) * np.logspace(0, 9, 40)
    rows = transform(many.astype(np.float32), scale="auto").record["columns"]
    assert [(row["columns"], row["count"]) for row in rows] == [
        ("20 columns a0; a2; a4; ...", 20),
        ("20 columns a1; a3; a5; ...", 20),
    ]
    assert len(as_text(few).splitlines()) == len(COLUMNS)
