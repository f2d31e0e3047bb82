"""`kernel`: numba.njit for functions that release the GIL, with compiled code cached on disk; and their instructions.

The cache is numba's own, in the folder of `base/kernel_cache.py`. Three things are added. A cache file that cannot be
read, because it was cut short or belongs to a call with other types (two processes may give their files the same
number), means that the kernel is compiled again; numba would raise. A cache that cannot be written is ignored. And what
numba adds to the name of each function that it compiles is a random number, not the next one: of two functions of
one name, compiled by two processes, a third that loads both would call one in the place of the other (issue 10486 of
numba). A flipped bit inside machine code is not noticed.

Nothing is read or compiled at import. The log says once that something is being compiled.

`prefetch` is a hint for kernels that visit rows in the random order of a neighbour list and so wait for memory most of
the time. It changes no result; a place outside the array is harmless. `fetch_add` is an addition that threads may make
to the same element at the same time, of integers only: their sum does not depend on the order. `relu_tile` and
`narrow_tile` are products whose sums stay in registers, for kernels that go on with them in the nearest cache: a busy
aarch64 core does twice as many a second as with torch, where matrices have 64 columns. With AVX-512 a tile is four
times as wide, and a row of 64 numbers takes 96 ns in the place of 147.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime import rtsys
from numba.core.sigutils import normalize_signature
from numba.cpython.unsafe.numbers import trailing_zeros as _trailing_zeros
from numba.cpython.unsafe.tuple import tuple_setitem as _tuple_setitem
from numba.extending import intrinsic

from hcm_scale.base.kernel_cache import PACKAGE, kernel_folder

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger(__name__)
FunctionIdentity._unique_ids = iter(lambda: int.from_bytes(os.urandom(12)), None)  # type: ignore[assignment]


@overload
def kernel(function: F, /) -> F: ...
@overload
def kernel(**flags: Any) -> Callable[[F], F]: ...
def kernel(function: Any = None, /, allocates: bool = True, **flags: Any) -> Any:
    """`@kernel` or `@kernel(fastmath=True)`: the function, compiled with flags of numba.njit when it is first called.

    One that makes no arrays says `allocates=False`: it then counts no references, which costs an inner loop dear.
    """
    if function is None:
        return functools.partial(kernel, allocates=allocates, **flags)
    compiled = numba.njit(**{"nogil": True, "_nrt": allocates, **flags})(function)
    if function.__module__.startswith("hcm_scale."):  # the sources that name the folder
        compiled._cache = _Cache(function)
    return compiled


class _Locator:
    """What numba asks about the cache of a function; its own locators refuse folders that cannot be written."""

    def __init__(self, function: Any, file: str) -> None:
        self._module, self._py_file = function.__module__, file

    from_function = classmethod(lambda cls, function, file: cls(function, file))

    def get_cache_path(self) -> str:
        return str(kernel_folder() or PACKAGE / "missing")

    def ensure_cache_path(self) -> None:
        """The folder is there."""

    def get_source_stamp(self) -> str:
        return ""  # the name of the folder says it

    def get_disambiguator(self) -> str:
        return self._module


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _CacheFiles

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code for these types, or None; numba then compiles and saves it."""
        compiled = None
        try:
            rtsys.initialize(target_context)  # all that compiled code needs; numba would load its compiler's parts too
            with self._guard_against_spurious_io_errors():
                compiled = self._load_overload(signature, target_context)
            if compiled is not None and compiled.signature.args != normalize_signature(signature)[0]:
                raise ValueError("it is for other types")
        except Exception as error:  # whatever pickle or the linker raises at a damaged file
            compiled = None
            log.info("a compiled kernel cannot be read, and is compiled again: %s", error)
            with contextlib.suppress(OSError):
                self.flush()
        if compiled is None:
            _log_compiling()
        return compiled

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keeps the compiled code, where that is possible."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, compiled)


