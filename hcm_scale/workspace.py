"""Stages that run once: a folder per stage, known by the content it was made from.

A stage's key is the hash of its name, its options and the keys of the stages it reads. `stage.json` in its folder says
which key the folder is being made for and whether it is finished. A finished folder with the same key is used as it
is, an unfinished one with the same key is handed back to the stage to go on. A finished one with another key is set
aside, and removed when the stage is finished: a slip in an option costs nothing.

Where several ranks make a run, rank 0 decides what is kept and what is made, tells the others, and writes every record.
A stage is made by all of them together, or by rank 0 while the others wait.

Where jobs share stages (a sweep), the folders stand in `share_dir` under their keys and each run links to them. A lock
per folder lets two jobs race for one safely: the second waits and then finds it finished.
"""

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcm_scale.base import files, progress
from hcm_scale.ranks.world import ALONE, World

log = logging.getLogger(__name__)
_RECORD = "stage.json"
_LIST = "stages.json"


@dataclass(frozen=True)
class StageRecord:
    """What one stage was, cost and counted."""

    name: str
    key: str
    folder: str
    seconds: float
    peak_rss_bytes: int
    skipped: bool
    detail: dict[str, Any]


@dataclass
class Workspace:
    """The folders of one run, as one of its ranks sees them."""

    run_dir: Path
    share_dir: Path | None = None
    world: World = ALONE
    records: list[StageRecord] = field(default_factory=list)

    def stage(
        self, name: str, inputs: Any, make: Callable[[Path], dict[str, Any]], *, together: bool = False
    ) -> tuple[Path, str]:
        """Makes a stage's folder, or finds it made; returns the folder and the stage's key.

        Where there are several ranks, all call `make` if they make it `together`, else rank 0 alone does.
        """
        if not self.world.leads:
            return self._follow(make, together)
        key = files.hash_value([name, inputs])
        folder = self.run_dir / name if self.share_dir is None else self.share_dir / f"{name}-{key[:16]}"
        with files.locked(folder.with_name(f".{folder.name}.lock")):
            record = self._finished(name, key, folder)
            earlier = 0.0 if record is not None else self._prepare(name, key, folder)
            self.world.broadcast({"folder": str(folder), "key": key, "finished": record is not None})
            record = record or self._make(name, key, folder, make, earlier)
        self._link(name, folder)
        self.records.append(record)
        files.write_json(self.run_dir / _LIST, [asdict(entry) for entry in self.records])
        self.world.barrier()
        return folder, key

    def _follow(self, make: Callable[[Path], dict[str, Any]], together: bool) -> tuple[Path, str]:
        """What the other ranks do for a stage: what rank 0 says."""
        told = self.world.broadcast(None)
        folder = Path(told["folder"])
        if together and not told["finished"]:
            make(folder)
        self.world.barrier()
        return folder, told["key"]

    def _finished(self, name: str, key: str, folder: Path) -> StageRecord | None:
        found = _read_record(folder)
        if found is None or found["key"] != key:
            found = _take_back(folder, key)
        if found is None or not found["finished"]:
            return None
        log.info("%-10s unchanged, kept", name)
        return StageRecord(name, key, str(folder), found["seconds"], found["peak_rss_bytes"], True, found["detail"])

    def _prepare(self, name: str, key: str, folder: Path) -> float:
        """Makes the folder this key's; returns the seconds already spent on it."""
        found = _read_record(folder)
        if found is not None and found["key"] == key:
            log.info("%-10s goes on where it was stopped", name)
            return float(found.get("seconds", 0.0))
        _set_aside(folder)
        folder.mkdir(parents=True)
        files.write_json(folder / _RECORD, {"key": key, "finished": False})
        return 0.0

    def _make(
        self, name: str, key: str, folder: Path, make: Callable[[Path], dict[str, Any]], earlier: float
    ) -> StageRecord:
        progress.reset_peak_rss()
        started = time.perf_counter()
        try:
            detail = make(folder)
        except BaseException:
            spent = earlier + time.perf_counter() - started
            with contextlib.suppress(OSError):  # a full disk, say: the error that is under way tells more
                files.write_json(folder / _RECORD, {"key": key, "finished": False, "seconds": spent})
            raise
        seconds = earlier + time.perf_counter() - started
        peak = progress.peak_rss_bytes()
        done = {"key": key, "finished": True, "seconds": seconds, "peak_rss_bytes": peak, "detail": detail}
        files.write_json(folder / _RECORD, done)
        _remove(_aside(folder))
        log.info("%-10s %7.1f s   peak %5.2f GiB   %s", name, seconds, peak / 2**30, _brief(detail))
        return StageRecord(name, key, str(folder), seconds, peak, False, detail)

    def _link(self, name: str, folder: Path) -> None:
        """In a shared store, makes the run's own folder name point at the shared folder."""
        link = self.run_dir / name
        if folder == link:
            return
        fresh = link.with_name(f".{name}.{os.getpid()}.link")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(folder, self.run_dir))
        if link.is_dir() and not link.is_symlink():
            _check_ours(link)
            _remove(link)
        os.replace(fresh, link)


