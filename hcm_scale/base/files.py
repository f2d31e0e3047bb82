"""Files that are whole or absent, and that are used only if their bytes are those that were written.

Every stage writes its data first and its `manifest.json` last: under a temporary name, flushed to disk, renamed, and
the folder flushed too. After a crash a folder has a manifest that is true, or none. Readers refuse a folder without a
manifest (unfinished), with another `kind` (foreign) or with another `format` (of another version). Manifests and other
JSON files that are read again hold a seal: the hash of the rest of them.

`hash_folder` takes the hashes of a folder's files and `check_folder` compares them later. A file is hashed once a
process: its hash is remembered under device, inode, size and times of change. A file that changed a moment ago could
change once more without a new time, so its hash is not remembered. A bit that the disk itself flips changes none of
these, and is noticed by the next process.

A hash tells that a file is what somebody wrote, not that its content is legal: whoever sends a run has made all of its
hashes. So every reader checks what it reads: `check_types` and `typed` tell whether JSON is of the types that it must
have, `naming_damage` names the file that a parser trips over, and `check_once` runs costly checks of values, once a
process and state of the files.

Such a folder may also hold pipes, at which a program waits for ever, and links to files elsewhere. `open_regular` opens
files of a run, and refuses both; names that others wrote are joined by `path_inside`.

Locks between processes are those of flock; a killed process lets go of them. Windows has none.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import UnionType
from typing import IO, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import xxhash

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_READ_BYTES, _INDENTED_CHARACTERS = 1 << 22, 1 << 20
_HASHED_AT_ONCE, _MANY_BYTES = 4, 1 << 26
_FLUSH_SECONDS = 0.2
_MOMENT_NS = 100_000_000  # far more than the steps in which systems tell the time of a change
_OF_PARSERS = LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, NotImplementedError
_IRREGULAR = errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, None  # of links, pipes, folders; of a seek in pipes
_TEMPORARY = re.compile(r"\.(.+)\.\d+\.(tmp|new|old)")  # what is written to take the place of the name in it
Parsed = TypeVar("Parsed")
_hashes: dict[tuple[int, ...], str] = {}  # of files as they were when this process read them
_checked: set[tuple[tuple[int, ...], ...]] = set()  # files in the states in which their values were checked


class FolderError(ValueError):
    """A folder that cannot be used: unfinished, damaged, foreign, or written by another version."""


def open_regular(path: Path, mode: str = "rb", *, follows: bool = False, **options: Any) -> IO[Any]:
    """The file opened, never waiting; FolderError where it is a pipe, device, folder, or link that is not followed."""
    more = getattr(os, "O_NONBLOCK", 0) | (0 if follows else getattr(os, "O_NOFOLLOW", 0))
    try:
        stream = open(path, mode, opener=lambda name, flags: os.open(name, flags | more, 0o666), **options)  # noqa: SIM115
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream
        stream.close()
    except OSError as error:
        if error.errno not in _IRREGULAR:
            raise
    raise FolderError(f"{path} is a link, a pipe or a folder where a regular file is legal; remove it")


def read_regular(path: Path) -> bytes:
    """The bytes of a file of a run; FolderError as `open_regular`."""
    with open_regular(path) as stream:
        return bytes(stream.read())


def hash_file(path: Path) -> str:
    """The xxh3-128 of a file's bytes, in hex."""
    digest = xxhash.xxh3_128()
    with open_regular(path, follows=True) as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def hash_bytes(data: bytes) -> str:
    """The hash that `hash_file` gives a file of these bytes."""
    return xxhash.xxh3_128(data).hexdigest()


