"""Results of a fitted detector: scores, labels, probabilities, explanations and tables, all in node order.

`Fitted` computes them from the ranked table of a finished run; `Results`, a base of `HCM`, offers them under the names
of PyGOD (`decision_score_`, `label_`, `predict`, `decision_function`: torch tensors) and of scikit-learn and PyOD
(`decision_scores_`, `labels_`, `predict_proba`: numpy arrays).

Without `contamination` the labels are the flags at the false-discovery rate `fdr`, which come from p; with it they are
the nodes whose score lies above the threshold that leaves this share above it, as in PyGOD.

`Results.teach` returns `TaughtResults`, the list that verdicts make; the files beside the run are those that
`hcm-scale teach` writes. A detector that was fitted with verdicts, `fit(data, y=...)`, has their scores as its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, erf

from hcm_scale.base import files
from hcm_scale.cases.describe import case_page
from hcm_scale.cases.drawing import drawn
from hcm_scale.cases.tables import case_table
from hcm_scale.detector.inputs import as_edges, events_of
from hcm_scale.detector.parameters import NO_EMBEDDING, NO_SCORE, with_python_names
from hcm_scale.edges.new import open_new_edges
from hcm_scale.ingest.table_files import as_arrow, is_table
from hcm_scale.posterior.loop import METRICS, read_records
from hcm_scale.posterior.samples import Samples
from hcm_scale.report import wording
from hcm_scale.report.page import templates
from hcm_scale.review import teach
from hcm_scale.review.estimate import Share
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.table import ranked_by
from hcm_scale.score.threshold import Precision, expected_precision

Values = NDArray[np.float64]
_TRACE = pa.schema(  # of `posterior.loop.Metrics`
    {"view": pa.string(), "step": pa.int64(), "epoch": pa.int64(), "loss": pa.float64()}
    | {"accuracy": pa.list_(pa.float64()), "num_pairs": pa.int64(), "step_size": pa.float64()}
)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A finished run, the fingerprint of its graph, the columns of its tables, and how its nodes are labelled."""

    run: FinishedRun
    fingerprint: str
    columns: dict[str, str]
    contamination: float | None = None
    taught: teach.Taught | None = None  # by the verdicts that it was fitted with

    def column(self, name: str) -> NDArray[Any]:
        """Column of the table in node order, (n,)."""
        return teach.in_node_order(self.run.table[name], self.run.table["node"].to_numpy())

    @cached_property
    def scores(self) -> Values:
        """The score that ranks the table, (n,), or that the verdicts of the fit have taught; larger is stranger."""
        if self.taught is not None:
            return self.taught.scores
        return self.column(ranked_by(self.run.table))

    @cached_property
    def embedding(self) -> NDArray[np.float32]:
        """The mean over the samples of each encoder, the encoders side by side, (n, encoders x width)."""
        views = self.run.views.items()
        means = [sum(z.numpy() / len(view.samples) for z, _ in self.run.embedded(name)) for name, view in views]
        return np.concatenate(means, axis=1)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """1 for nodes that stand out, else 0, (n,)."""
        labelled = self.column("flagged") if self.contamination is None else self.scores > self.threshold
        return labelled.astype(np.int64)

    @cached_property
    def threshold(self) -> float:
        """The score above which nodes are labelled; without a contamination, above which as many lie as are flagged."""
        if self.contamination is not None:
            return float(np.percentile(self.training.scores, 100 * (1 - self.contamination)))
        num_below = len(self.scores) - int(self.labels.sum())
        if num_below == 0:
            return float(np.nextafter(self.scores.min(), -np.inf))
        return float(np.partition(self.scores, num_below - 1)[num_below - 1])

    @cached_property
    def training(self) -> "Fitted":
        """The run that scores are compared with: the one that was trained, which is this one unless `apply` made it."""
        run = self.run.trained
        if run is None:
            return self
        return replace(self, run=run, taught=None if self.taught is None else run.taught())

    def probabilities(self, method: str) -> Values:
        """How likely each node is to be an anomaly, (n,): PyGOD's linear and unify, or p, 1 - p of the table."""
        scores, before = self.scores, self.training.scores
        if method == "linear":
            spread = float(np.ptp(before))
            return np.clip((scores - before.min()) / spread, 0, 1) if spread else np.zeros_like(scores)
        if method == "unify":
            spread = float(before.std(ddof=1)) if len(before) > 1 else 0.0
            return np.clip(erf((scores - before.mean()) / (spread * np.sqrt(2))), 0, 1) if spread else 0 * scores
        if method == "p":
            return 1.0 - self.column("p")
        raise ValueError(f"prob_method={method!r} is not known; legal are linear, unify, p")

    def confidences(self) -> Values:
        """Probability that each label stays the same if the training nodes are drawn again, (n,), as in PyGOD.

        By Perini's method: the number of training scores below a node is a binomial draw, and the node is labelled if
        it exceeds all but `num_labelled` of them.
        """
        before, share = self.training.scores, self.contamination
        num_nodes = len(before)
        num_labelled = int(self.training.labels.sum()) if share is None else int(num_nodes * share)
        num_below = np.searchsorted(np.sort(before), self.scores, side="right")
        labelled = 1.0 - bdtr(num_nodes - num_labelled, num_nodes, (1 + num_below) / (2 + num_nodes))
        return np.where(self.labels == 1, labelled, 1.0 - labelled)


