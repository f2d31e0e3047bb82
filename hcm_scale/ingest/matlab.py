"""MATLAB v5 files to a graph folder.

Two families of names are known: A, X, gnd and Network, Attributes, Label. Only `gnd` is taken as anomaly labels: the
`Label` of the second family holds classes. `keys` names others. The variables are loaded whole, so a file that unpacks
to more than `max_bytes` is refused before it is read; sparse matrices stay sparse.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import io, sparse

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, write_arrays
from hcm_scale.ingest.matrices import edges_of_matrix
from hcm_scale.ingest.policy import Policy

KNOWN = {"adjacency": ("A", "Network"), "attributes": ("X", "Attributes"), "label": ("gnd",)}
MAX_BYTES = 4 << 30
_HEADER_BYTES, _COMPRESSED = 128, 15
_BLOCK_ROWS = 1 << 14


def read_mat(
    out: Path | str,
    path: str | Path,
    *,
    keys: Mapping[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
    policy: Policy = Policy(),  # noqa: B008
) -> Graph:
    """Reads a .mat file into the graph folder `out`, opened; `keys` maps adjacency, attributes, label to names."""
    path = Path(path)
    _check_format(path)
    if (unpacked := unpacked_bytes(path, max_bytes)) > max_bytes:
        raise ValueError(f"{path.name} unpacks to over {unpacked:,} bytes; graph.max_bytes={max_bytes:,} is the limit")
    names = _choose(path, keys or {})
    loaded = io.loadmat(path, variable_names=list(names.values()))
    x = _rows(loaded[names["attributes"]]) if "attributes" in names else None
    y = np.asarray(loaded[names["label"]]) if "label" in names else None
    return write_arrays(out, path.name, edges_of_matrix(loaded[names["adjacency"]]), x, y, policy)


def _check_format(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"graph.path={str(path)!r} is not a file")
    try:
        major, _ = io.matlab.matfile_version(path)
    except (ValueError, io.matlab.MatReadError) as error:
        raise ValueError(f"{path.name} is not a MATLAB file: {error}") from error
    if major != 1:
        raise ValueError(f"{path.name} is MATLAB v{'7.3 (HDF5)' if major == 2 else '4'}; legal is v5: save('-v7', ...)")


def unpacked_bytes(path: Path, limit: int) -> int:
    """The bytes of all variables once inflated, counted without keeping them; stops soon after `limit`."""
    total = 0
    with open(path, "rb") as stream:
        header = stream.read(_HEADER_BYTES)
        order: Any = "little" if header[126:128] == b"IM" else "big"
        while len(tag := stream.read(8)) == 8 and total <= limit:
            kind, size = int.from_bytes(tag[:4], order), int.from_bytes(tag[4:], order)
            if kind == _COMPRESSED:
                total += _inflated_bytes(stream.read(size), limit - total)
            else:
                total += size
                stream.seek(size, 1)
    return total


def _inflated_bytes(data: bytes, limit: int) -> int:
    inflater, total, piece = zlib.decompressobj(), 0, 1 << 20
    while data and total <= limit:
        total += len(inflater.decompress(data, piece))
        data = inflater.unconsumed_tail
    return total


def _choose(path: Path, keys: Mapping[str, str]) -> dict[str, str]:
    """Role -> variable name: what `keys` says, else a known name that the file has."""
    held = [name for name, _, _ in io.whosmat(path)]
    chosen = {role: name for role, known in KNOWN.items() for name in known if name in held}
    for role, name in keys.items():
        if role not in KNOWN:
            raise ValueError(f"graph.keys={{{role!r}: ...}} must be one of {', '.join(KNOWN)}")
        if name not in held:
            raise ValueError(f"graph.keys={{{role!r}: {name!r}}} is not in {path.name}; it holds {held}")
        chosen[role] = name
    if "adjacency" not in chosen:
        raise ValueError(
            f"{path.name} holds none of {KNOWN['adjacency']}; graph.keys={{'adjacency': name}} names one of {held}"
        )
    return chosen


def _rows(matrix: Any) -> SparseRows | DenseRows:
    if matrix.ndim != 2 or matrix.dtype.kind not in "iufb":
        raise ValueError(f"attributes are {matrix.dtype} of shape {matrix.shape}; legal are numbers of shape (n, d)")
    if sparse.issparse(matrix):
        return SparseRows.of(matrix)
    starts = range(0, len(matrix), _BLOCK_ROWS)
    return DenseRows(matrix.shape, lambda: (matrix[start : start + _BLOCK_ROWS] for start in starts))
