"""Files that are either whole or absent.

Every stage writes its data first and its `manifest.json` last. A manifest is written under a temporary name,
flushed to disk, renamed, and the folder is flushed too, so that after a crash a folder either has a manifest that
is true or has none. Readers trust nothing else: a folder without a manifest is unfinished, one with another `kind`
is foreign, one with another `format` is of another version; each is refused by name.

A manifest, and every other JSON file that is believed later, has a seal: the hash of the rest of it.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_READ_BYTES = 1 << 22
_TORN = re.compile(r"\.(.+)\.\d+\.(tmp|new|old)")  # what is written to take the place of the name in it


class FolderError(ValueError):
    """A folder that cannot be used: unfinished, damaged, foreign, or written by another version."""


def hash_file(path: Path) -> str:
    """The xxh3-128 of a file's bytes, in hex."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as stream:
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
    """Flushes a file's bytes to the disk; Windows does not where a file is open for reading alone."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file  # a folder is flushed by the same call


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any, *, sort_keys: bool = True, indent: int | None = 1) -> None:
    """Writes JSON whole or not at all, with sorted keys, so that equal values are equal bytes.

    Without `indent` it is on one line, and written many times as fast.
    """
    write_bytes(path, (json.dumps(value, indent=indent, sort_keys=sort_keys) + "\n").encode())


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object whole or not at all, with its seal."""
    write_json(path, value | {"seal": hash_value(value)})


def read_sealed(path: Path, remedy: str = "") -> dict[str, Any]:
    """The object that `write_sealed` wrote; FolderError, which ends in the remedy, where the file is not as it was."""
    try:
        value = json.loads(path.read_bytes() if path.is_file() else b"")  # a pipe would never end
        if not isinstance(value, dict) or value.pop("seal", None) != hash_value(value):
            raise ValueError("its seal is missing or not that of its content")
    except (ValueError, RecursionError) as error:
        state = f"damaged: {error}" if path.exists() else "missing"
        raise FolderError(f"{path} is {state}{remedy and '; '}{remedy}") from error
    return value


def write_manifest(folder: Path, kind: str, version: int, body: dict[str, Any]) -> None:
    """The last write of a stage: from here on the folder exists."""
    write_sealed(folder / MANIFEST, {"kind": kind, "format": version, **body})


def read_manifest(folder: Path, kind: str, version: int, remedy: str = "") -> dict[str, Any]:
    """The manifest of a finished folder of this `kind` and format `version`."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        kept = "a file" if Path(folder).exists() else "missing"
        state = "unfinished: it has no manifest.json" if Path(folder).is_dir() else kept
        raise FolderError(f"{folder} is {state}; a finished {kind} folder was expected")
    manifest = read_sealed(path, remedy)
    if manifest.get("kind") != kind:
        raise FolderError(f"{folder} holds {manifest.get('kind')!r}, not a {kind!r}")
    if manifest.get("format") != version:
        found = (
            f"{folder} has format {manifest.get('format')!r}; this version of hcm-scale reads format {version} alone"
        )
        raise FolderError(f"{found}: have it made again, or use the version that made it")
    return manifest


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Gives an empty sibling folder to fill; on success it takes the place of `folder`, on failure it is removed.

    What stood at `folder` before stays untouched until the new one is complete.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    for path in (fresh, old):  # of a killed process that had our number
        shutil.rmtree(path, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_torn(folder: Path, of: str = "") -> None:
    """Removes the temporary files and folders directly in `folder` that killed processes left, of names that begin so.

    The caller holds the lock under which such names are made: whatever has one is nobody's any more.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        named = _TORN.fullmatch(path.name)
        if named and named[1].startswith(of):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` between processes; a killed holder lets go of it. Windows has no such lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with open(path, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that holds %s", path)
            fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)


def resolved(path: Path) -> Path:
    """The path without links; of links that lead to each other, which Path.resolve raises at, what comes of it."""
    return Path(os.path.realpath(path))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, which may be a link to a shared one."""
    return sum(path.stat().st_size for path in resolved(folder).rglob("*") if path.is_file() and not path.is_symlink())
