"""Files that lie elsewhere, brought beside the graph's folder for as long as it is read.

Readers pass over a table up to four times and hold its rows to be the same each time, so a remote file is fetched
once, whole, and read from the disk. A URL names a file, a folder or a glob, with the rules for hidden names and for
columns in folder names that paths have. What a run is known by are the names, sizes and times (of a web server: the
ETag too) of the files.
"""

import contextlib
import glob
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from hcm_scale.base import remote
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.paths import is_hidden

log = logging.getLogger(__name__)
_AT_ONCE = 8
_TELLS_VERSION = ("ETag", "Last-Modified", "Content-MD5")


def stamp(option: str, url: str) -> list[Any]:
    """What tells that the files at a URL changed."""
    from pyarrow import fs

    system, _, found = _find(option, url)
    listed: list[Any] = [[info.path, info.size, info.mtime_ns] for info in found]
    if isinstance(system, fs.PyFileSystem):  # fsspec's own words, which pyarrow does not pass on
        with remote.telling(option, url):
            known = [system.handler.fs.info(info.path) for info in found]
        listed += [[str(info[name]) for name in _TELLS_VERSION if name in info] for info in known]
    return listed


@contextlib.contextmanager
def fetched(out: Path, places: Mapping[str, str | None], endings: tuple[str, ...]) -> Iterator[list[str | None]]:
    """Paths for `places`, by option: those of URLs are copies beside `out`, which go at the end.

    Of a folder the files are fetched whose names have one of the endings.
    """
    beside = out.with_name(f".{out.name}-fetched.{os.getpid()}.tmp")
    given = {option: place and remote.local_path(place) for option, place in places.items()}
    copies: dict[str, str] = {}
    try:
        for option, place in given.items():
            if place is not None and remote.is_url(place):
                copies[option] = _fetch(option, place, beside / option, endings)
        yield [copies.get(option, place) for option, place in given.items()]
    except InputError as error:
        text = str(error)
        for option, copy in copies.items():
            text = text.replace(copy, str(given[option]))
        raise InputError(text) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fetch(option: str, url: str, folder: Path, endings: tuple[str, ...]) -> str:
    """Copies the files at a URL into `folder`; returns what to read: the file, or the folder of several."""
    from pyarrow import fs

    system, root, found = _find(option, url)
    is_file = [info.path for info in found] == [root]
    named = [info for info in found if is_file or info.path.endswith(endings)]
    if not named:
        raise InputError(f"{option}={url!r} names no file that ends in one of {', '.join(endings)}")
    names = [_web_name(url)] if is_file else [info.path[len(root) :].lstrip("/") for info in named]
    goals = [folder / name for name in names]
    if not all(goal.resolve().is_relative_to(folder.resolve()) for goal in goals):
        raise InputError(f"{option}={url!r} lists names that lead out of it")

    def copy(path: str, goal: Path) -> None:
        goal.parent.mkdir(parents=True, exist_ok=True)
        fs.copy_files(path, str(goal.absolute()), system, fs.LocalFileSystem())

    with remote.telling(option, url), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, [info.path for info in named], goals))
    size = sum(goal.stat().st_size for goal in goals)
    log.info("fetched %s: %s files, %s bytes", url, f"{len(named):,}", f"{size:,}")
    return str(goals[0] if is_file else folder)


def _web_name(url: str) -> str:
    """The name of a file at a URL; what a web address has after a ? is no part of it.

    >>> _web_name("https://x.org/a/edges.csv?key=1/2"), _web_name("s3://bucket/why?.csv")
    ('edges.csv', 'why?.csv')
    """
    return PurePosixPath(url.partition("?")[0] if url.startswith("http") else url).name


def _find(option: str, url: str) -> tuple[Any, str, list[Any]]:
    """The file system, the path that files lie below (or the file's own), and what pyarrow knows of each file."""
    from pyarrow import fs

    system, path = remote.open_place(option, url)
    with remote.telling(option, url):
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return system, path, [info]
        root = _fixed(path) if info.type == fs.FileType.NotFound else path
        try:
            below = system.get_file_info(fs.FileSelector(root, recursive=True))
        except FileNotFoundError:
            below = []
    said = PurePosixPath(path)
    found = [i for i in below if i.type == fs.FileType.File and not is_hidden(PurePosixPath(i.path), said)]
    if root != path:
        found = [info for info in found if _matches(PurePosixPath(info.path).parts, said.parts)]
    if not found:
        raise InputError(f"{option}={url!r} names no file; legal are a file, a folder or a glob")
    return system, root, sorted(found, key=lambda info: info.path)


def _fixed(path: str) -> str:
    """The folders of a path before its first wildcard.

    >>> _fixed("bucket/in/day=*/*.csv"), _fixed("bucket/none")
    ('bucket/in', 'bucket/none')
    """
    parts = path.split("/")
    return "/".join(parts[: next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))])


def _matches(parts: tuple[str, ...], said: tuple[str, ...]) -> bool:
    """Whether a path is meant by one with wildcards, where ** is any number of folders.

    >>> _matches(("b", "x", "y", "a.csv"), ("b", "**", "*.csv")), _matches(("b", "x", "a.csv"), ("b", "*.csv"))
    (True, False)
    """
    if not said or not parts:
        return not said and not parts
    if said[0] == "**":
        return _matches(parts, said[1:]) or _matches(parts[1:], said)
    return fnmatchcase(parts[0], said[0]) and _matches(parts[1:], said[1:])
