"""Arrow without pandas: its first array imports pandas, where that is installed, to know a series when it sees one.

That is a third of a second which a command, whose arrays are all its own, need not wait for. Arrow asks once; later it
asks again only where it is told to make something of pandas.
"""

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pyarrow as pa


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


def leave_pandas_out() -> None:
    """Has Arrow ask for pandas now, and find none; it stays where somebody has imported it already."""
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
