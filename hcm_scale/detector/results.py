"""What a fitted detector tells: scores, labels, probabilities, explanations, tables, under the names people know.

PyGOD's (`decision_score_`, `label_`, `predict`, `decision_function`) are torch tensors; scikit-learn's and PyOD's
(`decision_scores_`, `labels_`, `predict_proba`) are numpy arrays. All are in node order.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, erf

from hcm_scale.detector.parameters import MISSING, naming_python_options
from hcm_scale.report import wording
from hcm_scale.report.explain import Explanation
from hcm_scale.run import pipeline

# ----------------------------------------------------------------------------
# Why a node is where it is, as one thing that prints as text and holds the numbers.


@dataclass(frozen=True, repr=False)
class Explained:
    """`text` is what `print` shows; `data` has the same in numbers: rank, scores, reasons, neighbors, differences."""

    text: str
    data: dict[str, Any]

    @staticmethod
    def of(explanation: Explanation) -> "Explained":
        return Explained(wording.explanation_text(explanation), explanation.as_dict())

    def __repr__(self) -> str:
        return self.text

    def __contains__(self, words: str) -> bool:
        return words in self.text


# ----------------------------------------------------------------------------
# What a finished run found, in node order: scores, p, labels, and numbers made from them as PyGOD makes its own.
#
# Without `contamination` the labels are the flags of the false-discovery rate (`score/threshold.py`), which come from
# p; with it they are the nodes whose score lies above the threshold that leaves this share above it.


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


class NotFitted(ValueError, AttributeError):
    """Asked of a detector that has not been fitted."""


class Results:
    """Everything that is read off a finished run."""

    _fitted: Fitted | None

    @property
    def table(self) -> pa.Table:
        """One row a node, strangest first; the columns of scores.parquet."""
        return self._found().table

    @property
    def scores(self) -> NDArray[np.float64]:
        """The score of every node, (n,), in node order; larger is stranger."""
        return self._found().scores

    @property
    def ids_(self) -> NDArray[Any]:
        """The user's own name of each node, (n,), in node order."""
        return self._found().ids

    @property
    def p_values_(self) -> NDArray[np.float64]:
        """The chance of a usual node to have as much evidence, (n,), in node order."""
        return self._found().column("p")

    @property
    def columns_(self) -> dict[str, str]:
        """The columns of the tables that were used, said or guessed; empty where there were no tables."""
        return self._found().columns

    @property
    def decision_score_(self) -> torch.Tensor:
        """`scores` as PyGOD has it."""
        return torch.from_numpy(self._found().scores)

    @property
    def label_(self) -> torch.Tensor:
        """1 for nodes that stand out, (n,), as PyGOD has it."""
        return torch.from_numpy(self._found().labels)

    @property
    def threshold_(self) -> float:
        """The score above which nodes are labelled; without a contamination, above which as many lie as are flagged."""
        return self._found().threshold

    @property
    def decision_scores_(self) -> NDArray[np.float64]:
        """`scores` as PyOD has it."""
        return self._found().scores

    @property
    def labels_(self) -> NDArray[np.int64]:
        """`label_` as PyOD has it."""
        return self._found().labels

    def _found(self) -> Fitted:
        if self._fitted is None:
            raise NotFitted("fit(data) comes first")
        return self._fitted

    def decision_function(self, data: Any = None, label: Any = None) -> torch.Tensor:
        """The scores of the fitted data, or of others by what was learned (`apply`): (n,), larger being stranger."""
        return torch.from_numpy(self._scored(data).scores)

    def predict(
        self,
        data: Any = None,
        label: Any = None,
        return_pred: bool = True,
        return_score: bool = False,
        return_prob: bool = False,
        prob_method: str = "linear",
        return_conf: bool = False,
        *,
        return_confidence: bool = False,
        return_emb: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Labels of the fitted nodes, 1 for those that stand out, and what else is asked for, in PyGOD's order.

        Other data are scored by what was learned from the fitted ones (`apply`).

        return_score:  the scores;  return_conf, or PyOD's return_confidence:  how sure each label is
        return_prob:   a number from 0 to 1 that rises with the score, by `prob_method`: linear, unify (both as PyGOD
                       has them), or p, one less the chance of a usual node to have as much evidence
        """
        if return_emb:
            raise ValueError(f"return_emb=True is not legal: {MISSING['emb']}")
        found = self._scored(data)
        asked = [
            (return_pred, lambda: found.labels),
            (return_score, lambda: found.scores),
            (return_prob, lambda: found.probabilities(prob_method)),
            (return_conf or return_confidence, found.confidences),
        ]
        parts = tuple(torch.from_numpy(make()) for wanted, make in asked if wanted)
        return parts[0] if len(parts) == 1 else parts

    def predict_proba(
        self, data: Any = None, method: str = "linear", return_confidence: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(n, 2): how likely each node is to be usual and to be an anomaly; `method` as in `predict`."""
        found = self._scored(data)
        odd = found.probabilities(method)
        both = np.stack([1.0 - odd, odd], axis=1)
        return (both, found.confidences()) if return_confidence else both

    def predict_confidence(self, data: Any = None) -> NDArray[np.float64]:
        """How sure each label is, (n,), from 0 to 1."""
        return self._scored(data).confidences()

    @naming_python_options()
    def explain(self, node: Any) -> Explained:
        """Why a node, named by the user's own id, is where it is; prints as text, and `data` has the numbers."""
        named = node.item() if hasattr(node, "item") else node  # of torch and numpy
        (found,) = pipeline.explanations(self._found().folder, [str(named)])
        return Explained.of(found)

    def strangest(self, count: int = 10) -> list[dict[str, Any]]:
        """The first rows of the ranked table."""
        return self.table.slice(0, count).to_pylist()

    def to_pandas(self) -> Any:
        """The ranked table as a pandas DataFrame."""
        try:
            return self.table.to_pandas()
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'hcm-scale[frames]'") from error

    def _repr_html_(self) -> str | None:
        return None if self._fitted is None else pipeline.show(self._fitted.folder)

    if not TYPE_CHECKING:  # a checker would believe that every name is there

        def __getattr__(self, name: str) -> Any:
            """Python asks here for what is not there: names that PyGOD, PyOD and scikit-learn have are told why."""
            if name in MISSING:
                raise AttributeError(f"HCM has no {name}: {MISSING[name]}")
            return self.__getattribute__(name)

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # which asks for them

        return Tags(estimator_type="outlier_detector", target_tags=TargetTags(required=False))

    def _scored(self, data: Any) -> Fitted:
        """What was found of these data; None are those of the fit."""
        raise NotImplementedError
