"""Compiles every kernel of a default run: `hcm-scale warm`, and processes beside a cold run (`base/kernel_cache.py`).

Each step below is one stage of a run with default options over a graph of some hundred nodes, so that kernels are
compiled for the types that they meet in a real run. A step needs no other: what earlier stages would leave is written
by hand, without their kernels. So the steps can be run from the last to the first, while a run goes the other way.

`launch_kernels` launches the kernels of a GPU by themselves, in the order of a run, with arguments of the same types.
"""

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.kernel_cache import gpu_mark, is_compiled, kernel_folder, num_compiled, start_precompiling
from hcm_scale.base.order import double_places
from hcm_scale.config import Config, TablesGraph, with_options
from hcm_scale.features.propagate import propagate_features
from hcm_scale.graph import Graph
from hcm_scale.hops.layout import empty_rows
from hcm_scale.hops.wide import Columns, Request
from hcm_scale.model import HopModel
from hcm_scale.posterior.loop import training_settings
from hcm_scale.posterior.samples import seal_samples, write_sample
from hcm_scale.run import sources
from hcm_scale.run.stages import label_options, recipe_of, scoring_of
from hcm_scale.sampling.device.graph import graph_to
from hcm_scale.score.edge_index import PairHead, Pairs, edge_index
from hcm_scale.score.triangles import count_and_expect
from hcm_scale.shards import LabelPlan, collect_shards, open_labels, seal_labels, write_shard
from hcm_scale.stages import label, purify, report, score, train
from hcm_scale.stages.edges import View
from hcm_scale.stages.embedding import embed_all
from hcm_scale.synthetic import families
from hcm_scale.synthetic.inject import inject

_NUM_NODES, _MANY_NODES, _NUM_ATTRIBUTES = 200, 5_000, 5
_MANY_VALUES = 1 << 17
_STAR, _USUAL_FEATURES = 1_200, 20  # nodes of a graph whose hub has rows of its own in every kernel
_ALIGNED_OR_NOT = 103, 100  # so that a multiple of four edges, or none: Triton compiles for rows that are aligned anew
_FEW = {"posterior.burn_in_steps": 1, "posterior.num_samples": 1, "posterior.thin_steps": 1}


def main() -> None:
    """What `start_precompiling` starts: compiles from the last stage to the first, in the folder that it is given."""
    scratch, place = sys.argv[1:]
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    if place == "gpu":
        compile_for_gpu()
    else:
        compile_all(Path(scratch), backwards=True)


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
    if torch.cuda.is_available() and find_spec("triton") is not None:
        compile_for_gpu()
    num_ready = num_compiled(folder)
    if num_ready == before:
        return f"all {num_ready} kernels are ready, in {folder}"
    seconds = time.perf_counter() - began
    return f"{num_ready - before} kernels compiled in {seconds:.0f} s; all are ready, in {folder}"


def compile_all(scratch: Path, *, backwards: bool = False) -> None:
    config, graph = with_options(Config(), _FEW), ring(scratch / "graph")
    for step in reversed(STEPS) if backwards else STEPS:
        step(graph, config, scratch / step.__name__)


def compile_for_gpu() -> None:
    """Compiles the kernels for the current GPU, unless that was done."""
    mark = gpu_mark()
    if mark is not None and not mark.exists():
        print("compiling kernels for the GPU: about twenty seconds", flush=True)
        launch_kernels(Config(), "cuda")
        torch.cuda.synchronize()
        mark.touch()


def launch_kernels(config: Config, device: str) -> None:
    """Every Triton kernel of a default run, stage by stage."""
    network = HopModel(**recipe_of(config).model(_USUAL_FEATURES, config.hops.classes, directed=False, seed=0))
    _launch_labels(config, device)
    _launch_training(config, network.to(device), device)
    for num_near in _ALIGNED_OR_NOT:
        _launch_scores(config, network, num_near, device)


