"""The files of a table: those at a path, below a folder, or that a glob names.

What tools leave beside data under names that start with . or _ (`_SUCCESS`, `_temporary/`, `.ipynb_checkpoints/`) is no
data, unless the user spells such a name. A file that links lead to as well is read once.
"""

import functools
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from hcm_scale.base.files import resolved
from hcm_scale.ingest.errors import InputError

log = logging.getLogger(__name__)
PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_HIDDEN = (".", "_")


def files_at(where: str) -> list[Path]:
    """All files at a file, a folder or a glob, sorted; hidden ones only where `where` spells them."""
    path = Path(where)
    if path.is_file():
        return [path]
    found = _below(path) if path.is_dir() else map(Path, glob.glob(where, recursive=True))  # noqa: PTH207
    return sorted(p for p in found if p.is_file() and not is_hidden(p, path))


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder; OSError where a folder in it, unless hidden, may not be read."""

    def refuse(error: OSError) -> None:
        raise error

    for place, inside, names in os.walk(folder, onerror=refuse):
        inside[:] = [name for name in inside if not is_hidden(Path(place, name), folder)]
        yield from (Path(place, name) for name in names)


def is_hidden(path: PurePath, named: PurePath) -> bool:
    """Whether a part of the path starts with . or _ and no part of `named`, which may hold wildcards, says so.

    >>> is_hidden(Path("_in/_tmp/a.csv"), Path("_in")), is_hidden(Path("_in/_tmp/a.csv"), Path("_in/_t*/*"))
    (True, False)
    """
    spelled = [part for part in named.parts if part.startswith(_HIDDEN)]
    return any(
        part.startswith(_HIDDEN) and not any(part == said or fnmatchcase(part, said) for said in spelled)
        for part in path.parts
    )


def find_paths(option: str, where: str) -> tuple[Path, ...]:
    """The files of the table at a file, folder or glob, sorted; `option` is its name in messages."""
    found = files_at(where)
    if Path(where).is_dir():
        found = [p for p in found if p.name.endswith(PARQUET + CSV)]
    if not found:
        raise InputError(f"{option}={where!r} names no Parquet or CSV file; legal are a file, a folder or a glob")
    kinds = {next((s for s in PARQUET + CSV if p.name.endswith(s)), None) for p in found}
    if None in kinds or len({kind in PARQUET for kind in kinds}) > 1:
        raise InputError(
            f"{option}={where!r} must name files of one kind, {PARQUET} or {CSV}; found {found[0].name} ..."
        )
    return _without_links(where, found)


def _without_links(where: str, paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths, but for those that lead by links to a file that is among them already: its rows would count twice."""
    once = {resolved(path): path for path in sorted(paths, key=lambda path: (len(path.parts), path), reverse=True)}
    if len(once) < len(paths):
        _tell_links(where, len(paths) - len(once))
    return tuple(sorted(once.values()))


@functools.cache
def _tell_links(where: str, count: int) -> None:
    log.warning("%s: links lead to files that are there already (%s); each file is read once", where, f"{count:,}")
