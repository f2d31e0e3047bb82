"""Triton, where it is installed: `jit` makes a function a kernel, `tl` is what kernels are written in.

Where it is missing `AVAILABLE` is False, `jit` leaves a function as it is, which nobody can call, and files with
kernels can still be read, if they have `from __future__ import annotations`. Only what runs on CUDA devices imports
this, because Triton takes a second to import.
"""

import importlib.util
from typing import Any

AVAILABLE = importlib.util.find_spec("triton") is not None
if AVAILABLE:
    import triton
    import triton.language as tl
else:
    triton = tl = None

__all__ = ["AVAILABLE", "jit", "tl", "triton"]


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return triton.jit(function) if AVAILABLE else function
