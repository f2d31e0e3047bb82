"""How every kernel is compiled, and how its compiled code is kept.

`kernel` is numba's njit with a cache that cannot be stale. numba's own cache looks at the file of a kernel alone, but
functions and constants of other files are compiled into it, and named tuples of others are its arguments. Here compiled
code is known by

    its recipe  the code of the kernel and of all functions that it names, directly or not, and the values of its
                constants (`recipes.py`): an edit elsewhere compiles nothing again
    its call    the types of the arguments with the fields of named tuples, the processor, whether bounds are checked

It is one file, named by both and written whole, in a folder of `kept.py`. It ends in a hash of its bytes, for a turned
bit in machine code would be run. A file that is absent or damaged means that the kernel is compiled again; saving it
removes the files that other recipes of the same kernel have left. Where another process is just then compiling the
same, this one waits and takes what comes, for a minute at most.

Nothing is read or compiled at import. The log is told once when something is compiled, and about how long that takes.
"""

import contextlib
import functools
import hashlib
import logging
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, overload

import numba
from numba.core import config, sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from hcm_scale.base import ahead, kept
from hcm_scale.base.recipes import describe, hash_text
from hcm_scale.base.seconds import SECONDS

F = TypeVar("F", bound=Callable[..., Any])
KERNELS: list[Any] = []  # all that were defined so far
log = logging.getLogger(__name__)
_DIGEST_BYTES = 16


@overload
def kernel(function: F, /) -> F: ...
@overload
def kernel(**flags: Any) -> Callable[[F], F]: ...
def kernel(function: Any = None, /, allocates: bool = True, **flags: Any) -> Any:
    """`@kernel` or `@kernel(fastmath=True)`: compiles a function with flags of numba.njit; it needs no GIL.

    One that makes no arrays says `allocates=False`: it then counts no references, which costs an inner loop dear.
    """
    if function is None:
        return functools.partial(kernel, allocates=allocates, **flags)
    assert "<locals>" not in function.__qualname__, "the cache knows a kernel by its module and name"
    compiled = numba.njit(**{"nogil": True, "_nrt": allocates, **flags})(function)
    compiled._cache = RecipeCache(compiled)
    KERNELS.append(compiled)
    return compiled


def missing_seconds() -> float:
    """About how long compiling takes on one core, of all imported kernels that a run needs and that are not kept."""
    return sum(SECONDS.get(kernel._cache.title, 0.0) for kernel in KERNELS if not kernel._cache.is_kept())


class RecipeCache(NullCache):
    """The compiled code of one kernel on disk, as numba's dispatcher asks for it."""

    def __init__(self, compiled: Any) -> None:
        self._kernel = compiled
        self._source = Path(compiled.py_func.__code__.co_filename).parent
        self._locks: dict[Any, contextlib.ExitStack] = {}  # by call, while it is compiled
        self.title = f"{compiled.py_func.__module__}.{compiled.py_func.__qualname__}"

    @functools.cached_property
    def name(self) -> str:
        """What every file of this recipe is called, up to the hash of the call."""
        return f"{self.title}.{sys.implementation.cache_tag}-{hash_text(describe(self._kernel))}"

    def is_kept(self) -> bool:
        """Whether there is compiled code, of whatever call."""
        return any(path for folder in kept.folders(self._source) for path in folder.glob(f"{self.name}-*.nbc"))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code, or None where there is none that can be used: numba then compiles, and saves it."""
        rtsys.initialize(target_context)  # the memory of arrays that kernels make; the rest is needed to compile alone
        file = self._file(signature, target_context.codegen())
        found = _load((folder / file for folder in kept.folders(self._source)), target_context)
        target = kept.writable(self._source) if found is None else None
        if target is not None:
            with contextlib.ExitStack() as lock:
                if lock.enter_context(kept.alone(target / file)):
                    found = _load([target / file], target_context)
                if found is None:
                    self._locks[signature] = lock.pop_all()
        if found is None:
            _tell_once()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps the compiled code, where there is a folder for it, and removes what other recipes have left."""
        target = kept.writable(self._source)
        with self._locks.pop(signature, contextlib.ExitStack()), contextlib.suppress(OSError):
            if target is not None and not compiled.lifted and not compiled.library.has_dynamic_globals:
                code = dumps(compiled._reduce())
                kept.write(target / self._file(signature, compiled.codegen), code + _digest(code))
                for other in target.glob(f"{self.title}.{sys.implementation.cache_tag}-*"):
                    if not other.name.startswith(f"{self.name}-"):
                        other.unlink(missing_ok=True)

    def _file(self, signature: Any, codegen: Any) -> str:
        arguments, returned = sigutils.normalize_signature(signature)
        spelled = [_spell(kind) for kind in arguments]
        call = spelled, returned, codegen.magic_tuple(), config.BOUNDSCHECK  # type: ignore[attr-defined]
        return f"{self.name}-{hash_text(repr(call))}.nbc"


def _load(paths: Iterable[Path], target_context: Any) -> Any:
    for path in paths:
        with contextlib.suppress(Exception):  # absent, cut short, of classes that are gone: compiling answers all
            data = path.read_bytes()
            code, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
            if digest == _digest(code):
                return CompileResult._rebuild(target_context, *pickle.loads(code))  # see kept.py for whose
    return None


def _digest(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def _tell_once() -> None:
    seconds = missing_seconds() / ahead.num_compiling()
    log.info("compiling kernels, once%s", f", about {seconds:.0f} s" if seconds >= 1 else "")


def _spell(kind: Any) -> str:
    """A type in words; numba's own words for a named tuple leave its fields out."""
    inner = [_spell(part) for part in getattr(kind, "types", ())]  # of a tuple
    return f"{kind} {getattr(kind, 'fields', '')} {inner}"
