"""A process that another one started, and that has no business without it."""

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# ----------------------------------------------------------------------------
# Signals that ask a run to stop: SIGINT, SIGTERM, SIGHUP and SIGUSR1, which SLURM sends before a job's time is over.
#
# A signal raises `Stopped` wherever the main thread is. Inside `held`, where work may be torn only between its steps,
# it waits for the next `check_asked`, in whatever thread that comes; a second signal does not wait. Python answers a
# signal when the main thread returns from compiled code, so kernels are called on parts of the work (`threads.py`).


_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # Windows has the first two
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
_lock = threading.RLock()  # the handler may come while its own thread holds it
_num_held = 0
_asked: int | None = None


class Stopped(KeyboardInterrupt):
    """A signal came."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class StoppedBetweenSteps(Stopped):
    """A signal came, and work has come to a place where it can be put down."""


def handled_signals() -> list[str]:
    """The names of those signals that are not ignored, as SIGHUP is under nohup."""
    return [signum.name for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]


def install_handlers() -> None:
    """From now on signals stop this process in order; one that is ignored stays so. Only the main thread may ask."""
    if threading.current_thread() is threading.main_thread():
        for name in handled_signals():
            signal.signal(signal.Signals[name], _hear)


@contextlib.contextmanager
def handlers_restored() -> Iterator[None]:
    """Puts the handlers back that stand now, whatever a library puts in their place."""
    kept = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in kept.items():
                signal.signal(signum, handler)


def use_default_handlers() -> None:
    """From now on a signal ends this process where it is: there is nothing left to put in order."""
    for signum in SIGNALS:
        if signal.getsignal(signum) is _hear:
            signal.signal(signum, signal.SIG_DFL)


def _hear(signum: int, frame: FrameType | None) -> None:
    global _asked
    is_second, _asked = _asked is not None, signum
    if is_second or _num_held == 0:
        raise Stopped(signum)


def is_stop_requested() -> bool:
    """Whether a signal has come."""
    return _asked is not None


def check_stop_requested() -> None:
    """Raises StoppedAtRest where a signal has come; also where a library swallowed what it raised."""
    if _asked is not None:
        raise StoppedBetweenSteps(_asked)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Signals wait for `check_asked`, at the latest for the end of this block."""
    global _num_held
    with _lock:
        _num_held += 1
    try:
        yield
    finally:
        with _lock:
            _num_held -= 1
    check_stop_requested()


def end_with_parent() -> None:
    """Asks Linux to end this process when the one that started it is gone, lest it work on unwatched."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