def hash_value(value: Any) -> str:
    """A stable hash of a JSON-able value, used as the key of a stage.

    >>> hash_value({"a": 1, "b": 2}) == hash_value({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def slug(text: str) -> str:
    """A folder name from any text, such as the overrides of a job; never a way out of the folder above.

    >>> slug("purify.ratio=0.2,graph.path=/data/a.mat"), slug("../../escaped"), slug("..")
    ('purify.ratio=0.2,graph.path=-data-a.mat', 'escaped', 'defaults')
    """
    name = re.sub(r"[^\w.,=+-]+", "-", text).lstrip(".-") or "defaults"
    return name if len(name) <= 150 else f"{name[:130]}-{hash_value(text)[:12]}"


def sync_file(path: Path) -> None:
    """Flushes a file or folder to the disk; Windows cannot do this with a file that is open for reading."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def flushing(stream: IO[bytes]) -> Iterator[None]:
    """Has a long file flushed to the disk while it is written, so that `sync_file` has little to wait for."""
    ended = threading.Event()

    def flush() -> None:
        while not ended.wait(_FLUSH_SECONDS):
            os.fsync(stream.fileno())

    with ThreadPoolExecutor(1) as thread:
        flushed = thread.submit(flush)
        try:
            yield
        finally:
            ended.set()
    flushed.result()  # an error of the disk is told once: `sync_file` would not see it


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open_regular(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_file(path.parent)


def write_json(path: Path, value: Any, *, sort_keys: bool = True, indent: int | None = 1) -> None:
    """Writes JSON whole or not at all; sorted keys make equal values equal bytes. Large values are in one line."""
    text = json.dumps(value, sort_keys=sort_keys)
    if indent is not None and len(text) < _INDENTED_CHARACTERS:  # Python is many times slower with an indent
        text = json.dumps(value, indent=indent, sort_keys=sort_keys)
    write_bytes(path, (text + "\n").encode())


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object and its seal, whole or not at all."""
    write_json(path, value | {"seal": hash_value(value)})


@contextlib.contextmanager
def naming_damage(path: Path, remedy: str = "") -> Iterator[None]:
    """Turns what a parser raises at content that it does not expect into a FolderError that names the file.

    The block reads what is in that file, and does no other work.
    """
    try:
        yield
    except FolderError:
        raise
    except _OF_PARSERS as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise FolderError(f"{path} is damaged: {missing}{remedy and '; '}{remedy}") from error


def check_types(path: Path, value: Mapping[str, Any], types: Mapping[str, Any], remedy: str = "") -> None:
    """FolderError, naming the file and the entry, where an entry of a JSON object is not of its type (see `typed`)."""
    for name, kind in types.items():
        try:
            typed(value.get(name), kind)
        except TypeError as error:
            then, legal = remedy and f"; {remedy}", getattr(kind, "__name__", kind)
            shown = f"{name} is {value.get(name)!r:.60}; it must be of type {legal}{then}"
            raise FolderError(f"{path} is damaged: {shown}") from error


def typed(value: Any, kind: Any) -> Any:
    """A value of JSON as the type of an annotation, lists as tuples where that says so; TypeError if it is another.

    Truth values are no numbers, whole ones may stand for others, all are finite and have 64 bits at most. Of a
    dataclass objects are made, entries that it does not know left out.

    >>> typed([[1, 2], [3, 4]], tuple[tuple[int, int], ...]), typed({"a": None}, dict[str, str | None])
    (((1, 2), (3, 4)), {'a': None})
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        for each in inner:
            with contextlib.suppress(TypeError):
                return typed(value, each)
    elif origin in (list, tuple) and isinstance(value, list):
        if origin is list or inner[1:] == (...,):
            return origin(typed(entry, inner[0]) for entry in value)
        if len(inner) == len(value):
            return tuple(map(typed, value, inner))
    elif origin is dict and isinstance(value, dict):
        return {name: typed(entry, inner[1]) for name, entry in value.items()}
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints, make = get_type_hints(kind), cast(Any, kind)
        return make(**{name: typed(value[name], hint) for name, hint in hints.items() if name in value})
    elif kind is Any or (type(value) in ((int, float) if kind is float else (kind,)) and _fits(value)):
        return value
    raise TypeError(f"{value!r:.60} is not of type {getattr(kind, '__name__', kind)}")


def _fits(value: Any) -> bool:
    return math.isfinite(value) if type(value) is float else type(value) is not int or -(2**63) <= value < 2**63


def read_sealed(path: Path, remedy: str = "") -> dict[str, Any]:
    """The object that `write_sealed` wrote; FolderError, ending in the remedy, if the file is missing or changed."""
    try:
        value = json.loads(read_regular(path) if path.exists() else b"")
        if not isinstance(value, dict) or value.pop("seal", None) != hash_value(value):
            raise ValueError("its seal is missing or not that of its content")
    except (ValueError, RecursionError) as error:
        state = f"damaged: {error}" if path.exists() else "missing"
        raise FolderError(f"{path} is {state}{remedy and '; '}{remedy}") from error
    return value


def write_manifest(folder: Path, kind: str, version: int, body: dict[str, Any]) -> None:
    """Writes the manifest, which completes the folder of a stage."""
    write_sealed(folder / MANIFEST, {"kind": kind, "format": version, **body})


def read_manifest(
    folder: Path, kind: str, version: int, remedy: str = "", types: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The manifest of a finished folder of this `kind` and format `version`, its entries of these `types`.

    One that is missing, where None is legal, is None.
    """
    path = folder / MANIFEST
    if not path.is_file():
        not_folder = "a file" if folder.exists() else "missing"
        state = "unfinished: it has no manifest.json" if folder.is_dir() else not_folder
        raise FolderError(f"{folder} is {state}; a finished {kind} folder was expected")
    manifest = read_sealed(path, remedy)
    if manifest.get("kind") != kind:
        raise FolderError(f"{folder} holds {manifest.get('kind')!r}, not a {kind!r}")
    if manifest.get("format") != version:
        raise FolderError(
            f"{folder} has format {manifest.get('format')!r}; this version of hcm-scale reads format {version} alone: "
            "have it made again, or use the version that made it"
        )
    check_types(path, manifest, types or {}, remedy)
    return dict.fromkeys(types or {}) | manifest


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields the path of a file to write; on success it replaces `path`, or what that links to, else it is removed."""
    path = resolved(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)  # of a killed process that had our number, or a link
    try:
        yield fresh
        sync_file(fresh)
        os.replace(fresh, path)
        sync_file(path.parent)
    except OSError as error:
        if error.errno and error.filename is None:  # of a full disk, which a write does not name
            error.filename = str(path)
        raise
    finally:
        fresh.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to fill; on success it replaces `folder`, which stays untouched until then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    for path in (fresh, old):  # of a killed process that had our number
        shutil.rmtree(path, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
        sync_file(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def is_temporary(path: Path) -> bool:
    """Whether the name is that of a temporary file or folder of this module."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_temporary(folder: Path, of: str = "") -> None:
    """Removes temporary files and folders of names that begin with `of`, which killed processes left in `folder`.

    The caller holds the lock under which such names are made, so nobody uses them any more.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        named = _TEMPORARY.fullmatch(path.name)
        if named and named[1].startswith(of):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds an exclusive lock on `path`; yields whether it is held, which may be False without `wait`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield True
        return
    with open_regular(path, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield False
                return
            log.info("waiting for another process that holds %s", path)
            fcntl.flock(stream, fcntl.LOCK_EX)
        if _is_at(stream.fileno(), path):
            try:
                yield True
            finally:
                fcntl.flock(stream, fcntl.LOCK_UN)
            return
    with file_lock(path, wait=wait) as is_held:  # who held it before has removed it
        yield is_held


@contextlib.contextmanager
def shared_folder_lock(folder: Path) -> Iterator[Callable[[], bool]]:
    """Makes a folder, unless it exists, and holds a shared lock on it.

    Yields a function that returns whether no other process holds the lock; none can from then on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield lambda: True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(descriptor, folder):
            yield lambda: _take(descriptor)
            return
    finally:
        os.close(descriptor)
    with shared_folder_lock(folder) as is_alone:  # it was removed meanwhile
        yield is_alone


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another has it, or a network file system cannot tell
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def check_name(name: Any) -> Path:
    """A name from a record, manifest or list as a relative path; FolderError if it leads out of its folder.

    >>> check_name("samples/sample-00000.safetensors").as_posix()
    'samples/sample-00000.safetensors'
    >>> check_name("../notes.txt")
    Traceback (most recent call last):
    ...
    hcm_scale.base.files.FolderError: '../notes.txt' is not legal as a name of a file in a folder and below it
    """
    path = Path(name) if isinstance(name, str) and "\0" not in name else Path()
    if not path.parts or path.anchor or ".." in path.parts:
        raise FolderError(f"{name!r:.80} is not legal as a name of a file in a folder and below it")
    return path


def path_inside(folder: Path, name: Any) -> Path:
    """The path of a file by its name in a record, manifest or list of its folder, which anybody may have written.

    FolderError if the name, or a link on the way, leads out of the folder. Nothing else joins such names.
    """
    path = folder / check_name(name)
    if not resolved(path).is_relative_to(resolved(folder)):
        raise FolderError(f"{path} is a link that leads out of {folder}; files of a folder lie below it")
    return path


def resolved(path: Path) -> Path:
    """The path without links; unlike Path.resolve it accepts links that lead to each other."""
    return Path(os.path.realpath(path))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, which may be a link."""
    return sum(path.stat().st_size for path in resolved(folder).rglob("*") if path.is_file() and not path.is_symlink())


def hash_once(path: Path) -> str:
    """The hash of a file, which is read only if this process has not hashed it in its present state."""
    state = _state(path)
    if state in _hashes:
        return _hashes[state]
    if 0 <= (age := _age(state)) <= _MOMENT_NS and state[2] >= _MANY_BYTES:  # waiting takes less than reading it again
        time.sleep((_MOMENT_NS - age + 1) / 1e9)
        return hash_once(path)
    digest = hash_file(path)
    if age > _MOMENT_NS:
        _hashes[state] = digest
    return digest


def check_once(paths: Sequence[Path], check: Callable[[], None]) -> None:
    """check(), unless it passed in this process with these files in their present state."""
    states = tuple(map(_state, paths))
    if states not in _checked:
        is_old = all(_age(state) > _MOMENT_NS for state in states)
        check()
        if is_old:
            _checked.add(states)


def _state(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def state_of(path: Path) -> tuple[int, ...] | None:
    """What differs once a file has changed; None where there is none."""
    return _state(path) if path.exists() else None


def _age(state: tuple[int, ...]) -> int:
    return time.time_ns() - state[-1]


def hash_folder(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """Hashes of all files below a folder by relative name, without hidden ones and the top folders `leave_out`."""
    paths: list[Path] = []
    for where, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if Path(where) != folder or name not in leave_out)
        paths += [Path(where) / name for name in sorted(names) if not name.startswith(".")]
    return {path.relative_to(folder).as_posix(): digest for path, digest in zip(paths, hash_files(paths), strict=True)}


def hash_files(paths: Sequence[Path]) -> list[str]:
    """The hash of each file, several large ones at a time: a disk reads faster than a core hashes."""
    if sum(path.stat().st_size for path in paths) < _MANY_BYTES:
        return [hash_once(path) for path in paths]
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        return list(pool.map(hash_once, paths))


def check_folder(folder: Path, hashes: Mapping[str, str], remedy: str) -> None:
    """Raises a FolderError naming the first file that is missing or damaged, and the remedy."""
    paths = [path_inside(folder, name) for name in hashes]
    for path in paths:
        if not path.is_file():
            raise FolderError(f"{path} is missing; {remedy}")
    for path, digest, present in zip(paths, hashes.values(), hash_files(paths), strict=True):
        if present != digest:
            raise FolderError(f"{path} is damaged: its bytes are not those that were written; {remedy}")


def read_tensors(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    """parse(bytes of a small safetensors file); FolderError if it is damaged or a number is NaN."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with naming_damage(path):
        data = read_regular(path)
        try:
            arrays = load(data)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        for name, array in arrays.items():
            if np.isnan(array).any():
                raise ValueError(f"{name} holds NaN")
        return parse(data)
