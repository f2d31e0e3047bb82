"""Kernels compiled ahead, in a process of their own, while a run that starts cold does its first stages.

numba compiles under one lock and holds the GIL, so a thread would gain nothing; a second process uses a second core. It
walks `hcm_scale.run.precompile` from the last stage backwards and meets the run half way: who needs what the other is
waits for it (`kept.alone`). It may die or be late: the run then compiles by itself. It ends with the run.

A stamp beside the compiled kernels says that all were compiled for the package as it is: no process is then started,
which is found out from the names, sizes and times of the package's files alone.
"""

import atexit
import contextlib
import enum
import functools
import hashlib
import importlib.util
import logging
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import llvmlite
import numba
import numpy as np
from numba.core import config, sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from hcm_scale.base.threads import num_cores

# ----------------------------------------------------------------------------
# How every kernel is compiled, and how its compiled code is kept.
#
# `kernel` is numba's njit with a cache that cannot be stale. numba's own cache looks at the file of a kernel alone,
# but functions and constants of other files are compiled into it, and named tuples of others are its arguments. Here
# compiled code is known by
#
#     its recipe  the code of the kernel and of all functions that it names, directly or not, and the values of its
#                 constants (`recipes.py`): an edit elsewhere compiles nothing again
#     its call    the types of the arguments with the fields of named tuples, the processor, whether bounds are checked
#
# It is one file, named by both and written whole, in a folder of `kept.py`. It ends in a hash of its bytes, for a
# turned bit in machine code would be run. A file that is absent or damaged means that the kernel is compiled again;
# saving it removes the files that other recipes of the same kernel have left. Where another process is just then
# compiling the same, this one waits and takes what comes, for a minute at most.
#
# Nothing is read or compiled at import. The log is told once when something is compiled, and about how long that
# takes.


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
        return any(path for folder in cache_folders(self._source) for path in folder.glob(f"{self.name}-*.nbc"))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code, or None where there is none that can be used: numba then compiles, and saves it."""
        rtsys.initialize(target_context)  # the memory of arrays that kernels make; the rest is needed to compile alone
        file = self._file(signature, target_context.codegen())
        found = _load((folder / file for folder in cache_folders(self._source)), target_context)
        target = writable_folder(self._source) if found is None else None
        if target is not None:
            with contextlib.ExitStack() as lock:
                if lock.enter_context(compiling_alone(target / file)):
                    found = _load([target / file], target_context)
                if found is None:
                    self._locks[signature] = lock.pop_all()
        if found is None:
            _tell_once()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps the compiled code, where there is a folder for it, and removes what other recipes have left."""
        target = writable_folder(self._source)
        with self._locks.pop(signature, contextlib.ExitStack()), contextlib.suppress(OSError):
            if target is not None and not compiled.lifted and not compiled.library.has_dynamic_globals:
                code = dumps(compiled._reduce())
                write_kernel(target / self._file(signature, compiled.codegen), code + _digest(code))
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
    seconds = missing_seconds() / num_compiling()
    log.info("compiling kernels, once%s", f", about {seconds:.0f} s" if seconds >= 1 else "")


def _spell(kind: Any) -> str:
    """A type in words; numba's own words for a named tuple leave its fields out."""
    inner = [_spell(part) for part in getattr(kind, "types", ())]  # of a tuple
    return f"{kind} {getattr(kind, 'fields', '')} {inner}"


# ----------------------------------------------------------------------------
# What a kernel's compiled code is made of, as text: equal texts give equal machine code.
#
# A kernel is its bytecode, its flags and all that its names stand for: constants by value, functions and other
# kernels by their own recipe, intrinsics by the code that generates them, named tuples by their fields, and what
# other packages bring by its name, under the versions of numba. It is read from memory, where the compiler reads it
# too.


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
    flags = _spell_constant(part.targetoptions) if isinstance(part, Dispatcher) else ""
    names = [f"{name} = {_spell_constant(value)}" for name, value in _names(function)]
    defaults, code = _spell_constant(function.__defaults__), _code(function.__code__, function.__doc__)
    return f"{_spell_constant(part)} {flags} {defaults} {code} {names}"


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
        _code(item) if isinstance(item, types.CodeType) else "" if item == doc else _spell_constant(item)
        for item in code.co_consts
    ]
    shape = code.co_name, code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_varnames, code.co_freevars
    return f"{shape} {code.co_names} {constants} {code.co_code.hex()} {code.co_exceptiontable.hex()}"


