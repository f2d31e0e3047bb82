"""Labelled pairs on disk: what the folder holds, and how it is read back, no byte trusted unchecked.

    manifest.json          written last: the plan, exact class counts, stored pairs per class, every shard
    shard-00000.parquet    the pairs of a fixed range of sources: u, v (int32, or int64 where n >= 2^31), hop (uint8)

A row group holds one class, so a reader draws any class without touching the others. Shards are cut from the plan
alone, never from the number of threads or processes. `LabelPlan` is everything that decides the bytes of a folder; two
folders with equal plans are equal byte for byte. While a folder is being made it also holds one `shard-00000.json`
beside every finished shard.

Opening reads the manifest and the sizes of the shards. A read opens one file, checks its pages against their checksums
and closes it: about 0.6 ms for 65,536 pairs, no file held open, so any thread may read. The footer, for which Parquet
has no checksum, is checked against its hash in the manifest. `verify` hashes every shard.

Memory: the manifest (about 200 bytes a row group), the row group being read, and 64 footers of about 12 KB.
"""

import dataclasses
import functools
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.names import MODEL_SIZES

KIND = "hcm_scale labels"
FORMAT = 1
_MIN_CLASSES, _MAX_CLASSES = MODEL_SIZES["num_classes"]
_SOURCES_ALIGN = 64  # the label kernels take 64 sources a word


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
        if not _MIN_CLASSES <= self.classes <= _MAX_CLASSES:
            raise ValueError(f"classes={self.classes} is not in {_MIN_CLASSES} .. {_MAX_CLASSES}")
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
        return f"shard-{shard:05d}"

    @property
    def index_type(self) -> np.dtype[Any]:
        return np.dtype(np.int32 if self.num_nodes < 2**31 else np.int64)

    @property
    def arrow_schema(self) -> pa.Schema:
        index = pa.field("u", pa.from_numpy_dtype(self.index_type), nullable=False)
        return pa.schema([index, index.with_name("v"), pa.field("hop", pa.uint8(), nullable=False)])


@dataclass(frozen=True)
class Shard:
    """One finished Parquet file of a folder, as the manifest describes it."""

    file: str
    first: int  # range of positions in the list of sources
    last: int
    num_bytes: int
    hash: str  # of the whole file
    footer_bytes: int  # the footer has no checksum of its own, so its hash is stored: cheap to check at every read
    footer_hash: str
    counts: tuple[int, ...]  # exact pairs per class, stored or not
    row_groups: tuple[tuple[int, int], ...]  # (class 1 .. C, rows), in file order

    def stored(self, hop: int) -> int:
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


@dataclass(frozen=True)
class RowGroup:
    """Where some pairs of one class lie."""

    shard: int
    index: int  # within the shard's file
    hop: int  # class, 1 .. C
    rows: int


@dataclass(frozen=True, eq=False)
class Labels:
    """A sealed folder of labelled pairs."""

    folder: Path
    plan: LabelPlan
    counts: tuple[int, ...]  # exact pairs per class, stored or not
    stored: tuple[int, ...]  # pairs per class in the shards
    shards: tuple[Shard, ...] = field(repr=False)

    @property
    def classes(self) -> int:
        return self.plan.classes

    @property
    def num_pairs(self) -> int:
        return sum(self.stored)

    @functools.cached_property
    def _groups(self) -> tuple[tuple[RowGroup, ...], ...]:
        by_class: list[list[RowGroup]] = [[] for _ in range(self.classes)]
        for number, shard in enumerate(self.shards):
            for index, (hop, rows) in enumerate(shard.row_groups):
                by_class[hop - 1].append(RowGroup(number, index, hop, rows))
        return tuple(tuple(groups) for groups in by_class)

    def row_groups(self, hop: int) -> tuple[RowGroup, ...]:
        """The row groups of class `hop` (1 .. C), in the order of the shards."""
        return self._groups[hop - 1]

    def read(self, group: RowGroup) -> tuple[NDArray[Any], NDArray[Any]]:
        """u, v (rows,) of one row group, in the graph's index type."""
        shard = self.shards[group.shard]
        path = files.path_inside(self.folder, shard.file)
        try:
            footer = _read_footer(path, shard)
            with pa.OSFile(str(path)) as source:
                parquet = pq.ParquetFile(source, metadata=footer, pre_buffer=False, page_checksum_verification=True)
                table = parquet.read_row_group(group.index, columns=["u", "v"], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise files.FolderError(f"{path}, row group {group.index}, is damaged: {error}") from error
        if table.num_rows != group.rows:
            raise files.FolderError(f"{path}, row group {group.index}: {table.num_rows} rows, {group.rows} expected")
        u, v = (table.column(name).combine_chunks().to_numpy() for name in ("u", "v"))
        return u, v


@functools.lru_cache(maxsize=64)
def _read_footer(path: Path, shard: Shard) -> pq.FileMetaData:
    """The footer of a shard, its bytes checked against the manifest before they are parsed."""
    with open(path, "rb") as stream:
        num_bytes = stream.seek(0, io.SEEK_END)
        if num_bytes != shard.num_bytes:
            raise files.FolderError(f"{path} is torn: {num_bytes} bytes, {shard.num_bytes} expected")
        stream.seek(-shard.footer_bytes, io.SEEK_END)
        footer = stream.read()
    if files.hash_bytes(footer) != shard.footer_hash:
        raise files.FolderError(f"{path} is damaged: the hash of its footer differs from the manifest")
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer))


def open_labels(folder: Path | str, graph_fingerprint: str | None = None, verify: bool = False) -> Labels:
    """Opens a sealed folder; FolderError where it is unfinished, foreign, damaged, torn, or of another graph."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT)
    shards = tuple(Shard.from_json(shard) for shard in body["shards"])
    labels = Labels(folder, LabelPlan(**body["plan"]), tuple(body["counts"]), tuple(body["stored"]), shards)
    found = labels.plan.fingerprint
    if graph_fingerprint not in (None, found):
        raise files.FolderError(
            f"{folder} holds the pairs of another graph: fingerprint {found}, not {graph_fingerprint}"
        )
    for shard in shards:
        path = files.path_inside(folder, shard.file)
        if not path.is_file():
            raise files.FolderError(f"{path} is named in the manifest and missing")
        if path.stat().st_size != shard.num_bytes:
            raise files.FolderError(f"{path} is torn: {path.stat().st_size} bytes, {shard.num_bytes} expected")
        if verify and files.hash_file(path) != shard.hash:
            raise files.FolderError(f"{path} is damaged: its hash differs from the manifest")
    return labels
