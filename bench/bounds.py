"""How far each hot kernel is from what the machine allows, machine and kernel measured in the same run.

Two bounds. `streamed`: every array that the kernel needs moves through memory once, and every operation runs at the
rate of a large matrix product; nothing can beat it. `with_gathers`: rows that are visited in the random order of a
neighbour list also cost a random cache line each, the rest of a long row streams. A graph with hubs can beat that one,
because hubs stay in the cache. The distance is measured seconds over the second bound; the notes say what it leaves
out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench import bfs, data, machine, products, sampler, score, train
from bench.defaults import PLAN, SAMPLER
from bench.harness import Table
from bench.machine import LINE_BYTES, Machine
from hcm_scale.base.spmm import gcn_scale, propagate
from hcm_scale.features.purify import edge_similarity
from hcm_scale.hops.label import choose_sources, count_hops
from hcm_scale.posterior.loop import Chain, run_chain
from hcm_scale.sampling import NeighborSampler, make_batch
from hcm_scale.score.nodes import average_hops

NUM_SOURCES = {"smoke": 64, "quick": 1024, "full": 4096}
_BLOCK_SOURCES, _BLOCK_BYTES = 512, 64  # a bit-parallel block: so many sources, one line of state a node
_EXPANSIONS = 2  # full ones at C = 4: the first of the three levels only leaves the sources


@dataclass(frozen=True)
class Kernel:
    """One kernel on one input: what it must move and compute. `gathered` is (rows, bytes a row)."""

    name: str
    run: Callable[[], Any]
    streamed: float
    gathered: tuple[float, float] = (0, 0)
    flops: float = 0


def cases(size: str) -> Iterator[Table]:
    """The machine, then the kernels."""
    rates = machine.measure(size)
    yield Table(
        "this machine",
        [
            {"what": "streamed, a = b + 3 c", "rate": rates.bytes_per_second / 1e9, "unit": "GB/s"},
            {"what": "random cache lines", "rate": rates.lines_per_second / 1e6, "unit": "million/s"},
            {"what": "float32 matrix product", "rate": rates.flops_per_second / 1e9, "unit": "GFLOP/s"},
        ],
    )
    rows = [distance(rates, kernel) for kernel in kernels(size)]
    yield Table("distance from the bound", rows, notes=NOTES)


NOTES = (
    "BFS: hubs stay in the cache, and classes are counted from every row; neither is modelled.",
    "sampling: a draw hashes, and each entry is written in three arrays; per entry that is arithmetic, not memory.",
    "training step: small products run below the rate of a large one; softmax, noise and autograd are not modelled.",
    "edges to nodes: half of the entries search a neighbour's row for their edge, three random lines or more, and the "
    "trim selects the nearest, a sixth of the time; neither is modelled.",
)


def distance(rates: Machine, kernel: Kernel) -> dict[str, Any]:
    """One row of the table."""
    rows, row_bytes = kernel.gathered
    rest = rows * max(row_bytes - LINE_BYTES, 0)
    streamed = rates.seconds(streamed=kernel.streamed, flops=kernel.flops)
    bound = rates.seconds(streamed=kernel.streamed + rest, lines=rows, flops=kernel.flops)
    measured = machine.best_seconds(kernel.run)
    by_memory = rates.seconds(streamed=kernel.streamed + rest, lines=rows)
    return {
        "kernel": kernel.name,
        "measured_ms": 1e3 * measured,
        "streamed_ms": 1e3 * streamed,
        "with_gathers_ms": 1e3 * bound,
        "distance": measured / bound,
        "bound_by": "memory" if by_memory >= bound else "arithmetic",
    }


def kernels(size: str) -> Iterator[Kernel]:
    """The kernels in the order of the stages; each problem is let go of before the next is made."""
    yield from graph_kernels(size)
    yield from batch_kernels(size)
    yield product_kernel(size)
    yield from score_kernels(size)


def graph_kernels(size: str) -> Iterator[Kernel]:
    """Purification and BFS on R-MAT."""
    graph = data.rmat(bfs.RMAT_SCALE[size])
    n, m, x = graph.num_nodes, graph.num_edges, graph.x
    assert isinstance(x, np.ndarray)
    run = lambda: edge_similarity(graph.indptr, graph.indices, x, "euclidean")  # noqa: E731
    yield Kernel("purify, euclidean, 20 attributes", run, x.nbytes + 8 * n + 12 * m, (m, 4 * x.shape[1]))
    sources = choose_sources(graph.indptr, num_sources=NUM_SOURCES[size], seed=0)
    blocks = -(-len(sources) // _BLOCK_SOURCES)
    streamed = blocks * (_EXPANSIONS * 4 * 2 * m + 3 * (bfs.CLASSES - 1) * _BLOCK_BYTES * n)
    gathered = (blocks * _EXPANSIONS * 2 * m, _BLOCK_BYTES)
    run_bfs = lambda: count_hops(graph.indptr, graph.indices, sources, classes=bfs.CLASSES)  # noqa: E731
    yield Kernel(f"BFS, {len(sources):,} sources", run_bfs, streamed, gathered)


def batch_kernels(size: str) -> Iterator[Kernel]:
    """Sampling alone, then a training step on a batch that is ready."""
    seeds = sampler.prepare(size)
    contender = sampler.ours(seeds, 2)
    entries = contender.amount(contender.run()) if callable(contender.amount) else contender.amount
    # an entry is drawn from the row of its target and looked up in the positions of all nodes
    yield Kernel("neighbour sampling, fan-out 10, 10", contender.run, 16 * entries, (2 * entries, 4))
    problem = train.prepare(size)
    graph = problem.graph
    x = propagate(graph.indptr, graph.indices, problem.x)
    sample = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), [train.FAN_OUT], seed=0)
    batch = make_batch(problem.batches[0], x, sample)
    chain, plan = Chain.start(train.new_model(problem)), replace(PLAN, burn_in_steps=10**9)
    run = lambda: list(run_chain(chain, [batch], plan, num_pairs=10**6, **SAMPLER))  # noqa: E731
    yield Kernel("training step, batch ready", run, *step_work(batch))


def step_work(batch: Any) -> tuple[float, tuple[float, float], float]:
    """Bytes streamed, rows gathered and operations of forward and backward: one gradient per weight and per input."""
    nodes, seeds, pairs = len(batch.x), batch.num_seeds, len(batch.hop)
    first = 2 * nodes * batch.x.shape[1] * train.WIDTH
    later = 2 * seeds * train.WIDTH**2 + 2 * pairs * train.HEAD * (train.WIDTH + train.CLASSES)
    activations = 4 * (nodes * train.WIDTH + 2 * seeds * train.WIDTH + pairs * (train.WIDTH + train.HEAD))
    entries = sum(len(block.indices) for block in batch.blocks)
    return 3 * activations, (2 * entries, 4 * train.WIDTH), 2 * first + 3 * later


def product_kernel(size: str) -> Kernel:
    """Â H of the whole graph."""
    graph = data.rmat(products.SCALE[size])
    h = np.ones((graph.num_nodes, products.WIDTH), np.float32)
    arcs = len(graph.indices)
    run = lambda: propagate(graph.indptr, graph.indices, h)  # noqa: E731
    flops = 2 * arcs * products.WIDTH
    return Kernel(f"Â H, width {products.WIDTH}", run, 2 * h.nbytes + 4 * arcs, (arcs, 4 * products.WIDTH), flops)


def score_kernels(size: str) -> Iterator[Kernel]:
    """The edge pass of one sample, and edges to nodes."""
    problem = score.prepare(score.NUM_EDGES["quick" if size == "full" else size])
    m, n = problem.index.num_edges, problem.index.num_nodes
    flops = 2 * m * score.HIDDEN * (score.WIDTH + score.CLASSES)
    gathered = (2 * m, 4 * score.WIDTH)
    yield Kernel("edge pass, 1 sample", lambda: score.run_edges(problem), 16 * m, gathered, flops)
    hops = score.run_edges(problem)
    # a row's upper half lies in order, its lower half is looked up edge by edge, mean and variance
    yield Kernel(
        "edges to nodes",
        lambda: average_hops(problem.index, [hops.mean], hops.var, trim=0.2),
        8 * m + 8 * m + 32 * n,
        (2 * m, 4),
    )
