"""The similarity of every edge by several ranks: each measures a run of edges, rank 0 puts the runs together.

    folder/  similarity-0.npy  similarity-1.npy ...

Runs are whole tasks of the single process, and no edge depends on another: every number of ranks ends in the same bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.mapped import open_npy, save_new
from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph.store import Attributes
from hcm_scale.ranks.world import World


def measure_shared(
    world: World,
    folder: Path,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: Attributes,
    similarity: str,
    *,
    directed: bool = False,
) -> NDArray[np.float32]:
    """What `edge_similarity` gives, on rank 0, and this rank's run on the others; every rank calls this."""
    own = edge_similarity(indptr, indices, x, similarity, directed=directed, share=(world.rank, world.size))
    if not world.leads:
        folder.mkdir(parents=True, exist_ok=True)
        save_new(folder / f"similarity-{world.rank}.npy", own)
    world.barrier()
    if not world.leads:
        return own
    return np.concatenate([own, *(open_npy(folder / f"similarity-{rank}.npy") for rank in range(1, world.size))])
