"""Instructions for kernels: prefetch a cache line, add atomically, count trailing zeros, set an item of a tuple.

`prefetch` is a hint for kernels that visit rows in the random order of a neighbour list and so wait for memory most of
the time. Asking for the row of the neighbour eight places ahead more than doubled the rate of 20-column rows that do
not fit the cache. It changes no result; a place outside the array is harmless.

`fetch_add` is an addition that threads may make to the same element at the same time. A kernel that scatters into an
array of counts would otherwise need an array for each thread. Integers only: their sum does not depend on the order.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cpython.unsafe.numbers import trailing_zeros as _trailing_zeros
from numba.cpython.unsafe.tuple import tuple_setitem as _tuple_setitem
from numba.extending import intrinsic


def _prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Starts loading the cache line that holds element `place` of a contiguous array, counted in one dimension."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])  # to read, keep near, a data line
        return context.get_dummy_value()

    return types.void(array, place), generate


prefetch: Any = intrinsic(_prefetch)


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

trailing_zeros: Any = _trailing_zeros
tuple_setitem: Any = _tuple_setitem  # on a tuple in registers: no copy is made