def _spell_constant(value: Any) -> str:
    """A value in words that differ wherever the compiled code could."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.generic | np.dtype | enum.Enum):
        return f"{kind.__qualname__} {value!r}"
    if isinstance(value, tuple | list):
        return f"{kind.__qualname__} {[_spell_constant(item) for item in value]}"
    if isinstance(value, set | frozenset):
        return f"set {sorted(_spell_constant(item) for item in value)}"
    if isinstance(value, dict):
        return f"dict {sorted((_spell_constant(key), _spell_constant(item)) for key, item in value.items())}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__} {getattr(value, '_fields', '')}"
    if isinstance(value, _KNOWN):
        return f"function {getattr(value, '__module__', '')}.{getattr(value, '__name__', '')}"
    raise TypeError(f"a kernel names {value!r}, and nothing here knows when two of its kind are the same")


# ----------------------------------------------------------------------------
# The folders in which compiled kernels are kept, and who writes there.
#
# For the kernels of a source folder these are tried in turn, up to the first that can be written:
#
#     NUMBA_CACHE_DIR        where it is set
#     __pycache__            beside the source
#     the user's cache       $XDG_CACHE_HOME/hcm_scale or ~/.cache/hcm_scale
#     a temporary folder     hcm_scale-UID where the system keeps those
#
# Code is loaded from all of them, so that what was compiled into an image serves a user who may not write there.
# Compiled code is a pickle, which can do anything: a folder that everybody can write, or that belongs to somebody
# other than this user, root and the owner of the source, is passed over, and the last two must be this user's alone.


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
_LOCK = "kernels.nbc.lock"
_WAIT_SECONDS, _LOOK_SECONDS = 60.0, 0.02
_LOCKS = 1 << 30  # bytes of the lock file, one for each file that may be made: two that share one wait for each other


@functools.cache
def cache_folders(source: Path) -> tuple[Path, ...]:
    """Where to look for the kernels of a source folder."""
    found: list[Path] = []
    for folder, is_private in _candidates(source):
        if _can_trust(folder, is_private, source):
            found.append(folder)
            if _can_write(folder):
                break
    return tuple(found)


@functools.cache
def writable_folder(source: Path) -> Path | None:
    """Where to keep the kernels of a source folder; None where that is nowhere. The log is told what is unusual."""
    last = next(reversed(cache_folders(source)), None)
    found = last if last is not None and _can_write(last) else None
    if found is None:
        _tell("compiled kernels cannot be kept, as no folder can be written: set NUMBA_CACHE_DIR to one that can")
    elif found != source / "__pycache__":
        _tell(f"compiled kernels are kept in {found.parent}")
    return found


def write_kernel(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def compiling_alone(path: Path) -> Iterator[bool]:
    """While this is open no other process makes the file; true where one was at it, and has ended or took too long.

    The lock of a process that dies is gone with it.
    """
    place = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "little") % _LOCKS
    until, waited = time.monotonic() + _WAIT_SECONDS, False
    file = None if fcntl is None else _lock_file(path.parent)
    while file is not None and time.monotonic() < until:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            break
        except BlockingIOError:
            waited = True
            time.sleep(_LOOK_SECONDS)
        except OSError:  # no locks here
            break
    try:
        yield waited
    finally:
        with contextlib.suppress(OSError):
            if file is not None:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


@functools.cache
def _lock_file(folder: Path) -> int | None:
    """A descriptor that stays open: closing it would give up every lock that this process holds in the folder."""
    with contextlib.suppress(OSError):
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    return None


@functools.cache
def _tell(message: str) -> None:
    log.info("%s", message)


def _candidates(source: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it must be this user's alone)."""
    name = f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / name, False
    yield source / "__pycache__", False
    with contextlib.suppress(RuntimeError):  # this user has no home
        home = os.environ.get("XDG_CACHE_HOME")
        yield (Path(home) if home else Path.home() / ".cache") / "hcm_scale" / name, True
    yield Path(tempfile.gettempdir()) / f"hcm_scale-{_user()}" / name, True


