"""The first propagation, Â X, computed exactly and once, and stored on disk.

It has no parameters, so a GCN of L layers trained on it samples only L - 1 hops, and the first is free of sampling
noise; scoring begins with it too. Rows are written straight to the file: memory is a weight a node, and whatever the
system keeps mapped.

    out/  x.npy  (n, q) float32   manifest.json

A run on a CUDA device stores none: its stages make the same bits there in less time than they would be read
(`base/spmm_device.py`).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.console import Progress
from hcm_scale.base.npy import FINITE, create_npy, open_array
from hcm_scale.base.spmm import gcn_rows, gcn_weights
from hcm_scale.base.threads import run_in_threads
from hcm_scale.graph import Graph

KIND = "hcm_scale propagated features"
FORMAT = 1
_ROWS_AT_ONCE = 1 << 20


def propagate_features(structure: Graph, x: NDArray[np.float32], out: Path) -> NDArray[np.float32]:
    """Writes Â x into the folder `out` and maps it, (n, q), read-only; x is (n, q), in memory or mapped."""
    out.mkdir(parents=True, exist_ok=True)
    weights = gcn_weights(structure.indptr, structure.weights)
    target = create_npy(out / "x.npy", np.float32, x.shape)
    with Progress(len(x), "row", "propagate") as progress:
        for first in range(0, len(x), _ROWS_AT_ONCE):
            chunk = target[first : first + _ROWS_AT_ONCE].view(np.ndarray)
            run_in_threads(len(chunk), gcn_rows, structure.indptr, structure.indices, weights, x, first, chunk)
            progress.update(len(chunk))
    target.flush()
    files.write_manifest(out, KIND, FORMAT, {"shape": list(x.shape)})
    return open_propagated(out)


def open_propagated(folder: Path, shape: tuple[int | None, ...] = (None, None)) -> NDArray[np.float32]:
    """A finished folder, whoever wrote it; FolderError unless it has finite numbers of this shape."""
    files.read_manifest(folder, KIND, FORMAT)
    return open_array(folder / "x.npy", np.float32, shape, legal=FINITE)
