"""Which pairs of a class an epoch draws, and in which order: arithmetic on row counts, before any pair is read.

The row groups of the class are laid end to end in a random order, as a circle. The draw looks at a stretch of `reach`
consecutive rows from a random row on (at all rows where there are no more) and thins it evenly: every pair of the class
is drawn with the same probability, never twice in an epoch, and the draw touches few row groups, yet at least SPREAD
where the class has them. Reading is done in windows of WINDOW row groups; a window's pairs are shuffled together, and
the windows follow each other. A position in the order is found by bisection, so a resume reads one window.

Memory: about 40 bytes a row group that the epoch touches.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.rng import key, scaled
from hcm_scale.shards.kernels import shuffle_pairs

SPREAD = 16  # a draw reaches over at least so many row groups: with 4 an epoch saw too few sources, and AUC fell by .01
WINDOW = 16  # row groups of one class held in memory at once
_LAYOUT, _START, _PHASE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class ClassOrder:
    """The epoch's draw from one class, in parts: `quota` pairs out of rows first .. last - 1 of row group `group`."""

    group: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    quota: NDArray[np.int64]

    @property
    def window_ends(self) -> NDArray[np.int64]:
        """(windows,): the position in the order just after each window."""
        starts = np.arange(0, len(self.quota), WINDOW)
        return np.cumsum(np.add.reduceat(self.quota, starts))

    def parts_of(self, window: int) -> slice:
        """The parts that a window reads."""
        return slice(window * WINDOW, (window + 1) * WINDOW)


def least_reach(row_group_rows: int) -> int:
    """The fewest consecutive rows that lie in SPREAD full row groups wherever they begin."""
    return (SPREAD - 1) * row_group_rows + 1


def class_order(rows: NDArray[np.int64], num_draw: int, reach: int, seed: int) -> ClassOrder:
    """Draws `num_draw` pairs from row groups of rows (groups,) pairs each, looking at `reach` rows or all of them.

    >>> order = class_order(np.array([100, 100, 30]), 60, 1000, seed=7)
    >>> int(order.quota.sum()), order.window_ends.tolist(), sorted(order.group.tolist())
    (60, [60], [0, 1, 2])
    """
    group, size = np.arange(len(rows)), rows.astype(np.int64)
    shuffle_pairs(key(seed, _LAYOUT), group, size)
    total = int(size.sum())
    reach = min(total, max(num_draw, reach))
    start = 0 if reach == total else scaled(2 * key(seed, _START), total)
    group, first, last = _stretch(group, size, start, reach)
    ends = np.cumsum(last - first)
    return ClassOrder(group, first, last, _quotas(ends, num_draw, reach, key(seed, _PHASE) % reach))


def _stretch(group: NDArray[Any], size: NDArray[Any], start: int, reach: int) -> tuple[NDArray[Any], ...]:
    """Groups laid end to end in a circle: (group, first row, last row) of the parts of `reach` rows from `start` on."""
    ends = np.cumsum(size)
    at = int(np.searchsorted(ends, start, side="right"))
    turn = np.r_[at : len(group), 0 : at + 1]  # the first group may come again at the end, for the rows before `start`
    group, first, last = group[turn], np.zeros(len(turn), np.int64), size[turn]
    first[0] = start - (ends[at] - size[at])
    seen = np.cumsum(last - first)
    num_parts = int(np.searchsorted(seen, reach)) + 1
    last[num_parts - 1] -= seen[num_parts - 1] - reach
    return group[:num_parts], first[:num_parts], last[:num_parts]


def _quotas(ends: NDArray[np.int64], num_draw: int, reach: int, phase: int) -> NDArray[np.int64]:
    """Shares of `num_draw` in proportion to parts that end at `ends`, rounded by a random phase: exact on average."""
    exact = ends.astype(object)  # Python integers: the product passes 2^63 for billions of pairs
    upto = ((exact * num_draw + phase) // reach).astype(np.int64)
    return np.diff(upto, prepend=0)