def _can_trust(folder: Path, is_private: bool, source: Path) -> bool:
    """Makes the folder where it can be made; whether it is there, and nobody else puts code into it."""
    with contextlib.suppress(OSError):
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for part in (folder.parent, folder):
            with contextlib.suppress(OSError):
                part.mkdir(mode=0o700 if is_private else 0o755, exist_ok=True)
        owners = {_user()} if is_private else {_user(), 0, source.stat().st_uid}
        for part in (folder.parent, folder) if is_private else (folder,):
            found = part.lstat()
            if part.is_symlink() or found.st_uid not in owners or found.st_mode & (0o022 if is_private else 0o002):
                return False
        return folder.is_dir()
    return False


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


# ----------------------------------------------------------------------------
# About how long each kernel that a run calls takes to compile, in seconds on one core, all its calls together.
#
# This tells a person how long to wait, and is the list of what `hcm-scale warm` makes ready. Measured by `python -m
# bench.compiling`, which prints it.


SECONDS = {
    "hcm_scale.base.order.count_lower_halves": 0.2,
    "hcm_scale.base.order.count_upper_halves": 0.2,
    "hcm_scale.base.order.mark_largest": 0.2,
    "hcm_scale.base.order.count_digits": 0.3,
    "hcm_scale.base.order.float_keys": 0.2,
    "hcm_scale.base.order.move": 0.3,
    "hcm_scale.base.order.share_places": 1.5,
    "hcm_scale.base.order.sort_rows": 0.6,
    "hcm_scale.base.spmm.csr_row_range": 0.4,
    "hcm_scale.base.spmm.gcn_rows": 1.0,
    "hcm_scale.base.spmm.mean_rows": 0.4,
    "hcm_scale.features.purify.count_kept": 0.3,
    "hcm_scale.features.purify.dense_cosine": 0.4,
    "hcm_scale.features.purify.dense_euclidean": 1.4,
    "hcm_scale.features.purify.first_above": 0.2,
    "hcm_scale.features.purify.list_kept": 0.8,
    "hcm_scale.graph.check.first_fall": 0.4,
    "hcm_scale.graph.check.first_one_way": 0.3,
    "hcm_scale.graph.check.first_stray": 0.1,
    "hcm_scale.graph.build.count_ends": 0.1,
    "hcm_scale.graph.build.drop_repeats": 0.1,
    "hcm_scale.graph.build.pack_edges": 0.2,
    "hcm_scale.graph.build.scatter_ends": 0.1,
    "hcm_scale.hops.sample.sum_groups": 0.3,
    "hcm_scale.hops.wide.start_search": 0.2,
    "hcm_scale.hops.layout.rename_rows": 0.7,
    "hcm_scale.hops.layout.sort_by_degree": 0.2,
    "hcm_scale.hops.plain.arcs_around": 0.6,
    "hcm_scale.hops.plain.label_plain": 9.2,
    "hcm_scale.hops.layout.fill_pairs": 0.5,
    "hcm_scale.hops.sample.pick": 1.5,
    "hcm_scale.hops.wide.advance": 1.8,
    "hcm_scale.hops.wide.count_class": 1.8,
    "hcm_scale.hops.wide.list_unseen": 0.2,
    "hcm_scale.hops.wide.want_class": 1.4,
    "hcm_scale.ingest.ids.add_numbers": 0.3,
    "hcm_scale.ingest.ids.add_texts": 0.9,
    "hcm_scale.ingest.ids.find_numbers": 0.1,
    "hcm_scale.ingest.ids.find_texts": 0.2,
    "hcm_scale.sampling.neighbors.draw": 1.4,
    "hcm_scale.sampling.neighbors.gather": 0.2,
    "hcm_scale.sampling.neighbors.plan": 0.2,
    "hcm_scale.sampling.neighbors.relabel": 0.3,
    "hcm_scale.sampling.neighbors.transpose": 0.3,
    "hcm_scale.sampling.neighbors.weigh": 0.3,
    "hcm_scale.sampling.pairs.pick_pairs": 0.2,
    "hcm_scale.score.closure.count_successors": 0.3,
    "hcm_scale.score.closure.count_triangles": 0.5,
    "hcm_scale.score.closure.list_successors": 0.2,
    "hcm_scale.score.context.add_surprise": 0.3,
    "hcm_scale.score.context.count_bins": 0.2,
    "hcm_scale.score.edge_index.average_rows": 3.1,
    "hcm_scale.score.edge_index.count_upper": 0.3,
    "hcm_scale.score.edge_index.list_edges": 0.7,
    "hcm_scale.score.edge_index.row_edges": 0.3,
    "hcm_scale.score.edges.pair_inputs": 0.3,
    "hcm_scale.score.edges.update_moments": 1.6,
    "hcm_scale.shards.writer.group_by_class": 0.1,
    "hcm_scale.shards.writer.shuffle_pairs": 0.5,
    "hcm_scale.synthetic.csr.count_buckets": 0.3,
    "hcm_scale.synthetic.csr.deal_arcs": 0.2,
    "hcm_scale.synthetic.csr.join_buckets": 0.3,
    "hcm_scale.synthetic.csr.sort_buckets": 2.6,
    "hcm_scale.synthetic.families.add_centroids": 0.2,
    "hcm_scale.synthetic.families.bell_rows": 0.4,
    "hcm_scale.synthetic.families.community_members": 0.2,
    "hcm_scale.synthetic.families.community_pairs": 1.4,
}

