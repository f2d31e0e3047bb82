"""Mapped files take their room at once."""

import errno
import os

import numpy as np
import pytest

from hcm_scale.base.mapped import map_new


def test_map_new__is_zero_lasts_and_has_its_room(tmp_path):
    path = tmp_path / "x.npy"
    array = map_new(path, np.float32, (1000, 30))
    assert not array.any()
    assert 512 * path.stat().st_blocks >= array.nbytes
    array[7] = 1
    array.flush()
    assert np.load(path).sum() == 30


def test_map_new__of_nothing(tmp_path):
    assert map_new(tmp_path / "x.npy", np.int32, (0,)).shape == (0,)


def test_full_disk__names_the_file_and_leaves_none(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=r"No space left on device: 4,000 bytes are needed.*x\.npy"):
        map_new(tmp_path / "x.npy", np.float32, (1000,))
    assert not (tmp_path / "x.npy").exists()
