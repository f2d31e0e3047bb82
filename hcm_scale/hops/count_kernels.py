"""Adding up the columns of a bit matrix, jitted.

A class of 64 W sources is a matrix of bits: a row per node, a column per source. `count_chunk` adds the columns of 64
rows. Carry-save adders fold eight words into one word of eights (and running ones, twos, fours); a folded word is
spread over eight counters of eight bytes, so that a column costs about one instruction in eight rows. Source i of a
lane sits on bit 8 (i mod 8) + i / 8, which makes byte i of the eight counters (little-endian, side by side) the count
of source i.

A pair of two sources counts once, at the earlier one: node v, itself the source at position order[v], keeps only the
columns of sources before it.
"""

import numpy as np

from hcm_scale.base.jit import kernel

CHUNK = 64  # nodes that share a byte of counts per source, and a word of the bitmap of nonzero rows
GROUP = 8  # chunks that share a coarser count
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO, _FOUR, _EIGHT = np.uint64(2), np.uint64(4), np.uint64(8)
_LOW_BITS = np.uint64(0x0101010101010101)


@kernel(inline="always")
def bit_of(i):
    """The bit of a lane on which its i-th source sits."""
    return np.uint64(((i & 7) << 3) | ((i >> 3) & 7))


@kernel
def bits_before(num):
    """A word with the bits of the first `num` sources of a lane; any integer will do for `num`."""
    if num >= 64:
        return _ALL
    if num <= 0:
        return _ZERO
    full, part = np.uint64(num >> 3), np.uint64(8 * (num & 7))
    return _LOW_BITS * ((_ONE << full) - _ONE) | (_LOW_BITS << full) & ((_ONE << part) - _ONE)


@kernel(inline="always")
def add_carry(a, b, c):
    """Bitwise a + b + c: (sum, carry)."""
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@kernel
def count_chunk(rows, first, order, start, lanes, masked, counts):
    """counts[8 k : 8 k + 8], read as bytes, become the column sums of lane k over the (up to 64) rows from `first` on.

    `start` is the position of the source in column 0; `masked` is scratch of 64 rows.
    """
    stop = min(first + CHUNK, len(rows))
    earliest = order[first]
    for v in range(first, stop):
        earliest = min(earliest, order[v])
    if stop == first + CHUNK and earliest >= start + 64 * len(
        lanes
    ):  # whole, and without an earlier source: count in place
        for k in range(len(lanes)):
            count_columns(rows[first:stop], k, counts[8 * k : 8 * k + 8])
        return
    masked[:] = _ZERO
    for v in range(first, stop):
        for k in range(len(lanes)):
            masked[v - first, k] = rows[v, k] & bits_before(order[v] - start - 64 * k)
    for k in range(len(lanes)):
        count_columns(masked, k, counts[8 * k : 8 * k + 8])


@kernel
def count_columns(rows, k, counts):
    """Byte i of the eight counts becomes the number of rows, of 64, that hold bit_of(i) in lane k."""
    ones = twos = fours = _ZERO
    counts[:] = _ZERO
    for i in range(0, CHUNK, 8):
        ones, two_a = add_carry(ones, rows[i, k], rows[i + 1, k])
        ones, two_b = add_carry(ones, rows[i + 2, k], rows[i + 3, k])
        twos, four_a = add_carry(twos, two_a, two_b)
        ones, two_a = add_carry(ones, rows[i + 4, k], rows[i + 5, k])
        ones, two_b = add_carry(ones, rows[i + 6, k], rows[i + 7, k])
        twos, four_b = add_carry(twos, two_a, two_b)
        fours, eights = add_carry(fours, four_a, four_b)
        for shift in range(8):
            counts[shift] += (eights >> np.uint64(shift)) & _LOW_BITS
    for shift in range(8):
        s = np.uint64(shift)
        low = (ones >> s & _LOW_BITS) + (twos >> s & _LOW_BITS) * _TWO + (fours >> s & _LOW_BITS) * _FOUR
        counts[shift] = counts[shift] * _EIGHT + low


@kernel
def sum_groups(active, chunk_counts, group_counts, sizes):
    """Adds the chunks up to groups and the groups to the size of every column; empty chunks hold stale bytes."""
    sizes[:] = 0
    for group in range(len(group_counts)):
        sums = group_counts[group]
        sums[:] = 0
        for chunk in range(group * GROUP, min((group + 1) * GROUP, len(active))):
            if active[chunk] != _ZERO:
                for j in range(len(sums)):
                    sums[j] += chunk_counts[chunk, j]
        for j in range(len(sizes)):
            sizes[j] += sums[j]
