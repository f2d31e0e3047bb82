"""What a labeller returns for a range of sources, one row per source, and how rows become a list of pairs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import in_threads
from hcm_scale.hops.row_kernels import fill_pairs


class Rows(NamedTuple):
    """Exact class sizes, how many of each class are kept, and the kept nodes (renamed) class after class."""

    counts: NDArray[np.int64]  # (sources, C)
    kept: NDArray[np.int64]  # (sources, C)
    targets: NDArray[Any]  # (sources, at most C x pairs per class); a row is filled up to the sum of its `kept`

    def part(self, first: int, last: int) -> "Rows":
        """The rows first .. last - 1, or fewer at the end."""
        return Rows(self.counts[first:last], self.kept[first:last], self.targets[first:last])


def write_pairs(rows: Rows, names: NDArray[Any], sources: NDArray[Any]) -> tuple[Any, Any, NDArray[np.uint8]]:
    """(u, v, hop) under the original names, ordered by class, then source, then v."""
    by_class = np.cumsum(rows.kept.T).reshape(rows.kept.T.shape)
    starts = by_class - rows.kept.T
    total = int(by_class[-1, -1])
    u, v = np.empty((2, total), names.dtype)
    hop = np.empty(total, np.uint8)
    in_threads(len(sources), fill_pairs, rows, names, sources, starts, (u, v, hop))
    return u, v, hop
