"""Hop labels on cores and on a CUDA device: `python -m bench.gpu_bfs [--scale 24] [--edge-factor 16] [--no-cores]`.

An R-MAT graph in memory, 4,096 sources, 4 classes of 256 pairs: seconds until the searches can begin (pilots, layout,
copies), seconds of the searches with their pairs, and whether both are the same to the bit. The device comes twice: its
first time compiles the kernels.
"""

import argparse
import hashlib
import time

import numpy as np
import torch

from bench.data import describe
from hcm_scale.graph.store import Graph
from hcm_scale.hops import choose_sources, label_hops
from hcm_scale.hops.device import layout_on_device
from hcm_scale.synthetic import families


def labels(graph: Graph, device: str) -> tuple[float, float, str]:
    """Seconds of set-up and of searches, and a hash of all labels."""
    sources, found = choose_sources(graph.indptr, num_sources=4096, seed=0), hashlib.sha256()
    options = {"classes": 4, "pairs_per_class": 256, "seed": 0, "sources_per_block": 1024}
    started = time.perf_counter()
    blocks = label_hops(graph.indptr, graph.indices, sources, device=device, **options)
    ready = time.perf_counter()
    made = list(blocks)
    ended = time.perf_counter()
    for block in made:
        for array in (block.u, block.v, block.hop, block.counts):
            found.update(np.ascontiguousarray(array))
    return ready - started, ended - ready, found.hexdigest()[:16]


def main() -> int:
    """0 where all labels are the same."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_bfs", description=__doc__)
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--edge-factor", type=int, default=16)
    parser.add_argument("--no-cores", action="store_true", help="the device alone")
    options = parser.parse_args()
    graph = families.rmat(options.scale, edge_factor=options.edge_factor, num_attributes=1)
    print(describe(graph), flush=True)
    hashes = set()
    for device in ("cuda", "cuda") if options.no_cores else ("cuda", "cuda", "cpu", "cpu"):
        setup, searches, found = labels(graph, device)
        hashes.add(found)
        print(f"{device:<6} set-up {setup:7.2f} s   searches {searches:7.2f} s   labels {found}", flush=True)
    started = time.perf_counter()
    layout = layout_on_device(graph.indptr, graph.indices, "cuda")
    torch.cuda.synchronize()
    print(
        f"cuda   copies and layout alone {time.perf_counter() - started:.2f} s, {len(layout.indptr) - 1:,} linked nodes"
    )
    print(f"device memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most; same labels: {len(hashes) == 1}")
    return 0 if len(hashes) == 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
