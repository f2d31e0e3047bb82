"""On a CUDA device: the edge pass of one sample, in plain torch and in the fused Triton kernel; then training.

Every contender is checked against float32 before it counts: to 1e-4 in float32, to 2e-2 in bfloat16 (1e-2 in the
kernel, which rounds differences and not embeddings), with a rank correlation of at least .999. The full run also sweeps
embedding types, product types and tile shapes of the kernel; a shape that does not fit the device is named absent. The
claim: 8 million edges under one sample in at most 15 ms. Training and whole runs: `gpu_train`; the largest graph:
`gpu_huge`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from bench import gpu_huge, gpu_train
from bench.harness import Case, Contender, Table, as_table, at_most
from bench.score import prepare
from hcm_scale.base import triton_jit
from hcm_scale.score import device as fused
from hcm_scale.score.device import edge_ends, plain_step
from hcm_scale.score.edge_index import PairHead, Pairs
from hcm_scale.score.edges import CUDA_CHUNK_EDGES

NUM_EDGES = {"smoke": 200, "quick": 8_000_000, "full": 8_000_000}
REPEATS = {"smoke": 1, "quick": 10, "full": 10}
TILES = ((64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 32, 4), (32, 64, 4))
CLAIMED_EDGES, CLAIMED_MS = 8_000_000, 15
Step = Callable[[Tensor], None]  # writes mean and squared deviations of all edges, (2, m)


def cases(size: str) -> Iterator[Table]:
    """The edge pass, then training; or the largest graph."""
    if size == "huge":
        yield gpu_huge.tables()
        return
    yield from edge_pass(size)
    yield from gpu_train.tables(size)


def edge_pass(size: str) -> Iterator[Table]:
    """The edge pass; a smoke run, which needs no device, runs what plain torch can on the CPU."""
    if size != "smoke" and not torch.cuda.is_available():
        yield Table("edge pass", [], absent=["a CUDA device"])
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = prepare(NUM_EDGES[size])
    pairs = Pairs(*edge_ends(problem.index, device), signed=False, expected=True)
    z, head = problem.z.to(device), PairHead(*(part.to(device) for part in problem.head))
    exact = torch.zeros(2, len(pairs.left), device=device)
    plain_step(z, head, pairs, 1, exact, chunk=CUDA_CHUNK_EDGES, precision="float32")
    contenders, absent = [], []
    for name, step, tolerance in steps(z, head, pairs, sweep=size == "full"):
        try:
            contenders.append(contender(name, step, exact, tolerance))
        except (RuntimeError, ImportError) as error:  # Triton's errors of resources are RuntimeErrors
            absent.append(f"{name} ({str(error)[:80]})")
    title = f"one sample over {len(pairs.left):,} edges on {device.type}"
    table = as_table(Case(title, "edges/s", contenders, (), absent), REPEATS[size])
    best = max(row["median"] for row in table.rows)
    claim = at_most(f"{CLAIMED_EDGES:,} edges, one sample", 1e3 * CLAIMED_EDGES / best, CLAIMED_MS, "ms")
    yield replace(table, verdicts=[claim])


def steps(z: Tensor, head: PairHead, pairs: Pairs, *, sweep: bool) -> Iterator[tuple[str, Step, float]]:
    """(name, step, how far from float32 it may be)."""
    for precision, tolerance in (("float32", 1e-4), ("bfloat16", 2e-2)):
        options: dict[str, Any] = {"chunk": CUDA_CHUNK_EDGES, "precision": precision}
        yield f"plain torch, {precision}", partial(plain_step, z, head, pairs, 1, **options), tolerance
    if not (triton_jit.AVAILABLE and z.is_cuda):
        return
    yield "fused, bfloat16", partial(fused.fused_step, z, head, pairs, 1), 1e-2
    for embedding in (z, z.bfloat16()) if sweep else ():
        for product in (torch.bfloat16, torch.float32):
            for tile, slab, num_warps in TILES:
                shape: dict[str, Any] = {"tile": tile, "slab": slab, "num_warps": num_warps}
                name = f"fused, z {embedding.dtype}, product {product}, {tile}/{slab}/{num_warps}"
                step = partial(fused.fused_step, embedding, head, pairs, 1, product=product, **shape)
                yield name.replace("torch.", ""), step, 5e-2


def contender(name: str, step: Step, exact: Tensor, tolerance: float) -> Contender:
    """A step that is waited for; it runs once here, so that what does not fit the device is found out."""
    moments = torch.zeros_like(exact)

    def run() -> Tensor:
        step(moments)
        if moments.is_cuda:
            torch.cuda.synchronize()
        return moments[0]

    def verify(mean: Tensor) -> None:
        assert (mean - exact[0]).abs().max().item() <= tolerance
        some = slice(None, None, max(1, len(mean) // 1_000_000))
        assert spearmanr(mean[some].cpu(), exact[0, some].cpu()).statistic >= 0.999

    run()
    return Contender(name, run, exact.shape[1], verify)
