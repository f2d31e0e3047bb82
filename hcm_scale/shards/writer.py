"""Pairs of one range of sources -> one Parquet file, the same bytes on any machine with the same pyarrow.

Rows are grouped by class, put in a random order keyed by (seed, shard, class), and cut into row groups: every row group
is a uniform sample of its shard's pairs of that class, so a reader that takes a few of them meets many sources.

Encodings, measured on a million pairs of a million-node graph (bytes a row / milliseconds to read a row group):
u dictionary, v delta-packed, no codec 4.0 / 0.8; the same with zstd 4.0 / 0.8; u dictionary, v byte-stream-split, zstd
3.7 / 1.2; all plain 8.0 / 0.7. Each is written in about 50 ns a row. The first is kept: small, no codec to wait for.

Memory: the shard twice (as it came and in order), and its encoded bytes.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.rng import key
from hcm_scale.shards.kernels import group_by_class, shuffle_pairs
from hcm_scale.shards.schema import LabelPlan, Shard

_ORDER = 0x5348  # keeps these draws apart from all others made with the same seed
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
    u, v, starts = in_order(plan, index, u, v, hop)
    data = encode(plan, u, v, starts)
    name = plan.shard_name(index)
    files.write_bytes(folder / f"{name}.parquet", data)
    footer_bytes = int.from_bytes(data[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
    first, last = plan.source_range(index)
    shard = Shard(
        file=f"{name}.parquet",
        first=first,
        last=last,
        num_bytes=len(data),
        hash=xxhash.xxh3_128_hexdigest(data),
        footer_bytes=footer_bytes,
        footer_hash=xxhash.xxh3_128_hexdigest(data[len(data) - footer_bytes :]),
        counts=tuple(counts.tolist()),
        row_groups=tuple(_row_groups(plan, starts)),
    )
    files.write_sealed(folder / f"{name}.json", shard.to_json())
    return shard


def in_order(
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


def encode(plan: LabelPlan, u: NDArray[Any], v: NDArray[Any], starts: NDArray[np.int64]) -> bytes:
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
