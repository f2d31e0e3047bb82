"""Torch's libraries are loaded ahead of torch itself."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="loads on Linux alone")
def test_start__loads_libraries_and_imports_nothing():
    code = (
        "import sys; from hcm_scale.base import preload; preload.start().join();"
        "assert 'libtorch_python.so' in open('/proc/self/maps').read(); assert 'torch' not in sys.modules;"
        "import torch; print(float(torch.ones(3).sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.0\n", "")
