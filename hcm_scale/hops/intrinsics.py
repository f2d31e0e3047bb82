"""Two instructions for use inside kernels, under names of our own: counting zeros, and changing one item of a tuple."""

from typing import Any

from numba.cpython.unsafe.numbers import trailing_zeros as _trailing_zeros
from numba.cpython.unsafe.tuple import tuple_setitem as _tuple_setitem

trailing_zeros: Any = _trailing_zeros
tuple_setitem: Any = _tuple_setitem  # on a tuple in registers: no copy is made