def forget_stages(run_dir: Path) -> None:
    """Begins the list of a run's stages anew; their folders stay, and are found again by their keys."""
    files.write_json(run_dir / _LIST, [])


def finished_stages(run_dir: Path) -> set[str]:
    """The stages that the last run in this folder made or found, and that still stand there as it left them."""
    try:
        listed = {stage["name"]: stage["key"] for stage in json.loads((run_dir / _LIST).read_text())}
    except (OSError, ValueError, LookupError, TypeError):
        return set()
    records = {name: _read_record(run_dir / name) or {} for name in listed}
    return {name for name, key in listed.items() if records[name].get("key") == key and records[name].get("finished")}


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def _set_aside(folder: Path) -> None:
    """Moves what stands in a stage's place out of the way, until the stage is finished: options may have been a slip.

    Of two folders the finished one is kept. A folder that holds something and is not ours is refused.
    """
    if folder.is_symlink():  # a sweep's job pointed to a shared folder
        folder.unlink()
    if not folder.exists():
        return
    _check_ours(folder)
    record = _read_record(folder)
    if record is not None and record["finished"]:
        _remove(_aside(folder))
        folder.rename(_aside(folder))
    else:
        _remove(folder)


def _check_ours(folder: Path) -> None:
    """Refuses a folder that holds something and is no stage's."""
    if not (folder / _RECORD).exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds files that no run made; name another run_dir, or move them")


def _take_back(folder: Path, key: str) -> dict[str, Any] | None:
    """The record of a finished folder of this key that was set aside, back in its place; None where there is none."""
    record = _read_record(_aside(folder))
    if record is None or record["key"] != key or not record["finished"]:
        return None
    if folder.exists() or folder.is_symlink():
        _remove(folder)
    _aside(folder).rename(folder)
    return record


def _remove(folder: Path) -> None:
    """Removes a stage's folder, by a rename first: what a kill leaves of it is not taken for a folder."""
    if folder.is_symlink():  # a sweep's job pointed to a shared folder
        folder.unlink()
        return
    gone = folder.with_name(f".{folder.name.removeprefix('.')}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _read_record(folder: Path) -> dict[str, Any] | None:
    path = folder / _RECORD
    try:
        return json.loads(path.read_text()) if path.is_file() else None
    except ValueError:
        return None


def _brief(detail: dict[str, Any]) -> str:
    """The scalar facts of a stage on one line."""
    shown = []
    for name, value in detail.items():
        if isinstance(value, bool | str) and len(str(value)) < 40:
            shown.append(f"{name}={value}")
        elif isinstance(value, int):
            shown.append(f"{name}={value:,}")
        elif isinstance(value, float):
            shown.append(f"{name}={value:.4g}")
    return "  ".join(shown)