@dataclass(frozen=True, repr=False)
class Explained:
    """Why a node has its rank: prints as `text`; `data` has the rank, scores, reasons, neighbors and differences."""

    text: str
    data: dict[str, Any]

    def __repr__(self) -> str:
        return self.text

    def __contains__(self, words: str) -> bool:
        return words in self.text


@dataclass(frozen=True, repr=False)
class ExplainedCase(Explained):
    """A case: prints as `text`, draws itself in a notebook; `data` has members, roles, rows, money and dates."""

    def _repr_html_(self) -> str:
        return templates().get_template("notebook_case.html").render(case=self.data)


def verdict_table(verdicts: Any) -> Any:
    """Verdicts in any form that `teach` takes, as a table or the path of one.

    >>> verdict_table({"a": True, 7: "good", "b": None}).to_pydict()
    {'id': ['a', '7', 'b'], 'verdict': ['True', 'good', None]}
    """
    if isinstance(verdicts, str | Path):
        return Path(verdicts)
    if isinstance(verdicts, list) and all(isinstance(row, Mapping) for row in verdicts):
        verdicts = {row["id"]: row["verdict"] for row in verdicts}
    if is_table(verdicts) and hasattr(verdicts, "columns"):
        return as_arrow(verdicts, "the table of verdicts")
    if not isinstance(verdicts, Mapping) and not hasattr(verdicts, "items"):
        legal = "a mapping of ids to True and False, or to bad, good and unsure, a pandas Series, or a table"
        raise TypeError(f"verdicts are of type {type(verdicts).__name__}; legal are {legal}")
    pairs = list(verdicts.items())
    words = [None if value is None or value != value else str(value) for _, value in pairs]
    return pa.table({"id": [str(name) for name, _ in pairs], "verdict": pa.array(words, pa.string())})


class NotFitted(ValueError, AttributeError):
    """A result was asked for before `fit`."""


