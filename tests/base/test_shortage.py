"""Every word that libraries have for memory that ran out, from the libraries themselves."""

import threading

import numba
import numpy as np
import pyarrow as pa
import pytest
import torch

from hcm_scale.base.memory import OutOfMemoryError, is_shortage, raising_out_of_memory

HUGE = 1 << 50  # bytes: more than any machine gives


@numba.njit
def hold(num_bytes):
    return np.empty(num_bytes, np.uint8)


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    "take",
    [
        lambda: np.empty(HUGE, np.uint8),
        lambda: torch.empty(HUGE, dtype=torch.uint8),
        lambda: pa.allocate_buffer(HUGE),
        lambda: hold(HUGE),
        lambda: raise_error(OSError(12, "Cannot allocate memory")),
        lambda: raise_error(RuntimeError("can't start new thread")),
        lambda: raise_error(RuntimeError("std::bad_alloc")),
        lambda: raise_error(ImportError("libx.so: failed to map segment from shared object")),
    ],
)
def test_shortage__is_told_in_one_way(take):
    with pytest.raises(OutOfMemoryError, match=r"^scores: memory ran out") as caught, raising_out_of_memory("scores"):
        take()
    assert "\n" not in str(caught.value)


def test_shortage__is_told_once():
    with (
        pytest.raises(OutOfMemoryError, match=r"^scores: memory ran out$"),
        raising_out_of_memory("run"),
        raising_out_of_memory("scores"),
    ):
        raise MemoryError


def test_other_errors__are_left_alone():
    error = ValueError("seed=-1 is out of range; not enough memory has nothing to do with it")
    with pytest.raises(ValueError, match=r"^seed=-1") as caught, raising_out_of_memory("scores"):
        raise error
    assert caught.value is error
    assert not is_shortage(threading.BrokenBarrierError())