PACKAGE = Path(__file__).resolve().parents[1]
_STAMP = "ready.nbc."
_CODE = "from hcm_scale.base.signals import end_with_parent as first; first();"
_CODE += "from hcm_scale.run.precompile import main; main()"
_running: list[subprocess.Popen[bytes]] = []


def start_precompiling() -> None:
    """Starts compiling ahead, where something may be missing, can be kept, and there is a core for it."""
    if _running or is_ready() or writable_folder(PACKAGE) is None or num_cores() < 2:
        return
    scratch = tempfile.mkdtemp(prefix="hcm-scale-ahead-")
    command = [sys.executable, "-c", _CODE, scratch]
    quiet = subprocess.DEVNULL
    _running.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True))
    atexit.register(stop_precompiling, scratch)


def stop_precompiling(scratch: str) -> None:
    """Ends the process, finished or not, and removes its files."""
    for process in _running:
        process.kill()
        process.wait()
    _running.clear()
    shutil.rmtree(scratch, ignore_errors=True)


def num_compiling() -> int:
    """Processes that compile for this run, itself among them."""
    return 1 + sum(process.poll() is None for process in _running)


def is_ready() -> bool:
    """Whether everything was compiled for the package as it is."""
    return any((folder / stamp()).exists() for folder in cache_folders(PACKAGE))


def set_ready(name: str) -> None:
    """Notes that everything is compiled for the package of this stamp."""
    target = writable_folder(PACKAGE)
    if target is not None:
        for old in target.glob(f"{_STAMP}*"):
            old.unlink(missing_ok=True)
        (target / name).touch()


def stamp() -> str:
    """The name of the file that says that everything was compiled for the package as it is."""
    numba = importlib.util.find_spec("numba")
    sources = [*sorted(PACKAGE.rglob("*.py")), *([Path(numba.origin)] if numba and numba.origin else [])]
    known = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    where = sys.implementation.cache_tag, os.environ.get("NUMBA_BOUNDSCHECK")
    return f"{_STAMP}{hashlib.sha256(repr((known, where)).encode()).hexdigest()[:20]}"
