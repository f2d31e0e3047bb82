"""The first propagation by several ranks: each makes a range of the rows of Â X, rank 0 puts the ranges together.

    out/parts/  rows-0.npy  rows-1.npy ...      gone when x.npy and the manifest are there

Ranges are whole chunks of the single process, so that x.npy is the same bytes at any number of ranks. They are files of
their own: two machines that write to one page of a file would undo each other's work on some network file systems.
"""

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import map_new, open_npy
from hcm_scale.features.propagate import CHUNK_ROWS, check, open_propagated, propagate_features, seal, write_rows
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import World


def propagate_shared(
    structure: Graph, x: NDArray[np.float32], out: Path, world: World, device: str = "cpu"
) -> NDArray[np.float32]:
    """Writes Â x into the folder `out` and maps it; where there are several ranks each calls this."""
    parts, num_chunks = out / "parts", -(-len(x) // CHUNK_ROWS)
    if world.leads:
        shutil.rmtree(parts, ignore_errors=True)  # of ranks that were killed
    world.barrier()
    if world.size == 1:
        return propagate_features(structure, x, out, device)
    check(structure, x)
    cuts = [min(len(x), CHUNK_ROWS * (num_chunks * rank // world.size)) for rank in range(world.size + 1)]
    parts.mkdir(parents=True, exist_ok=True)
    start, stop = cuts[world.rank : world.rank + 2]
    write_rows(structure, x, parts / f"rows-{world.rank}.npy", start, stop, device)
    world.barrier()
    if world.leads:
        whole = map_new(out / "x.npy", np.float32, x.shape)
        for rank in range(world.size):
            whole[cuts[rank] : cuts[rank + 1]] = open_npy(parts / f"rows-{rank}.npy")
        whole.flush()
        shutil.rmtree(parts)
        seal(out, x.shape)
    world.barrier()
    return open_propagated(out)
