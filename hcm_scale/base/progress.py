"""What a person sees while work goes on: one live line, silent when nobody watches, and what a stage cost.

`shown` says for a while whether bars are drawn and who is told of each step; without it they are drawn on a terminal.
"""

import contextlib
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Step(NamedTuple):
    """How far a piece of work is: its name, how much of `total` is done (None: nobody knows), and of what."""

    label: str
    done: int
    total: int | None
    unit: str


Watcher = Callable[[Step], None]
_draws: bool | None = None  # None: on a terminal
_watcher: Watcher | None = None
_telling = threading.Lock()


class Bar(tqdm):
    """A tqdm bar that tells the watcher of every update, drawn or not."""

    def __init__(self, label: str, total: int | None, unit: str, **options: Any) -> None:
        self._step = Step(label, options.get("initial", 0), total, unit)
        super().__init__(total=total, unit=unit, desc=label, **options)

    def update(self, n: float | None = 1) -> bool | None:
        self._step = self._step._replace(done=self._step.done + int(n or 0))
        tell(self._step)
        return super().update(n)


def bar(total: int | None, unit: str, label: str, **options: Any) -> Bar:
    """A bar on stderr, drawn only where somebody watches, and not after `be_quiet`."""
    draws = sys.stderr.isatty() if _draws is None else _draws
    return Bar(label, total, unit, disable=not draws, dynamic_ncols=True, **options)


def tell(step: Step) -> None:
    """Tells the watcher, if there is one; one call at a time, whatever the number of threads."""
    if _watcher is not None:
        with _telling:
            _watcher(step)


def is_watched() -> bool:
    """Whether a person sees stderr as it is written: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextlib.contextmanager
def shown(draws: bool, watcher: Watcher | None = None) -> Iterator[None]:
    """Draws bars or does not, and tells `watcher` of every step, until the end of the block."""
    global _draws, _watcher
    before = _draws, _watcher
    _draws, _watcher = draws, watcher
    try:
        yield
    finally:
        _draws, _watcher = before


def be_quiet() -> None:
    """From now on this process draws no bars: another one on the same terminal does."""
    global _draws
    _draws = False


def peak_rss_bytes() -> int:
    """The highest resident memory of this process since `reset_peak_rss`, or since its start where none is kept."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def reset_peak_rss() -> None:
    """Forgets the highest resident memory so far; does nothing where the system has no such switch."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return
