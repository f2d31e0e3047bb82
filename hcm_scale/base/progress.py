"""What a person sees while work goes on: one live line on a terminal, else one line in the log every half minute.

`shown` says for a while whether bars are drawn and who is told of each step. Also what a stage cost.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from tqdm import tqdm

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_LINE_EVERY_SECONDS = 30.0


class Step(NamedTuple):
    """How far a piece of work is: its name, how much of `total` is done (None: nobody knows), and of what."""

    label: str
    done: int
    total: int | None
    unit: str


Watcher = Callable[[Step], None]
_as_lines = False
_draws: bool | None = None  # None: on a terminal, and elsewhere as lines in the log
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


class Lines:
    """What a bar does, as lines in the log."""

    def __init__(self, total: int | None, unit: str, label: str, initial: int = 0) -> None:
        self.n = self._first = initial
        self._total, self._unit, self._label, self._more = total, unit, label, ""
        self._started = self._told = time.monotonic()

    def update(self, num_more: int = 1) -> None:
        self.n += num_more
        tell(Step(self._label, self.n, self._total, self._unit))
        if time.monotonic() - self._told >= _LINE_EVERY_SECONDS:
            self._told = time.monotonic()
            log.info("%s", self)

    def set_postfix(self, refresh: bool = True, **numbers: object) -> None:
        self._more = "".join(f"   {name}={value}" for name, value in numbers.items())

    def __str__(self) -> str:
        seconds = time.monotonic() - self._started
        done, left = f"{self.n:,}", ""
        if self._total is not None:
            done += f" of {self._total:,}"
            left = f", about {seconds * (self._total - self.n) / max(1, self.n - self._first):,.0f} s left"
        return f"{self._label:<20} {done} {self._unit}s in {seconds:,.0f} s{left}{self._more}"

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def bar(total: int | None, unit: str, label: str, **options: Any) -> Bar | Lines:
    """A tqdm bar as wide as the terminal, or lines where stderr is none; nothing after `be_quiet`.

    A notebook has no cursor that goes up: beside a bar that is drawn there, another one is lines.
    """
    is_terminal = sys.stderr.isatty()
    is_second = not is_terminal and any(isinstance(other, Bar) for other in list(Bar._instances))
    if (_draws is None and (_as_lines or not is_terminal)) or (_draws and is_second):
        return Lines(total, unit, label, options.get("initial", 0))
    return Bar(label, total, unit, disable=_draws is False, dynamic_ncols=True, **options)


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


def draw_no_bars() -> None:
    """From now on progress is lines in the log, on a terminal too."""
    global _as_lines
    _as_lines = True


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
    if resource is None:
        import psutil

        return psutil.Process().memory_info().peak_wset  # as Windows calls it
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def reset_peak_rss() -> None:
    """Forgets the highest resident memory so far; does nothing where the system has no such switch."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return
