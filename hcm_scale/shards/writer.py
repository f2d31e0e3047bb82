"""Writes a labels folder, shard by shard, such that a kill at any moment costs at most one shard.

    read_finished_shard   a shard that an earlier call finished, its hash checked; `write_shard` makes the others
    collect_shards        all shards, read from the small files beside them
    seal_labels           writes the manifest, then removes the small files

Each step reads only the disk, so that several processes can share the work with a barrier between the steps. A folder
holds the shards of one plan; the caller ensures that.

A shard is the pairs of one range of sources as one Parquet file, the same bytes on any machine with the same pyarrow.
Rows are grouped by class, put in a random order keyed by (seed, shard, class), and cut into row groups: every row group
is a uniform sample of its shard's pairs of that class, so a reader that takes a few of them meets many sources.

Encodings, measured on a million pairs of a million-node graph (bytes a row / milliseconds to read a row group): u
dictionary, v delta-packed, no codec 4.0 / 0.8; the same with zstd 4.0 / 0.8; u dictionary, v byte-stream-split, zstd
3.7 / 1.2; all plain 8.0 / 0.7. Each is written in about 50 ns a row. The first was chosen: small, no codec to wait for.

Memory: the shard twice (as it came and in order), and its encoded bytes.
"""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, key, mix
from hcm_scale.shards.labels import FORMAT, KIND, LabelPlan, Shard

_ORDER = 0x5348  # separates these draws from all others made with the same seed
_TAIL_BYTES = 8  # a Parquet file ends in the footer's length and the magic


def write_shard(
    folder: Path,
    plan: LabelPlan,
    index: int,
    u: NDArray[Any],
    v: NDArray[Any],
    hop: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> Shard:
    """Writes shard `index` from pairs u, v, hop (rows,), hop in 1 .. C, and the exact counts (C,) of its sources.

    The small file beside it, which declares it finished, comes second.
    """
    u, v, starts = _in_order(plan, index, u, v, hop)
    data = _encode(plan, u, v, starts)
    name = plan.shard_name(index)
    files.write_bytes(folder / f"{name}.parquet", data)
    footer_bytes = int.from_bytes(data[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
    first, last = plan.source_range(index)
    shard = Shard(
        file=f"{name}.parquet",
        first=first,
        last=last,
        num_bytes=len(data),
        hash=files.hash_bytes(data),
        footer_bytes=footer_bytes,
        footer_hash=files.hash_bytes(data[len(data) - footer_bytes :]),
        counts=tuple(counts.tolist()),
        row_groups=tuple(_row_groups(plan, starts)),
    )
    files.write_sealed(folder / f"{name}.json", shard.to_json())
    return shard


def _in_order(
    plan: LabelPlan, index: int, u: NDArray[Any], v: NDArray[Any], hop: NDArray[np.uint8]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """The pairs of a shard grouped by class and shuffled within each: u, v, and starts (C + 1,) of the classes."""
    starts = np.cumsum(np.bincount(hop, minlength=plan.classes + 1)).astype(np.int64)
    out_u = np.empty(len(u), plan.index_type)
    out_v = np.empty(len(v), plan.index_type)
    group_by_class(u, v, hop, starts[:-1].copy(), out_u, out_v)
    for klass, (start, stop) in enumerate(pairwise(starts), 1):
        shuffle_pairs(key(plan.seed, _ORDER, index, klass), out_u[start:stop], out_v[start:stop])
    return out_u, out_v, starts


def _encode(plan: LabelPlan, u: NDArray[Any], v: NDArray[Any], starts: NDArray[np.int64]) -> bytes:
    """Parquet bytes of pairs grouped by class, with page checksums and the statistics of `hop` for other programs."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        plan.arrow_schema,
        compression="none",
        use_dictionary=["u", "hop"],
        column_encoding={"v": "DELTA_BINARY_PACKED"},
        write_statistics=["hop"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        at = 0
        for hop, rows in _row_groups(plan, starts):
            part = slice(at, at + rows)
            columns = [pa.array(u[part]), pa.array(v[part]), pa.array(np.full(rows, hop, np.uint8))]
            writer.write_table(pa.table(columns, schema=plan.arrow_schema), row_group_size=rows)
            at += rows
    return sink.getvalue().to_pybytes()


def _row_groups(plan: LabelPlan, starts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(class, rows) of every row group: full ones, then what is left of the class."""
    groups = []
    for hop, total in enumerate(np.diff(starts).tolist(), 1):
        full, rest = divmod(total, plan.row_group_rows)
        groups += [(hop, plan.row_group_rows)] * full + [(hop, rest)] * (rest > 0)
    return groups


@kernel(nogil=True)
def group_by_class(u, v, hop, cursors, out_u, out_v):
    """Scatters pairs into `out` by class; `cursors[c - 1]` is where class c goes on, and is moved along."""
    for i in range(len(hop)):
        klass = hop[i] - 1
        at = cursors[klass]
        out_u[at] = u[i]
        out_v[at] = v[i]
        cursors[klass] = at + 1


@kernel(nogil=True)
def shuffle_pairs(key, u, v):
    """Fisher and Yates in place, swap i drawn by the counter (key, i): all permutations alike, on any thread."""
    for i in range(len(u) - 1, 0, -1):
        j = below(mix(np.uint64(key), i), i + 1)
        u[i], u[j] = u[j], u[i]
        v[i], v[j] = v[j], v[i]


def read_finished_shard(folder: Path, plan: LabelPlan, index: int) -> Shard | None:
    """A shard that was finished before, or None. Its size and its hash are checked."""
    try:
        shard = _read_beside(folder, plan, index)
        path = files.path_inside(folder, shard.file)
    except files.FolderError:
        return None
    whole = path.is_file() and path.stat().st_size == shard.num_bytes and files.hash_file(path) == shard.hash
    return shard if whole else None


def _read_beside(folder: Path, plan: LabelPlan, index: int) -> Shard:
    path = folder / f"{plan.shard_name(index)}.json"
    return Shard.from_json(files.read_sealed(path, "this shard is unfinished"))


def collect_shards(folder: Path, plan: LabelPlan) -> list[Shard]:
    """All shards in order; FolderError naming the first that is unfinished."""
    return [_read_beside(folder, plan, index) for index in range(plan.num_shards)]


def seal_labels(folder: Path, plan: LabelPlan, shards: Sequence[Shard]) -> None:
    """Writes the manifest, the moment from which the folder exists, and removes the small files."""
    body = {
        "plan": dataclasses.asdict(plan),
        "counts": total_counts(plan, shards),
        "stored": [sum(shard.stored(hop) for shard in shards) for hop in range(1, plan.classes + 1)],
        "shards": [shard.to_json() for shard in shards],
    }
    files.write_manifest(folder, KIND, FORMAT, body)
    remove_partial_shards(folder)


def remove_partial_shards(folder: Path) -> None:
    """Removes the small files beside the shards from a sealed folder."""
    for path in folder.glob("shard-*.json"):
        path.unlink(missing_ok=True)
    files.sync_file(folder)


def total_counts(plan: LabelPlan, shards: Sequence[Shard]) -> list[int]:
    """Exact pairs per class over all shards, stored or not."""
    return [sum(shard.counts[klass] for shard in shards) for klass in range(plan.classes)]
