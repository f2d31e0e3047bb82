"""Death at a chosen moment: a process that kills itself before the n-th change that it makes below a folder."""

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate")


def die_at_change(moment: int, root: Path) -> Iterator[int]:
    """Kills this process before the n-th change that it makes below `root`; 0 is never. Returns the counter."""
    changes = itertools.count(1)

    def hook(event: str, args: tuple) -> None:
        opens = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (opens or event in _CHANGES) and str(root) in str(args[0]) and next(changes) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return changes
