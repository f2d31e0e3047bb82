"""Compiles every kernel of a default run: `hcm-scale warm`, and a process beside a cold run (`base/kernel_cache.py`).

Each step below is one stage of a run with default options over a graph of some hundred nodes, so that kernels are
compiled for the types that they meet in a real run. A step needs no other: what earlier stages would leave is written
by hand, without their kernels. So the steps can be run from the last to the first, while a run goes the other way.
"""

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hcm_scale.base.kernel_cache import is_compiled, kernel_folder, num_compiled, start_precompiling
from hcm_scale.base.order import double_places
from hcm_scale.config import Config, TablesGraph, with_options
from hcm_scale.features.propagate import propagate_features
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.samples import seal_samples, write_sample
from hcm_scale.run import sources
from hcm_scale.run.stages import label_options, recipe_of, scoring_of
from hcm_scale.score.closure import cohesion
from hcm_scale.score.edge_index import edge_index
from hcm_scale.shards import LabelPlan, collect_shards, open_labels, seal_labels, write_shard
from hcm_scale.stages import label, purify, report, score, train
from hcm_scale.stages.edges import View
from hcm_scale.synthetic import families
from hcm_scale.synthetic.inject import inject

_NUM_NODES, _MANY_NODES, _NUM_ATTRIBUTES = 200, 5_000, 5
_MANY_VALUES = 1 << 17
_FEW = {"posterior.burn_in_steps": 1, "posterior.num_samples": 1, "posterior.thin_steps": 1}


def main() -> None:
    """What `start_precompiling` starts: compiles from the last stage to the first, in the folder that it is given."""
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    compile_all(Path(sys.argv[1]), backwards=True)


def warm() -> str:
    """Compiles what is missing; message saying how many kernels were compiled and where they are kept."""
    began, folder = time.perf_counter(), kernel_folder()
    if folder is None:
        raise ValueError("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one that can")
    before = num_compiled(folder)
    if not is_compiled():
        start_precompiling()
        print(f"compiling kernels into {folder}: about half a minute", flush=True)
    with tempfile.TemporaryDirectory(prefix="hcm-scale-warm-") as scratch:
        compile_all(Path(scratch))
    num_ready = num_compiled(folder)
    if num_ready == before:
        return f"all {num_ready} kernels are ready, in {folder}"
    seconds = time.perf_counter() - began
    return f"{num_ready - before} kernels compiled in {seconds:.0f} s; all are ready, in {folder}"


def compile_all(scratch: Path, *, backwards: bool = False) -> None:
    config, graph = with_options(Config(), _FEW), ring(scratch / "graph")
    for step in reversed(STEPS) if backwards else STEPS:
        step(graph, config, scratch / step.__name__)


def ring(out: Path, num_nodes: int = _NUM_NODES, steps: tuple[int, ...] = (1, 2, 3)) -> Graph:
    """A graph on disk: a ring in which every node knows those so many steps away, with random attributes."""
    ends = np.arange(num_nodes)[:, None] + np.array([*steps, *(-step for step in steps)])
    indices = np.sort(ends % num_nodes, axis=1).astype(np.int32).ravel()
    x = np.random.default_rng(0).random((num_nodes, _NUM_ATTRIBUTES), np.float32)
    Graph(np.arange(num_nodes + 1) * ends.shape[1], indices, x=x).save(out)
    return Graph.open(out)


def made(_graph: Graph, _config: Config, _out: Path) -> None:
    """A synthetic graph with planted anomalies."""
    inject(families.community(_NUM_NODES, num_attributes=_NUM_ATTRIBUTES), num_cliques=1, num_attribute_anomalies=None)


def tables(graph: Graph, _config: Config, out: Path) -> None:
    """A graph read from tables, with text and with numbers as ids."""
    u, v = np.repeat(np.arange(_NUM_NODES), 6), graph.indices
    ids_of = {"text": [f"node {i}" for i in range(_NUM_NODES)], "number": [7 * i for i in range(_NUM_NODES)]}
    for name, ids in ids_of.items():
        place = out / name
        place.mkdir(parents=True)
        names = pa.array(ids)
        pq.write_table(
            pa.table({"source": names.take(pa.array(u)), "target": names.take(pa.array(v))}), place / "edges.parquet"
        )
        pq.write_table(pa.table({"id": names, "size": np.asarray(graph.x)[:, 0]}), place / "nodes.parquet")
        given = TablesGraph(path=str(place / "edges.parquet"), nodes=str(place / "nodes.parquet"), id_column="id")
        sources.reader(given)(place / "graph")


def purified(graph: Graph, config: Config, out: Path) -> None:
    """Features, and the graph without its least similar edges."""
    out.mkdir()
    purify.purify(graph, out, **vars(config.attributes), **vars(config.purify))


def labels(graph: Graph, config: Config, out: Path) -> None:
    """Labelled pairs: by blocks of sources, and one by one, as on graphs where neighbourhoods are a small part."""
    label.label(graph, out / "blocks", **label_options(config))
    label.label(ring(out / "long", _MANY_NODES), out / "one by one", **label_options(config))


def training(graph: Graph, config: Config, out: Path) -> None:
    """A step of the chain, over made-up labels."""
    x = propagate_features(graph, np.asarray(graph.x), out / "propagated")
    record = train.Record(checkpoint_every=10)
    training = train.Training(graph, x, _some_labels(graph, config, out / "labels"), recipe_of(config), seed=0)
    train.train(training, out / "train", device="cpu", workers=1, record=record)


def scores(graph: Graph, config: Config, out: Path) -> None:
    """Scores under untrained parameters, and the report; first, squares, and the sort of very many values."""
    two_sided = ring(out / "two sides", steps=(1, 3))
    cohesion(edge_index(two_sided.indptr, two_sided.indices))
    double_places(np.arange(_MANY_VALUES, dtype=np.float64))
    x = propagate_features(graph, np.asarray(graph.x), out / "propagated")
    model = recipe_of(config).model(x.shape[1], config.hops.classes, directed=False, seed=0)
    digest = write_sample(out / "samples", 0, HopModel(**model).state_dict())
    samples = seal_samples(out / "samples", [digest], model)
    score.score(
        graph,
        [View(graph, x, samples)] * len(config.score.views),
        out / "all",
        how=scoring_of(config),
        features=np.asarray(graph.x),
        propagated=True,
        seed=0,
        state="memory",
        device="cpu",
    )
    about = {"name": "warm", "seed": 0, "num_samples": 1}
    report.log.setLevel(logging.ERROR)  # its warnings are about this graph
    report.report(graph, graph, out / "all", out / "report", x=np.asarray(graph.x), run=about)
    report.log.setLevel(logging.NOTSET)


STEPS: tuple[Callable[[Graph, Config, Path], None], ...] = (made, tables, purified, labels, training, scores)


def _some_labels(graph: Graph, config: Config, out: Path) -> Any:
    """A labels folder with as many pairs of each class as there are nodes."""
    hops, n = config.hops, graph.num_nodes
    plan = LabelPlan(graph.fingerprint, n, False, **label_options(config) | {"num_sources": n, "seed": 0})
    u = np.tile(np.arange(n, dtype=np.int32), hops.classes)
    hop = np.repeat(np.arange(1, hops.classes + 1, dtype=np.uint8), n)
    out.mkdir(parents=True)
    write_shard(out, plan, 0, u, (u + hop) % np.int32(n), hop, np.full(hops.classes, n))
    seal_labels(out, plan, collect_shards(out, plan))
    return open_labels(out, graph.fingerprint)
