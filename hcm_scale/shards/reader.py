"""Labelled pairs read back: the manifest as a frozen value, row groups as arrays, no byte believed unchecked.

Opening reads the manifest and the sizes of the shards. A read opens one file, checks its pages against their checksums
and closes it: about 0.6 ms for 65,536 pairs, no file held open, so any thread may read. The footer, for which Parquet
has no checksum, is checked against its hash in the manifest; a few are kept. `verify` hashes every shard.

Memory: the manifest (about 200 bytes a row group), the row group being read, and 64 footers of about 12 KB.
"""

import functools
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.shards.schema import FORMAT, KIND, LabelPlan, Shard


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
        """Pairs in the shards, over all classes."""
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
        path = files.below(self.folder, shard.file)
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
    if xxhash.xxh3_128_hexdigest(footer) != shard.footer_hash:
        raise files.FolderError(f"{path} is damaged: the hash of its footer differs from the manifest")
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer))


def open_labels(folder: Path | str, graph_fingerprint: str | None = None, verify: bool = False) -> Labels:
    """Opens a sealed folder; FolderError where it is unfinished, foreign, damaged, torn, or of another graph."""
    folder = Path(folder)
    labels = _parse(folder, files.read_manifest(folder, KIND, FORMAT))
    if graph_fingerprint is not None and labels.plan.fingerprint != graph_fingerprint:
        found = labels.plan.fingerprint
        raise files.FolderError(
            f"{folder} holds the pairs of another graph: fingerprint {found}, not {graph_fingerprint}"
        )
    for shard in labels.shards:
        _check_shard(files.below(folder, shard.file), shard, verify)
    return labels


def _parse(folder: Path, body: dict[str, Any]) -> Labels:
    return Labels(
        folder=folder,
        plan=LabelPlan(**body["plan"]),
        counts=tuple(body["counts"]),
        stored=tuple(body["stored"]),
        shards=tuple(Shard.from_json(shard) for shard in body["shards"]),
    )


def _check_shard(path: Path, shard: Shard, verify: bool) -> None:
    if not path.is_file():
        raise files.FolderError(f"{path} is named in the manifest and missing")
    if path.stat().st_size != shard.num_bytes:
        raise files.FolderError(f"{path} is torn: {path.stat().st_size} bytes, {shard.num_bytes} expected")
    if verify and files.hash_file(path) != shard.hash:
        raise files.FolderError(f"{path} is damaged: its hash differs from the manifest")
