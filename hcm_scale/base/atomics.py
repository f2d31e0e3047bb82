"""One addition that threads may make to the same element at the same time.

A kernel that scatters into an array of counts would otherwise need an array a thread, and memory that grows with the
cores. Integers only: their sum does not depend on who came first.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic


def _fetch_add(typing_context: Any, array: Any, place: Any, value: Any) -> Any:
    """Adds `value` to element `place` of a contiguous array of integers and returns what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        added = context.cast(builder, arguments[2], signature.args[2], signature.return_type)
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), added, "monotonic")

    if not (isinstance(array, types.Array) and array.layout == "C" and isinstance(array.dtype, types.Integer)):
        raise TypeError(f"fetch_add: {array} is not a contiguous array of integers")
    return array.dtype(array, place, value), generate


fetch_add: Any = intrinsic(_fetch_add)
