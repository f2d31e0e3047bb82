"""The first propagation, Â X, computed exactly and once, and kept on disk beside the graph.

It has no parameters, so a GCN of L layers trained on it samples only L - 1 hops, and the first is free of sampling
noise. The folder holds `x.npy`, (n, q) float32, and a manifest with the key of what it was made from; a folder with the
same key is opened as a memory map, one with another is made again. Rows are written in chunks: memory is one chunk,
and whatever of X the system keeps mapped.
"""

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.mapped import map_new
from hcm_scale.base.progress import bar
from hcm_scale.base.spmm import gcn_rows, gcn_scale
from hcm_scale.graph import Graph

KIND = "hcm_scale propagated features"
FORMAT = 1
_CHUNK_ROWS = 1 << 17


def fingerprint_features(x: NDArray[np.float32]) -> str:
    """The hash of an (n, q) array's content; ValueError naming the first row that is not finite."""
    if x.ndim != 2 or x.dtype != np.float32:
        raise ValueError(f"features must be an (n, q) array of float32, not {x.ndim}-dimensional {x.dtype}")
    digest = xxhash.xxh3_128(repr(x.shape).encode())
    for first in range(0, len(x), _CHUNK_ROWS):
        chunk = np.ascontiguousarray(x[first : first + _CHUNK_ROWS])
        finite = np.isfinite(chunk).all(axis=1)
        if not finite.all():
            raise ValueError(f"features hold NaN or infinity, first in row {first + int(np.argmin(finite))}")
        digest.update(chunk.tobytes())
    return digest.hexdigest()


def propagate_features(
    structure: Graph, x: NDArray[np.float32], out: Path | str, *, fingerprint: str | None = None
) -> NDArray[np.float32]:
    """Â x as a read-only map, (n, q): from `out` where it was made before from the same graph and features.

    `fingerprint` is that of x where the caller has it already.
    """
    out = Path(out)
    if len(x) != structure.num_nodes:
        raise ValueError(f"features have {len(x)} rows; the graph has {structure.num_nodes} nodes")
    key = files.hash_value([structure.fingerprint, fingerprint or fingerprint_features(x)])
    if not _is_made(out, key):
        with files.replacing(out) as fresh:
            _write(structure, x, fresh / "x.npy")
            files.write_manifest(fresh, KIND, FORMAT, {"key": key, "shape": list(x.shape)})
    result: NDArray[np.float32] = np.load(out / "x.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return result


def _is_made(out: Path, key: str) -> bool:
    """Whether `out` holds the result; FolderError where it holds something that we must not replace."""
    return out.exists() and bool(files.read_manifest(out, KIND, FORMAT)["key"] == key)


def _write(structure: Graph, x: NDArray[np.float32], path: Path) -> None:
    scale = gcn_scale(structure.indptr)
    target = map_new(path, np.float32, x.shape)
    with bar(len(x), "row", "propagate") as progress:
        for first in range(0, len(x), _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, len(x))
            chunk = np.empty((last - first, x.shape[1]), np.float32)
            gcn_rows(structure.indptr, structure.indices, scale, x, first, last, chunk)
            target[first:last] = chunk
            progress.update(last - first)
    target.flush()
