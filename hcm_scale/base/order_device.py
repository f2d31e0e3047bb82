"""Sorting of `order` on a CUDA device, and its reading at random, with the same results. This module imports torch.

Keys are signed integers that compare as the floats do: the bits, of which those below the sign are turned round where
it is set. Memory there: 64 bytes a value; where it is missing, nothing is done.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.device import copy_from_device, copy_into_device, copy_to_device, free_bytes

Take = Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]]
_VALUE_BYTES = 64
_INT64 = torch.iinfo(torch.int64)


def sort(values: NDArray[Any], device: str, keys: NDArray[np.uint64], out: NDArray[Any]) -> bool:
    """Fills keys, which compare as the values do, and positions; False where the device has no room."""
    with contextlib.suppress(torch.OutOfMemoryError):
        if ordered := _sort(values, None, device):
            copy_from_device(ordered[0] ^ _INT64.min, keys.view(np.int64))
            _copy_places(ordered[1], out)
            return True
    return False


def fill_places(values: NDArray[Any], has_value: NDArray[np.bool_] | None, device: str, out: NDArray[Any]) -> bool:
    """As `order.double_places`; False where the device has no room."""
    with contextlib.suppress(torch.OutOfMemoryError):
        if ordered := _sort(values, has_value, device):
            size = len(values) if has_value is None else int(np.count_nonzero(has_value))
            keys, positions = (array[len(values) - size :] for array in ordered)
            shared = 2 * size + 1 - torch.searchsorted(keys, keys) - torch.searchsorted(keys, keys, right=True)
            places = positions.new_full((len(values),), max(1, size) + 1)
            places[positions] = shared
            _copy_places(places, out)
            return True
    return False


def taker(columns: Mapping[str, NDArray[Any]], device: str, otherwise: Take) -> Take | None:
    """As `order.taker`; None where the device has no room for the columns. `otherwise` takes if it has none later."""
    longest = max(map(len, columns.values()))
    if free_bytes(device) < _VALUE_BYTES * longest + sum(c.nbytes for c in columns.values()):  # for a sort beside it
        return None
    names_of: dict[np.dtype[Any], list[str]] = {}
    for name, values in columns.items():
        names_of.setdefault(values.dtype, []).append(name)
    with contextlib.suppress(torch.OutOfMemoryError):
        held = [
            torch.empty(len(names), longest, dtype=torch.from_numpy(np.empty(0, kind)).dtype, device=device)
            for kind, names in names_of.items()
        ]
        for stacked, names in zip(held, names_of.values(), strict=True):
            for row, name in zip(stacked, names, strict=True):
                copy_into_device(row, columns[name])

        def take(positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
            with contextlib.suppress(torch.OutOfMemoryError):
                where = torch.from_numpy(positions).to(device)
                taken: dict[str, NDArray[Any]] = {}
                for stacked, names in zip(held, names_of.values(), strict=True):  # few calls: each waits for the GIL
                    taken |= zip(names, stacked.index_select(1, where).cpu().numpy(), strict=True)
                return {name: taken[name] for name in columns}
            return otherwise(positions)

        return take
    return None


def _sort(values: NDArray[Any], has_value: NDArray[np.bool_] | None, device: str) -> tuple[Tensor, Tensor] | None:
    """Keys of the values in order, and the positions of those: values that do not count first, NaN last, -0 with 0."""
    if free_bytes(device) < _VALUE_BYTES * len(values):
        return None
    numbers = copy_to_device(np.asarray(values, np.float64), device) + 0.0
    bits = numbers.view(torch.int64)
    keys = (bits ^ ((bits >> 63) & _INT64.max)).masked_fill_(numbers.isnan(), _INT64.max)
    del numbers, bits
    if has_value is not None:
        keys.masked_fill_(~copy_to_device(has_value, device), _INT64.min)
    ordered, positions = keys.sort(stable=True)
    return ordered, positions


def _copy_places(places: Tensor, out: NDArray[Any]) -> None:
    copy_from_device(places.to(torch.from_numpy(out[:0]).dtype), out)
