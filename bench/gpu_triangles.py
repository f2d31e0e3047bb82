"""Triangles on cores and a CUDA device: `python -m bench.gpu_triangles [--scale 24] [--edge-factor 16] [--no-cores]`.

An R-MAT graph in memory; all of its edges, then four in ten as far ones. Seconds of the device, those of listing and
copying and those of counting apart, steps (entries that are walked and looked up), seconds of the cores, and whether
both counted the same. The device comes twice: its first time compiles the kernels.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.data import describe
from hcm_scale.score import triangles, triangles_device
from hcm_scale.score.edge_index import EdgeIndex, edge_index
from hcm_scale.synthetic import families

PIECE = 1 << 26  # entries that are added up at a time


def by_device(edges: EdgeIndex, used: NDArray[np.bool_] | None, device: str) -> NDArray[np.int64] | None:
    """The counts; says how long lists and counts took."""
    count, lists = triangles_device._count_all, triangles_device._lists
    seconds = {}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            found = work(*arguments, **options)
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize()
            seconds[name] = time.perf_counter() - started
            return found

        return run

    def count_steps(first: Any, successors: Any, owned_first: Any, owned: Any, **options: Any) -> Any:
        found = timed("count", count)(first, successors, owned_first, owned, **options)
        size = first.diff()
        steps = sum(int(size[piece.long()].sum()) for piece in owned.split(PIECE))
        print(f"  {steps:,} steps, {1e9 * seconds['count'] / max(1, steps):.4f} ns each; ", end="")
        return found

    triangles_device._lists, triangles_device._count_all = timed("lists", lists), count_steps
    try:
        found = triangles_device.triangles_on_device(edges, used, device)
    finally:
        triangles_device._lists, triangles_device._count_all = lists, count
    print(", ".join(f"{name} {took:.2f} s" for name, took in seconds.items()) or "no room")
    return found


def main() -> int:
    """0 where all counts are the same."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_triangles", description=__doc__)
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--edge-factor", type=int, default=16)
    parser.add_argument("--no-cores", action="store_true", help="the device alone")
    parser.add_argument("--device", default="cuda", help="cpu: by Triton's interpreter, where TRITON_INTERPRET=1")
    options = parser.parse_args()
    graph = families.rmat(options.scale, edge_factor=options.edge_factor, num_attributes=1)
    print(describe(graph), flush=True)
    edges = edge_index(graph.indptr, graph.indices)
    far = np.random.default_rng(0).random(edges.num_edges) < 0.4
    is_same = True
    for used in (None, far):
        print("all edges" if used is None else "far edges", flush=True)
        made = [by_device(edges, used, options.device) for _ in range(2)]
        if not options.no_cores:
            started = time.perf_counter()
            made.append(triangles._triangles(edges) if used is None else triangles.marked_triangles(edges, far))
            print(f"  cores {time.perf_counter() - started:.2f} s", flush=True)
        is_same &= all(found is not None and np.array_equal(found, made[-1]) for found in made)
        print(f"  {0 if made[-1] is None else int(made[-1].sum()) // 3:,} triangles", flush=True)
    if torch.cuda.is_available():
        print(f"device memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most")
    print(f"same counts: {is_same}")
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
