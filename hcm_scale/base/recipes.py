"""What a kernel's compiled code is made of, as text: equal texts give equal machine code.

A kernel is its bytecode, its flags and all that its names stand for: constants by value, functions and other kernels by
their own recipe, intrinsics by the code that generates them, named tuples by their fields, and what other packages
bring by its name, under the versions of numba. It is read from memory, where the compiler reads it too.
"""

import enum
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

_VERSIONS = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
_FOREIGN = ("numba", "llvmlite", "numpy", "math", "builtins", "operator")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_KNOWN = (Dispatcher, _Intrinsic, types.FunctionType, types.BuiltinFunctionType, np.ufunc, type(np.sum))


def hash_text(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def describe(kernel: Any) -> str:
    """All that decides the kernel's machine code besides the types of its arguments."""
    reached: dict[int, Any] = {}
    waiting = [kernel]
    while waiting:
        part = waiting.pop()
        if id(part) not in reached:
            reached[id(part)] = part
            waiting += [value for _, value in _names(_function(part)) if _function(value) is not None]
    return "\n".join([_VERSIONS, *sorted(_describe_one(part) for part in reached.values())])


@functools.cache
def _describe_one(part: Any) -> str:
    function = _function(part)
    flags = _spell(part.targetoptions) if isinstance(part, Dispatcher) else ""
    names = [f"{name} = {_spell(value)}" for name, value in _names(function)]
    return (
        f"{_spell(part)} {flags} {_spell(function.__defaults__)} {_code(function.__code__, function.__doc__)} {names}"
    )


def _function(value: Any) -> Any:
    """The function behind a kernel, an intrinsic or a function, where it is no other package's; else None."""
    value = value.py_func if isinstance(value, Dispatcher) else getattr(value, "_defn", value)
    is_ours = isinstance(value, types.FunctionType) and value.__module__.split(".")[0] not in _FOREIGN
    return value if is_ours else None


def _names(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What the globals and the closed-over names of a function stand for, and what it may take from modules of ours."""
    mentioned = {name for code in _codes(function.__code__) for name in code.co_names}
    found = {name: function.__globals__[name] for name in mentioned & function.__globals__.keys()}
    found |= {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    }
    for name, value in sorted(found.items()):
        yield name, value
        if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] not in _FOREIGN:
            yield from ((f"{name}.{inner}", vars(value)[inner]) for inner in sorted(mentioned & vars(value).keys()))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code(code: types.CodeType, doc: str | None = None) -> str:
    """A code object, without what its place in the file and its docstring decide."""
    constants = [
        _code(item) if isinstance(item, types.CodeType) else "" if item == doc else _spell(item)
        for item in code.co_consts
    ]
    shape = code.co_name, code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames, code.co_freevars
    return f"{shape} {code.co_names} {constants} {code.co_code.hex()} {code.co_exceptiontable.hex()}"


def _spell(value: Any) -> str:
    """A value in words that differ wherever the compiled code could."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.generic | np.dtype | enum.Enum):
        return f"{kind.__qualname__} {value!r}"
    if isinstance(value, tuple | list):
        return f"{kind.__qualname__} {[_spell(item) for item in value]}"
    if isinstance(value, set | frozenset):
        return f"set {sorted(_spell(item) for item in value)}"
    if isinstance(value, dict):
        return f"dict {sorted((_spell(key), _spell(item)) for key, item in value.items())}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__} {getattr(value, '_fields', '')}"
    if isinstance(value, _KNOWN):
        return f"function {getattr(value, '__module__', '')}.{getattr(value, '__name__', '')}"
    raise TypeError(f"a kernel names {value!r}, and nothing here knows when two of its kind are the same")
