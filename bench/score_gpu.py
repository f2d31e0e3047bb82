"""`python -m bench.score_gpu [--edges M]`: the edge pass of one sample on a CUDA device, in milliseconds.

float32 and bfloat16 in plain torch, then the fused kernel over embedding types, product types and tile shapes; each
with its largest error and its rank correlation against float32. Nothing is timed before it ran once; the shortest of
ten runs counts.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from scipy.stats import spearmanr
from torch import Tensor

from bench.score import prepare
from hcm_scale.score import fused
from hcm_scale.score.device import edge_ends, plain_step
from hcm_scale.score.edges import CUDA_CHUNK_EDGES
from hcm_scale.score.head import Head, Pairs

TILES = ((64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 32, 4), (32, 64, 4))
Step = Callable[[Tensor], None]


def best_ms(step: Step, moments: Tensor, repeats: int = 10) -> float:
    """The shortest of `repeats` runs, each waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step(moments)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - started))
    return min(times)


def measure(name: str, step: Step, exact: Tensor) -> None:
    """Prints one line; a shape that does not fit the device is a finding, not the end of the run."""
    moments = torch.zeros_like(exact)
    try:
        step(moments)
        error = (moments[0] - exact[0]).abs().max().item()
        seen = slice(None, None, max(1, exact.shape[1] // 1_000_000))
        same = spearmanr(moments[0, seen].cpu(), exact[0, seen].cpu()).statistic
        print(f"{name:<48} {best_ms(step, moments):7.2f} ms  error {error:.1e}  spearman {same:.7f}", flush=True)
    except Exception as error:
        print(f"{name:<48} {type(error).__name__}: {str(error)[:300]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The edge pass of one sample on a CUDA device, in milliseconds.")
    parser.add_argument("--edges", type=int, default=8_000_000)
    problem = prepare(parser.parse_args().edges)
    device = torch.device("cuda")
    pairs = Pairs(*edge_ends(problem.index, device), signed=False, expected=True)
    z, head = problem.z.to(device), Head(*(part.to(device) for part in problem.head))
    exact = torch.zeros(2, len(pairs.left), device=device)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(pairs.left):,} edges", flush=True)
    plain_step(z, head, pairs, 1, exact, chunk=CUDA_CHUNK_EDGES)
    for precision in ("float32", "bfloat16"):
        step = partial(plain_step, z, head, pairs, 1, chunk=CUDA_CHUNK_EDGES, precision=precision)
        measure(f"plain torch, {precision}", step, exact)
    if not fused.AVAILABLE:
        print("Triton is not installed")
        return
    for embedding in (z, z.bfloat16()):
        for product in (torch.bfloat16, torch.float32):
            for tile, slab, num_warps in TILES:
                shape = {"tile": tile, "slab": slab, "num_warps": num_warps}
                step = partial(fused.fused_step, embedding, head, pairs, 1, product=product, **shape)
                name = f"fused, z {embedding.dtype}, product {product}, {tile}/{slab}/{num_warps}"
                measure(name.replace("torch.", ""), step, exact)


if __name__ == "__main__":
    main()
