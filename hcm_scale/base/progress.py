"""One live line for long work, silent when nobody watches (not a terminal, or not the first rank)."""

import os
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm


def bar(total: int | None, unit: str, label: str, **options: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr, drawn only on a terminal and only by rank 0."""
    quiet = not sys.stderr.isatty() or int(os.environ.get("RANK", "0")) > 0
    return tqdm(total=total, unit=unit, desc=label, disable=quiet, dynamic_ncols=True, **options)


def peak_rss_bytes() -> int:
    """The highest resident memory of this process so far."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


@dataclass
class Stopwatch:
    """Wall seconds since it was made."""

    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started
