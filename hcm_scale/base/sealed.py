"""Files that are believed only while their bytes are those that were written: hashes of a folder, taken and checked.

A file is read once a process. Its hash is kept under what the system says of the file (device, inode, size, times of
its last changes): a file that was written again, replaced or swapped with another is read again. One that changed a
moment ago could change once more without a new time, and is not kept. A bit that the disk itself turned changes none of
these, and is noticed by the next process.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hcm_scale.base import files

_KNOWN: dict[tuple[int, ...], str] = {}
_AT_ONCE, _MANY_BYTES = 4, 1 << 26
_MOMENT_NS = 100_000_000  # far more than the steps in which systems tell the time of a change


def hash_once(path: Path) -> str:
    """The hash of a file; it is read only where this process has not read it as it stands."""
    found = path.stat()
    known_as = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    if known_as in _KNOWN:
        return _KNOWN[known_as]
    age = time.time_ns() - found.st_ctime_ns
    if 0 <= age <= _MOMENT_NS and found.st_size >= _MANY_BYTES:  # waiting takes less than reading it again later
        time.sleep((_MOMENT_NS - age + 1) / 1e9)
        return hash_once(path)
    digest = files.hash_file(path)
    if age > _MOMENT_NS:
        _KNOWN[known_as] = digest
    return digest


def hash_folder(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """The hashes of all files below a folder by their names in it, but for hidden ones and the folders `leave_out`."""
    found: list[Path] = []
    for place, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if Path(place) != folder or name not in leave_out)
        found += [Path(place) / name for name in sorted(names) if not name.startswith(".")]
    return {path.relative_to(folder).as_posix(): digest for path, digest in zip(found, hash_files(found), strict=True)}


def hash_files(paths: Sequence[Path]) -> list[str]:
    """The hash of each, several large ones at a time: a disk reads faster than a core takes a hash."""
    if sum(path.stat().st_size for path in paths) < _MANY_BYTES:
        return [hash_once(path) for path in paths]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(hash_once, paths))


def check_folder(folder: Path, hashes: Mapping[str, str], remedy: str) -> None:
    """FolderError naming the first of these files that is missing or not as it was, and what to do about it."""
    paths = [files.below(folder, name) for name in hashes]
    for path in paths:
        if not path.is_file():
            raise files.FolderError(f"{path} is missing; {remedy}")
    for path, digest, found in zip(paths, hashes.values(), hash_files(paths), strict=True):
        if found != digest:
            raise files.FolderError(f"{path} is damaged: its bytes are not those that were written; {remedy}")
