"""Reading pairs for training: class-balanced, shuffled batches, in pairs a second.

Ours draws an epoch from the shards through a bounded window. The peer is what one writes with pyarrow: read the whole
folder, draw the same number from every class, permute, cut; its memory grows with the folder. duckdb does the draw
in one query. All verify the same: every class alike, no pair twice.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as arrow_dataset
from numpy.typing import NDArray

from bench import data
from bench.bfs import CLASSES, RMAT_SCALE
from bench.defaults import LABEL
from bench.harness import Case, Contender
from hcm_scale.sampling.pairs import cut_epoch, pair_batches, pairs_per_class
from hcm_scale.shards import Labels
from hcm_scale.stages.label import label

NUM_SOURCES = {"smoke": 100, "quick": 4096, "full": 16_384}
PAIRS_PER_CLASS, BATCH, RATIO = 256, 8192, 0.3
Pairs = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # u, v, class index


def cases(size: str) -> Iterator[Case]:
    """One epoch."""
    graph = data.rmat(RMAT_SCALE[size])
    with tempfile.TemporaryDirectory(prefix="bench-pairs-") as folder:
        options = LABEL | {
            "classes": CLASSES,
            "num_sources": NUM_SOURCES[size],
            "pairs_per_class": PAIRS_PER_CLASS,
        }
        labels = label(graph, Path(folder) / "labels", **options)
        contenders, absent = [ours(labels), whole_folder(labels)], []
        try:
            contenders.append(query(labels))
        except ImportError as error:
            absent = [f"duckdb ({error})"]
        draw = pairs_per_class(labels, sampling_ratio=RATIO)
        title = f"an epoch of {CLASSES * draw:,} out of {labels.num_pairs:,} pairs, batches of {BATCH:,}"
        yield Case(title, "pairs/s", contenders, absent=absent)


def _contender(name: str, labels: Labels, run: Any) -> Contender:
    draw = pairs_per_class(labels, sampling_ratio=RATIO)

    def verify(batches: list[Pairs]) -> None:
        u, v, klass = (np.concatenate(part) for part in zip(*batches, strict=True))
        np.testing.assert_array_equal(np.bincount(klass, minlength=CLASSES), draw)
        assert len(np.unique(u.astype(np.int64) * labels.plan.num_nodes + v)) == CLASSES * draw
        assert max(len(batch[0]) for batch in batches) <= BATCH

    return Contender(name, run, CLASSES * draw, verify)


def ours(labels: Labels) -> Contender:
    """The pair sampler, one epoch."""

    def run() -> list[Pairs]:
        epoch = cut_epoch(labels, batch_pairs=BATCH, sampling_ratio=RATIO)
        batches = itertools.islice(pair_batches(labels, epoch, seed=0), epoch.num_steps)
        return [(batch.u, batch.v, batch.hop) for batch in batches]

    return _contender("hcm_scale, bounded window", labels, run)


def whole_folder(labels: Labels) -> Contender:
    """Everything into memory, then NumPy."""
    draw = pairs_per_class(labels, sampling_ratio=RATIO)

    def run() -> list[Pairs]:
        paths = [str(labels.folder / shard.file) for shard in labels.shards]
        table = arrow_dataset.dataset(paths).to_table()
        u, v, hop = (table.column(name).to_numpy() for name in ("u", "v", "hop"))
        rng = np.random.default_rng(0)
        members = [np.flatnonzero(hop == klass + 1) for klass in range(CLASSES)]
        chosen = rng.permutation(np.concatenate([rng.choice(rows, draw, replace=False) for rows in members]))
        return list(cut(u[chosen], v[chosen], hop[chosen].astype(np.int64) - 1))

    return _contender("pyarrow and NumPy, all in memory", labels, run)


def query(labels: Labels) -> Contender:
    """A random number a row, a window function per class, over the Parquet files."""
    import duckdb

    files = [str(labels.folder / shard.file) for shard in labels.shards]
    draw = pairs_per_class(labels, sampling_ratio=RATIO)
    keyed = f"SELECT *, random() AS r FROM read_parquet({files!r})"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY hop ORDER BY r) AS n FROM ({keyed})"
    text = f"SELECT u, v, hop - 1 AS klass FROM ({ranked}) WHERE n <= {draw} ORDER BY random()"

    def run() -> list[Pairs]:
        found = duckdb.execute(text).fetchnumpy()
        return list(cut(found["u"], found["v"], found["klass"].astype(np.int64)))

    return _contender("duckdb, one query", labels, run)


def cut(u: NDArray[Any], v: NDArray[Any], klass: NDArray[Any]) -> Iterator[Pairs]:
    """Batches of consecutive rows."""
    for first in range(0, len(u), BATCH):
        part = slice(first, first + BATCH)
        yield u[part], v[part], klass[part]
