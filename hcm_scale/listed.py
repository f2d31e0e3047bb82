"""stages.json, the list of what the last run in a folder found: written stage by stage, put back, and read.

Whoever reads a run opens its stages by this list, which names the
key of each: a folder that another run has made anew since is told from the one that was listed.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hcm_scale import records
from hcm_scale.base import files, near

_LIST = near.STAGES_FILE


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
    files.remove_torn(run_dir)
    files.remove_torn(run_dir / records.RECORDS)
    write_list(run_dir, [])


def write_list(run_dir: Path, stages: Sequence[dict[str, Any]]) -> None:
    """Writes the list: a `StageRecord` a stage, in their order."""
    files.write_sealed(run_dir / _LIST, {"stages": list(stages)})


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
                write_list(run_dir, listed)
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
            copy = files.below(target, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files.below(folder, name), copy)
        (out / records.RECORDS).mkdir(exist_ok=True)
        files.write_sealed(records.beside(target), record)
    write_list(out, [stage | {"folder": stage["name"]} for stage in listed])
    shutil.copyfile(files.below(run_dir, "config.json"), out / "config.json")
