"""Stages that are made once: a folder for each, a record that says what it was made from, and the list of the last run.

    run/  graph/  purified/  ...                          the folders of the stages
          records/  graph.json                            the record of each: its key, and whether it is finished
                    graph.before/  graph.before.json      a finished folder of other options, and its record
                    graph.lock                            held while the folder is made
          stages.json                                     what the last run found, a `StageRecord` per stage

A stage is known by its key, the hash of its name, its version, its options and the keys of the stages that it reads. A
finished folder of the same key is used as it is; an unfinished one is given back to the stage, to continue; any other
is replaced. The list of the run before stays until the new one names all of its stages, or is whole, and a finished
folder that it names is moved aside until then: whoever reads the run meanwhile, or after a kill, reads the run before.

The record is written before the folder is made: a kill at any moment leaves no folder that the next run does not know.
It holds the hash of every file of a finished folder, which is checked before anything reads the folder, and is sealed
itself. Damage is refused by the name of the file and of the folder to remove, never repaired: a stage may have taken
days, and a disk that flips bits should be looked at first. Whoever reads a run opens its stages by the list, which
names the key of each: a folder that another run has since replaced is refused.

With several ranks, rank 0 decides what is used and what is made, tells the others, and writes every record. A stage is
made by all of them together, or by rank 0 while the others wait.

Where jobs share stages (a sweep), the folders stand in `share_dir` under their keys and each run links to them. A lock
per folder lets two jobs race for one: the second waits and then finds it finished.
"""

import contextlib
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hcm_scale.base import console, files, signals
from hcm_scale.base.memory import Budget, Need, peak_rss_bytes, raising_out_of_memory, reset_peak_rss
from hcm_scale.base.threads import run_concurrently
from hcm_scale.ranks.world import ALONE, World

RECORDS = "records"
_BEFORE = ".before.json"
_FINISHED = {"key": str, "finished": bool, "seconds": float, "peak_rss_bytes": int, "detail": dict[str, Any]}
_FINISHED |= {"files": dict[str, str]}
_LEFT_ADDRESS = 200 << 20  # of libraries and stacks
_LEFT_BYTES = 80 << 20  # that all stages leave to later ones: code, libraries, memory in pieces

log = logging.getLogger(__name__)
Facts = dict[str, Any]  # JSON-able


@dataclass(frozen=True)
class Stage:
    """One step of a run: what decides its result, and how it is made.

    `make` fills the folder that it is given, or continues to, and returns facts to show. The folder holds nothing but
    what an earlier call for the same key left there.
    """

    name: str
    version: int  # of the arithmetic and of the files: results of another version are made again
    options: Any  # JSON-able
    reads: tuple[str, ...]  # names of stages
    make: Callable[[Path], Facts]
    together: bool = False  # whether every rank calls `make`, or rank 0 alone
    group: str | None = None  # stages of one group that follow each other may be made at the same time, by one rank
    leaves: tuple[str, ...] = ()  # subfolders that nothing reads once it is finished: they may be removed, or change
    needs: Callable[[], Sequence[Need]] | None = None  # of memory, one per way to make it, fastest first

    def key(self, keys: Mapping[str, str]) -> str:
        """Hash of all that decides the result, given the keys of the stages that it reads."""
        return files.hash_value([self.name, self.version, self.options, [keys[name] for name in self.reads]])


@dataclass(frozen=True)
class StageRecord:
    """An entry of the list: which folder a stage is in, what it cost and the facts it returned."""

    name: str
    key: str
    folder: str
    seconds: float
    peak_rss_bytes: int
    skipped: bool
    detail: Facts


