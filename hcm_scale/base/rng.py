"""Counter-based randomness: a random number is a pure function of what it is for.

`bits(seed, a, b, c)` hashes its arguments into 64 random bits, so a draw keyed by (seed, step, layer, node) is the
same whatever the thread, the rank or the order in which it is asked for. There is no state to keep or to resume.
The mixer is the finaliser of SplitMix64, applied once per argument: a bijection of the running state at every step,
so two keys that differ in their last argument never collide.

`mix`, `bits`, `below` and `unit` are kernels, for use inside others; `key` is plain Python.
"""

import numpy as np

from hcm_scale.base.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (11, 27, 30, 31, 32))
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW64 = 0xFFFFFFFFFFFFFFFF


@kernel(inline="always")
def mix(state, value):
    """Folds one more number into a running 64-bit state."""
    z = np.uint64(state) ^ (np.uint64(value) * _GOLDEN + _GOLDEN)
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@kernel
def bits(seed, a, b=0, c=0):
    return mix(mix(mix(mix(np.uint64(0), seed), a), b), c)


@kernel(inline="always")
def below(word, bound):
    """Maps 64 random bits onto 0 .. bound - 1 by the high half of a 64 x 64 product; the bias is under bound / 2^64."""
    x = np.uint64(word)
    y = np.uint64(bound)
    low = (x & _LOW32) * (y & _LOW32)
    middle = (x >> _S32) * (y & _LOW32) + (low >> _S32)
    other = (x & _LOW32) * (y >> _S32) + (middle & _LOW32)
    return np.int64((x >> _S32) * (y >> _S32) + (middle >> _S32) + (other >> _S32))


@kernel(inline="always")
def unit(word):
    """Maps 64 random bits onto a double in [0, 1) with 53 bits of resolution."""
    return np.float64(np.uint64(word) >> _S11) * (1.0 / 9007199254740992.0)


def key(*numbers: int) -> int:
    """A 63-bit seed for NumPy's or torch's generators, a function of the integers and their order.

    >>> key(0, 1) == key(0, 1), key(0, 1) == key(1, 0)
    (True, False)
    """
    state = 0
    for number in numbers:  # `mix` in Python's own numbers: no kernel is loaded for the few keys of a run
        z = state ^ (number * int(_GOLDEN) + int(_GOLDEN)) & _LOW64
        z = (z ^ (z >> 30)) * int(_M1) & _LOW64
        z = (z ^ (z >> 27)) * int(_M2) & _LOW64
        state = z ^ (z >> 31)
    return state >> 1
