"""How every kernel is compiled, and how its compiled code is kept.

`kernel` is numba's njit with a cache that cannot be stale. numba's own cache looks at the file of a kernel alone, but
functions and constants of other files are compiled into it, and named tuples of others are its arguments. Here compiled
code is known by

    its sources  the kernel's file, all files of the package that it imports, directly or not, and numba's versions
    its call     the types of the arguments with the fields of named tuples, the processor, whether bounds are checked

It is one file, named by both and written whole, in the folder that numba would take: NUMBA_CACHE_DIR, `__pycache__`
beside the source, or the user's cache. A file that is absent or cannot be read means that the kernel is compiled again;
saving it removes the files that other sources of the same kernel have left. A source that was changed after this module
was imported may not be the one that runs, so its kernels are neither loaded nor saved.

Nothing is read or compiled at import: the sources are hashed when a kernel is first called.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import pickle
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

import llvmlite
import numba
from numba.core import config, sigutils
from numba.core.caching import CompileResultCacheImpl, NullCache
from numba.core.serialize import dumps

F = TypeVar("F", bound=Callable[..., Any])
KERNELS: list[Any] = []  # all that were defined so far
_IMPORTED = time.time()
_VERSIONS = f"{numba.__version__} {llvmlite.__version__}"


@overload
def kernel(function: F, /) -> F: ...
@overload
def kernel(**flags: Any) -> Callable[[F], F]: ...
def kernel(function: Any = None, /, **flags: Any) -> Any:
    """`@kernel` or `@kernel(fastmath=True)`: compiles a function with flags of numba.njit; it needs no GIL."""
    if function is None:
        return functools.partial(kernel, **flags)
    assert "<locals>" not in function.__qualname__, "the cache knows a kernel by its module and name"
    compiled = numba.njit(**{"nogil": True, **flags})(function)
    compiled._cache = SourceCache(function)
    KERNELS.append(compiled)
    return compiled


class SourceCache(NullCache):
    """The compiled code of one kernel on disk, as numba's dispatcher asks for it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def _numba(self) -> Any:
        """What numba knows: in which folder to look, and how code becomes bytes."""
        return CompileResultCacheImpl(self._function)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code, or None where there is none that can be used."""
        target_context.refresh()
        try:
            data = self._path(signature, target_context.codegen()).read_bytes()
            return self._numba.rebuild(target_context, pickle.loads(data))  # code of ours, kept where our sources are
        except Exception:  # absent, cut short, of classes that are gone: compiling is the answer to all
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps the compiled code, where there is a folder for it, and removes what other sources have left."""
        with contextlib.suppress(OSError, RuntimeError):  # no folder can be written, or sources have changed
            path = self._path(signature, compiled.codegen)
            if not self._numba.check_cachable(compiled):
                return
            temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            temporary.write_bytes(dumps(self._numba.reduce(compiled)))
            temporary.replace(path)
            name, sources, _call = path.name.rsplit("-", 2)
            for other in path.parent.glob(f"{name}-*"):
                if not other.name.startswith(f"{name}-{sources}-"):
                    other.unlink(missing_ok=True)

    def _path(self, signature: Any, codegen: Any) -> Path:
        function = self._function
        arguments, returned = sigutils.normalize_signature(signature)
        spelled = [_spell(kind) for kind in arguments]
        call = _hash(spelled, returned, codegen.magic_tuple(), config.BOUNDSCHECK)  # type: ignore[attr-defined]
        name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"
        folder = Path(self._numba.locator.get_cache_path())
        return folder / f"{name}-{hash_sources(function.__module__)}-{call}.nbc"


def hash_sources(module: str) -> str:
    """A hash over the module's file and all that it imports from its own package and this one."""
    packages = {module.split(".")[0], __name__.split(".")[0]}
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name in found or name.split(".")[0] not in packages:
            continue
        found[name], imports = _read_source(Path(file), sys.modules[name].__package__)
        waiting += imports
    return _hash(sorted(found.items()), _VERSIONS)


@functools.cache
def _read_source(path: Path, package: str) -> tuple[str, tuple[str, ...]]:
    """The hash of a source, and every name that its import statements mention, whether it is a module or not."""
    if path.stat().st_mtime > _IMPORTED:
        raise RuntimeError(f"{path} was changed while this process ran")
    text, names = path.read_bytes(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return hashlib.sha256(text).hexdigest(), tuple(names)


def _spell(kind: Any) -> str:
    """A type in words; numba's own words for a named tuple leave its fields out."""
    inner = [_spell(part) for part in getattr(kind, "types", ())]  # of a tuple
    return f"{kind} {getattr(kind, 'fields', '')} {inner}"


def _hash(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:20]
