"""How long each kernel that `hcm-scale warm` compiles takes, the slowest last.

    python -m bench.compiling

Everything is compiled anew, into a temporary folder. Functions that are compiled for one kernel alone count as part of
it. Seconds are those of this thread, so that other processes disturb them little.
"""

import os
import tempfile
import time
from collections import Counter
from typing import Any

from numba.core import event


class Stopwatch(event.Listener):
    """Seconds by kernel; a kernel that is compiled while another is counts as part of that one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._began: list[float] = []

    def on_start(self, _event: Any) -> None:
        self._began.append(time.thread_time())

    def on_end(self, event: Any) -> None:
        spent = time.thread_time() - self._began.pop()
        if not self._began:
            function = event.data["dispatcher"].py_func
            self.seconds[f"{function.__module__}.{function.__qualname__}"] += spent


def main() -> None:
    """Compiles the kernels of a default run and prints their seconds."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["NUMBA_CACHE_DIR"] = scratch
        from hcm_scale.run.warm import warm  # its kernels look at the variable

        with event.install_listener("numba:compile", watch):
            warm()
    for name, seconds in sorted(watch.seconds.items(), key=lambda item: item[1]):
        print(f"{seconds:5.1f} s  {name}")
    print(f"{len(watch.seconds)} kernels, {watch.seconds.total():.0f} s")


if __name__ == "__main__":
    main()
