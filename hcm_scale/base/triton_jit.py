"""Triton, where it is installed: `jit` makes a function a kernel, `tl` is what kernels are written in.

Where it is missing `AVAILABLE` is False, `jit` leaves a function as it is, which nobody can call, and files with
kernels can still be read, if they have `from __future__ import annotations`. Only what runs on CUDA devices imports
this, because Triton takes a second to import.
"""

import importlib
import importlib.util
from typing import Any

AVAILABLE = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if AVAILABLE else None
tl: Any = importlib.import_module("triton.language") if AVAILABLE else None


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return triton.jit(function) if AVAILABLE else function
