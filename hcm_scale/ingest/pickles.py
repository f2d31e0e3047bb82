"""Pickles that a library reads for us, kept from running what they say.

A pickle runs code by naming it: a class or function of a module, which is then called. Python tells audit hooks of
every such name before it is looked up, whoever unpickles. Within `arrays_only` our hook lets through what arrays,
sparse matrices and plain containers are made of, and refuses the first other name. Other threads are not concerned:
compiled kernels are pickles too (`base/jit.py`).
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hcm_scale.ingest.errors import InputError

_PARTS = {
    "numpy": ("ndarray", "dtype"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.numeric": ("_frombuffer",),
    "scipy.sparse.csr": ("csr_matrix",),
    "scipy.sparse._csr": ("csr_matrix", "csr_array"),
    "collections": ("defaultdict", "OrderedDict"),
    "__builtin__": ("list", "dict", "set", "bytes", "object"),
    "builtins": ("list", "dict", "set", "bytes", "object"),
    "copy_reg": ("_reconstructor",),
    "copyreg": ("_reconstructor",),
    "_codecs": ("encode",),  # how Python 3 writes bytes for Python 2
}
_reading = threading.local()


@contextlib.contextmanager
def arrays_only(what: str) -> Iterator[None]:
    """Refuses pickles of anything but arrays, in this thread; the InputError begins with `what`."""
    _listen()
    _reading.what = what
    try:
        yield
    finally:
        _reading.what = None


@functools.cache
def _listen() -> None:
    """Installs the hook: once, for Python knows no way to take one off."""
    sys.addaudithook(_check)


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "pickle.find_class" or getattr(_reading, "what", None) is None:
        return
    module, name = arguments
    if name not in _PARTS.get(module, ()):
        raise InputError(
            f"{_reading.what} holds a pickle that asks for {module}.{name}, which could run anything; "
            "graph.trust_pickle=true reads it, if you trust where it came from"
        )
