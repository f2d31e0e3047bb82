"""`quickly`: a block of heavy imports, which are no garbage to be looked through; Arrow's pandas is left out."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Within the block modules are imported."""
    gc.disable()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # reads every installed package's entry points
    try:
        leave_pandas_out()
        yield
    finally:
        gc.freeze()
        gc.enable()


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def leave_pandas_out() -> None:
    """Keeps Arrow's first array from importing pandas.

    Arrow asks once, here, and finds none; it asks again only when it has entries to convert from or to pandas.
    """
    import pyarrow as pa

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
