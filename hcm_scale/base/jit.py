"""`kernel`: numba.njit for functions that release the GIL, with compiled code cached on disk.

The cache is numba's own, in the folder of `base/kernel_cache.py`. Two things are added. A cache file that cannot be
read, because it was cut short or belongs to a call with other types (two processes may give their files the same
number), means that the kernel is compiled again; numba would raise. And a cache that cannot be written is ignored. A
flipped bit inside machine code is not noticed.

Nothing is read or compiled at import. The log says once that something is being compiled.
"""

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.sigutils import normalize_signature

from hcm_scale.base.kernel_cache import PACKAGE, kernel_folder

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger(__name__)


@overload
def kernel(function: F, /) -> F: ...
@overload
def kernel(**flags: Any) -> Callable[[F], F]: ...
def kernel(function: Any = None, /, allocates: bool = True, **flags: Any) -> Any:
    """`@kernel` or `@kernel(fastmath=True)`: the function, compiled with flags of numba.njit when it is first called.

    One that makes no arrays says `allocates=False`: it then counts no references, which costs an inner loop dear.
    """
    if function is None:
        return functools.partial(kernel, allocates=allocates, **flags)
    compiled = numba.njit(**{"nogil": True, "_nrt": allocates, **flags})(function)
    if function.__module__.startswith("hcm_scale."):  # the sources that name the folder
        compiled._cache = _Cache(function)
    return compiled


class _Locator:
    """What numba asks about the cache of a function; its own locators refuse folders that cannot be written."""

    def __init__(self, function: Any, file: str) -> None:
        self._module, self._py_file = function.__module__, file

    from_function = classmethod(lambda cls, function, file: cls(function, file))

    def get_cache_path(self) -> str:
        return str(kernel_folder() or PACKAGE / "missing")

    def ensure_cache_path(self) -> None:
        """The folder is there."""

    def get_source_stamp(self) -> str:
        return ""  # the name of the folder says it

    def get_disambiguator(self) -> str:
        return self._module


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _CacheFiles

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code for these types, or None; numba then compiles and saves it."""
        found = None
        try:
            found = super().load_overload(signature, target_context)
            if found is not None and found.signature.args != normalize_signature(signature)[0]:
                raise ValueError("it is for other types")
        except Exception as error:  # whatever pickle or the linker raises at a damaged file
            found = None
            log.info("a compiled kernel cannot be read, and is compiled again: %s", error)
            with contextlib.suppress(OSError):
                self.flush()
        if found is None:
            _log_compiling()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps the compiled code, where that is possible."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, compiled)


@functools.cache
def _log_compiling() -> None:
    folder = kernel_folder()
    kept = "" if folder and PACKAGE in folder.parents else f"; they are kept in {folder}"
    not_kept = "; they cannot be kept, as no folder can be written: set NUMBA_CACHE_DIR to one that can"
    log.info("compiling kernels, once: about half a minute%s", kept if folder else not_kept)
