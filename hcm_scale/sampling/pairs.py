"""Class-balanced batches of labelled pairs, read from shards; their order is a function of (manifest, seed, epoch).

Sequence. An epoch draws D = min(floor(S * min_c counts_c), min_c stored_c) pairs from each class, without repetition,
and lays them in one sequence of C * D pairs: position p has class p mod C and is the (p div C)-th draw of that class.
The sequence is cut evenly into ceil(C * D / batch_pairs) global batches, whose sizes differ by at most one, and a batch
evenly into `num_ranks` slices: there is no small last batch, each slice is balanced, and the batches are the same at
any number of ranks. A position is (epoch, step); a resume computes its place in the sequence and reads from there.

Draws of a class (`class_order`) are settled by arithmetic on row counts, before any pair is read. The row groups of the
class are laid end to end in a random order, as a circle. The draw takes a stretch of `reach` consecutive rows from a
random row on (all rows where there are no more) and thins it evenly: every pair of the class is drawn with the same
probability, never twice in an epoch, and the draw touches few row groups, yet at least SPREAD where the class has them.
Row groups are read in windows of WINDOW; a window's pairs are shuffled together, and the windows follow each other. The
window of a position is found by bisection, so a resume reads one window.

Memory: per class the drawn pairs of at most WINDOW row groups, one row group being read, and the batch; about 40 bytes
a row group that the epoch touches. Labels of up to 16 MiB are read once and held.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.base.rng import below, key, mix
from hcm_scale.shards import Labels, RowGroup, shuffle_pairs

SPREAD = 16  # a draw reaches over at least so many row groups: with 4 an epoch saw too few sources, and AUC fell by .01
WINDOW = 16  # row groups of one class held in memory at once
MAX_CACHED_PAIRS = 1 << 21  # of 8 bytes: labels of at most so many are read once and held
_PAIRS = 0x7061  # separates these draws from all others made with the same seed
_ORDER, _PICK, _SHUFFLE = 0, 1, 2  # uses of the key of (seed, epoch, class)
_LAYOUT, _START, _PHASE = 0, 1, 2  # uses of the key of _ORDER
Read = Callable[[RowGroup], tuple[NDArray[Any], NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class PairBatch:
    """One rank's slice of a global batch."""

    epoch: int
    step: int
    u: NDArray[np.int64]  # (pairs,)
    v: NDArray[np.int64]  # (pairs,)
    hop: NDArray[np.int64]  # (pairs,): class index 0 .. C - 1


def pairs_per_class(labels: Labels, *, sampling_ratio: float) -> int:
    """D, the pairs that each class contributes to an epoch."""
    draw = min(math.floor(sampling_ratio * min(labels.counts)), min(labels.stored))
    if draw < 1:
        counts, least = labels.counts, math.ceil(1e4 / min(labels.counts)) / 1e4
        fewer = range(len(counts) - 1, 1, -1)
        works = next((c for c in fewer if sampling_ratio * min(*counts[: c - 1], sum(counts[c - 1 :])) >= 1), None)
        classes = f"hops.classes={works}, " if works else ""
        ratio = f"sampling.ratio={least:g}{' .. 1' * (least < 1)}, "
        raise ValueError(
            f"sampling.ratio={sampling_ratio} of the smallest class leaves no pair (pairs per class: {list(counts)}): "
            "the graph is very small, or few nodes are sources; legal here are "
            f"{ratio}{classes}or more hops.num_sources"
        )
    return draw


def pairs_per_epoch(labels: Labels, *, sampling_ratio: float) -> int:
    """C * D, the pairs of an epoch over all ranks."""
    return labels.classes * pairs_per_class(labels, sampling_ratio=sampling_ratio)


