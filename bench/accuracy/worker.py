"""One method on one problem, in this process, which runner.py has started for it.

Writes one JSON file: for every row its numbers, or what went wrong and why. What kills the process is for the caller to
see (see runner.py). `seconds` is the method alone, compilation included, imports not.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.methods import METHODS
from bench.accuracy.problem import Problem, open_problem
from hcm_scale.score.metrics import evaluate

Outcome = dict[str, Any]


def attempt(method: str, problem: Problem, device: str) -> list[Outcome]:
    """One outcome a row; never raises: what went wrong is the outcome."""
    rows = METHODS[method].rows
    try:
        function = METHODS[method].load()
        started = time.perf_counter()
        scores = function(problem, device)
        seconds = time.perf_counter() - started
        return [{"row": row, "seconds": seconds, **measure(problem, scores[row])} for row in rows]
    except ModuleNotFoundError as error:
        return _all(rows, "absent", error)
    except MemoryError as error:
        return _all(rows, "memory", error)
    except Exception as error:
        return _all(rows, "memory" if _is_out_of_memory(error) else "failed", error)


def measure(problem: Problem, score: NDArray[Any]) -> Outcome:
    """ROC-AUC over all anomalies and, where they were planted, over each kind against the normal nodes."""
    graph, score = problem.graph, np.asarray(score, np.float64)
    assert graph.y is not None
    if not np.isfinite(score).all():
        return {"status": "failed", "reason": f"{np.count_nonzero(~np.isfinite(score))} scores are not finite"}
    among = slice(None) if problem.judged is None else problem.judged | (graph.y > 0)
    found = evaluate(graph.y[among], score[among], None if graph.kind is None else graph.kind[among])
    kinds = {kind: numbers["roc_auc"] for kind, numbers in found.get("by_kind", {}).items()}
    return {"status": "ok", "auc": found["roc_auc"], "average_precision": found["average_precision"], **kinds}


def _all(rows: tuple[str, ...], status: str, error: BaseException) -> list[Outcome]:
    said = " ".join(str(error).split()) or type(error).__name__
    return [{"row": row, "status": status, "reason": said[:300]} for row in rows]


def _is_out_of_memory(error: Exception) -> bool:
    """Torch has a class for the GPU's memory and only words for the host's."""
    return type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)


def work(method: str, folder: Path, device: str, result: Path) -> None:
    """All that the process does: opens the problem, tries the method, writes the outcomes."""
    result.write_text(json.dumps(attempt(method, open_problem(folder), device)))
