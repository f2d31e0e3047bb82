"""What a person sees while work goes on: one live line, silent when nobody watches, and what a stage cost."""

import resource
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_draws = True


def bar(total: int | None, unit: str, label: str, **options: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr, drawn only on a terminal, and not after `be_quiet`."""
    quiet = not (_draws and sys.stderr.isatty())
    return tqdm(total=total, unit=unit, desc=label, disable=quiet, dynamic_ncols=True, **options)


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
