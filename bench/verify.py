"""What it costs to believe nothing: `python -m bench.verify [NODES]` writes the files of a run of that size (ten
million nodes unless said, eight edges and twenty attributes a node), and times what is done before they are read.

    seal     hashes of all files when their stages are finished, and again at a kept stage or `explain`
    open     a stranger's graph folder: hashes, and every value looked at

Not a theme: it has no peer. Files come from the page cache where it holds them; a disk adds its own time. Neighbours
are at drawn distances in the numbering, so that looking up the reverse of an arc misses the caches, as in real graphs.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hcm_scale.base import files
from hcm_scale.graph import Graph


def circulant(num_nodes: int, degree: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Each node beside those at `degree` / 2 drawn distances up and down, as (indptr, indices)."""
    steps = np.random.default_rng(0).choice(np.arange(1, num_nodes // 2), degree // 2, replace=False)
    indices = np.empty((num_nodes, degree), np.int32)
    for first in range(0, num_nodes, 1 << 18):
        nodes = np.arange(first, min(first + (1 << 18), num_nodes))
        block = (nodes[:, None] + np.concatenate([steps, -steps])) % num_nodes
        indices[first : first + len(nodes)] = np.sort(block, axis=1)
    return np.arange(num_nodes + 1) * degree, indices.reshape(-1)


def shuffled(num_nodes: int) -> Graph:
    """The same with drawn names: a permutation of the nodes of the circulant graph."""
    indptr, indices = circulant(num_nodes)
    name = np.random.default_rng(1).permutation(num_nodes).astype(np.int32)
    rows = np.empty((num_nodes, 16), np.int32)
    for first in range(0, num_nodes, 1 << 18):
        block = indices[indptr[first] : indptr[min(first + (1 << 18), num_nodes)]].reshape(-1, 16)
        rows[name[first : first + len(block)]] = np.sort(name[block], axis=1)
    x = np.random.default_rng(2).random((num_nodes, 20), np.float32)
    y = np.zeros(num_nodes, np.uint8)
    return Graph(indptr, rows.reshape(-1), x, y, y)


def timed(what: str, function: Callable[[], object]) -> None:
    """Wall clock, and this process's own time, which other work beside it moves less."""
    started, busy = time.perf_counter(), time.process_time()
    function()
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    print(f"{what:<44}{seconds:8.2f} s, {busy:6.2f} s of it on a core", flush=True)


def main() -> int:
    num_nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    shuffled(100).check()  # compiles
    with tempfile.TemporaryDirectory(prefix="bench-verify-") as name:
        run = Path(name)
        graph = shuffled(num_nodes).save(run / "graph")
        for stage in ("purified", "propagated-purified", "propagated-original", "scores"):
            (run / stage).mkdir()
        np.save(run / "purified" / "dropped.npy", np.zeros(-(-graph.num_arcs // 8), np.uint8))
        for view in ("purified", "original"):
            np.save(run / f"propagated-{view}" / "x.npy", graph.x)
        for part in ("edges_mean", "edges_var"):
            np.save(run / "scores" / f"{part}.npy", np.zeros(graph.num_edges, np.uint16))
        np.save(run / "scores" / "table.npy", np.zeros((num_nodes, 20), np.float64))
        num_bytes = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        print(f"{num_nodes:,} nodes, {graph.num_edges:,} edges, {num_bytes / 1e9:.2f} GB in all")
        hashes: dict[str, str] = {}
        files._hashes.clear()
        timed("all files, first read of the process", lambda: hashes.update(files.hash_folder(run)))
        timed("all files, known to the process", lambda: files.check_folder(run, hashes, ""))
        files._hashes.clear()
        timed("a stranger's folder: hashes and content", lambda: Graph.open(run / "graph"))
        timed("of that the content", lambda: Graph.open(run / "graph", verify=False).check())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
