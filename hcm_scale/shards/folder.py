"""The life of a labels folder, from nothing to a manifest, such that a kill at any moment costs at most one shard.

    done     a shard that an earlier call finished, its hash checked; the writer makes the others
    collect  the shards, read from the small files beside them
    seal     writes the manifest, then removes the small files

Each step reads only the disk, so that several processes can share the work with a barrier between the steps. A folder
holds the shards of one plan: whoever gives it sees to that.
"""

from collections.abc import Sequence
from pathlib import Path

from hcm_scale.base import files
from hcm_scale.shards.schema import FORMAT, KIND, LabelPlan, Shard


def is_sealed(folder: Path) -> bool:
    """Whether all shards are there and the manifest is written."""
    return (folder / files.MANIFEST).exists()


def done(folder: Path, plan: LabelPlan, index: int) -> Shard | None:
    """A shard that was finished before, or None. Its size and its hash are checked."""
    try:
        shard = _read_beside(folder, plan, index)
        path = files.below(folder, shard.file)
    except files.FolderError:
        return None
    whole = path.is_file() and path.stat().st_size == shard.num_bytes and files.hash_file(path) == shard.hash
    return shard if whole else None


def _read_beside(folder: Path, plan: LabelPlan, index: int) -> Shard:
    path = folder / f"{plan.shard_name(index)}.json"
    return Shard.from_json(files.read_sealed(path, "this shard is unfinished"))


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
    files.write_manifest(folder, KIND, FORMAT, body)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Removes the small files of the work from a sealed folder."""
    for path in folder.glob("shard-*.json"):
        path.unlink(missing_ok=True)
    files.sync_folder(folder)


def total_counts(plan: LabelPlan, shards: Sequence[Shard]) -> list[int]:
    """Exact pairs per class over all shards, stored or not."""
    return [sum(shard.counts[klass] for shard in shards) for klass in range(plan.classes)]
