"""A keyed random order of 0 .. size - 1 that is computed, not stored: the i-th number of it, for any i by itself.

Swap-or-not (Hoang, Morris and Rogaway 2012). A round pairs every number x with the partner (turn - x) mod size, and one
coin per pair says whether the two swap. A round undoes itself, so any number of rounds is a bijection, at every size
and without a table. Once a coin has fallen a number is uniform: it is not with probability 2^-ROUNDS. The first k of
the order are a draw of k without replacement.

Words have 32 bits. torch has no unsigned arithmetic, so they live in int64 here, on any device; `gpu_kernels` does the
same in uint32 and gets the same numbers.
"""

import torch
from torch import Tensor

ROUNDS = 24
MAX_SIZE = 2**31 - 1
GOLDEN = 0x9E3779B9
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)  # of Chris Wellons' lowbias32
_MASK = 0xFFFFFFFF


def mix(word: Tensor) -> Tensor:
    """A bijection of 32-bit words that leaves no bit of the input recognisable."""
    word = ((word ^ (word >> 16)) * MULTIPLIERS[0]) & _MASK
    word = ((word ^ (word >> 15)) * MULTIPLIERS[1]) & _MASK
    return word ^ (word >> 16)


def word_of(key: int | Tensor, item: Tensor) -> Tensor:
    """32 random bits for `item` under a 63-bit key, both i64."""
    word = mix((item ^ key) & _MASK)
    return mix((word + (item >> 32) + (key >> 32)) & _MASK)


def shuffled(index: Tensor, size: Tensor, word: Tensor) -> Tensor:
    """The index-th of 0 .. size - 1 in the order of `word`; i64 tensors that broadcast, sizes below 2^31.

    >>> shuffled(torch.arange(5), torch.tensor(5), torch.tensor(7)).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    for number in range(ROUNDS):
        key = mix((word + (number + 1) * GOLDEN) & _MASK)
        other = (key * size >> 32) - index
        other = torch.where(other < 0, other + size, other)
        coin = mix(key ^ torch.maximum(index, other)) & 1
        index = torch.where(coin == 1, other, index)
    return index
