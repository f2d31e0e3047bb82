"""A finished folder of scores, as `score.py` writes it, and what another graph's scores are measured by."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hcm_scale.base import files
from hcm_scale.base.mapped import open_npy
from hcm_scale.base.tensors import read_tensors
from hcm_scale.score import nodes, table
from hcm_scale.score.calibration import Scale, from_bytes
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE, EdgeHops

KIND = "hcm_scale scores"
FORMAT = 7
SCALE_FILE = "scale.safetensors"
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
        """The ranked table, most anomalous node first."""
        return table.read_scores(self.folder / table.FILE)

    def edges(self) -> EdgeHops:
        """Mean and variance of every edge's predicted hop, as memory maps; NaN where an edge was not scored."""
        mean, var = (open_npy(self.folder / name) for name in (MEAN_FILE, VAR_FILE))
        return EdgeHops(mean, var)


def open_scores(folder: Path | str) -> ScoreResult:
    """A finished folder; FolderError where it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT)
    return ScoreResult(folder, **{name: body[name] for name in _IN_MANIFEST})


class Reference(NamedTuple):
    """The scores of another graph, and what they were measured by."""

    nodes: nodes.NodeScores
    scale: Scale


def open_reference(folder: Path) -> Reference:
    """A finished folder of scores, to measure those of another graph by."""
    scale = read_tensors(folder / SCALE_FILE, from_bytes)
    path, ranked = folder / table.FILE, open_scores(folder).table()
    table.check_ranked(path, ranked, ranked.num_rows, table.NUMBERS)
    try:
        return Reference(table.node_scores(ranked), scale)
    except (LookupError, ValueError, AttributeError) as error:  # of flags and ranks by kind
        raise files.FolderError(f"{path} is damaged: {error}") from error