class Results:
    """Base of `HCM`: everything that is read from a finished run."""

    _fitted: Fitted | None

    def _require_fitted(self) -> Fitted:
        if self._fitted is None:
            raise NotFitted("fit(data) comes first")
        return self._fitted

    def _scored(self, data: Any) -> Fitted:
        """The finished run of these data; None means those of the fit."""
        raise NotImplementedError

    @property
    def table(self) -> pa.Table:
        """One row a node, strangest first; the columns of scores.parquet."""
        return self._require_fitted().run.table

    @property
    def scores(self) -> Values:
        """Score of every node, (n,); larger is stranger."""
        return self._require_fitted().scores

    @property
    def labels_(self) -> NDArray[np.int64]:
        """1 for nodes that stand out, else 0, (n,)."""
        return self._require_fitted().labels

    @property
    def threshold_(self) -> float:
        """The score above which nodes are labelled; without a contamination, above which as many lie as are flagged."""
        return self._require_fitted().threshold

    @property
    def p_values_(self) -> Values:
        """Probability that a normal node has as much evidence, (n,)."""
        return self._require_fitted().column("p")

    @property
    def ids_(self) -> NDArray[Any]:
        """The user's id of each node, (n,)."""
        order = np.argsort(self.table["node"].to_numpy())
        return self.table["id"].take(pa.array(order)).to_numpy()

    @property
    def columns_(self) -> dict[str, str]:
        """The columns of the tables that were used, named or guessed; empty for other inputs."""
        return self._require_fitted().columns

    decision_scores_ = scores  # PyOD's name

    @property
    def decision_score_(self) -> torch.Tensor:
        """`scores` as a tensor, under PyGOD's name."""
        return torch.from_numpy(self.scores)

    @property
    def label_(self) -> torch.Tensor:
        """`labels_` as a tensor, under PyGOD's name."""
        return torch.from_numpy(self.labels_)

    def decision_function(self, data: Any = None, label: Any = None) -> torch.Tensor:
        """Scores of the fitted data, or of others by `apply`, (n,); larger is stranger."""
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
        """Labels of the fitted nodes, or of other data by `apply`, and whatever else is asked for, in PyGOD's order.

        `return_score` adds the scores; `return_prob` a number from 0 to 1 that rises with the score, by `prob_method`:
        linear, unify (both as in PyGOD) or p, 1 - the p-value; `return_conf`, or PyOD's `return_confidence`, how sure
        each label is.
        """
        if return_emb:
            raise ValueError(f"return_emb=True is not legal: {NO_EMBEDDING}")
        fitted = self._scored(data)
        parts = [
            (return_pred, lambda: fitted.labels),
            (return_score, lambda: fitted.scores),
            (return_prob, lambda: fitted.probabilities(prob_method)),
            (return_conf or return_confidence, fitted.confidences),
        ]
        tensors = tuple(torch.from_numpy(compute()) for wanted, compute in parts if wanted)
        return tensors[0] if len(tensors) == 1 else tensors

    def predict_proba(
        self, data: Any = None, method: str = "linear", return_confidence: bool = False
    ) -> Values | tuple[Values, Values]:
        """Probabilities to be normal and to be an anomaly, (n, 2); `method` is the `prob_method` of `predict`."""
        fitted = self._scored(data)
        anomalous = fitted.probabilities(method)
        both = np.stack([1.0 - anomalous, anomalous], axis=1)
        return (both, fitted.confidences()) if return_confidence else both

    def predict_confidence(self, data: Any = None) -> Values:
        """How sure each label is, from 0 to 1, (n,)."""
        return self._scored(data).confidences()

    @property
    def edges_(self) -> pa.Table:
        """One row an edge, strangest first: ids of its ends, predicted hop, unlikeness, shared neighbours, p, flag.

        Rows that have a time or an amount, such as payments, are ranked by themselves. It is computed when it is first
        asked for, in about 100 bytes an edge.
        """
        run = self._require_fitted().run
        return (run.strange_rows or run.edges).table()

    @property
    def samples_(self) -> dict[str, Samples]:
        """The posterior samples by encoder (`views`): a sequence, each read when asked for, of tensors by name."""
        return {name: view.samples for name, view in self._require_fitted().run.views.items()}

    @property
    def trace_(self) -> pa.Table:
        """The training's records, means over some steps each: view, step, loss, accuracy by class, step_size, ..."""
        tables = [_TRACE.empty_table()]
        for view, samples in self.samples_.items():
            with files.naming_damage(path := samples.folder.parent / METRICS):
                rows = [one | {"view": view} for one in read_records(path) if "loss" in one]
                tables.append(pa.Table.from_pylist(rows, _TRACE))
        return pa.concat_tables(tables)

    @property
    def embedding_(self) -> NDArray[np.float32]:
        """Embedding of every node, (n, encoders x width): the mean over the samples of each encoder, side by side."""
        return self._require_fitted().embedding

    def to_arviz(self) -> Any:
        """ArviZ's InferenceData (a DataTree from its version 1 on): predicted hops of a thousand edges as `hop`.

        Its chains are the encoders, in the order of `samples_`, its draws the last samples that all of them have, its
        edges "A - B" by the ids of their ends. Encoders are trained on different graphs: compare draws within a chain
        for convergence, chains for disagreement.
        """
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install 'hcm-scale[arviz]'") from error
        chains, *ends = self._require_fitted().run.chains()
        ids, shortest = self.ids_, min(map(len, chains.values()))
        names = [f"{ids[u]} - {ids[v]}" for u, v in zip(*ends, strict=True)]
        groups: dict[str, Any] = {"posterior": {"hop": np.stack([chain[-shortest:] for chain in chains.values()])}}
        labels: dict[str, Any] = {"coords": {"edge": names}, "dims": {"hop": ["edge"]}}
        is_old = arviz.__version__.startswith("0.")
        return arviz.from_dict(**groups, **labels) if is_old else arviz.from_dict(groups, **labels)

    @with_python_names()
    def score_edges(
        self,
        table: Any,
        *,
        source: str | None = None,
        target: str | None = None,
        source_column: str | None = None,
        target_column: str | None = None,
    ) -> pa.Table:
        """Rows of new edges, in any form that `fit` takes them in, with rank, p and more among those of the fit.

        `source` and `target`, or `source_column` and `target_column`, name the ends where the fit calls them otherwise.

        `edge_status` is edge, new, new account, unknown or self. Where rows are payments each is judged by itself, and
        by those of tables that were scored before (docs/payments.md).
        """
        for name, one, other in (("source", source, source_column), ("target", target, target_column)):
            if one is not None and other is not None:
                raise TypeError(f"{name}={one!r} and {name}_column={other!r} are one argument: give one of them")
        source_column, target_column = source or source_column, target or target_column
        run = self._require_fitted().run
        table = events_of(table)
        if not isinstance(table, str | Path):
            columns = run.edge_columns()
            table = as_arrow(as_edges(table, columns.source, columns.target), "the table of new edges")
        return open_new_edges(run, table, source_column, target_column).table()

    @property
    def cases_(self) -> pa.Table:
        """One row a case, most surprising first: its number, lasting id, p, flag, what holds it together, its sizes."""
        run = self._require_fitted().run
        return case_table(run.cases, run.evidence)

    def case(self, number: int | str) -> ExplainedCase:
        """All of a case, by its number, from 1 on, or its id."""
        run = self._require_fitted().run
        told = drawn(run.evidence, run.cases, run.cases.position(str(number)))
        return ExplainedCase(case_page(run.case(str(number))), told)

    @with_python_names()
    def explain(self, node: Any = None, *, edge: tuple[Any, Any] | None = None) -> Explained:
        """Why a node, given by the user's id, or an edge, by the ids of its ends, has its rank.

        Prints as text, and `data` has the numbers.
        """
        if (node is None) == (edge is None):
            raise TypeError("explain takes a node, or edge=(a, b): one of them")
        if edge is not None:
            if isinstance(edge, str) or len(edge) != 2:
                raise TypeError(f"edge={edge!r} is not legal: the ids of its two ends, edge=(a, b)")
            edges = self._require_fitted().run.edges
            ends = [edges.evidence.graph.node_of(str(getattr(end, "item", lambda end=end: end)())) for end in edge]
            about = edges.explain(*ends)
            return Explained(wording.edge_text(about), about.as_dict())
        node = node.item() if hasattr(node, "item") else node  # of torch and numpy
        (reasons,) = self._require_fitted().run.explain([str(node)])
        return Explained(wording.explanation_text(reasons), reasons.as_dict())

    def review(self, count: int = 20) -> list[dict[str, Any]]:
        """The next nodes worth a verdict: id, an empty verdict, rank, why and by which chance, and the reason."""
        return teach.next_nodes(self._require_fitted().run, count).to_pylist()

    @with_python_names()
    def teach(self, verdicts: Any = None, *, worth: float = teach.WORTH) -> "TaughtResults":
        """The list that verdicts make, beside this one, which stays as it is; takes seconds.

        `verdicts` are ids and True or False, or bad, good, unsure or none, which takes one back: a mapping, a pandas
        Series, a table or its path, or rows of `review` with their verdicts. They are added to those given before.
        `worth` is the share of bad nodes as long as which reading on pays.
        """
        run = self._require_fitted().run
        notes = [] if verdicts is None else run.import_verdicts(verdict_table(verdicts))
        return TaughtResults(self, teach.teach(run, worth), notes)

    def expected_precision(self, first: int = 100) -> Precision:
        """Share of anomalies to be expected among the first rows of the table, by their p, and an interval of it."""
        return expected_precision(self.table["p"].to_numpy(), [min(first, self.table.num_rows)])[0]

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
        return None if self._fitted is None else self._fitted.run.html()

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # only scikit-learn calls this

        return Tags(estimator_type="outlier_detector", target_tags=TargetTags(required=False))

    @property
    def score(self) -> Any:
        """Not there: a TypeError, which `hasattr` does not hide from scikit-learn, says why."""
        raise TypeError(NO_SCORE)