@dataclass
class Workspace:
    """The folders of one run, as one of its ranks sees them."""

    run_dir: Path
    share_dir: Path | None = None
    world: World = ALONE
    budget: Budget = field(default_factory=Budget)
    previous: Mapping[str, str] = field(default_factory=dict)  # keys that the list still has of the run before
    on_listed: Callable[[], None] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    records: list[StageRecord] = field(default_factory=list)

    def make(self, *stages: Stage) -> None:
        """Makes the folders of one stage or of a group, or finds them made. What they read comes first."""
        signals.check_stop_requested()
        if self.world.leads:
            results = run_concurrently([functools.partial(self._lead, stage) for stage in stages])
        else:
            results = [self._follow(stage) for stage in stages]
        for stage, (folder, key, _) in zip(stages, results, strict=True):
            if self.world.leads and not stage.together:  # not before: stages of a group are made in no known order
                self.world.broadcast({"folder": str(folder), "key": key})
        self.world.barrier()
        for stage, (folder, key, record) in zip(stages, results, strict=True):
            self.folders[stage.name], self.keys[stage.name] = folder, key
            if record is not None:
                self.records.append(record)
                self.write_list()
                costs = {"seconds": record.seconds, "peak_bytes": record.peak_rss_bytes}
                extra = console.event("stage", kept=record.skipped, **costs, facts=record.detail)
                with console.logging_stage(record.name):
                    log.info("%s", _line(record), extra=extra)
                console.notify_watcher(console.Step(record.name, 1, 1, "stage"))

    @contextlib.contextmanager
    def begin(self, on_listed: Callable[[], None]) -> Iterator[None]:
        """Begins a run, of which the block is all; `on_listed` is called before the list becomes that of this run.

        Folders that were moved aside are moved back if the run is refused: a mistyped option leaves no trace. A job of
        a sweep has no list of before: results of other options are not counted as its own.
        """
        for folder in (self.run_dir, self.run_dir / RECORDS):
            files.remove_temporary(folder)
        with contextlib.suppress(files.FolderError):  # a damaged list is written again
            self.previous = stage_keys(self.run_dir) if self.share_dir is None else {}
        self.on_listed = on_listed
        self.write_list()
        try:
            yield
        except ValueError:
            with contextlib.suppress(files.FolderError, OSError):  # the first error tells more
                self._restore_previous()
            raise

    def write_list(self, *, whole: bool = False) -> None:
        """Makes the list that of this run, if it is whole or names all that the list of before does."""
        made = {record.name: record.key for record in self.records}
        if not whole and any(made.get(name) != key for name, key in self.previous.items()):
            return
        if self.on_listed is not None:
            self.on_listed()
        self.previous, self.on_listed = {}, None
        for record in self.records:
            if Path(record.folder) != self.run_dir / record.name:
                _link(self.run_dir / record.name, Path(record.folder))
        write_list(self.run_dir, [asdict(record) for record in self.records])
        for record in self.records:
            _remove_previous(Path(record.folder))

    def _restore_previous(self) -> None:
        stages = [(self.run_dir / name, key) for name, key in self.previous.items()]
        if all(_finished_record(*at) or _finished_record(*at, _BEFORE) for at in stages):
            for folder, key in stages:
                if _finished_record(folder, key) is None:
                    _restore(folder, key)

    def look(self, stage: Stage) -> tuple[str, Facts]:
        """What `make` would do for a stage, "kept", "goes on" or "made", and the record that is there; reads only.

        Stages must be looked at in their order.
        """
        key = stage.key(self.keys)
        folder = self._folder(stage, key)
        record = _finished_record(folder, key) or _finished_record(folder, key, _BEFORE)
        self.keys[stage.name] = key
        if record is not None:
            self.folders[stage.name] = folder
            return "kept", record
        unfinished = read_record(folder)
        return "goes on" if unfinished.get("key") == key else "made", unfinished

    def fitting(self, group: Sequence[Stage]) -> list[Sequence[Stage]]:
        """The stages of a group all at once, or one after the other if memory is too small for that."""
        if len(group) == 1:
            return [group]
        lacked = ""
        if self.world.leads:
            missing = [stage for stage in group if self.look(stage)[0] != "kept"]
            fastest = [stage.needs()[0] for stage in missing if stage.needs is not None]
            lacked = self.budget.lacks(*fastest, Need(self.budget.spare_bytes))
            if lacked:
                names = ", ".join(stage.name for stage in missing)
                log.info("%s: one after the other, because together %s", names, lacked)
        return [[stage] for stage in group] if self.world.broadcast(lacked) else [group]

    def check_all_fit(self, needs: Mapping[str, Need]) -> None:
        """Refuses a run if one of these stages will not fit into memory, beside what the others leave."""
        if needs:
            name, need = max(needs.items(), key=lambda item: (item[1].held, item[1].mapped))
            held = need.held + self.budget.spare_bytes + _LEFT_BYTES
            need = need._replace(held=held, mapped=need.mapped + _LEFT_ADDRESS)
            if lacked := self.budget.lacks(need):
                change = f"{need.change}, or " if need.change else ""
                allow = "raise it" if "ulimit" in lacked else "say world.memory_gib=N to have it tried with N GiB"
                if self.budget.allowed_bytes is not None and "ulimit" not in lacked:
                    allow = f"allow world.memory_gib={self.budget.least_gib(need):.2f}, the least for it here"
                raise ValueError(f"{name}: {lacked}; {change}{allow}")

    def _folder(self, stage: Stage, key: str) -> Path:
        return self.run_dir / stage.name if self.share_dir is None else self.share_dir / f"{stage.name}-{key[:16]}"

    def _lead(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        key, link = stage.key(self.keys), self.run_dir / stage.name
        folder = self._folder(stage, key)
        _check_ours(link)
        with files.file_lock(record_path(folder, ".lock")), console.logging_stage(stage.name):
            for parent in (folder.parent, folder.parent / RECORDS):
                files.remove_temporary(parent, folder.name)
            record = _finished_record(folder, key) or _restore(folder, key)
            if record is not None:
                files.check_folder(folder, record["files"], repair_hint(folder))
            earlier = 0.0 if record else _prepare(stage.name, folder, key, self.previous.get(stage.name))
            if stage.together:
                self.world.broadcast({"folder": str(folder), "key": key, "finished": record is not None})
            made = record or _fill(stage, folder, key, earlier)
        costs = made["seconds"], made["peak_rss_bytes"]
        return folder, key, StageRecord(stage.name, key, str(folder), *costs, record is not None, made["detail"])

    def _follow(self, stage: Stage) -> tuple[Path, str, StageRecord | None]:
        decision = self.world.broadcast(None)
        if stage.together and not decision["finished"]:
            with raising_out_of_memory(stage.name), console.logging_stage(stage.name):
                stage.make(Path(decision["folder"]))
        return Path(decision["folder"]), decision["key"], None


def _line(record: StageRecord) -> str:
    """A stage on one line: that it was kept, or what it cost and its scalar facts."""
    if record.skipped:
        return f"{record.name:<20} unchanged, kept"
    costs = f"{record.seconds:7.1f} s   peak {record.peak_rss_bytes / 2**30:5.2f} GiB"
    return f"{record.name:<20} {costs}   {facts_text(record.detail)}"


def facts_text(facts: Facts) -> str:
    """The numbers and short texts among facts, as NAME=VALUE."""
    shown = []
    for name, value in facts.items():
        if isinstance(value, bool | str) and len(str(value)) < 40:
            shown.append(str(value) if name == "line" else f"{name}={value}")
        elif isinstance(value, int | float):
            shown.append(f"{name}={value:,}" if isinstance(value, int) else f"{name}={value:.4g}")
    return "  ".join(shown)


# The folder of a stage and its record.


def record_path(folder: Path, ending: str = ".json") -> Path:
    """Path of a folder's record, or with another ending of its lock or of the folder moved aside."""
    return files.path_inside(folder.parent, f"{RECORDS}/{folder.name}{ending}")


def read_record(folder: Path, ending: str = ".json") -> Facts:
    """The record of an existing folder; empty if there is none, FolderError if it is damaged."""
    path, owner = record_path(folder, ending), folder if ending == ".json" else record_path(folder, ".before")
    if folder.is_symlink() or not owner.is_dir() or not path.is_file():
        return {}
    record = files.read_sealed(path, repair_hint(owner))
    if record.get("finished") is not False:
        files.check_types(path, record, _FINISHED, repair_hint(owner))
    return record


def _finished_record(folder: Path, key: str, ending: str = ".json") -> Facts | None:
    """The record of a finished folder of this key; None if it is unfinished, of another key, or gone."""
    record = read_record(folder, ending)
    return record if record.get("key") == key and record.get("finished") else None


def repair_hint(folder: Path) -> str:
    return f"remove {folder} to have it made again"


def _check_ours(folder: Path) -> None:
    if folder.is_symlink() or not folder.exists() or record_path(folder).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        why = f"{folder} holds files that no run made, there being no {record_path(folder)}"
        raise ValueError(f"{why}; name another run_dir, or move them")


def _prepare(name: str, folder: Path, key: str, listed: str | None) -> float:
    """Seconds already spent on the folder, which is made this key's.

    A finished folder of another key is moved aside, with its record, unless the one there is `listed`; an unfinished
    one is removed.
    """
    record = read_record(folder)
    if record.get("key") == key and folder.is_dir():
        log.info("%-20s goes on where it was stopped", name, extra=console.event("stage_resumed"))
        for path, _, _ in os.walk(folder):
            files.remove_temporary(Path(path))
        for entry in folder.rglob("*"):
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                raise files.FolderError(f"{entry} is a link or a pipe; {repair_hint(folder)}")
        return float(record.get("seconds", 0.0))
    if (
        folder.is_dir()
        and not folder.is_symlink()
        and record.get("finished")
        and not (listed and _finished_record(folder, listed, _BEFORE))
    ):
        _remove_previous(folder)
        files.write_sealed(record_path(folder, _BEFORE), record)
        folder.rename(record_path(folder, ".before"))
    else:
        _remove(folder)
    files.write_sealed(record_path(folder), {"key": key, "finished": False})
    folder.mkdir(parents=True)
    return 0.0


def _fill(stage: Stage, folder: Path, key: str, earlier: float) -> Facts:
    """Makes the stage; returns its record, whose writing makes it finished."""
    reset_peak_rss()
    started = time.perf_counter() - earlier
    try:
        with raising_out_of_memory(stage.name):
            detail = stage.make(folder)
        hashes = files.hash_folder(folder, stage.leaves)
    except BaseException:
        spent = {"key": key, "finished": False, "seconds": time.perf_counter() - started}
        with contextlib.suppress(OSError):  # a full disk, say: the first error tells more
            files.write_sealed(record_path(folder), spent)
        raise
    seconds, peak = time.perf_counter() - started, peak_rss_bytes()
    record = {"key": key, "finished": True, "seconds": seconds, "peak_rss_bytes": peak, "detail": detail}
    files.write_sealed(record_path(folder), record | {"files": hashes})
    return record


def _restore(folder: Path, key: str) -> Facts | None:
    """The record of a finished folder of this key that was moved aside, and is moved back; None if there is none."""
    record = _finished_record(folder, key, _BEFORE)
    if record is not None:
        _remove(folder)
        files.write_sealed(record_path(folder), record)  # before the folder is there, which has no other from then on
        record_path(folder, ".before").rename(folder)
        record_path(folder, _BEFORE).unlink()
    return record


def _remove_previous(folder: Path) -> None:
    record_path(folder, _BEFORE).unlink(missing_ok=True)
    _remove(record_path(folder, ".before"))


def _link(link: Path, folder: Path) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, link.parent))
    if link.is_dir() and not link.is_symlink():
        _remove(link)
        record_path(link).unlink(missing_ok=True)
    os.replace(fresh, link)


