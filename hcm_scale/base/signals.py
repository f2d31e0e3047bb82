"""Signals that ask a run to stop: SIGINT, SIGTERM, SIGHUP, and SIGUSR1, which SLURM sends before a job's time is over.

A signal raises `Stopped` wherever the main thread is. Within `signals_deferred`, where work may be interrupted only
between its steps, it waits for the next `check_stop_requested`, in whatever thread that comes; a second signal does not
wait. Python answers a signal when the main thread returns from compiled code, so kernels are called on parts of the
work (`base/threads.py`).
"""

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # Windows has the first two
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
_lock = threading.RLock()  # the handler may come while its own thread holds it
_num_deferring = 0
_requested: int | None = None


class Stopped(KeyboardInterrupt):
    """A signal came."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class StoppedBetweenSteps(Stopped):
    """A signal came, and work is between two steps."""


def handled_signals() -> list[str]:
    """Names of the signals that are not ignored, as SIGHUP is under nohup."""
    return [signum.name for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]


def install_handlers() -> None:
    """From now on signals raise `Stopped`; ignored ones stay ignored. Does nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        for name in handled_signals():
            signal.signal(signal.Signals[name], _handle)


@contextlib.contextmanager
def handlers_restored() -> Iterator[None]:
    """After the block, restores the handlers of before, whatever a library puts in their place."""
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in before.items():
                signal.signal(signum, handler)


def use_default_handlers() -> None:
    """From now on a signal ends this process at once: there is nothing left to clean up."""
    for signum in SIGNALS:
        if signal.getsignal(signum) is _handle:
            signal.signal(signum, signal.SIG_DFL)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _requested
    is_second, _requested = _requested is not None, signum
    if is_second or _num_deferring == 0:
        raise Stopped(signum)


def is_stop_requested() -> bool:
    return _requested is not None


def check_stop_requested() -> None:
    """Raises StoppedBetweenSteps if a signal has come, even if a library swallowed what it raised."""
    if _requested is not None:
        raise StoppedBetweenSteps(_requested)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Within the block, signals wait for `check_stop_requested`, at the latest for the end of the block."""
    global _num_deferring
    with _lock:
        _num_deferring += 1
    try:
        yield
    finally:
        with _lock:
            _num_deferring -= 1
    check_stop_requested()


def end_with_parent() -> None:
    """Asks Linux to end this process when the one that started it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
