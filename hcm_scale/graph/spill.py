"""An external sort of edges: any number of rows in, sorted distinct keys out, in the memory of two runs.

`Spill.add` packs edges into keys (see kernels) and fills a buffer of `run_keys`; a full buffer is sorted, freed of
repeats and written as one run. `Spill.merged` cuts the key space into ranges that hold at most about two runs' worth of
keys in total, whatever the skew, and yields each range sorted and distinct. Memory: 16 bytes times `run_keys`; disk: 8
bytes per edge, in `folder`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph import kernels

RUN_KEYS = (
    1 << 21
)  # 16 MiB of keys: long enough runs for a billion edges in 500 files, short enough for a small machine
Keys = NDArray[np.uint64]


class Spill:
    """Holds the sorted runs of one graph's edges while it is being read."""

    def __init__(self, folder: Path, directed: bool, run_keys: int = RUN_KEYS):
        self.num_rows = 0
        self.num_loops = 0
        self._folder, self._directed = folder, directed
        self._buffer: Keys = np.empty(run_keys, np.uint64)
        self._used = 0
        self._runs: list[Path] = []

    def add(self, u: NDArray[np.int64], v: NDArray[np.int64]) -> None:
        """Takes rows (u[i], v[i]) of valid node numbers; self loops are counted and dropped."""
        start = 0
        while start < len(u):
            if self._used == len(self._buffer):
                self._write_run()
            stop = min(len(u), start + len(self._buffer) - self._used)
            kept = kernels.pack_edges(u[start:stop], v[start:stop], self._directed, self._buffer[self._used :])
            self._used += kept
            self.num_rows += stop - start
            self.num_loops += stop - start - kept
            start = stop

    def _write_run(self) -> None:
        keys = self._buffer[: self._used]
        keys.sort()
        path = self._folder / f"run-{len(self._runs):05d}"
        keys[: kernels.drop_repeats(keys)].tofile(path)
        self._runs.append(path)
        self._used = 0

    def merged(self) -> Iterator[Keys]:
        """Yields the distinct keys of all runs in ascending order, an edge and its reverse in the same block."""
        block_keys = len(self._buffer)
        if self._used:
            self._write_run()
        self._buffer = np.empty(0, np.uint64)
        if self._runs:
            yield from _merge(self._runs, block_keys)


def _merge(runs: list[Path], block_keys: int) -> Iterator[Keys]:
    """Yields the sorted distinct keys of sorted files, range by range."""
    mapped = [np.memmap(run, np.uint64, "r") for run in runs]
    bounds = _bounds(mapped, block_keys)
    cuts = [np.concatenate([[0], np.searchsorted(run, bounds), [len(run)]]) for run in mapped]
    del mapped  # from here on plain reads: a mapped page would count as our memory
    for part in range(len(bounds) + 1):
        keys = np.empty(sum(int(cut[part + 1] - cut[part]) for cut in cuts), np.uint64)
        filled = 0
        for run, cut in zip(runs, cuts, strict=True):
            filled += _read_into(run, int(cut[part]), keys[filled : filled + int(cut[part + 1] - cut[part])])
        keys.sort()
        yield keys[: kernels.drop_repeats(keys)]


def _bounds(runs: list[Any], block_keys: int) -> Keys:
    """Ascending keys that cut sorted runs into ranges of at most about `2 * block_keys` keys in total."""
    step = max(1, block_keys // len(runs))
    samples = np.sort(np.concatenate([np.asarray(run[::step]) for run in runs]))
    return np.unique(
        samples[len(runs) :: len(runs)] & ~np.uint64(1)
    )  # an even key: never between an edge and its reverse


def _read_into(path: Path, start: int, out: Keys) -> int:
    """Fills `out` with the keys of a file from position `start`; returns how many."""
    with open(path, "rb") as stream:
        stream.seek(8 * start)
        if stream.readinto(out.data.cast("B")) != out.nbytes:
            raise OSError(f"{path} is shorter than what was written to it: is the disk full?")
    return len(out)