def _launch_labels(config: Config, device: str) -> None:
    from hcm_scale.hops.device import COLUMNS, DeviceSearch

    most, sources = config.hops.pairs_per_class or _STAR // 4, np.arange(COLUMNS)
    request = Request(np.empty(0, np.int32), sources, np.uint64(0), most)
    search = DeviceSearch(*_star(_ALIGNED_OR_NOT[0]), request, device)
    rows = empty_rows(search.names, len(sources), config.hops.classes, most)
    search.label_block(0, Columns(sources, 0), rows, on_class=lambda _: None)


def _launch_training(config: Config, network: HopModel, device: str) -> None:
    from hcm_scale.base.spmm_device import propagate_into
    from hcm_scale.sampling.device import batches

    classes, x = config.hops.classes, np.zeros((_STAR, _USUAL_FEATURES), np.float32)
    held = graph_to(device, *_star(_ALIGNED_OR_NOT[0]), x, 1 << (_USUAL_FEATURES - 1).bit_length())
    propagate_into(held.x, held.indptr, held.indices, held.scale, x)
    ends, hop = torch.zeros(16, dtype=held.indices.dtype, device=device), torch.zeros(8, device=device).long()
    control, starts = torch.tensor([0, 8, 1, 1], device=device), torch.arange(classes + 1, device=device) * 100
    for num_pairs in (100 * classes, 100 * classes + 1):
        u, v = torch.zeros(2, num_pairs, dtype=ends.dtype, device=device)
        batches.draw_into(batches.DevicePairs(u, v, starts), control, ends, hop)
    batch = batches.EndsBatch(held, ends, hop, control[3:], recipe_of(config).limits[0], epoch=0, step=0)
    with training_settings(device):
        batch.sum_hidden(network.encoder[0].weight, network.encoder[0].bias)[0].sum().backward()


def _launch_scores(config: Config, network: HopModel, num_near: int, device: str) -> None:
    from hcm_scale.score import device as on_device
    from hcm_scale.score.triangles_device import triangles_on_device

    edges, x = edge_index(*_star(num_near)), np.zeros((_STAR, _USUAL_FEATURES), np.float32)
    z, hidden = torch.empty(2, _STAR, network.width, device=device)
    embed_all(network, graph_to(device, edges.indptr, edges.indices, x), z, hidden)
    pairs = Pairs(*on_device.edge_ends(edges, torch.device(device)), signed=False, expected=True)
    on_device.fused_step(z, PairHead.of(network.state_dict()), pairs, 1, torch.zeros(2, edges.num_edges, device=device))
    hops = np.zeros(edges.num_edges, np.float32)
    on_device.average_on_device(edges, [hops] * (1 + len(config.score.views)), hops, 1.0 - config.score.trim, device)
    triangles_on_device(edges, None, device)


def _star(num_near: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The CSR of two nodes, one known to all others, one to the nearest so many, and of a ring of these others."""
    others = np.arange(1, _STAR)
    pairs = np.concatenate(
        [[np.zeros_like(others), others], [others[:-1], others[1:]], [np.full(num_near, _STAR - 1), others[:num_near]]],
        axis=1,
    )
    ends = np.concatenate([pairs, pairs[::-1]], axis=1)
    found = sparse.csr_array((np.ones(ends.shape[1], np.int8), tuple(ends)), shape=(_STAR, _STAR))
    found.sort_indices()
    return found.indptr.astype(np.int64), found.indices.astype(np.int32)


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
    count_and_expect(edge_index(two_sided.indptr, two_sided.indices))
    double_places(np.arange(_MANY_VALUES, dtype=np.float64))
    x = propagate_features(graph, np.asarray(graph.x), out / "propagated")
    model = recipe_of(config).model(x.shape[1], config.hops.classes, directed=False, seed=0)
    digest = write_sample(out / "samples", 0, HopModel(**model).state_dict())
    samples = seal_samples(out / "samples", [digest], model)
    score.score(
        graph,
        [View(graph, x, samples)] * len(config.score.views),
        out / "all",
        options=scoring_of(config),
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
