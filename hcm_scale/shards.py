"""Labelled pairs on disk: Parquet shards and a manifest. How they are written and read back, no byte trusted unchecked.

    manifest.json          written last: the plan, exact class counts, stored pairs per class, every shard
    shard-00000.parquet    the pairs of a fixed range of sources: u, v (int32, or int64 where n >= 2^31), hop (uint8)

A row group holds one class, so a reader draws any class without touching the others. Shards are cut from the plan
alone, never from the number of threads or processes. `LabelPlan` is everything that decides the bytes of a folder; two
folders with equal plans are equal byte for byte.

Writing. A kill at any moment costs at most one shard: each finished one has a small file, `shard-00000.json`, beside it
until the folder is sealed.

    read_finished_shard   a shard that an earlier call finished, its hash checked; `write_shard` makes the others
    collect_shards        all shards, read from the small files beside them
    seal_labels           writes the manifest, then removes the small files

Each step reads only the disk, so that several processes can share the work with a barrier between the steps. A folder
holds the shards of one plan; the caller ensures that. Rows of a shard are grouped by class, put in a random order keyed
by (seed, shard, class), and cut into row groups: every row group is a uniform sample of its shard's pairs of that
class, so a reader that takes a few of them meets many sources. u is a dictionary, v is delta-packed, without a codec to
wait for: half the bytes of plain columns. Memory: the shard twice, and its encoded bytes.

Reading. Opening reads the manifest and the sizes of the shards. A read opens one file, checks its pages against their
checksums and closes it: about 0.6 ms for 65,536 pairs, no file held open, so any thread may read. The footer, for which
Parquet has no checksum, is checked against its hash in the manifest. `verify` hashes every shard. Memory: the manifest
(about 200 bytes a row group), the row group being read, and 64 footers of about 12 KB.
"""

import dataclasses
import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.jit import kernel
from hcm_scale.base.names import MODEL_SIZES
from hcm_scale.base.rng import below, key, mix

KIND = "hcm_scale labels"
FORMAT = 1
_MIN_CLASSES, _MAX_CLASSES = MODEL_SIZES["num_classes"]
_SOURCES_ALIGN = 64  # the label kernels take 64 sources a word
_ORDER = 0x5348  # separates these draws from all others made with the same seed
_TAIL_BYTES = 8  # a Parquet file ends in the footer's length and the magic


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

    def check(self) -> None:
        """ValueError where the shards are not those of the plan, or do not add up to the counts."""
        rows = self.plan.row_group_rows
        for shard in self.shards:
            if not all(1 <= hop <= self.classes and 0 < size <= rows for hop, size in shard.row_groups):
                raise ValueError(f"a row group of {shard.file} has another class than 1 to {self.classes}, or no row")
            if not _TAIL_BYTES <= shard.footer_bytes <= shard.num_bytes or len(shard.counts) != self.classes:
                raise ValueError(f"the sizes of {shard.file} are not legal")
        stored = tuple(sum(shard.stored(hop) for shard in self.shards) for hop in range(1, self.classes + 1))
        counts = tuple(total_counts(self.plan, self.shards))
        if (self.stored, self.counts) != (stored, counts) or any(a > b for a, b in zip(stored, counts, strict=True)):
            raise ValueError("its shards do not add up to the pairs that it counts")

    def row_groups(self, hop: int) -> tuple[RowGroup, ...]:
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
        u, v = (table.column(name).combine_chunks() for name in ("u", "v"))
        for ends in (u, v):
            is_legal = ends.type == self.plan.arrow_schema.field("u").type and len(ends) and not ends.null_count
            if not (is_legal and 0 <= pc.min(ends).as_py() <= pc.max(ends).as_py() < self.plan.num_nodes):
                legal = f"legal are nodes, 0 to {self.plan.num_nodes - 1}"
                raise files.FolderError(f"{path}, row group {group.index}, is damaged: {legal}")
        return u.to_numpy(), v.to_numpy()


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
    with files.naming_damage(folder / files.MANIFEST):
        plan, shards = files.typed(body["plan"], LabelPlan), files.typed(body["shards"], tuple[Shard, ...])
        counts, stored = (files.typed(body[name], tuple[int, ...]) for name in ("counts", "stored"))
        labels = Labels(folder, plan, counts, stored, shards)
        labels.check()
    own = labels.plan.fingerprint
    if graph_fingerprint not in (None, own):
        raise files.FolderError(
            f"{folder} holds the pairs of another graph: fingerprint {own}, not {graph_fingerprint}"
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


# Writing.


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
    starts = np.cumsum(np.bincount(hop, minlength=plan.classes + 1)).astype(np.int64)
    grouped = np.empty(len(u), plan.index_type), np.empty(len(v), plan.index_type)
    group_by_class(u, v, hop, starts[:-1].copy(), *grouped)
    for klass, (start, stop) in enumerate(pairwise(starts), 1):
        shuffle_pairs(key(plan.seed, _ORDER, index, klass), *(ends[start:stop] for ends in grouped))
    data = _encode(plan, *grouped, starts)
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
            own = slice(at, at + rows)
            columns = [pa.array(u[own]), pa.array(v[own]), pa.array(np.full(rows, hop, np.uint8))]
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


@kernel
def group_by_class(u, v, hop, cursors, out_u, out_v):
    """Scatters pairs into `out` by class; `cursors[c - 1]` is where class c goes on, and is moved along."""
    for i in range(len(hop)):
        klass = hop[i] - 1
        at = cursors[klass]
        out_u[at] = u[i]
        out_v[at] = v[i]
        cursors[klass] = at + 1


@kernel
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
    is_of_plan = len(shard.counts) == plan.classes
    whole = path.is_file() and path.stat().st_size == shard.num_bytes and files.hash_file(path) == shard.hash
    return shard if whole and is_of_plan else None


def _read_beside(folder: Path, plan: LabelPlan, index: int) -> Shard:
    path = folder / f"{plan.shard_name(index)}.json"
    with files.naming_damage(path):
        shard: Shard = files.typed(files.read_sealed(path, "this shard is unfinished"), Shard)
        return shard


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


def remove_shards(folder: Path) -> None:
    """Removes all shards from a folder that is not sealed."""
    for path in folder.glob("shard-*"):
        path.unlink(missing_ok=True)


def total_counts(plan: LabelPlan, shards: Sequence[Shard]) -> list[int]:
    """Exact pairs per class over all shards, stored or not."""
    return [sum(shard.counts[klass] for shard in shards) for klass in range(plan.classes)]
