"""A first run's kernels, compiled by processes beside it, from the last one to the first.

numba compiles one kernel at a time, and holds Python's lock meanwhile: a first minute passes with all cores but one
idle. `first_kernels.jsonl` names the kernels that a default run compiles, in the order in which it calls them, with the
types of their arguments. Other processes, up to three, go through it from the end by turns and leave what they compile
in the cache (`kernel_cache.py`), where the run finds it; on the way they meet. What the list says wrongly costs time
and nothing else: a kernel that is not as it says is compiled when it is called.

    [module, name, [types of arguments], whether rows of an edge table alone need it], where a type is one of
    ["float32", ndim, layout, whether it may be written]    {"module:NamedTuple": [types]}    {"": [types]}    "int64"
"""

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba import types

from hcm_scale.base.kernel_cache import is_compiled, kernel_folder
from hcm_scale.base.threads import num_cores

LIST = Path(__file__).with_name("first_kernels.jsonl")
_MOST_PROCESSES = 3


@contextlib.contextmanager
def compiling_ahead(has_rows: bool) -> Iterator[None]:
    """Within it other processes compile, where kernels are missing and there is a core for them.

    `has_rows`: whether the run's graph has rows of an edge table, such as payments.
    """
    count = 0 if is_compiled() or kernel_folder() is None else min(_MOST_PROCESSES, num_cores() - 1)
    command, nowhere = [sys.executable, "-P", "-m", __name__], subprocess.DEVNULL
    turns = ([str(turn), str(count), *(["rows"] if has_rows else [])] for turn in range(count))
    processes = [subprocess.Popen([*command, *t], stdin=nowhere, stdout=nowhere, stderr=nowhere) for t in turns]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def as_json(kind: Any) -> Any:
    """A type of numba, as a line of the list has it.

    >>> as_json(types.UniTuple(types.Array(types.float32, 2, "C"), 2))
    {'': [['float32', 2, 'C', True], ['float32', 2, 'C', True]]}
    """
    if isinstance(kind, types.Array):
        return [str(kind.dtype), kind.ndim, kind.layout, kind.mutable]
    if isinstance(kind, types.BaseTuple):
        every: Any = kind
        named = getattr(kind, "instance_class", tuple)
        return {"" if named is tuple else f"{named.__module__}:{named.__qualname__}": [as_json(each) for each in every]}
    return str(kind)


def from_json(kind: Any) -> Any:
    """The type of numba that `as_json` wrote."""
    if isinstance(kind, str):
        return getattr(types, kind)
    if isinstance(kind, list):
        dtype, ndim, layout, mutable = kind
        return types.Array(getattr(types, dtype), ndim, layout, readonly=not mutable)
    ((name, parts),) = kind.items()
    module, _, named = name.partition(":")
    every = [from_json(part) for part in parts]
    return types.Tuple.from_types(every, getattr(importlib.import_module(module), named) if named else None)


def compile_all(has_rows: bool, turn: int = 0, count: int = 1) -> None:
    """Compiles the kernels of the list, from the last to the first, those that are not in the cache; by turns."""
    lines = [line for line in map(json.loads, reversed(LIST.read_text().splitlines())) if has_rows or not line[3]]
    for module, name, kinds, _ in lines[turn::count]:
        with contextlib.suppress(Exception):  # what a list of other sources, or of another numba, may bring
            getattr(importlib.import_module(module), name).compile(tuple(from_json(kind) for kind in kinds))


if __name__ == "__main__":
    compile_all("rows" in sys.argv, *map(int, sys.argv[1:3]))
