"""Additions of several threads to one element: none is lost, and each sees a value of its own; tiles of products."""

import numpy as np
import pytest
from numba import njit, prange
from numba.core.errors import NumbaError

from hcm_scale.base.jit import NARROW_COLUMNS, TILE_COLUMNS, TILE_ROWS, fetch_add, narrow_tile, relu_tile


@njit(parallel=True)
def take_tickets(counter, tickets):
    for i in prange(len(tickets)):
        tickets[i] = fetch_add(counter, 1, 2)


@njit
def add_one(values):
    return fetch_add(values, 0, 1)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_fetch_add__loses_nothing_and_gives_each_call_its_own_value(kind):
    counter, tickets = np.zeros(3, kind), np.empty(200_000, kind)
    take_tickets(counter, tickets)
    assert counter.tolist() == [0, 400_000, 0]
    np.testing.assert_array_equal(np.sort(tickets), np.arange(0, 400_000, 2))


def test_fetch_add__refuses_what_has_no_atomic_sum():
    for values in (np.zeros(3), np.zeros(6, np.int64)[::2]):
        with pytest.raises((NumbaError, TypeError), match="not a contiguous array of integers"):
            add_one(values)


@njit
def multiply(x, weight, bias, out, relu):
    for i in range(0, len(x), TILE_ROWS):
        if relu:
            for k in range(0, len(bias), TILE_COLUMNS):
                relu_tile(x, i, weight, bias, k, out)
        else:
            for k in range(0, len(bias), NARROW_COLUMNS):
                narrow_tile(x, i, weight, bias, k, out)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 4, TILE_COLUMNS), (12, 20, 3 * TILE_COLUMNS), (64, 64, 64)])
def test_tiles__are_the_product_and_nothing_is_written_beside_it(rows, depth, columns):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, columns)).astype(np.float32)
    bias, room = rng.normal(size=columns).astype(np.float32), np.full((rows + 2, columns), 7.0, np.float32)
    x[2, 1] = np.nan
    wanted = x.astype(np.float64) @ weight + bias
    for relu, of_wanted in ((False, wanted), (True, np.where(wanted < 0, 0.0, wanted))):
        multiply(x, weight, bias, room[1:-1], relu)
        np.testing.assert_allclose(room[1:-1], of_wanted, atol=1e-5)  # of which a NaN is one
        assert (room[[0, -1]] == 7.0).all()
