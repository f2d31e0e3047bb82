"""Stages that run once: a folder per stage, known by the content it was made from.

    run/  graph/  purified/  ...  stages.json      the folders of the stages, and the list of what the last run found
          records/  graph.json                     which key each is made for, and whether it is finished: `records.py`

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
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcm_scale import records
from hcm_scale.base import files, json_log, near, progress, sealed, stopping
from hcm_scale.base.beside import side_by_side
from hcm_scale.base.budget import Budget, Need
from hcm_scale.base.shortage import shortage_told
from hcm_scale.ranks.world import ALONE, World

log = logging.getLogger(__name__)
_LIST = near.STAGES_FILE


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
        lacked = self.budget.lacks(*(stage.needs()[-1] for stage in group if stage.needs is not None))
        if lacked:
            log.info("%s: one after the other, because together %s", ", ".join(stage.name for stage in group), lacked)
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
        _write_list(self.run_dir, [asdict(entry) for entry in self.records])
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


def begin_run(run_dir: Path) -> None:
    """Begins the list of a run's stages anew, and removes the temporary files that killed runs left.

    The folders of the stages stay, and are found again by their keys.
    """
    files.remove_torn(run_dir)
    files.remove_torn(run_dir / records.RECORDS)
    _write_list(run_dir, [])


def _write_list(run_dir: Path, stages: Sequence[dict[str, Any]]) -> None:
    files.write_json(run_dir / _LIST, [stage | {"seal": files.hash_value(stage)} for stage in stages])


@contextlib.contextmanager
def listed_anew(run_dir: Path) -> Iterator[None]:
    """Begins a run.

    Where it is refused before it has replaced a stage of the run that stood here, that one is listed again, with its
    configuration: a slip in an option takes no result away.
    """
    path = run_dir / "config.json"
    before, listed = path.read_bytes() if path.is_file() else b"{}", []
    with contextlib.suppress(files.FolderError):  # of a damaged list nothing is put back
        listed = read_stages(run_dir)
    begin_run(run_dir)
    try:
        yield
    except ValueError:
        with contextlib.suppress(files.FolderError, OSError):  # the error that is under way tells more
            if listed and all(_stands(run_dir, stage) for stage in listed):
                _put_back(run_dir, listed)
                files.write_bytes(path, before)
                _write_list(run_dir, listed)
        raise


def _stands(run_dir: Path, stage: dict[str, Any]) -> bool:
    """Whether the run's own folder of a listed stage is finished, in its place or set aside."""
    folder, key = run_dir / stage["name"], stage["key"]
    return any(records.read_finished(folder, key, ending) for ending in (".json", ".before.json"))


def _put_back(run_dir: Path, listed: Sequence[dict[str, Any]]) -> None:
    """Puts the folders of listed stages that were set aside back in their places."""
    for stage in listed:
        folder = run_dir / stage["name"]
        if records.read_finished(folder, stage["key"]) is None:
            records.take_back(folder, stage["key"])


def read_stages(run_dir: Path) -> list[dict[str, Any]]:
    """What the last run here found, a `StageRecord` a stage; empty where there was none.

    Lists of earlier versions have no seals.
    """
    path = run_dir / _LIST
    try:
        listed = json.loads(path.read_bytes())
        if listed == {} or any(stage.pop("seal", None) not in (None, files.hash_value(stage)) for stage in listed):
            raise ValueError("it is no list, or a seal is not that of its stage")
        return [asdict(StageRecord(**stage)) for stage in listed]
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise files.FolderError(f"{path} is damaged; hcm-scale run writes it again") from error


def open_stages(run_dir: Path, *names: str) -> list[Path]:
    """The folders of these stages of the last run here, all of their files checked.

    ValueError where a stage is not finished, FolderError where it is not what the run left.
    """
    path, listed = run_dir / _LIST, stage_keys(run_dir)
    if not path.is_file():
        if (run_dir / records.RECORDS).is_dir():
            raise files.FolderError(f"{path} is missing; hcm-scale run writes it again")
        raise ValueError(near.no_run(run_dir))
    for name in names:
        if name not in listed:
            raise ValueError(f"{path} lists no {name}: finish the run in run_dir={run_dir} first with hcm-scale run")
    folders = [files.resolved(run_dir / name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if folder.is_dir() and not records.beside(folder).is_file():
            raise files.FolderError(f"{records.beside(folder)} is missing; {records.remedy(folder)}")
        record = records.read_finished(folder, listed[name])
        if record is None:
            raise files.FolderError(
                f"{records.beside(folder)} is not of the {name} in {path}; hcm-scale run makes it again"
            )
        records.check_files(folder, record["files"])
    return folders


def stage_keys(run_dir: Path) -> dict[str, str]:
    """The keys of the stages that the last run here listed, by name; empty where there was none."""
    return {stage["name"]: stage["key"] for stage in read_stages(run_dir)}


def copy_run(run_dir: Path, out: Path) -> None:
    """Copies the finished stages of the last run here, checked, into the folder `out`: a run of its own."""
    listed = read_stages(run_dir)
    for stage, folder in zip(listed, open_stages(run_dir, *(stage["name"] for stage in listed)), strict=True):
        record, target = records.read(folder), out / stage["name"]
        for name in record["files"]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target / name)
        (out / records.RECORDS).mkdir(exist_ok=True)
        records.write(records.beside(target), record)
    _write_list(out, [stage | {"folder": stage["name"]} for stage in listed])
    shutil.copyfile(run_dir / "config.json", out / "config.json")


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
            records.write(records.beside(folder), spent)
        raise
    seconds, peak = time.perf_counter() - started, progress.peak_rss_bytes()
    record = {"key": key, "finished": True, "seconds": seconds, "peak_rss_bytes": peak, "detail": detail}
    records.write(records.beside(folder), record | {"files": hashes})
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
