"""Arrays copied to a device and back, in pieces: whatever their shape, every element arrives."""

import numpy as np
import pytest
import torch

from hcm_scale.base import device as base_device

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (1001, 3), (0, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_copies__there_and_back_is_the_same_array(monkeypatch, device, shape, dtype):
    monkeypatch.setattr(base_device, "_PIECE_BYTES", 100)
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array.setflags(write=False)
    there = base_device.copy_into_device(
        torch.empty(shape, dtype=torch.from_numpy(array.copy()).dtype, device=device), array
    )
    assert there.cpu().tolist() == array.tolist()
    back = np.empty_like(array)
    base_device.copy_from_device(there, back)
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_copy_to__fills_some_columns_and_leaves_the_others(device):
    wide = torch.zeros(70, 5, device=device)
    base_device.copy_into_device(wide[:, :3], np.ones((70, 3), np.float32))
    assert wide.sum(0).tolist() == [70, 70, 70, 0, 0]
