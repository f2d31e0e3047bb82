"""A fitted transform: on its own rows it gives what the fit gave, on others the same numbers, after a trip to disk."""

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.features import parts
from hcm_scale.features.transform import transform
from hcm_scale.graph import SparseRows

NAMES = ("size", "size is null", "kind=a", "kind=b", "income", "same")


def table(num_rows: int, seed: int = 0) -> np.ndarray:
    """A column of each kind: numbers with gaps, two categories, a heavy tail, a constant."""
    rng = np.random.default_rng(seed)
    gap = rng.random(num_rows) < 0.1
    size, kind = np.where(gap, 5.0, rng.normal(5, 2, num_rows)), rng.random(num_rows) < 0.3
    columns = [size, gap, kind, ~kind, np.exp(3 * rng.normal(size=num_rows)), np.ones(num_rows)]
    return np.stack(columns, axis=1).astype(np.float32)


def words(num_rows: int, seed: int = 0) -> SparseRows:
    return SparseRows.of(sparse.random_array((num_rows, 150), density=0.05, rng=seed, dtype=np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "auto"},
        {"scale": "none"},
        {"scale": "log1p", "pca": 3},
        {"scale": "normal"},
        {"scale": "none", "pca": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [lambda n: np.abs(table(n)), words], ids=["dense", "sparse"])
def test_fitted__gives_its_own_rows_the_same_features(make, options):
    made = transform(make(300), **options)
    again = parts.fitted_from_bytes(parts.fitted_to_bytes(made.fitted)).apply(make(300))
    np.testing.assert_allclose(again, made.x, rtol=1e-6, atol=1e-6)


def test_fitted__is_always_the_same_bytes():
    fitted = transform(table(300), scale="auto", columns=NAMES).fitted
    assert len({parts.fitted_to_bytes(fitted) for _ in range(50)}) == 1


def test_fitted__a_row_has_the_same_features_whatever_rows_are_beside_it():
    made = transform(table(400), scale="auto", columns=NAMES)
    others = np.concatenate([table(400)[:5], 100 * table(50, seed=7)])
    np.testing.assert_array_equal(made.fitted.apply(others, NAMES)[:5], made.x[:5])


def test_fitted__finds_columns_by_name_and_names_what_is_missing_or_new(caplog):
    x = table(400)
    made = transform(x, scale="auto", columns=NAMES)
    turned = made.fitted.apply(np.hstack([x[:, ::-1], x[:, :1]]), (*NAMES[::-1], "new"))
    np.testing.assert_array_equal(turned, made.x)
    assert "1 attributes were not there in training, and are not used: new" in caplog.text
    less = made.fitted.apply(x[:, [1, 2, 4, 5]], ("size is null", "kind=a", "income", "same"))
    assert "2 attributes are missing, and taken as gaps: size, kind=b" in caplog.text
    place = {name: k for k, name in enumerate(made.columns)}
    assert np.ptp(less[:, place["size"]]) < 0.1
    assert set(less[:, place["kind=b"]]) == {made.x[:, place["kind=b"]].min()}  # nobody has this value


def test_fitted__takes_a_missing_number_for_its_mean():
    x = table(400)[:, [0, 4]]
    made = transform(x, scale="none", columns=("size", "income"))
    np.testing.assert_allclose(made.fitted.apply(x[:, 1:], ("income",))[:, 0], 0.0, atol=1e-5)


def test_fitted__refuses_other_columns():
    fitted = transform(table(100), scale="auto").fitted
    with pytest.raises(ValueError, match="this graph has 5 attributes and the trained one 6"):
        fitted.apply(table(100)[:, :5])
    named = transform(table(100), scale="auto", columns=NAMES).fitted
    with pytest.raises(ValueError, match="none of the attributes of the trained one: size"):
        named.apply(table(100), tuple("uvwxyz"))