@dataclass(frozen=True, eq=False, repr=False)
class TaughtResults:
    """The list that verdicts made; prints what they taught. `notes` are what there is to say about the given table."""

    results: Results
    lesson: teach.Taught
    notes: list[str]

    def __repr__(self) -> str:
        return "\n".join([*self.notes, teach.taught_text(self.lesson)])

    @property
    def sentences(self) -> list[str]:
        """What the verdicts taught, in words."""
        return list(self.lesson.facts["sentences"])

    @property
    def decision_scores_(self) -> Values:
        """The taught score of every node, (n,); larger is likelier bad."""
        return self.lesson.scores

    @property
    def table(self) -> pa.Table:
        """The ranked table with taught, taught_rank and verdict, sorted by taught_rank."""
        return self.lesson.beside(self.results.table).sort_by("taught_rank")

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        return self.table.to_pandas()

    def explain(self, node: Any) -> Explained:
        """Why a node is where it is, and where the verdicts have put it."""
        about, lesson = self.results.explain(node), self.lesson
        number = about.data["node"]
        return Explained(f"{about.text}\n\n{lesson.place_text(number)}", about.data | lesson.row_of(number))

    def estimate(self, first: int) -> Share:
        """The share of bad nodes among the first so many of the taught list, and its 90 % interval."""
        return teach.estimate(self.results._require_fitted().run, self.decision_scores_, first)
