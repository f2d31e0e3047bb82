"""Triton, where it is installed: `jit` makes a function a kernel, which is written in terms of `tl`.

Triton compiles a kernel anew for whole numbers that are multiples of 16, that are not, and that are 1. Arguments named
in `sizes` are of any graph: they are compiled for once, so that a tiny graph warms the kernels of a large one.

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


def jit(function: Any = None, *, sizes: tuple[str, ...] = ()) -> Any:
    if function is None:
        return lambda function: jit(function, sizes=sizes)
    return triton.jit(function, do_not_specialize=sizes) if AVAILABLE else function
