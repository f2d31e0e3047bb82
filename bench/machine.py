"""What this machine can do at best, measured now: bytes streamed, random cache lines and multiply-adds a second.

All with the threads that the benchmarks use; the best of a few runs, because a bound is a bound.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench import machine_kernels as kernels

LINE_BYTES = 64
_ARRAY_BYTES = {"smoke": 1 << 18, "quick": 1 << 28, "full": 1 << 28}  # far past any cache
_SIDE = {"smoke": 64, "quick": 2048, "full": 2048}


@dataclass(frozen=True)
class Machine:
    """Rates of memory and arithmetic."""

    bytes_per_second: float
    lines_per_second: float
    flops_per_second: float

    def seconds(self, *, streamed: float = 0, lines: float = 0, flops: float = 0) -> float:
        """The least time for so many bytes in order, lines at random, and float32 operations: the slower of the two."""
        memory = streamed / self.bytes_per_second + lines / self.lines_per_second
        return max(memory, flops / self.flops_per_second)


def best_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of a few runs; the first, which compiles, does not count."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(size: str) -> Machine:
    """All three rates."""
    return Machine(stream_rate(_ARRAY_BYTES[size]), line_rate(_ARRAY_BYTES[size]), product_rate(_SIDE[size]))


def stream_rate(array_bytes: int) -> float:
    """Bytes a second of the triad a = b + 3 c, three arrays."""
    a, b, c = (np.ones(array_bytes // 4, np.float32) for _ in range(3))
    return 3 * array_bytes / best_seconds(lambda: kernels.triad(a, b, c), 5)


def line_rate(array_bytes: int) -> float:
    """Rows of one cache line a second, in random order, asked for ahead."""
    table = np.ones((array_bytes // LINE_BYTES, LINE_BYTES // 4), np.float32)
    rows = np.random.default_rng(0).permutation(len(table))
    out = np.empty(256, np.float32)
    return len(rows) / best_seconds(lambda: kernels.touch_rows(table, rows, out), 5)


def product_rate(side: int) -> float:
    """float32 operations a second of a large square product."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / best_seconds(lambda: torch.mm(a, b), 5)
