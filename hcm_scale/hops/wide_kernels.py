"""Steps of labelling a block of 64 W sources (`wide.py`) with the bit-parallel BFS: jitted functions only.

One thread runs one block alone: no atomics.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.jit import kernel
from hcm_scale.hops.count_kernels import CHUNK, count_chunk
from hcm_scale.hops.kernels import clear_rows, count_arcs, pull, push, settle
from hcm_scale.hops.sample_kernels import want

_PUSH_BELOW = 0.5  # of all arcs: pushing along an arc reads and writes, pulling only reads
_ZERO, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


class Level(NamedTuple):
    """What a level of all searches reaches: a row of bits per node, and a bitmap of the rows that are not zero."""

    rows: NDArray[np.uint64]  # (m, W)
    active: NDArray[np.uint64]  # (chunks,)


@kernel
def advance(layout, seen, front, new, lanes):
    """One level, in the direction that touches less: `new` becomes what the frontier reaches for the first time."""
    rows, active = new.rows, new.active
    if count_arcs(layout.out_indptr, front.active) < _PUSH_BELOW * len(layout.out_indices):
        clear_rows(rows, active)
        push(layout.out_indptr, layout.out_indices, front.rows, front.active, rows, active, lanes)
        for chunk in range(len(active)):
            active[chunk] = settle(active[chunk], CHUNK * chunk, seen, rows, lanes)
    else:
        for chunk in range(len(active)):
            first, stop = CHUNK * chunk, min(CHUNK * (chunk + 1), len(rows))
            pull(layout.in_indptr, layout.in_indices, front.rows, first, stop, rows, lanes)
            active[chunk] = settle(_ALL >> np.uint64(CHUNK - (stop - first)), first, seen, rows, lanes)


@kernel
def list_unseen(seen, new, lanes):
    """`new` becomes the complement of `seen`."""
    rows, active = new.rows, new.active
    for v in range(len(rows)):
        for k in range(len(lanes)):
            rows[v, k] = ~seen[v, k]
    active[:] = _ALL
    active[-1] = _ALL >> np.uint64(CHUNK * len(active) - len(rows))


@kernel
def count_class(level, order, start, lanes, masked, chunk_counts):
    """Counts the members of the class that a level holds, of every source and chunk of nodes."""
    for chunk in range(len(level.active)):
        if level.active[chunk] != _ZERO:
            count_chunk(level.rows, CHUNK * chunk, order, start, lanes, masked, chunk_counts[chunk])


@kernel
def want_class(request, start, hop, sizes, table, cursor, rows):
    """Notes the sizes of a class, and decides which ranks of it are wanted."""
    for j in range(len(rows.counts)):
        rows.counts[j, hop - 1] = sizes[j]
        rows.kept[j, hop - 1] = min(sizes[j], request.most)
        want(request, request.sources[start + j], hop, sizes[j], j, table, cursor)
