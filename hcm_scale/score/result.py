"""A finished folder of scores, as the score stage (`stages/score.py`) leaves it and others read it, without torch."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hcm_scale.base import files
from hcm_scale.score import table
from hcm_scale.score.calibration import Values, scale_from_bytes
from hcm_scale.score.edges import EdgeHops, open_hops
from hcm_scale.score.kinds.inputs import STORED

KIND = "hcm_scale scores"
FORMAT = 21
SCALE_FILE = "scale.safetensors"
TYPES: dict[str, Any] = {
    "num_samples": int,
    "rank_by": str,
    "metrics": dict[str, Any] | None,
    "fdr": float,
    "num_flagged": int,
    "shares": dict[str, float],
    "precision": tuple[tuple[int, float, float, float], ...],
    "stability": float | None,
    "files": dict[str, str],
}
_IN_MANIFEST = ("num_samples", "rank_by", "metrics", "fdr", "num_flagged", "stability")


@dataclass(frozen=True)
class ScoreResult:
    """A finished folder of scores. `metrics` maps every ranking to numbers, or is None without labels."""

    folder: Path
    num_samples: int
    rank_by: str
    metrics: dict[str, Any] | None
    fdr: float
    num_flagged: int  # nodes that stand out at this false-discovery rate
    stability: float | None  # share of the first nodes that stay first by either encoder; None where there is one

    def table(self) -> pa.Table:
        """The ranked table; FolderError where it is none that this stage writes."""
        path = self.folder / table.FILE
        ranked = table.read_scores(path)
        table.check_ranked(path, ranked, ranked.num_rows, ("p", "flagged"))
        return ranked

    def edges(self) -> EdgeHops:
        """Mean and variance of every edge's predicted hop, as they are stored; NaN where an edge was not scored."""
        return EdgeHops(*map(np.asarray, open_hops(self.folder, None)))


def open_scores(folder: Path | str) -> ScoreResult:
    """A finished folder; FolderError where it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT, types=TYPES)
    return ScoreResult(folder, **{name: body[name] for name in _IN_MANIFEST})


def open_scale(folder: Path, ranked: Any) -> dict[str, Values]:
    """What the scores of a finished folder were measured by; `ranked` is its table."""
    legal = {name: is_legal for kind in table.kinds_of(ranked).values() for name, is_legal in kind.stored.items()}
    return files.read_tensors(folder / SCALE_FILE, partial(scale_from_bytes, legal=STORED | legal))
