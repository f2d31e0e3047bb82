"""What in a run or a sweep can go: `hcm-scale clean FOLDER [--yes]`.

    set aside     finished stages of other options, which a run keeps in case they are asked for again
    unused        stages that runs of a sweep shared and that none links to any more
    checkpoints   of trainings that are finished: nothing reads them

Without `--yes` nothing is removed: the list says what would be, and how much room it takes.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hcm_scale.base import files
from hcm_scale.commands.arguments import parser


def main(arguments: list[str]) -> str:
    """The list as text; with `--yes` the folders are gone."""
    words = parser("clean", __doc__)
    words.add_argument("folder", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of runs")
    words.add_argument("--yes", action="store_true", help="remove what is listed")
    given = words.parse_args(arguments)
    if not given.folder.is_dir():
        raise ValueError(f"{given.folder} is not a folder; clean takes a run, a sweep, or a folder of runs")
    found = [(why, path, files.size_of(path)) for why, path in removable(given.folder)]
    if not found:
        return f"{given.folder}: nothing to remove"
    lines = [f"{why:<13}{size / 1e6:>12.1f} MB   {path}" for why, path, size in found]
    total = sum(size for _, _, size in found) / 1e6
    if given.yes:
        for _, path, _ in found:
            remove(path)
        return "\n".join([*lines, f"removed {total:,.1f} MB"])
    return "\n".join([*lines, f"{total:,.1f} MB; hcm-scale clean {given.folder} --yes removes them"])


def removable(root: Path) -> Iterator[tuple[str, Path]]:
    """(why, folder) of all that can go below a folder."""
    from hcm_scale.records import RECORDS

    linked = {files.resolved(path) for path in root.rglob("*") if path.is_symlink()}
    for place, inside, _ in os.walk(root):
        records = Path(place) / RECORDS
        if not records.is_dir() or records.is_symlink():  # nothing is removed through a link
            continue
        inside.remove(RECORDS)
        yield from (("set aside", path) for path in sorted(records.glob("*.before")) if path.is_dir())
        is_shared = Path(place).name == "stages"
        for record in sorted(records.glob("*.json")):
            folder = Path(place) / record.stem
            if not folder.is_dir() or folder.is_symlink() or record.name.endswith(".before.json"):
                continue
            if is_shared and folder.resolve() not in linked:
                yield "unused", folder
            elif (folder / "samples" / files.MANIFEST).is_file() and (folder / "checkpoints").is_dir():
                yield "checkpoints", folder / "checkpoints"


def remove(path: Path) -> None:
    """Removes a folder; of a stage the record first, under its lock, so that no run believes in it."""
    from hcm_scale.records import RECORDS

    stage = path.parent.parent / path.name.removesuffix(".before") if path.name.endswith(".before") else path
    records = stage.parent / RECORDS
    if not records.is_dir():  # checkpoints
        shutil.rmtree(path)
        return
    with files.locked(records / f"{stage.name}.lock"):
        (records / f"{path.name}.json").unlink(missing_ok=True)
        shutil.rmtree(path)
