"""A process that another one started, and that has no business without it."""

import contextlib
import ctypes
import signal


def end_with_parent() -> None:
    """Asks Linux to end this process when the one that started it is gone, lest it work on unwatched."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
