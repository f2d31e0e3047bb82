"""Stages that run once: a folder per stage, known by the content it was made from.

    run/  graph/  purified/  ...                   the folders of the stages
          records/  graph.json                     which key each is made for, and whether it is finished
          stages.json                              what the last run found

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
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcm_scale.base import console, files, signals
from hcm_scale.base.memory import Budget, Need, raising_out_of_memory
from hcm_scale.base.threads import run_concurrently
from hcm_scale.ranks.world import ALONE, World

# ----------------------------------------------------------------------------
# The folder of a stage and its record, a file beside it: which key the folder is for, and whether it is finished.
#
#     graph/                                  the folder
#     records/  graph.json                    its record
#               graph.before, .before.json    a finished folder of other options and its record
#               graph.lock                    held while the folder is made
#
# The record is written before the folder is made, so that at no moment of a kill there is a folder that the next run
# does not know. It holds the hash of every file of a finished folder, and a seal of its own. A finished folder of
# another key is set aside until the new one is finished: a slip in an option costs nothing.


log = logging.getLogger(__name__)
RECORDS = "records"


def record_path(folder: Path, ending: str = ".json") -> Path:
    """What is kept about a folder: its record, or with another ending its lock, or what it was before."""
    return folder.parent / RECORDS / f"{folder.name}{ending}"


def read_record(folder: Path, ending: str = ".json") -> dict[str, Any]:
    """The record of a folder that stands; empty where there is none, FolderError where it is damaged."""
    path, stands = record_path(folder, ending), folder if ending == ".json" else record_path(folder, ".before")
    if folder.is_symlink() or not stands.is_dir() or not path.is_file():
        return {}
    return files.read_sealed(path, repair_hint(stands))


def read_finished_record(folder: Path, key: str, ending: str = ".json") -> dict[str, Any] | None:
    """The record of a finished folder of this key; None where it is unfinished, another's, or gone."""
    record = read_record(folder, ending)
    return record if record.get("key") == key and record.get("finished") else None


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuses a folder whose files are not those of its record."""
    files.check_folder(folder, hashes, repair_hint(folder))


def repair_hint(folder: Path) -> str:
    """What to do about a damaged folder."""
    return f"remove {folder} to have it made again"


def check_ours(folder: Path) -> None:
    """Refuses a folder that holds something and is no stage's."""
    if folder.is_symlink() or not folder.exists() or record_path(folder).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        why = f"{folder} holds files that no run made, there being no {record_path(folder)}"
        raise ValueError(f"{why}; name another run_dir, or move them")


def restore_folder(folder: Path, key: str) -> dict[str, Any] | None:
    """Puts a finished folder of this key that was set aside back in its place; None where there is none."""
    record = read_finished_record(folder, key, ".before.json")
    if record is not None:
        _remove(folder)
        files.write_sealed(
            record_path(folder), {"key": key, "finished": False}
        )  # never a folder under another's record
        record_path(folder, ".before").rename(folder)
        files.write_sealed(record_path(folder), record)
        record_path(folder, ".before.json").unlink()
    return record


def prepare_folder(name: str, folder: Path, key: str) -> float:
    """Makes the folder this key's; returns the seconds already spent on it.

    A finished folder of another key is set aside, with its record; an unfinished one is removed.
    """
    record = read_record(folder)
    if record.get("key") == key and folder.is_dir():
        log.info("%-20s goes on where it was stopped", name)
        for place, _, _ in os.walk(folder):
            files.remove_temporary(Path(place))
        return float(record.get("seconds", 0.0))
    if folder.is_dir() and not folder.is_symlink() and record.get("finished"):
        remove_previous(folder)
        files.write_sealed(record_path(folder, ".before.json"), record)
        folder.rename(record_path(folder, ".before"))
    else:
        _remove(folder)
    files.write_sealed(record_path(folder), {"key": key, "finished": False})
    folder.mkdir(parents=True)
    return 0.0


