"""Stages that run once: a folder per stage, known by the content it was made from.

    run/  graph/  purified/  ...                   the folders of the stages
          records/  graph.json                     which key each is made for, and whether it is finished: `records.py`
          stages.json                              what the last run found: `listed.py`

A stage is a value. Its key is the hash of its name, its version, its options and the keys of the stages that it reads.
A finished folder of the same key is used as it is; an unfinished one is handed back to the stage, to go on; any other
gives way to a new one.

A folder that is kept is checked against the hashes in its record before anything reads it. Damage is refused by the
name of the file and of the folder to remove, never mended: a stage may have taken days, and a disk that turns bits
should be looked at before more is written to it.

Where several ranks make a run, rank 0 decides what is kept and what is made, says so to the others, and writes every
record. A stage is made by all of them together, or by rank 0 while the others wait.

Where jobs share stages (a sweep), the folders stand in `share_dir` under their keys and each run links to them. A lock
per folder lets two jobs race for one safely: the second waits and then finds it finished.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcm_scale import records
from hcm_scale.base import files, json_log, progress, sealed, stopping
from hcm_scale.base.beside import side_by_side
from hcm_scale.base.budget import Budget, Need
from hcm_scale.base.shortage import shortage_told
from hcm_scale.listed import StageRecord, write_list
from hcm_scale.ranks.world import ALONE, World

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """One step of a run: what decides its result, and how it is made.

    `make` fills the folder that it is given, or goes on filling it, and returns facts to show. The folder holds nothing
    but what an earlier call for the same key left there.
    """

    name: str
    version: int  # of the arithmetic and of the files: results of another version are made again
    options: Any  # JSON-able
    reads: tuple[str, ...]  # names of stages
    make: Callable[[Path], dict[str, Any]]
    together: bool = False  # whether every rank calls `make`, or rank 0 alone
    group: str | None = None  # stages of one group that follow each other may be made at the same time, by one rank
    leaves: tuple[str, ...] = ()  # folders in its own that nothing reads once it is finished: they may go, or change
    needs: Callable[[], Sequence[Need]] | None = None  # of memory, by the ways to make it, the fastest first

    def key(self, keys: Mapping[str, str]) -> str:
        """What the result is known by, given the keys of the stages that it reads."""
        return files.hash_value([self.name, self.version, self.options, [keys[name] for name in self.reads]])


@dataclass
class Workspace:
    """The folders of one run, as one of its ranks sees them."""

    run_dir: Path
    share_dir: Path | None = None
    world: World = ALONE
    budget: Budget = field(default_factory=Budget)
    keys: dict[str, str] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    records: list[StageRecord] = field(default_factory=list)

    def make(self, *stages: Stage) -> None:
        """Makes the folders of stages, or finds them made: one, or a group of them. What they read comes first."""
        stopping.check_asked()
        if self.world.leads:
            found = side_by_side([functools.partial(self._lead, stage) for stage in stages])
        else:
            found = [self._follow(stage) for stage in stages]
        self.world.barrier()
        for stage, (folder, key, record) in zip(stages, found, strict=True):
            self.folders[stage.name], self.keys[stage.name] = folder, key
            if record is not None:
                self._note(record)

    def look(self, stage: Stage) -> tuple[str, dict[str, Any]]:
        """What `make` would do for a stage, "kept", "goes on" or "made", and the record of what is there; reads only.

        What reads the stage can be looked at next.
        """
        key = stage.key(self.keys)
        folder = self._folder(stage, key)
        record = records.read_finished(folder, key) or records.read_finished(folder, key, ".before.json")
        self.keys[stage.name] = key
        if record is not None:
            self.folders[stage.name] = folder
            return "kept", record
        unfinished = records.read(folder)
        return "goes on" if unfinished.get("key") == key else "made", unfinished

    def _folder(self, stage: Stage, key: str) -> Path:
        return self.run_dir / stage.name if self.share_dir is None else self.share_dir / f"{stage.name}-{key[:16]}"

    def fitting(self, group: Sequence[Stage]) -> list[Sequence[Stage]]:
        """The stages of a group all at once, or one after the other where memory is too small for that."""
        if len(group) == 1:
            return [group]
        missing = [stage for stage in group if self.look(stage)[0] != "kept"]
        lacked = self.budget.lacks(*(stage.needs()[-1] for stage in missing if stage.needs is not None))
        if lacked:
            log.info("%s: one after the other, because together %s", ", ".join(stage.name for stage in missing), lacked)
        return [[stage] for stage in group] if lacked else [group]

    def check_fits(self, name: str, need: Need) -> None:
        """Refuses a stage that will not fit into memory."""
        if lacked := self.budget.lacks(need):
            change = f"{need.change}, or " if need.change else ""
            allow = "raise it" if "ulimit" in lacked else "say world.memory_gib=N to have it tried with N GiB"
            raise ValueError(f"{name}: {lacked}; {change}{allow}")

    def _note(self, record: StageRecord) -> None:
        """Adds a stage to the list of what this run found."""
        self.records.append(record)
        write_list(self.run_dir, [asdict(entry) for entry in self.records])
        with json_log.of_stage(record.name):
            log.info("%s", _line(record))
        progress.tell(progress.Step(record.name, 1, 1, "stage"))

    def _lead(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        key, link = stage.key(self.keys), self.run_dir / stage.name
        folder = self._folder(stage, key)
        records.check_ours(link)
        with files.locked(records.beside(folder, ".lock")), json_log.of_stage(stage.name):
            for place in (folder.parent, folder.parent / records.RECORDS):
                files.remove_torn(place, folder.name)
            record = records.read_finished(folder, key) or records.take_back(folder, key)
            if record is not None:
                records.check_files(folder, record["files"])
            elif stage.needs is not None:
                self.check_fits(stage.name, stage.needs()[-1])
            earlier = 0.0 if record else records.prepare(stage.name, folder, key)
            self.world.broadcast({"folder": str(folder), "key": key, "finished": record is not None})
            made = record or _fill(stage, folder, key, earlier)
        if folder != link:
            records.point(link, folder)
        costs = made["seconds"], made["peak_rss_bytes"]
        return folder, key, StageRecord(stage.name, key, str(folder), *costs, record is not None, made["detail"])

    def _follow(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        """What the other ranks do for a stage: what rank 0 says."""
        decision = self.world.broadcast(None)
        if stage.together and not decision["finished"]:
            with shortage_told(stage.name), json_log.of_stage(stage.name):
                stage.make(Path(decision["folder"]))
        return Path(decision["folder"]), decision["key"], None


def _fill(stage: Stage, folder: Path, key: str, earlier: float) -> dict[str, Any]:
    """Has the stage made; returns its record, which makes it finished."""
    progress.reset_peak_rss()
    started = time.perf_counter() - earlier
    try:
        with shortage_told(stage.name):
            detail = stage.make(folder)
        hashes = sealed.hash_folder(folder, stage.leaves)
    except BaseException:
        spent = {"key": key, "finished": False, "seconds": time.perf_counter() - started}
        with contextlib.suppress(OSError):  # a full disk, say: the error that is under way tells more
            files.write_sealed(records.beside(folder), spent)
        raise
    seconds, peak = time.perf_counter() - started, progress.peak_rss_bytes()
    record = {"key": key, "finished": True, "seconds": seconds, "peak_rss_bytes": peak, "detail": detail}
    files.write_sealed(records.beside(folder), record | {"files": hashes})
    records.forget_before(folder)
    return record


def _line(record: StageRecord) -> str:
    """A stage on one line: that it was kept, or what it cost and its scalar facts."""
    if record.skipped:
        return f"{record.name:<20} unchanged, kept"
    shown = []
    for name, value in record.detail.items():
        if isinstance(value, bool | str) and len(str(value)) < 40:
            shown.append(f"{name}={value}")
        elif isinstance(value, int | float):
            shown.append(f"{name}={value:,}" if isinstance(value, int) else f"{name}={value:.4g}")
    costs = f"{record.seconds:7.1f} s   peak {record.peak_rss_bytes / 2**30:5.2f} GiB"
    return f"{record.name:<20} {costs}   {'  '.join(shown)}"
