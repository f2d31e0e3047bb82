"""The first propagation, Â X, computed exactly and once, and kept on disk.

It has no parameters, so a GCN of L layers trained on it samples only L - 1 hops, and the first is free of sampling
noise; scoring begins with it too. Rows are written in chunks: memory is one chunk, and whatever of X the system keeps
mapped.

    out/  x.npy  (n, q) float32   manifest.json
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.mapped import map_new
from hcm_scale.base.progress import bar
from hcm_scale.base.spmm import gcn_rows, gcn_weights
from hcm_scale.base.threads import in_threads
from hcm_scale.graph import Graph

KIND = "hcm_scale propagated features"
FORMAT = 1
_CHUNK_ROWS = 1 << 17


def propagate_features(structure: Graph, x: NDArray[np.float32], out: Path) -> NDArray[np.float32]:
    """Writes Â x into the folder `out` and maps it, (n, q), read-only; x is (n, q), in memory or mapped."""
    if x.ndim != 2 or x.dtype != np.float32 or len(x) != structure.num_nodes:
        raise ValueError(
            f"features are {x.dtype} of shape {x.shape}; this graph needs an array of float32 with "
            f"{structure.num_nodes} rows"
        )
    out.mkdir(parents=True, exist_ok=True)
    _write(structure, x, out / "x.npy")
    files.write_manifest(out, KIND, FORMAT, {"shape": list(x.shape)})
    return open_propagated(out)


def open_propagated(folder: Path) -> NDArray[np.float32]:
    """Maps a finished folder."""
    files.read_manifest(folder, KIND, FORMAT)
    result: NDArray[np.float32] = np.load(folder / "x.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return result


def _write(structure: Graph, x: NDArray[np.float32], path: Path) -> None:
    weights = gcn_weights(structure.indptr, structure.weights)
    target = map_new(path, np.float32, x.shape)
    with bar(len(x), "row", "propagate") as progress:
        for first in range(0, len(x), _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, len(x))
            chunk = np.empty((last - first, x.shape[1]), np.float32)
            in_threads(len(chunk), gcn_rows, structure.indptr, structure.indices, weights, x, first, chunk)
            finite = np.isfinite(chunk).all(axis=1)
            if not finite.all():
                raise ValueError(f"features hold NaN or infinity, at or beside node {first + int(np.argmin(finite))}")
            target[first:last] = chunk
            progress.update(last - first)
    target.flush()