@functools.cache
def _log_compiling() -> None:
    folder = kernel_folder()
    kept = "" if folder and PACKAGE in folder.parents else f"; they are kept in {folder}"
    not_kept = "; they cannot be kept, as no folder can be written: set NUMBA_CACHE_DIR to one that can"
    log.info("compiling kernels, once: up to a minute%s", kept if folder else not_kept)


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Starts loading the cache line that holds element `index` of a contiguous array, counted in one dimension."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])  # to read, keep near, a data line
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


def _fetch_add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Adds `value` to element `index` of a contiguous array of integers and returns what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        added = context.cast(builder, arguments[2], signature.args[2], signature.return_type)
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), added, "monotonic")

    if not (isinstance(array, types.Array) and array.layout == "C" and isinstance(array.dtype, types.Integer)):
        raise TypeError(f"fetch_add: {array} is not a contiguous array of integers")
    return array.dtype(array, index, value), generate


fetch_add: Any = intrinsic(_fetch_add)

TILE_ROWS = TILE_DEPTH = 4  # rows of x, and of the weights that are read together
TILE_COLUMNS = 64 if get_host_cpu_features().get("avx512f") else 16  # sums of four such rows fit sixteen registers
NARROW_COLUMNS = 4


def _tile(num_columns: int, relu: bool) -> Any:
    """The instruction that computes four rows and so many columns of a product."""
    f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    wide, deep = ir.VectorType(f32, num_columns), ir.VectorType(f32, TILE_DEPTH)
    zeros, everywhere = ir.Constant(wide, [0.0] * num_columns), ir.VectorType(i32, num_columns)

    def affine(typing_context: Any, x: Any, row: Any, weight: Any, bias: Any, column: Any, out: Any) -> Any:
        """A tile of out = x weight + bias, its rows from `row` and columns from `column` on; all contiguous float32.

        Nothing is checked. The rows of weight are a multiple of TILE_DEPTH, its columns one of the tile's.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = [context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 2, 3, 5)]
            (x, weight, bias, out), first, column = arrays, arguments[1], arguments[4]
            depth, width = (builder.extract_value(weight.shape, k) for k in (0, 1))
            rows = [builder.add(first, i64(i)) for i in range(TILE_ROWS)]
            name, kind = f"llvm.fmuladd.v{num_columns}f32", ir.FunctionType(wide, [wide] * 3)  # fused where it can be
            add_product = cgutils.get_or_insert_function(builder.module, kind, name)
            sums = [cgutils.alloca_once_value(builder, zeros) for _ in rows]

            def pointer(array: Any, row: Any, width: Any, offset: Any, kind: Any) -> Any:
                start = builder.gep(array.data, [builder.add(builder.mul(row, width), offset)])
                return builder.bitcast(start, kind.as_pointer())

            with cgutils.for_range(builder, builder.udiv(depth, i64(TILE_DEPTH))) as loop:
                begin = builder.mul(loop.index, i64(TILE_DEPTH))
                read = [builder.load(pointer(x, row, depth, begin, deep), align=4) for row in rows]
                for k in range(TILE_DEPTH):
                    line = builder.load(pointer(weight, builder.add(begin, i64(k)), width, column, wide), align=4)
                    for loaded, total in zip(read, sums, strict=True):
                        lane = ir.Constant(everywhere, [k] * num_columns)
                        factor = builder.shuffle_vector(loaded, ir.Constant(deep, ir.Undefined), lane)
                        builder.store(builder.call(add_product, [factor, line, builder.load(total)]), total)
            offset = builder.load(pointer(bias, i64(0), width, column, wide), align=4)
            for row, total in zip(rows, sums, strict=True):
                made = builder.fadd(builder.load(total), offset)
                if relu:  # a NaN stays one
                    made = builder.select(builder.fcmp_ordered("<", made, zeros), zeros, made)
                builder.store(made, pointer(out, row, width, column, wide), align=4)
            return context.get_dummy_value()

        return types.void(x, row, weight, bias, column, out), generate

    return intrinsic(affine)


relu_tile: Any = _tile(TILE_COLUMNS, relu=True)  # of relu(x weight + bias)
narrow_tile: Any = _tile(NARROW_COLUMNS, relu=False)

trailing_zeros: Any = _trailing_zeros
tuple_setitem: Any = _tuple_setitem  # on a tuple in registers: no copy is made
