"""The life of a labels folder, from nothing to a manifest, such that a kill at any moment costs at most one shard.

    begin    removes what a killed writer left half done and writes `unfinished.json`, the plan of the work
    done     a shard that an earlier run finished, its hash checked; the writer makes the others
    collect  the shards, read from the small files beside them
    seal     writes the manifest, then removes the small files

Each step reads only the disk, so that several processes can share the work with a barrier between the steps.
`finished` looks without touching, and refuses by name a folder that belongs to another plan.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from hcm_scale.base import files
from hcm_scale.shards.schema import FORMAT, KIND, LabelPlan, Shard

UNFINISHED = "unfinished.json"
_TORN = ".*.tmp"
_OURS = (files.MANIFEST, "shard-*.json", "shard-*.parquet", _TORN, UNFINISHED)  # in the order of removal


def finished(folder: Path, plan: LabelPlan, overwrite: bool = False) -> bool:
    """Whether the folder already holds this plan's pairs, sealed. Touches nothing.

    FolderError where it holds pairs of another plan, or shards that no plan explains, unless `overwrite`. Files of
    other names are nobody's business here: they are neither refused nor ever removed.
    """
    sealed = (folder / files.MANIFEST).exists()
    found = _found_plan(folder, sealed)
    stray = sorted(folder.glob("shard-*"))
    if found is None and stray and not overwrite:
        raise files.FolderError(f"{folder} holds {stray[0].name} and no plan it belongs to; remove it or overwrite")
    if found is None or (overwrite and found != plan):
        return False
    if found != plan:
        raise files.FolderError(
            f"{folder} belongs to other labels: its {found.difference(plan)}; remove it or overwrite"
        )
    return sealed


def _found_plan(folder: Path, sealed: bool) -> LabelPlan | None:
    """The plan of the labels in the folder, sealed or not; None where there are none."""
    path = folder / UNFINISHED
    if not sealed and not path.exists():
        return None
    try:
        body = files.read_manifest(folder, KIND, FORMAT) if sealed else json.loads(path.read_text())
        return LabelPlan(**body["plan"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise files.FolderError(f"{folder} is damaged: its plan cannot be read ({error!r})") from error


def begin(folder: Path, plan: LabelPlan) -> None:
    """Makes the folder ready for this plan: keeps its finished shards, removes all else that `finished` let pass."""
    folder.mkdir(parents=True, exist_ok=True)
    if _found_plan(folder, (folder / files.MANIFEST).exists()) != plan:
        clear(folder)
    for path in folder.glob(_TORN):
        path.unlink()
    if not (folder / UNFINISHED).exists():
        files.write_json(folder / UNFINISHED, {"plan": plan.to_json()})


def clear(folder: Path) -> None:
    """Removes our files and no others, the manifest first: what is half removed does not exist."""
    for pattern in _OURS:
        for path in folder.glob(pattern):
            path.unlink()
    files.sync_folder(folder)


def done(folder: Path, plan: LabelPlan, index: int) -> Shard | None:
    """A shard that was finished before, or None. Its size and its hash are checked."""
    try:
        shard = _read_beside(folder, plan, index)
    except files.FolderError:
        return None
    path = folder / shard.file
    whole = path.is_file() and path.stat().st_size == shard.num_bytes and files.hash_file(path) == shard.hash
    return shard if whole else None


def _read_beside(folder: Path, plan: LabelPlan, index: int) -> Shard:
    path = folder / f"{plan.shard_name(index)}.json"
    try:
        return Shard.from_json(json.loads(path.read_text()))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise files.FolderError(f"{path} is missing or damaged: this shard is unfinished") from error


def collect(folder: Path, plan: LabelPlan) -> list[Shard]:
    """All shards in order; FolderError naming the first that is unfinished."""
    return [_read_beside(folder, plan, index) for index in range(plan.num_shards)]


def seal(folder: Path, plan: LabelPlan, shards: Sequence[Shard]) -> None:
    """Writes the manifest, the moment from which the folder exists, and removes what only the work needed."""
    body = {
        "plan": plan.to_json(),
        "counts": total_counts(plan, shards),
        "stored": [sum(shard.stored(hop) for shard in shards) for hop in range(1, plan.classes + 1)],
        "shards": [shard.to_json() for shard in shards],
    }
    files.write_manifest(folder, KIND, FORMAT, body | {"seal": files.hash_value(body)})
    tidy(folder)


def tidy(folder: Path) -> None:
    """Removes the small files of the work from a sealed folder."""
    for pattern in ("shard-*.json", UNFINISHED, _TORN):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    files.sync_folder(folder)


def total_counts(plan: LabelPlan, shards: Sequence[Shard]) -> list[int]:
    """Exact pairs per class over all shards, stored or not."""
    return [sum(shard.counts[klass] for shard in shards) for klass in range(plan.classes)]