def remove_previous(folder: Path) -> None:
    """Removes what was set aside, its record first."""
    record_path(folder, ".before.json").unlink(missing_ok=True)
    _remove(record_path(folder, ".before"))


def link_folder(link: Path, folder: Path) -> None:
    """Makes the run's own name of a stage point at the shared folder."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    if link.is_dir() and not link.is_symlink():
        _remove(link)
        record_path(link).unlink(missing_ok=True)
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


# ----------------------------------------------------------------------------
# stages.json, the list of what the last run in a folder found: written stage by stage, put back, and read.
#
# Whoever reads a run opens its stages by this list, which names the key of each: a folder that another run has made
# anew since is told from the one that was listed.


_LIST = console.STAGES_FILE


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


def begin_run(run_dir: Path) -> None:
    """Begins the list of a run's stages anew, and removes the temporary files that killed runs left.

    The folders of the stages stay, and are found again by their keys.
    """
    files.remove_temporary(run_dir)
    files.remove_temporary(run_dir / RECORDS)
    write_list(run_dir, [])


def write_list(run_dir: Path, stages: Sequence[dict[str, Any]]) -> None:
    """Writes the list: a `StageRecord` a stage, in their order."""
    files.write_sealed(run_dir / _LIST, {"stages": list(stages)})


@contextlib.contextmanager
def new_stage_list(run_dir: Path) -> Iterator[None]:
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
            if listed and all(_is_finished(run_dir, stage) for stage in listed):
                _restore_listed(run_dir, listed)
                files.write_bytes(path, before)
                write_list(run_dir, listed)
        raise


def _is_finished(run_dir: Path, stage: dict[str, Any]) -> bool:
    """Whether the run's own folder of a listed stage is finished, in its place or set aside."""
    folder, key = run_dir / stage["name"], stage["key"]
    return any(read_finished_record(folder, key, ending) for ending in (".json", ".before.json"))


def _restore_listed(run_dir: Path, listed: Sequence[dict[str, Any]]) -> None:
    """Puts the folders of listed stages that were set aside back in their places."""
    for stage in listed:
        folder = run_dir / stage["name"]
        if read_finished_record(folder, stage["key"]) is None:
            restore_folder(folder, stage["key"])


def read_stages(run_dir: Path) -> list[dict[str, Any]]:
    """What the last run here found, a `StageRecord` a stage; empty where there was none."""
    path, remedy = run_dir / _LIST, "hcm-scale run writes it again"
    if not path.exists():
        return []
    listed = files.read_sealed(path, remedy)
    try:
        names = [str(files.check_name(stage["name"])) for stage in listed["stages"]]
        stages = zip(listed["stages"], names, strict=True)
        return [asdict(StageRecord(**stage | {"name": name})) for stage, name in stages]
    except (LookupError, TypeError) as error:
        raise files.FolderError(f"{path} is damaged: {error!r}; {remedy}") from error