def _remove(folder: Path) -> None:
    """Removes a stage's folder, by a rename first: what a kill leaves of it is not taken for a folder."""
    if folder.is_symlink():  # to a shared folder
        folder.unlink()
    elif folder.exists():
        gone = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


# The list of the stages that the last run found.


def write_list(run_dir: Path, stages: Sequence[Facts]) -> None:
    """Writes the list: a `StageRecord` as a dict per stage, in their order."""
    files.write_sealed(run_dir / console.STAGES_FILE, {"stages": list(stages)})


def read_stages(run_dir: Path) -> list[Facts]:
    """What the last run here found, a `StageRecord` as a dict per stage; empty if there was none."""
    path, remedy = run_dir / console.STAGES_FILE, "hcm-scale run writes it again"
    if not path.exists():
        return []
    listed = files.read_sealed(path, remedy)
    with files.naming_damage(path, remedy):
        stages = files.typed(listed["stages"], list[StageRecord])
        return [asdict(stage) | {"name": str(files.check_name(stage.name))} for stage in stages]


def stage_keys(run_dir: Path) -> dict[str, str]:
    """The keys of the stages that the last run here listed, by name; empty if there was none."""
    return {stage["name"]: stage["key"] for stage in read_stages(run_dir)}


def open_stages(run_dir: Path, *names: str, keys: Mapping[str, str] | None = None) -> list[Path]:
    """The folders of these stages of the last run here, or of that with these keys, all of their files checked.

    ValueError if a stage is not finished, FolderError if it is not what the run left.
    """
    path, listed = run_dir / console.STAGES_FILE, stage_keys(run_dir) if keys is None else keys
    if not path.is_file():
        if (run_dir / RECORDS).is_dir():
            raise files.FolderError(f"{path} is missing; hcm-scale run writes it again")
        raise ValueError(console.missing_run_text(run_dir))
    if missing := [name for name in names if name not in listed]:
        raise ValueError(f"{path} lists no {missing[0]}: finish the run in run_dir={run_dir} first with hcm-scale run")
    return [_open_stage(run_dir / name, listed[name])[0] for name in names]


