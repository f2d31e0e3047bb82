"""What a folder of labelled pairs is.

    manifest.json          written last: the plan, exact class counts, stored pairs per class, every shard
    shard-00000.parquet    the pairs of a fixed range of sources: u, v (int32, or int64 where n >= 2^31), hop (uint8)

A row group holds one class, so a reader draws any class without touching the others. A shard is a fixed range of
sources, cut from the plan alone: never from the number of threads or processes. `LabelPlan` is everything that decides
the bytes of a folder; two folders with equal plans are equal byte for byte. While a folder is being made it also holds
one `shard-00000.json` beside every finished shard.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

KIND = "hcm_scale labels"
FORMAT = 1
MIN_CLASSES, MAX_CLASSES = 2, 16
_SOURCES_ALIGN = 64  # the label kernels walk 64 sources a word


@dataclass(frozen=True)
class LabelPlan:
    """What is labelled and how it is cut: all that the bytes of a labels folder depend on.

    >>> sizes = {"num_sources": 900, "pairs_per_class": 10, "shard_pairs": 8000, "row_group_rows": 500}
    >>> plan = LabelPlan("f00d", 1000, False, classes=4, seed=0, **sizes)
    >>> plan.sources_per_shard, plan.num_shards, plan.source_range(4), plan.shard_name(4)
    (192, 5, (768, 900), 'shard-00004')
    """

    fingerprint: str  # of the purified graph
    num_nodes: int
    directed: bool
    classes: int
    num_sources: int
    pairs_per_class: int | None  # at most so many a source and class; None keeps all
    seed: int
    shard_pairs: int  # at most about so many in a shard
    row_group_rows: int

    def __post_init__(self) -> None:
        if not MIN_CLASSES <= self.classes <= MAX_CLASSES:
            raise ValueError(f"classes={self.classes} is not in {MIN_CLASSES} .. {MAX_CLASSES}")
        if self.pairs_per_class is not None and self.pairs_per_class < 1:
            raise ValueError(f"pairs_per_class={self.pairs_per_class} must be at least 1, or None for all pairs")
        for name in ("num_nodes", "num_sources", "shard_pairs", "row_group_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    @property
    def sources_per_shard(self) -> int:
        """The sources are cut evenly into as few shards of at most about `shard_pairs` pairs as will hold them."""
        pairs_per_source = max(1, self.num_nodes - 1)
        if self.pairs_per_class is not None:
            pairs_per_source = min(pairs_per_source, self.classes * self.pairs_per_class)
        most = max(1, self.shard_pairs // pairs_per_source)
        if most < _SOURCES_ALIGN:
            return min(most, self.num_sources)
        most -= most % _SOURCES_ALIGN
        even = -(-self.num_sources // -(-self.num_sources // most))
        return min(-(-even // _SOURCES_ALIGN) * _SOURCES_ALIGN, self.num_sources)

    @property
    def num_shards(self) -> int:
        return -(-self.num_sources // self.sources_per_shard)

    def source_range(self, shard: int) -> tuple[int, int]:
        """The positions first .. last - 1 of a shard's sources in the list of sources."""
        first = shard * self.sources_per_shard
        return first, min(first + self.sources_per_shard, self.num_sources)

    def shard_name(self, shard: int) -> str:
        """The name of a shard's files, without their ending."""
        return f"shard-{shard:05d}"

    @property
    def index_type(self) -> np.dtype[Any]:
        return np.dtype(np.int32 if self.num_nodes < 2**31 else np.int64)

    @property
    def arrow_schema(self) -> pa.Schema:
        index = pa.field("u", pa.from_numpy_dtype(self.index_type), nullable=False)
        return pa.schema([index, index.with_name("v"), pa.field("hop", pa.uint8(), nullable=False)])

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Shard:
    """One finished Parquet file of a folder, as the manifest describes it."""

    file: str
    first: int  # range of positions in the list of sources
    last: int
    num_bytes: int
    hash: str  # of the whole file
    footer_bytes: int  # the footer has no checksum of its own, so its hash is kept apart, cheap to check at every read
    footer_hash: str
    counts: tuple[int, ...]  # exact pairs per class, stored or not
    row_groups: tuple[tuple[int, int], ...]  # (class 1 .. C, rows), in file order

    def stored(self, hop: int) -> int:
        """Rows of one class."""
        return sum(rows for klass, rows in self.row_groups if klass == hop)

    @property
    def num_rows(self) -> int:
        return sum(rows for _, rows in self.row_groups)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"num_rows": self.num_rows}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Shard":
        """The inverse of `to_json`; TypeError, KeyError or ValueError where the value is something else."""
        plain = {field.name: value[field.name] for field in dataclasses.fields(Shard)}
        plain["counts"] = tuple(int(count) for count in value["counts"])
        plain["row_groups"] = tuple((int(hop), int(rows)) for hop, rows in value["row_groups"])
        return Shard(**plain)