def open_stages(run_dir: Path, *names: str) -> list[Path]:
    """The folders of these stages of the last run here, all of their files checked.

    ValueError where a stage is not finished, FolderError where it is not what the run left.
    """
    path, listed = run_dir / _LIST, stage_keys(run_dir)
    if not path.is_file():
        if (run_dir / RECORDS).is_dir():
            raise files.FolderError(f"{path} is missing; hcm-scale run writes it again")
        raise ValueError(console.missing_run_text(run_dir))
    for name in names:
        if name not in listed:
            raise ValueError(f"{path} lists no {name}: finish the run in run_dir={run_dir} first with hcm-scale run")
    folders = [files.resolved(run_dir / name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if folder.is_dir() and not record_path(folder).is_file():
            raise files.FolderError(f"{record_path(folder)} is missing; {repair_hint(folder)}")
        record = read_finished_record(folder, listed[name])
        if record is None:
            raise files.FolderError(
                f"{record_path(folder)} is not of the {name} in {path}; hcm-scale run makes it again"
            )
        check_files(folder, record["files"])
    return folders


def stage_keys(run_dir: Path) -> dict[str, str]:
    """The keys of the stages that the last run here listed, by name; empty where there was none."""
    return {stage["name"]: stage["key"] for stage in read_stages(run_dir)}


def copy_run(run_dir: Path, out: Path) -> None:
    """Copies the finished stages of the last run here, checked, into the folder `out`: a run of its own."""
    listed = read_stages(run_dir)
    for stage, folder in zip(listed, open_stages(run_dir, *(stage["name"] for stage in listed)), strict=True):
        record, target = read_record(folder), out / stage["name"]
        for name in record["files"]:
            copy = files.below(target, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files.below(folder, name), copy)
        (out / RECORDS).mkdir(exist_ok=True)
        files.write_sealed(record_path(target), record)
    write_list(out, [stage | {"folder": stage["name"]} for stage in listed])
    shutil.copyfile(files.below(run_dir, "config.json"), out / "config.json")


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
        signals.check_stop_requested()
        if self.world.leads:
            found = run_concurrently([functools.partial(self._lead, stage) for stage in stages])
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
        record = read_finished_record(folder, key) or read_finished_record(folder, key, ".before.json")
        self.keys[stage.name] = key
        if record is not None:
            self.folders[stage.name] = folder
            return "kept", record
        unfinished = read_record(folder)
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
        with console.logging_stage(record.name):
            log.info("%s", _line(record))
        console.report_step(console.Step(record.name, 1, 1, "stage"))

    def _lead(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        key, link = stage.key(self.keys), self.run_dir / stage.name
        folder = self._folder(stage, key)
        check_ours(link)
        with files.file_lock(record_path(folder, ".lock")), console.logging_stage(stage.name):
            for place in (folder.parent, folder.parent / RECORDS):
                files.remove_temporary(place, folder.name)
            record = read_finished_record(folder, key) or restore_folder(folder, key)
            if record is not None:
                check_files(folder, record["files"])
            elif stage.needs is not None:
                self.check_fits(stage.name, stage.needs()[-1])
            earlier = 0.0 if record else prepare_folder(stage.name, folder, key)
            self.world.broadcast({"folder": str(folder), "key": key, "finished": record is not None})
            made = record or _fill(stage, folder, key, earlier)
        if folder != link:
            link_folder(link, folder)
        costs = made["seconds"], made["peak_rss_bytes"]
        return folder, key, StageRecord(stage.name, key, str(folder), *costs, record is not None, made["detail"])

    def _follow(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        """What the other ranks do for a stage: what rank 0 says."""
        decision = self.world.broadcast(None)
        if stage.together and not decision["finished"]:
            with raising_out_of_memory(stage.name), console.logging_stage(stage.name):
                stage.make(Path(decision["folder"]))
        return Path(decision["folder"]), decision["key"], None


def _fill(stage: Stage, folder: Path, key: str, earlier: float) -> dict[str, Any]:
    """Has the stage made; returns its record, which makes it finished."""
    console.reset_peak_rss()
    started = time.perf_counter() - earlier
    try:
        with raising_out_of_memory(stage.name):
            detail = stage.make(folder)
        hashes = files.hash_folder(folder, stage.leaves)
    except BaseException:
        spent = {"key": key, "finished": False, "seconds": time.perf_counter() - started}
        with contextlib.suppress(OSError):  # a full disk, say: the error that is under way tells more
            files.write_sealed(record_path(folder), spent)
        raise
    seconds, peak = time.perf_counter() - started, console.peak_rss_bytes()
    record = {"key": key, "finished": True, "seconds": seconds, "peak_rss_bytes": peak, "detail": detail}
    files.write_sealed(record_path(folder), record | {"files": hashes})
    remove_previous(folder)
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
