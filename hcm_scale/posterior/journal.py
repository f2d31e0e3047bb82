"""What a run says while it works: one live line, one JSON line per reading, TensorBoard where it is asked for.

`metrics.jsonl` holds one object a line: step, epoch, loss, accuracy (per class), num_pairs, step_size,
pairs_per_second, rss_bytes; other lines, such as a trend, carry their own names beside `step`. A resumed run first
drops the lines after the step it resumes from, so that every step is logged once.
"""

import dataclasses
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any, Self

import psutil

from hcm_scale.base import files
from hcm_scale.base.progress import bar
from hcm_scale.posterior.meter import Metrics

METRICS = "metrics.jsonl"


class Journal:
    """Holds the metrics file, the live line and the TensorBoard writer of one run; close it, or use `with`."""

    def __init__(self, folder: Path, num_steps: int, num_done: int = 0, *, tensorboard: bool = False) -> None:
        keep_until(folder / METRICS, num_done)
        self._lines = open(folder / METRICS, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
        self._bar = bar(num_steps, "step", folder.name, initial=num_done)
        self._board = _board(folder / "tensorboard", num_done) if tensorboard else None
        self._last_told_at = time.perf_counter()

    def tell(self, metrics: Metrics) -> None:
        """One reading, to all three."""
        now = time.perf_counter()
        speed, self._last_told_at = metrics.num_pairs / (now - self._last_told_at), now
        rss_bytes = psutil.Process().memory_info().rss
        self.write({**dataclasses.asdict(metrics), "pairs_per_second": speed, "rss_bytes": rss_bytes})
        self._bar.set_postfix(
            loss=f"{metrics.loss:.3f}",
            accuracy="/".join(f"{value:.2f}" for value in metrics.accuracy),
            pairs=f"{speed:,.0f}/s",
            eps=f"{metrics.step_size:.2g}",
            memory=f"{rss_bytes / 2**30:.1f}GiB",
            refresh=False,
        )
        self._bar.update(metrics.step - self._bar.n)

    def write(self, line: dict[str, Any]) -> None:
        """One JSON line; numbers go to TensorBoard too. JSON has no NaN: it is written as null."""
        plain = {name: _plain(value) for name, value in line.items()}
        self._lines.write(json.dumps(plain) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in plain.items():
                if isinstance(value, float | int) and name != "step":
                    self._board.add_scalar(name, value, plain["step"])

    def close(self) -> None:
        self._lines.close()
        self._bar.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def keep_until(path: Path, num_done: int) -> None:
    """Drops the lines of steps after `num_done`, and those that cannot be read, such as one that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= num_done:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    files.write_bytes(path, b"".join(kept))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _board(folder: Path, num_done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("tensorboard=true is ignored: pip install tensorboard", stacklevel=3)
        return None
    return SummaryWriter(str(folder), purge_step=num_done + 1)