@dataclass(frozen=True)
class Cut:
    """How an epoch's sequence of pairs is cut into batches, and batches into the slices of the ranks."""

    num_pairs: int
    num_steps: int
    rank: int
    num_ranks: int

    def __call__(self, step: int) -> tuple[int, int]:
        """The positions start .. stop - 1 of this rank's slice of a global batch."""
        start, stop = (self.num_pairs * at // self.num_steps for at in (step, step + 1))
        size = stop - start
        return start + size * self.rank // self.num_ranks, start + size * (self.rank + 1) // self.num_ranks

    @property
    def most(self) -> int:
        return -(-self.num_pairs // (self.num_steps * self.num_ranks))


def cut_epoch(labels: Labels, *, batch_pairs: int, sampling_ratio: float, rank: int = 0, num_ranks: int = 1) -> Cut:
    """The cut of an epoch of these labels into batches of at most `batch_pairs`; ValueError where it is impossible."""
    if batch_pairs < labels.classes:
        raise ValueError(f"batch_pairs={batch_pairs} must be at least {labels.classes}, one pair a class")
    num_pairs = pairs_per_epoch(labels, sampling_ratio=sampling_ratio)
    num_steps = -(-num_pairs // batch_pairs)
    if num_ranks > num_pairs // num_steps:
        raise ValueError(f"num_ranks={num_ranks} cannot share batches of {num_pairs // num_steps} pairs")
    return Cut(num_pairs, num_steps, rank, num_ranks)


def pair_batches(labels: Labels, cut: Cut, *, seed: int, first_step: int = 0) -> Iterator[PairBatch]:
    """Batches first_step, first_step + 1, ... without end, counted over all epochs: this rank's slice of each."""
    read = functools.cache(labels.read) if labels.num_pairs <= MAX_CACHED_PAIRS else labels.read
    first_epoch, skipped = divmod(first_step, cut.num_steps)
    for epoch in itertools.count(first_epoch):
        num_draw, hops = cut.num_pairs // labels.classes, range(1, labels.classes + 1)
        streams = [_ClassStream(labels, read, hop, num_draw, key(seed, _PAIRS, epoch, hop)) for hop in hops]
        for step in range(skipped if epoch == first_epoch else 0, cut.num_steps):
            yield PairBatch(epoch, step, *_gather(streams, *cut(step)))


def _gather(streams: "list[_ClassStream]", start: int, stop: int) -> tuple[NDArray[np.int64], ...]:
    """u, v, hop of the positions start .. stop - 1 of the epoch's sequence: position p has class p mod C."""
    classes, out = len(streams), np.empty((3, stop - start), np.int64)
    for klass, stream in enumerate(streams):
        slots = slice((klass - start) % classes, None, classes)
        first, last = -(-(start - klass) // classes), -(-(stop - klass) // classes)
        stream.take(first, last, out[:2, slots])
        out[2, slots] = klass
    return tuple(out)


class _ClassStream:
    """The epoch's draws of one class; holds one window of them."""

    def __init__(self, labels: Labels, read: Read, hop: int, num_draw: int, seed: int) -> None:
        self._labels, self._read, self._seed = labels, read, seed
        self._groups = labels.row_groups(hop)
        rows = np.array([group.rows for group in self._groups])
        reach = (SPREAD - 1) * labels.plan.row_group_rows + 1  # lies in SPREAD full row groups wherever it begins
        self._order = class_order(rows, num_draw, reach, key(seed, _ORDER))
        self._ends = self._order.window_ends
        self._window = -1
        self._pairs: NDArray[Any] = np.empty((2, 0), np.int64)

    def take(self, start: int, stop: int, out: NDArray[np.int64]) -> None:
        """Copies u and v of the draws start .. stop - 1 to the rows of `out`, reading the windows they lie in."""
        at = start
        while at < stop:
            window = int(np.searchsorted(self._ends, at, side="right"))
            self._load(window)
            base = int(self._ends[window]) - self._pairs.shape[1]
            upto = min(stop, int(self._ends[window]))
            out[:, at - start : upto - start] = self._pairs[:, at - base : upto - base]
            at = upto

    def _load(self, window: int) -> None:
        """Reads the row groups of a window, thins them to their quotas, and shuffles the rest."""
        if window == self._window:
            return
        order, pieces = self._order, range(window * WINDOW, min((window + 1) * WINDOW, len(self._order.quota)))
        self._pairs = np.empty((2, 0), np.int64)  # frees the last window before the next is read
        ends = np.cumsum(order.quota[pieces.start : pieces.stop])
        pairs = np.empty((2, ends[-1]), self._labels.plan.index_type)
        for piece, end in zip(pieces, ends.tolist(), strict=True):
            if quota := int(order.quota[piece]):
                self._pick(piece, pairs[:, end - quota : end])
        shuffle_pairs(key(self._seed, _SHUFFLE, window), *pairs)
        self._window, self._pairs = window, pairs

    def _pick(self, piece: int, out: NDArray[Any]) -> None:
        """Fills `out` from one part of the order: with all its pairs, or with as many as there is room for."""
        rows = slice(self._order.first[piece], self._order.last[piece])
        u, v = (column[rows] for column in self._read(self._groups[self._order.group[piece]]))
        if len(u) == out.shape[1]:
            out[0], out[1] = u, v
        else:
            pick_pairs(key(self._seed, _PICK, piece), u.copy(), v.copy(), *out)


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


def class_order(rows: NDArray[np.int64], num_draw: int, reach: int, seed: int) -> ClassOrder:
    """A draw of `num_draw` pairs from row groups of `rows` (groups,) pairs, out of `reach` consecutive rows or all."""
    group, size = np.arange(len(rows)), rows.astype(np.int64)
    shuffle_pairs(key(seed, _LAYOUT), group, size)
    total = int(size.sum())
    reach = min(total, max(num_draw, reach))
    start = 0 if reach == total else 2 * key(seed, _START) * total >> 64  # as `rng.below` does
    group, first, last = _stretch(group, size, start, reach)
    # shares of `num_draw` in proportion to the parts, rounded by a random phase: exact on average
    ends = np.cumsum(last - first).astype(object)  # Python integers: the product passes 2^63 for billions of pairs
    upto = ((ends * num_draw + key(seed, _PHASE) % reach) // reach).astype(np.int64)
    return ClassOrder(group, first, last, np.diff(upto, prepend=0))


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


@kernel(nogil=True)
def pick_pairs(key, u, v, out_u, out_v):
    """Fills `out` with len(out) of the len(u) pairs, all subsets alike: Fisher and Yates, cut short. Spoils u, v."""
    rows = len(u)
    for i in range(len(out_u)):
        j = i + below(mix(np.uint64(key), i), rows - i)
        out_u[i], out_v[i] = u[j], v[j]
        u[j], v[j] = u[i], v[i]
