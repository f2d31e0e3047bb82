"""Triton, where it is installed: `jit` makes a function a kernel, which is written in terms of `tl`.

Without Triton `AVAILABLE` is False and `jit` returns the function, which nobody can call; modules with kernels can
still be imported if they have `from __future__ import annotations`. Triton takes a second to import, so only modules of
kernels import this one, and those are imported where a CUDA device is used.
"""

import importlib.util
from typing import Any

AVAILABLE = importlib.util.find_spec("triton") is not None
if AVAILABLE:
    import triton
    import triton.language as tl
else:
    triton = tl = None


def jit(function: Any) -> Any:
    return triton.jit(function) if AVAILABLE else function
