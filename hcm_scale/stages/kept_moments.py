"""The moments of a range of edges after so many parameter samples, kept so that a killed stage can go on from there.

    folder/  mean-00007.npy  m2-00007.npy  progress.json: what they are of, the number of samples, hashes

The index is written after the data, and names it: at every moment there is either the state before or the one after.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcm_scale.base import files
from hcm_scale.base.mapped import open_npy, save_new
from hcm_scale.score.edges import EdgeHops


@dataclass(frozen=True)
class KeptMoments:
    """Mean and sum of squared deviations of the edges that `of` says, in a folder."""

    folder: Path
    of: list[Any]  # JSON-able

    def keep(self, num_samples: int, moments: EdgeHops) -> None:
        """Writes them, then that they are there, and removes those of before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        paths, hashes = self._paths(num_samples), {}
        for path, values in zip(paths, moments, strict=True):
            save_new(path, values)
            files.sync_file(path)
            hashes[path.name] = files.hash_file(path)
        files.write_json(self._index, {"of": self.of, "num_samples": num_samples, "files": hashes})
        for path in {*self.folder.glob("mean-*"), *self.folder.glob("m2-*")} - {*paths}:
            path.unlink()

    def is_whole(self) -> bool:
        """Whether something is kept, of the same edges and samples, as it was written."""
        try:
            index = json.loads(self._index.read_bytes())
            hashes = {name: files.hash_file(files.below(self.folder, name)) for name in index["files"]}
            named = {path.name for path in self._paths(index["num_samples"])}
            return bool(index["of"] == self.of and hashes == index["files"] and {*hashes} == named)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False

    def num_samples(self) -> int:
        """How many samples were seen; 0 where nothing is kept. What is kept has been found whole."""
        return int(json.loads(self._index.read_bytes())["num_samples"]) if self._index.is_file() else 0

    def moments(self) -> EdgeHops:
        """What is kept, mapped."""
        mean, m2 = (open_npy(path) for path in self._paths(self.num_samples()))
        return EdgeHops(mean, m2)

    @property
    def _index(self) -> Path:
        return self.folder / "progress.json"

    def _paths(self, num_samples: int) -> tuple[Path, Path]:
        return self.folder / f"mean-{num_samples:05d}.npy", self.folder / f"m2-{num_samples:05d}.npy"
