"""Training on a CUDA device: pairs a second, how busy the device is, the whole run, and the largest graph.

The chain runs as the train stage runs it: graph, attributes and pairs on the device, neighbours drawn there, steps
recorded. R-MAT graphs, 20 attributes, two layers of 128 units, an exact first hop; hops of the rate cases are drawn at
random, because what is learned does not matter there. Busy is the share of a stretch of steps in which a kernel ran,
from the profiler's record. The whole run begins with a graph on disk and ends with a report; kernels of the CPU are
compiled on a small graph before.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.defaults import LABEL, PLAN, PURIFY, RECIPE, SAMPLER, SCORE, TRAIN
from bench.harness import Table, Verdict, at_least, at_most
from hcm_scale.base.spmm import propagate
from hcm_scale.features.propagate import propagate_features
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.loop import Chain, Recorder, Step, run_chain, training_settings
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.batches import DevicePairs, fused_columns
from hcm_scale.sampling.device.graph import DeviceGraph, graph_to
from hcm_scale.sampling.pairs import Cut
from hcm_scale.stages.edges import View
from hcm_scale.stages.label import label
from hcm_scale.stages.purify import purify
from hcm_scale.stages.report import report
from hcm_scale.stages.score import score
from hcm_scale.stages.train import Training, train
from hcm_scale.synthetic import families as synthetic

CLASSES, WIDTH, POOL = 4, 128, 10_000_000
RATES = (  # pairs a batch, neighbours drawn, the claim in million pairs a second
    (65_536, 10, 5.0),
    (65_536, 50, 2.0),
    (65_536, 256, 0.0),
    (8_192, 256, 0.0),
)
NUM_STEPS, PROFILED_STEPS, WARM_UP_STEPS = 200, 60, 10


def tables(size: str) -> Iterator[Table]:
    """Rates and the whole run; the full run adds 10 million nodes and 168 million edges."""
    if size == "smoke" or not torch.cuda.is_available():
        yield Table("training on a GPU", [], absent=["a CUDA device"])
        return
    graph = synthetic.rmat(20)
    yield rates(graph)
    work = Work(num_sources=4096, pairs_per_class=2560, num_steps=610, num_samples=20)
    yield whole_run("R-MAT, 1 million nodes, 8 million edges", graph, work, claimed_seconds=60)
    if size == "full":
        graph = synthetic.community(10_000_000, edges_per_node=18)  # repeats fall out: 168 million are left
        work = Work(num_sources=1024, pairs_per_class=2560, num_steps=200, num_samples=2)
        yield whole_run("10 million nodes, 168 million edges", graph, work, claimed_seconds=None)


def rates(graph: Graph) -> Table:
    """Pairs a second at each batch size and fan-out."""
    held, pairs = on_device(graph)
    rows, verdicts = [], []
    for batch_pairs, fan_out, claim in RATES:
        steps = chain_steps(held, pairs, batch_pairs, fan_out)
        seconds = timed(steps, NUM_STEPS)
        rate = batch_pairs * NUM_STEPS / seconds
        share = busy(steps)
        peak = torch.cuda.max_memory_allocated() / 2**30
        row = {"batch pairs": batch_pairs, "fan-out": fan_out, "million pairs/s": rate / 1e6}
        rows.append(row | {"ms/step": 1e3 * seconds / NUM_STEPS, "busy": share, "peak GiB": peak})
        if claim:
            verdicts += [
                at_least(f"fan-out {fan_out}", rate / 1e6, claim, "million pairs/s"),
                at_least(f"fan-out {fan_out}, device busy", share, 0.9, "of the time"),
            ]
    return Table(f"training steps, {graph.num_nodes:,} nodes, {graph.num_edges:,} edges", rows, verdicts)


def on_device(graph: Graph) -> tuple[DeviceGraph, DevicePairs]:
    """The graph with Â X, and random pairs."""
    x = propagate(graph.indptr, graph.indices, graph.x)
    columns = fused_columns(x.shape[1], WIDTH, torch.device("cuda"))
    held = graph_to("cuda", graph.indptr, graph.indices, x, columns)
    u, v = torch.randint(0, graph.num_nodes, (2, CLASSES * POOL), dtype=torch.int32, device="cuda")
    return held, DevicePairs(u, v, torch.arange(0, CLASSES * POOL + 1, POOL, device="cuda"))


def chain_steps(graph: DeviceGraph, pairs: DevicePairs, batch_pairs: int, fan_out: int) -> Iterator[Step]:
    """An endless chain, warmed up."""
    num_batches = CLASSES * POOL // batch_pairs
    batches = gpu.fused_batches(graph, pairs, Cut(num_batches * batch_pairs, num_batches, 0, 1), fan_out, seed=0)
    chain = Chain.start(HopModel(graph.num_attributes, CLASSES, width=WIDTH, head_width=2 * WIDTH).cuda())
    plan = replace(PLAN, burn_in_steps=10**9)
    with training_settings("cuda"):
        steps = run_chain(chain, batches, plan, num_pairs=CLASSES * POOL, measure=Recorder(), **SAMPLER)
        for _ in itertools.islice(steps, WARM_UP_STEPS):
            pass
    return steps


def timed(steps: Iterator[Step], num_steps: int) -> float:
    """Seconds of so many steps, waited for."""
    with training_settings("cuda"):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in itertools.islice(steps, num_steps):
            pass
        torch.cuda.synchronize()
        return time.perf_counter() - started


def busy(steps: Iterator[Step]) -> float:
    """The share of a stretch of steps in which a kernel ran on the device."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        timed(steps, PROFILED_STEPS)
    spans = sorted((e.time_range.start, e.time_range.end) for e in profile.events() if e.device_type.name == "CUDA")
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered / (reached - spans[0][0])


