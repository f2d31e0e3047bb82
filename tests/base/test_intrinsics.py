"""Additions of several threads to one element: none is lost, and each sees a value of its own."""

import numpy as np
import pytest
from numba import njit, prange
from numba.core.errors import NumbaError

from hcm_scale.base.jit import fetch_add


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
