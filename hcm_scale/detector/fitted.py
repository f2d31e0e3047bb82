"""What a finished run found, in node order: scores, p, labels, and numbers made from them as PyGOD makes its own.

Without `contamination` the labels are the flags of the false-discovery rate (`score/threshold.py`), which come from p;
with it they are the nodes whose score lies above the threshold that leaves this share above it.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import bdtr, erf

Values = NDArray[np.float64]
METHODS = ("linear", "unify", "p")


class Training(NamedTuple):
    """The scores of the nodes that a detector was fitted to, and how many of them it labelled."""

    scores: Values
    num_odd: int


@dataclass(frozen=True, eq=False)
class Fitted:
    """A finished run: its folder, its ranked table, what it was made from, and which columns of tables were used."""

    folder: Path
    table: pa.Table
    fingerprint: str
    columns: dict[str, str]
    contamination: float | None = None
    bound: float | None = None  # the threshold of another run, by which this one was scored
    trained: Training | None = None  # the scores of that run

    def column(self, name: str) -> NDArray[Any]:
        """A column of the table in node order."""
        node = self.table["node"].to_numpy()
        values = self.table[name].to_numpy()
        out = np.empty_like(values)
        out[node] = values
        return out

    @cached_property
    def scores(self) -> Values:
        """What ranks the table, (n,); larger is stranger."""
        return self.column(self.table.schema.metadata[b"rank_by"].decode())

    @cached_property
    def ids(self) -> NDArray[Any]:
        """The user's own name of each node, (n,)."""
        order = np.argsort(self.table["node"].to_numpy())
        return self.table["id"].take(pa.array(order)).to_numpy()

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """1 for nodes that stand out, (n,)."""
        odd = self.column("flagged") if self.contamination is None else self.scores > self.threshold
        return odd.astype(np.int64)

    @cached_property
    def threshold(self) -> float:
        """The score above which nodes are labelled; without a contamination, above which as many lie as are flagged."""
        if self.bound is not None:
            return self.bound
        if self.contamination is not None:
            return float(np.percentile(self.scores, 100 * (1 - self.contamination)))
        return threshold_of(self.scores, int(self.labels.sum()))

    @cached_property
    def training(self) -> Training:
        """What scores are compared with: those of the run that was trained, which is this one where it trained."""
        if self.trained is not None:
            return self.trained
        share = self.contamination
        return Training(self.scores, int(self.labels.sum()) if share is None else int(len(self.scores) * share))

    def probabilities(self, method: str) -> Values:
        """How likely each node is to be an anomaly, (n,), by one of `METHODS`."""
        scores, before = self.scores, self.training.scores
        if method == "linear":
            spread = float(np.ptp(before))
            return np.clip((scores - before.min()) / spread, 0, 1) if spread else np.zeros_like(scores)
        if method == "unify":
            spread = float(before.std(ddof=1)) if len(before) > 1 else 0.0
            return np.clip(erf((scores - before.mean()) / (spread * np.sqrt(2))), 0, 1) if spread else 0 * scores
        if method == "p":
            return 1.0 - self.column("p")
        raise ValueError(f"prob_method={method!r} is not known; legal are {', '.join(METHODS)}")

    def confidences(self) -> Values:
        """How sure it is that each label would be the same from other nodes of the kind, (n,): Perini's way, as PyGOD.

        The chance that a node is among the odd ones is that of a binomial draw, from its place among the scores of the
        training.
        """
        before, num_odd = self.training
        num_nodes = len(before)
        num_below = np.searchsorted(np.sort(before), self.scores, side="right")
        odd = 1.0 - bdtr(num_nodes - num_odd, num_nodes, (1 + num_below) / (2 + num_nodes))
        return np.where(self.labels == 1, odd, 1.0 - odd)


def threshold_of(scores: Values, num_above: int) -> float:
    """A score that has so many above it, if no two scores are equal.

    >>> threshold_of(np.array([3.0, 1.0, 2.0]), 1), threshold_of(np.array([3.0, 1.0, 2.0]), 0)
    (2.0, 3.0)
    """
    if num_above == len(scores):
        return float(np.nextafter(scores.min(), -np.inf))
    return float(np.partition(scores, -1 - num_above)[-1 - num_above])
