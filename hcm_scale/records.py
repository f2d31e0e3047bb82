"""The folder of a stage and its record, a file beside it: which key the folder is for, and whether it is finished.

    graph/                                  the folder
    records/  graph.json                    its record
              graph.before, .before.json    a finished folder of other options and its record
              graph.lock                    held while the folder is made

The record is written before the folder is made, so that at no moment of a kill there is a folder that the next run does
not know. It holds the hash of every file of a finished folder, and a seal of its own. A finished folder of another key
is set aside until the new one is finished: a slip in an option costs nothing.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcm_scale.base import files, sealed

log = logging.getLogger(__name__)
RECORDS = "records"


def beside(folder: Path, ending: str = ".json") -> Path:
    """What is kept about a folder: its record, or with another ending its lock, or what it was before."""
    return folder.parent / RECORDS / f"{folder.name}{ending}"


def read(folder: Path, ending: str = ".json") -> dict[str, Any]:
    """The record of a folder that stands; empty where there is none, FolderError where it is damaged."""
    path, stands = beside(folder, ending), folder if ending == ".json" else beside(folder, ".before")
    if folder.is_symlink() or not stands.is_dir() or not path.is_file():
        return {}
    return files.read_sealed(path, remedy(stands))


def read_finished(folder: Path, key: str, ending: str = ".json") -> dict[str, Any] | None:
    """The record of a finished folder of this key; None where it is unfinished, another's, or gone."""
    record = read(folder, ending)
    return record if record.get("key") == key and record.get("finished") else None


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuses a folder whose files are not those of its record."""
    sealed.check_folder(folder, hashes, remedy(folder))


def remedy(folder: Path) -> str:
    """What to do about a damaged folder."""
    return f"remove {folder} to have it made again"


def check_ours(folder: Path) -> None:
    """Refuses a folder that holds something and is no stage's."""
    if folder.is_symlink() or not folder.exists() or beside(folder).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        why = f"{folder} holds files that no run made, there being no {beside(folder)}"
        raise ValueError(f"{why}; name another run_dir, or move them")


def take_back(folder: Path, key: str) -> dict[str, Any] | None:
    """Puts a finished folder of this key that was set aside back in its place; None where there is none."""
    record = read_finished(folder, key, ".before.json")
    if record is not None:
        _remove(folder)
        files.write_sealed(beside(folder), {"key": key, "finished": False})  # never a folder under another's record
        beside(folder, ".before").rename(folder)
        files.write_sealed(beside(folder), record)
        beside(folder, ".before.json").unlink()
    return record


def prepare(name: str, folder: Path, key: str) -> float:
    """Makes the folder this key's; returns the seconds already spent on it.

    A finished folder of another key is set aside, with its record; an unfinished one is removed.
    """
    record = read(folder)
    if record.get("key") == key and folder.is_dir():
        log.info("%-20s goes on where it was stopped", name)
        for place, _, _ in os.walk(folder):
            files.remove_torn(Path(place))
        return float(record.get("seconds", 0.0))
    if folder.is_dir() and not folder.is_symlink() and record.get("finished"):
        forget_before(folder)
        files.write_sealed(beside(folder, ".before.json"), record)
        folder.rename(beside(folder, ".before"))
    else:
        _remove(folder)
    files.write_sealed(beside(folder), {"key": key, "finished": False})
    folder.mkdir(parents=True)
    return 0.0


def forget_before(folder: Path) -> None:
    """Removes what was set aside, its record first."""
    beside(folder, ".before.json").unlink(missing_ok=True)
    _remove(beside(folder, ".before"))


def point(link: Path, folder: Path) -> None:
    """Makes the run's own name of a stage point at the shared folder."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    if link.is_dir() and not link.is_symlink():
        _remove(link)
        beside(link).unlink(missing_ok=True)
    os.replace(fresh, link)


def _remove(folder: Path) -> None:
    """Removes a stage's folder, by a rename first: what a kill leaves of it is not taken for a folder."""
    if folder.is_symlink():  # a sweep's job pointed to a shared folder
        folder.unlink()
    elif folder.exists():
        gone = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
