"""The order of floats found by all threads, against numpy's."""

import numba
import numpy as np
import pytest

from hcm_scale.base import order as module

RNG = np.random.default_rng(0)
ARRAYS = {
    "normal": RNG.normal(size=5_000),
    "tied": np.round(RNG.exponential(size=5_000), 1),
    "one value": np.full(777, 2.5),
    "zeros of both signs": np.where(RNG.random(999) < 0.5, 0.0, -0.0),
    "huge and tiny": np.concatenate(
        [RNG.normal(size=300) * 10.0 ** RNG.integers(-300, 300, 300), [np.inf, -np.inf, 0]]
    ),
    "one": np.array([4.0]),
}


@pytest.fixture(autouse=True, params=["threads", "device"])
def _sorted_by(request, monkeypatch):
    monkeypatch.setattr(module, "_FEW", 0)
    if request.param == "device":  # what a CUDA device does, on the cores by torch
        monkeypatch.setattr(module, "_MANY", 0)
        monkeypatch.setattr(module, "_device", "cpu")


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_order__is_that_of_a_stable_sort(values):
    np.testing.assert_array_equal(module.order(values), np.argsort(values, kind="stable"))


def test_order__puts_what_is_no_number_last():
    assert module.order(np.array([np.nan, 1.0, -np.nan, np.inf])).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_double_places__counts_those_above_twice_and_equals_once(values):
    some = RNG.choice(len(values), min(40, len(values)), replace=False)
    above = np.array([np.count_nonzero(values > value) for value in values[some]])
    equal = np.array([np.count_nonzero(values == value) for value in values[some]])
    np.testing.assert_array_equal(module.double_places(values)[some], 2 * above + equal + 1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_double_places__of_the_known_are_those_without_the_others(values, threads, monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: threads)
    for share in (0.8, 0.0):
        known = RNG.random(len(values)) < share
        wanted = np.full(len(values), max(1, np.count_nonzero(known)) + 1)
        wanted[known] = module.double_places(values[known])
        found = module.double_places(values, known)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [97, 1 << 17])
@pytest.mark.parametrize("all_known", [True, False])
@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_at_places__find_the_values_of_a_sort(values, all_known, size, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", size)
    known = None if all_known else np.arange(len(values)) % 5 != 1
    ordered = np.sort(values if known is None else values[known])[::-1]
    places = np.unique(np.linspace(1, len(ordered), 40).astype(np.int64))
    for kind in (np.int32, np.int64):
        found = module.at_places(module.double_places(values, known).astype(kind), places, known)
        np.testing.assert_array_equal(values[found], ordered[places - 1])
        assert known is None or known[found].all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 3, 900, 600_000])
def test_largest__are_the_first_of_a_stable_sort(size, threads, monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: threads)
    for values in (RNG.normal(size=size).round(1), RNG.normal(size=size), np.zeros(size)):
        np.testing.assert_array_equal(module.largest_positions(values, 100), np.argsort(-values, kind="stable")[:100])


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32, np.int8, np.uint8, bool])
@pytest.mark.parametrize("has_room", [True, False])
def test_taker__takes_the_values_of_all_columns(kind, has_room, monkeypatch):
    from hcm_scale.base import order_device

    if not has_room:
        monkeypatch.setattr(order_device, "free_bytes", lambda _: 0)
    rows = np.random.default_rng(0).integers(0, 2, (2, 50)).astype(kind)
    columns, positions = {"first": rows[0], "second": rows[1]}, np.array([3, 49, 0, 3])
    found = module.taker(columns)(positions)
    assert [*found] == [*columns]
    for name, values in found.items():
        assert values.dtype == kind
        np.testing.assert_array_equal(values, columns[name][positions])


def test_first_not_below__is_numpys_search():
    values = np.array([1, 3, 3, 7])
    for wanted in range(9):
        assert module.first_not_below(values, 0, len(values), wanted) == np.searchsorted(values, wanted)
    assert module.first_not_below(values, 0, 0, 5) == 0
