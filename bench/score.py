"""The edge pass: how much of the machine's matrix-product rate it keeps.

The pair head's first layer is one (m, 128) x (128, 256) product, 65,536 operations an edge. The peer is that product
alone, on a chunk of the size the pass uses, its operands at rest in the cache: what no pass can beat. Ours gathers
both ends of every edge, does the product, the second layer, the softmax and the moments. The reduction to nodes is
timed beside it.

Triangles are counted on an R-MAT graph, most of whose paths lead over hubs, and on one of even degrees and as many
nodes and edges. The peer is SciPy's product of the sparse matrix with itself. A CUDA device counts them in
`python -m bench.gpu_triangles`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from bench import data
from bench.harness import Case, Contender, Floor
from hcm_scale.score import triangles
from hcm_scale.score.edge_index import EdgeIndex, PairHead, edge_index
from hcm_scale.score.edges import CPU_CHUNK_EDGES, EdgeHops, predict_edges
from hcm_scale.score.nodes import average_hops

WIDTH, HIDDEN, CLASSES = 128, 256, 4
NUM_EDGES = {"smoke": 2_000, "quick": 300_000, "full": 8_000_000}
RMAT_SCALE = {"smoke": 8, "quick": 15, "full": 18}  # SciPy's product of scale 20 has over a billion entries


@dataclass(frozen=True, eq=False)
class Problem:
    """A random graph with hubs, an embedding and a head."""

    index: EdgeIndex
    z: Tensor
    head: PairHead


def prepare(num_edges: int, seed: int = 0) -> Problem:
    """About `num_edges` edges, 8 a node, ends of skewed popularity."""
    rng = np.random.default_rng(seed)
    num_nodes = max(num_edges // 8, 2)
    u = rng.integers(0, num_nodes, num_edges)
    v = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    u, v = u[u != v], v[u != v]
    csr = sparse.csr_array((np.ones(2 * len(u), np.int8), (np.r_[u, v], np.r_[v, u])), shape=(num_nodes, num_nodes))
    csr.sum_duplicates()
    csr.sort_indices()
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / rows**0.5

    head = PairHead(draw(WIDTH, HIDDEN), torch.zeros(HIDDEN), draw(HIDDEN, CLASSES), torch.zeros(CLASSES))
    z = torch.randn(num_nodes, WIDTH, generator=generator)
    return Problem(edge_index(csr.indptr.astype(np.int64), csr.indices.astype(np.int32)), z, head)


def run_edges(problem: Problem) -> EdgeHops:
    """One sample over all edges."""
    return predict_edges(problem.index, [(problem.z, problem.head)])


def verify_edges(problem: Problem, hops: EdgeHops) -> None:
    """A thousand edges against float64."""
    chosen = np.linspace(0, problem.index.num_edges - 1, 1000).astype(np.int64)
    ends = (problem.index.edges(e, e + 1)[:2] for e in chosen)
    left, right = (np.concatenate(side) for side in zip(*ends, strict=True))
    w0, b0, w1, b1 = (part.double() for part in problem.head)
    logits = ((problem.z[left].double() - problem.z[right].double()).abs() @ w0 + b0).relu() @ w1 + b1
    wanted = logits.softmax(1) @ torch.arange(1.0, CLASSES + 1, dtype=torch.float64)
    np.testing.assert_allclose(hops.mean[chosen], wanted.numpy(), atol=1e-5)


def product_alone(num_edges: int) -> Callable[[], Tensor]:
    """The first product for that many edges, chunk after chunk, and nothing else."""
    chunk = min(CPU_CHUNK_EDGES, num_edges)
    inputs, weight, out = torch.randn(chunk, WIDTH), torch.randn(WIDTH, HIDDEN), torch.empty(chunk, HIDDEN)

    def work() -> Tensor:
        for first in range(0, num_edges, chunk):
            last = min(chunk, num_edges - first)
            torch.mm(inputs[:last], weight, out=out[:last])
        return out

    return work


def verify_nodes(problem: Problem, averages: tuple[NDArray[np.float64], NDArray[np.float64]]) -> None:
    ((ahp,), _) = averages
    assert np.isfinite(ahp).all()
    assert ahp[problem.index.indptr[1:] > problem.index.indptr[:-1]].min() >= 1.0


def even_edges(like: EdgeIndex, seed: int = 0) -> EdgeIndex:
    """A random graph of as many nodes, and as many edges but for a few."""
    ends = np.random.default_rng(seed).integers(0, like.num_nodes, (2, like.num_edges))
    u, v = ends[:, ends[0] != ends[1]]
    csr = sparse.csr_array((np.ones(2 * len(u), np.int8), (np.r_[u, v], np.r_[v, u])), shape=(like.num_nodes,) * 2)
    csr.sum_duplicates()
    csr.sort_indices()
    return edge_index(csr.indptr.astype(np.int64), csr.indices.astype(np.int32))


def sparse_triangles(index: EdgeIndex) -> NDArray[np.float64]:
    """Triangles at every node, by SciPy."""
    shape = index.num_nodes, index.num_nodes
    joined = sparse.csr_array((np.ones(len(index.indices)), index.indices, index.indptr), shape=shape)
    return np.asarray((joined @ joined * joined).sum(axis=1) / 2)


def verify_triangles(index: EdgeIndex, made: triangles.Triangles) -> None:
    """All counts against SciPy's."""
    expected = np.empty(index.num_nodes)
    triangles.expect_triangles((0, len(expected)), index.indptr, index.indices, made.rate.value, 1, expected)
    np.testing.assert_array_equal(made.counted, sparse_triangles(index))
    np.testing.assert_allclose(made.expected, expected, atol=1e-9)


def triangle_case(size: str) -> Case:
    """Triangles of a skewed graph beside those of an even one, counted and expected, and SciPy's count alone."""
    graph = data.rmat(RMAT_SCALE[size])
    skewed = edge_index(graph.indptr, graph.indices)
    graphs = {"R-MAT": skewed, "even degrees": even_edges(skewed)}
    ours = [
        Contender(name, partial(triangles.count_and_expect, index), index.num_edges, partial(verify_triangles, index))
        for name, index in graphs.items()
    ]
    peer = Contender("SciPy, R-MAT", partial(sparse_triangles, skewed), skewed.num_edges, lambda got: None)
    floors = [Floor("R-MAT", "SciPy, R-MAT", 10.0)]
    return Case(f"triangles at every node, {data.describe(graph)}", "edges/s", [*ours, peer], floors)


def cases(size: str) -> Iterator[Case]:
    """The claim of the room: the pass runs at 70 % of the product's rate or more."""
    yield triangle_case(size)
    problem = prepare(NUM_EDGES[size])
    num_edges = problem.index.num_edges
    hops = run_edges(problem)
    yield Case(
        title=f"one sample over {num_edges:,} edges, {torch.get_num_threads()} threads",
        unit="edges/s",
        contenders=[
            Contender("edge pass", lambda: run_edges(problem), num_edges, lambda got: verify_edges(problem, got)),
            Contender("bare product", product_alone(num_edges), num_edges, lambda got: None),
        ],
        floors=[Floor("edge pass", "bare product", 0.7)],
    )
    yield Case(
        title=f"edges to nodes, {num_edges:,} edges",
        unit="edges/s",
        contenders=[
            Contender(
                f"trim {trim}",
                partial(average_hops, problem.index, [hops.mean], hops.var, trim),
                num_edges,
                lambda got: verify_nodes(problem, got),
            )
            for trim in (0.0, 0.2)
        ],
    )