@dataclass(frozen=True)
class Work:
    """How much a whole run does."""

    num_sources: int
    pairs_per_class: int
    num_steps: int
    num_samples: int
    batch_pairs: int = 65_536


def whole_run(title: str, graph: Graph, work: Work, claimed_seconds: float | None) -> Table:
    """Seconds of every stage from the graph on disk to the report."""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as root:
        small = replace(work, num_steps=40, num_samples=2)  # as many sources: their number decides the kernel
        synthetic.rmat(14).save(Path(root) / "small" / "graph")
        stages(Path(root) / "small", small)
        graph.save(Path(root) / "large" / "graph")
        title = f"{title}: graph on disk to report, {work.num_steps * work.batch_pairs:,} training pairs"
        del graph
        torch.cuda.empty_cache()
        seconds = stages(Path(root) / "large", work)
    rows = [{"stage": name, "seconds": value} for name, value in seconds.items()]
    total = sum(seconds.values())
    verdicts: list[Verdict] = []
    if claimed_seconds is not None:
        verdicts = [at_most("the whole run", total, claimed_seconds, "s")]
    return Table(title, [*rows, {"stage": "all", "seconds": total}], verdicts)


def stages(root: Path, work: Work) -> dict[str, float]:
    """Runs every stage in `root`, which holds the graph; its seconds by name."""
    seconds: dict[str, float] = {}

    def clocked(name: str, make: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        made = make()
        seconds[name] = time.perf_counter() - started
        print(f"  {name}: {seconds[name]:.2f} s", file=sys.stderr, flush=True)
        return made

    graph = clocked("open", lambda: Graph.open(root / "graph", verify=False))
    clean = clocked("purify", lambda: purify(graph, root / "clean", **PURIFY))
    sources = {"num_sources": work.num_sources, "pairs_per_class": work.pairs_per_class}
    labels = clocked("label", lambda: label(clean.graph, root / "labels", **LABEL | sources))
    thin = 10
    num_samples, burn_in = work.num_samples, work.num_steps - thin * work.num_samples
    plan = replace(PLAN, burn_in_steps=burn_in, thin_steps=thin, num_samples=num_samples)
    batching = replace(RECIPE.batching, batch_pairs=work.batch_pairs, sampling_ratio=1.0)
    recipe = replace(RECIPE, batching=batching, plan=plan)
    x = clocked("propagate", lambda: propagate_features(clean.graph, clean.features, root / "propagated"))
    training = Training(clean.graph, x, labels, recipe, seed=0)
    samples = clocked("train", lambda: train(training, root / "train", device="cuda", **TRAIN))
    inputs = graph, [View(clean.graph, x, samples)], root / "scores"
    clocked("score", lambda: score(*inputs, features=clean.features, propagated=True, device="cuda", **SCORE))
    found = {"metrics": root / "train" / "metrics.jsonl", "labels": root / "labels", "run": {"name": "bench"}}
    clocked("report", lambda: report(graph, clean.graph, root / "scores", root / "report", **found))
    return seconds
