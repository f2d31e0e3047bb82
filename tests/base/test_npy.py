"""Mapped .npy files take their room at once, and are read in threads."""

import errno
import gc
import io
import os
import sys
import threading

import numpy as np
import pytest

from hcm_scale.base import npy


def test_map_new__is_zero_lasts_and_has_its_room(tmp_path):
    path = tmp_path / "x.npy"
    array = npy.create_npy(path, np.float32, (1000, 30))
    assert not array.any()
    assert 512 * path.stat().st_blocks >= array.nbytes
    array[7] = 1
    array.flush()
    assert np.load(path).sum() == 30


def test_map_new__of_nothing(tmp_path):
    assert npy.create_npy(tmp_path / "x.npy", np.int32, (0,)).shape == (0,)


def test_full_disk__names_the_file_and_leaves_none(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=r"No space left on device: 4,000 bytes are needed.*x\.npy"):
        npy.create_npy(tmp_path / "x.npy", np.float32, (1000,))
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros((2, 3), np.float32, order="F"), np.ones((), np.int8), np.zeros((0, 4), bool)],
    ids=lambda array: f"{array.dtype.name} {array.shape}",
)
def test_open_npy__is_what_numpy_loads(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    found = npy.open_npy(tmp_path / "x.npy")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == np.load(tmp_path / "x.npy").tobytes()


def test_open_npy__refuses_pickles(tmp_path):
    np.save(tmp_path / "x.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x\.npy holds Python objects"):
        npy.open_npy(tmp_path / "x.npy")


def test_header__with_unusual_blanks_and_of_version_2_is_read():
    for version, header in ((1, b"{'shape':(2,),'descr':'<i4','fortran_order':False}"), (2, None)):
        stream = io.BytesIO()
        if header is None:
            np.lib.format.write_array(stream, np.zeros(2, np.int32), version=(2, 0))
        else:
            stream.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        stream.seek(0)
        assert npy.read_header(stream) == ((2,), False, np.dtype(np.int32)), version


def test_header__is_read_in_several_threads_at_once():
    class Slow:  # collected while a header is read, which lets another thread read one meanwhile
        def __init__(self):
            self.me = self

        def __del__(self):
            for _ in range(200):
                pass

    stream, wrong = io.BytesIO(), []
    np.save(stream, np.zeros((3, 4), np.float32))

    def read():
        for _ in range(2000):
            Slow()
            try:
                npy.read_header(io.BytesIO(stream.getvalue()))
            except Exception as error:
                wrong.append(error)

    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20, 1, 1)
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)
    assert wrong == []
