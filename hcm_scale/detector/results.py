"""What a fitted detector tells: scores, labels, probabilities, explanations, tables, under the names people know.

PyGOD's (`decision_score_`, `label_`, `predict`, `decision_function`) are torch tensors; scikit-learn's and PyOD's
(`decision_scores_`, `labels_`, `predict_proba`) are numpy arrays. All are in node order.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from hcm_scale import pipeline
from hcm_scale.detector.explained import Explained
from hcm_scale.detector.fitted import Fitted
from hcm_scale.detector.peers import MISSING
from hcm_scale.detector.spoken import in_python


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

    @in_python()
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
