"""The label stage, from sources to a sealed folder, against the BFS alone: sources a second.

The stage does the BFS, samples at most 256 pairs of every source and class, orders, encodes and hashes them, and waits
for the disk. What it keeps of the BFS's rate is the price of writing things down.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import data
from bench.bfs import CLASSES, RMAT_SCALE, count_hops, distances
from bench.bfs import ours as bfs_alone
from bench.defaults import LABEL
from bench.harness import Case, Contender, Floor
from hcm_scale.graph.store import Graph
from hcm_scale.hops.label import choose_sources
from hcm_scale.shards import Labels, open_labels
from hcm_scale.stages.label import label

PAIRS_PER_CLASS = 256
NUM_SOURCES = {"smoke": 100, "quick": 4096, "full": 16_384}


def cases(size: str) -> Iterator[Case]:
    """One case; the folder of each run goes to a temporary place and away with it."""
    graph = data.rmat(RMAT_SCALE[size])
    sources = choose_sources(graph.indptr, num_sources=NUM_SOURCES[size], seed=0)
    with tempfile.TemporaryDirectory(prefix="bench-labels-") as folder:
        contenders = [stage(graph, len(sources), Path(folder)), bfs_alone(graph, sources, CLASSES, "BFS alone")]
        title = f"{len(sources):,} sources, {CLASSES} classes, {PAIRS_PER_CLASS} pairs; R-MAT, {data.describe(graph)}"
        floors = [Floor(contenders[0].name, contenders[1].name, 0.7)]
        yield Case(title, "sources/s", contenders, floors)


def stage(graph: Graph, num_sources: int, folder: Path) -> Contender:
    """The stage as the pipeline runs it, into a fresh folder each time."""
    graph.fingerprint  # noqa: B018  hashes the graph, which a stored one has in its manifest
    fresh = (folder / str(number) for number in itertools.count())

    def run() -> Labels:
        sizes = {"classes": CLASSES, "num_sources": num_sources, "pairs_per_class": PAIRS_PER_CLASS}
        return label(graph, next(fresh), **LABEL | sizes)

    def verify(labels: Labels) -> None:
        whole = open_labels(labels.folder, graph.fingerprint, verify=True)
        sources = choose_sources(graph.indptr, num_sources=num_sources, seed=0)
        counts = count_hops(graph, sources, CLASSES)
        assert whole.counts == tuple(counts.sum(axis=0).tolist())
        assert whole.stored == tuple(np.minimum(counts, PAIRS_PER_CLASS).sum(axis=0).tolist())
        check_pairs(graph, whole, sources[:2])

    return Contender("label stage", run, num_sources, verify)


def check_pairs(graph: Graph, labels: Labels, sources: NDArray[np.int64]) -> None:
    """The stored hops of these sources against scipy."""
    for source in sources.tolist():
        distance = distances(graph, source, CLASSES)
        for hop in range(1, CLASSES + 1):
            u, v = labels.read(labels.row_groups(hop)[0])
            np.testing.assert_array_equal(np.minimum(distance[v[u == source]], CLASSES), hop)
