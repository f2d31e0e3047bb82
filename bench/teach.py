"""Verdicts at size: a million nodes ranked again by 200 of them, and ten million of them read and learned from.

The peer is scikit-learn's HistGradientBoosting, fitted to the same verdicts and 500 background nodes, on columns that
are made for it beforehand and are not timed: places by every kind of evidence, degree, attributes and their means over
neighbours. It then predicts all nodes, which is the least that a learner of scikit-learn does to rank a graph again.
`hcm_scale` makes its own columns, weighs its hypotheses and checks them by cross-validation in its time. Each contender
has a process of its own, prepared by a small problem. Claims: no slower than the peer, and a minute of one core for
each step with ten million verdicts.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.apart import Outcome, run_apart
from bench.harness import Table, at_most
from hcm_scale.review import verdicts
from hcm_scale.review.estimate import Estimates
from hcm_scale.review.learn import Inputs, learn, neighbor_means
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.metrics import ranking

NUM_NODES = {"smoke": 2_000, "quick": 1_000_000, "full": 10_000_000}
NUM_LINES = {"smoke": 2_000, "quick": 10_000_000, "full": 10_000_000}
DEGREE, NUM_FEATURES, NUM_VERDICTS, NUM_BACKGROUND = 10, 20, 200, 500
LIMIT_SECONDS = 900
MIB = 2**20


def problem(num_nodes: int, num_features: int = NUM_FEATURES) -> tuple[Inputs, np.ndarray, np.ndarray]:
    """A random graph whose bad nodes are the largest of one column, with verdicts, half of the head, half at random."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, num_nodes, num_nodes * DEGREE).astype(np.int32)
    x = rng.standard_normal((num_nodes, num_features), np.float32)
    surprises = rng.standard_normal((len(KINDS), num_nodes))
    score, places = surprises.sum(axis=0), {}
    for kind, row in zip(KINDS, surprises, strict=True):
        places[kind] = np.empty(num_nodes, np.int32)
        places[kind][ranking(row)] = np.arange(1, num_nodes + 1)
    indptr = np.arange(0, len(indices) + 1, DEGREE)
    inputs = Inputs(score, places, np.diff(indptr), x, [], indptr, indices)
    nodes = np.concatenate([ranking(score)[: NUM_VERDICTS // 2], rng.permutation(num_nodes)[: NUM_VERDICTS // 2]])
    return inputs, np.unique(nodes), x[:, 1] > 1.5


def ours(num_nodes: int) -> Callable[[], dict[str, Any]]:
    """`learn`, as `hcm-scale teach` calls it."""
    learn(*_given(2_000))
    given = _given(num_nodes)
    return lambda: _timed(learn, *given)


def trees(num_nodes: int) -> Callable[[], dict[str, Any]]:
    """Gradient boosting on the same verdicts."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    inputs, nodes, is_bad = _given(num_nodes)
    around = np.empty_like(inputs.features)
    neighbor_means(np.arange(num_nodes), inputs.indptr, inputs.indices, np.asarray(inputs.features), around)
    columns = np.column_stack([*inputs.ranks.values(), inputs.degree, inputs.features, around]).astype(np.float32)
    rest = np.setdiff1d(np.random.default_rng(1).permutation(num_nodes)[:NUM_BACKGROUND], nodes)
    rows, label = np.concatenate([nodes, rest]), np.concatenate([is_bad, np.zeros(len(rest), bool)])

    def rank(some: np.ndarray) -> np.ndarray:
        return HistGradientBoostingClassifier(random_state=0).fit(columns[rows], label).predict_proba(some)

    rank(columns[:2_000])
    return lambda: _timed(rank, columns)


def _timed(work: Callable[..., Any], *given: Any) -> dict[str, float]:
    """The seconds of all cores together that a piece of work takes."""
    started = time.process_time()
    work(*given)
    return {"core_seconds": time.process_time() - started}


def _given(num_nodes: int) -> tuple[Inputs, np.ndarray, np.ndarray]:
    inputs, nodes, bad = problem(num_nodes)
    return inputs, nodes, bad[nodes]


def learned(num_lines: int) -> Callable[[], dict[str, Any]]:
    """The lesson and the estimates where every node has a verdict."""
    learn(*_given(2_000))
    inputs, _, bad = problem(num_lines, 2)
    nodes = np.arange(num_lines)

    def teach() -> None:
        lists = {"after": ranking(learn(inputs, nodes, bad).taught), "before": ranking(inputs.score)}
        Estimates.of(lists, nodes, bad).shares("after", [50, 5_000])

    return lambda: _timed(teach)


def many(num_lines: int, folder: str) -> Callable[[], dict[str, Any]]:
    """Reading a file of so many verdicts, each on a node of its own."""
    run_dir = Path(folder)
    for first in range(0, num_lines, 1 << 20):
        names = range(first, min(num_lines, first + (1 << 20)))
        verdicts.append(run_dir, ((f"account-{name}", "bad" if name % 7 else "good") for name in names), "anna")

    return lambda: _timed(verdicts.latest, run_dir)


def table_of(num_lines: int) -> Callable[[], dict[str, Any]]:
    """Reading a table of so many verdicts."""
    given = pa.table({"id": np.arange(num_lines), "verdict": np.arange(num_lines) % 7 > 0})
    return lambda: _timed(verdicts.read_table, given)


def cases(size: str) -> Iterator[Table]:
    """Two tables: ranking again, and reading verdicts by the million."""
    apart, nodes, lines = size != "smoke", NUM_NODES[size], NUM_LINES[size]

    def measured(job: Callable[..., Any], **arguments: Any) -> Outcome:
        return run_apart(job, arguments, limit_seconds=LIMIT_SECONDS, apart=apart)

    found = {"hcm_scale": measured(ours, num_nodes=nodes), "HistGradientBoosting": measured(trees, num_nodes=nodes)}
    ours_took, peer_took = (each.seconds for each in found.values())
    claims = [at_most("ranking again against HistGradientBoosting, time", ours_took / peer_took, 1, "x")]
    title = f"{nodes:,} nodes, {DEGREE} neighbours, {NUM_FEATURES} attributes, {NUM_VERDICTS} verdicts"
    yield Table(title, _rows(found), claims)
    with tempfile.TemporaryDirectory(prefix="bench-teach-") as folder:
        read = {
            "verdicts.jsonl": measured(many, num_lines=lines, folder=folder),
            "a table": measured(table_of, num_lines=lines),
            "the lesson": measured(learned, num_lines=lines),
        }
    limits = [at_most(f"{name}, {lines:,} verdicts", _core_seconds(each), 60, "core s") for name, each in read.items()]
    yield Table(f"{lines:,} verdicts", _rows(read), limits)


def _rows(found: dict[str, Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "what": name,
            "state": each.state,
            "seconds": each.seconds,
            "core_seconds": _core_seconds(each),
            "peak_anonymous_mib": each.peak_anonymous_bytes / MIB,
        }
        for name, each in found.items()
    ]


def _core_seconds(of: Outcome) -> float:
    return float(of.facts.get("core_seconds", "nan"))