def _open_stage(link: Path, key: str) -> tuple[Path, Facts]:
    """The folder of a stage, or the one that a later run has moved aside, checked, and its record."""
    folder = files.resolved(link)
    if folder.is_dir() and not record_path(folder).is_file():
        raise files.FolderError(f"{record_path(folder)} is missing; {repair_hint(folder)}")
    for ending in (".json", _BEFORE, ".json"):  # a run may move it meanwhile
        if record := _finished_record(folder, key, ending):
            home = folder if ending == ".json" else record_path(folder, ".before")
            files.check_folder(home, record["files"], repair_hint(home))
            return home, record
    why = f"{record_path(folder)} is not of the {link.name} in {link.parent / console.STAGES_FILE}"
    raise files.FolderError(f"{why}; hcm-scale run makes it again")


def copy_run(run_dir: Path, out: Path, names: Collection[str] | None = None) -> None:
    """Copies the finished stages of the last run here, or those of these names, checked, into the folder `out`."""
    listed = [stage for stage in read_stages(run_dir) if names is None or stage["name"] in names]
    open_stages(run_dir)  # or it says what is missing
    for stage in listed:
        (folder, record), target = _open_stage(run_dir / stage["name"], stage["key"]), out / stage["name"]
        for name in record["files"]:
            copy = files.path_inside(target, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files.path_inside(folder, name), copy)
        (out / RECORDS).mkdir(exist_ok=True)
        files.write_sealed(record_path(target), record)
    write_list(out, [stage | {"folder": stage["name"]} for stage in listed])
    shutil.copyfile(files.path_inside(run_dir, "config.json"), out / "config.json")
