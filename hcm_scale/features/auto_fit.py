"""The rules of auto.py carried out: fitted on the sample, as parts (parts.py) that are applied to any rows.

Columns that are kept one by one are moved and stretched, or follow a curve through the values of the sample (normal
scores: exact where the sample is all rows, between two values of it in proportion, beyond its ends as at the ends).
What lies more than the sample's range beyond the sample is cut there, so that no row outside the sample can drown the
others. Groups are projected on components fitted on the sample. Memory: the output (4 bytes n q), one block, the
sample (at most 256 MiB dense) and twice that for curves.
"""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.features import pca as principal
from hcm_scale.features.auto import COMPONENTS, GAP_WEIGHT, OWN_DEVIATION, Decision, decide, lines
from hcm_scale.features.parts import Curve, Part, Rotated, Singles, group_values
from hcm_scale.features.rescale import blocks
from hcm_scale.features.survey import Seen, by_column, gap_columns, look, sample, values_of
from hcm_scale.graph.store import Attributes, SparseRows

log = logging.getLogger(__name__)

_FEW_ROWS = 1 << 10
_LEAST_DEVIATION = 0.5  # that normal scores are divided by
_SINGLE = ("gap flag", "two values", "heavy tail", "standard")


def automatic(
    x: Attributes, pca: int | None, columns: tuple[str, ...]
) -> tuple[tuple[Part, ...], tuple[str, ...], dict[str, Any]]:
    """The parts that make features by the rules of auto.py, the features' names, and a record of what was decided.

    >>> from hcm_scale.features.parts import apply_parts
    >>> x = np.array([[0, 5], [1, 5]], np.float32)
    >>> parts, names, _ = automatic(x, None, ("flag", "same"))
    >>> apply_parts(parts, x).tolist(), names
    ([[-0.5], [0.5]], ('flag',))
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    drawn = sample(x)
    turned = by_column(drawn)
    seen, gaps, decision = _decide(turned, names, isinstance(x, SparseRows))
    singles = _fit_singles(turned, decision, seen, gaps)
    rotated = {rule: _fit_rotated(drawn, decision, seen, rule, pca) for rule in COMPONENTS if rule in decision.rules}
    if pca is not None and not rotated:
        log.warning("attributes.pca=%s has no effect: no group of columns is reduced to components", pca)
    parts: tuple[Part, ...] = (*([singles] if singles.width else []), *rotated.values())
    widths = {rule: part.width for rule, part in rotated.items()}
    record: dict[str, Any] = {"sampled_rows": drawn.shape[0], "columns": lines(decision, seen, names, widths)}
    record |= {"rules": decision.runs(), "left_out": [names[k] for k in decision.columns("constant")]}
    record["explained_variance"] = {rule: part.explained for rule, part in rotated.items()}
    return parts, (*(names[k] for k in singles.columns), *_component_names(widths)), record


def foreseen_width(x: Attributes, pca: int | None, columns: tuple[str, ...]) -> int:
    """About how many features `automatic` will make, judged by a few rows.

    >>> foreseen_width(np.array([[0, 5], [1, 5]], np.float32), None, ("flag", "same"))
    1
    """
    names = columns or tuple(f"a{k}" for k in range(x.shape[1]))
    _, _, decision = _decide(by_column(sample(x, _FEW_ROWS)), names, isinstance(x, SparseRows))
    groups = ((len(decision.columns(rule)), COMPONENTS[rule] if pca is None else pca) for rule in COMPONENTS)
    return max(1, len(decision.columns(*_SINGLE)) + sum(min(pair) for pair in groups))


def _decide(turned: Any, names: tuple[str, ...], is_sparse: bool) -> tuple[list[Seen], NDArray[np.int64], Decision]:
    """What every column of a sample looks like, which column flags its gaps, and the rules that follow."""
    gaps = gap_columns(names, len(names))
    seen = [look(*values_of(turned, k, int(gap))) for k, gap in enumerate(gaps)]
    flags = [k for k, name in enumerate(names) if name.endswith(GAP_SUFFIX)]
    return seen, gaps, decide(seen, flags, is_sparse)


def _component_names(widths: dict[str, int]) -> list[str]:
    prefixes = {rule: f"{rule}_" if len(widths) > 1 else "" for rule in widths}
    return [f"{prefixes[rule]}pc{k}" for rule, width in widths.items() for k in range(width)]


def _fit_singles(turned: Any, decision: Decision, seen: list[Seen], gaps: NDArray[np.int64]) -> Singles:
    chosen = decision.columns(*_SINGLE)
    place_of = {column: place for place, column in enumerate(chosen)}
    low, high, mean = (np.array([getattr(seen[k], name) for k in chosen]) for name in ("low", "high", "mean"))
    factor = np.array([_factor(decision.rules[k], seen[k]) for k in chosen])
    heavy = decision.columns("heavy tail")
    curves = {place_of[k]: score_curve(*values_of(turned, k, int(gaps[k]))) for k in heavy}
    flagged: dict[int, list[int]] = {}
    for column, place in place_of.items():
        if int(gaps[column]) in place_of:
            flagged.setdefault(place_of[int(gaps[column])], []).append(place)
    span = high - low
    return Singles(np.array(chosen, np.int64), low - span, high + span, mean, factor, curves, flagged)


def _factor(rule: str, seen: Seen) -> float:
    if rule == "standard":
        return 1.0 / seen.deviation
    return (GAP_WEIGHT if rule == "gap flag" else 1.0) / (seen.high - seen.low)


def score_curve(stored: NDArray[np.float64], num_rows: int) -> Curve:
    """The normal score of every distinct value of a column that holds `stored` beside zeros, of mean 0 and deviation 1.

    Equal values share the mean of their ranks; the value of rank r among n has the (r - 1/2) / n quantile. A deviation
    below _LEAST_DEVIATION, of a column that is nearly all one value, is not stretched to 1.
    """
    values, counts = np.unique(np.concatenate([stored, np.zeros(num_rows - len(stored))]), return_counts=True)
    scores = special.ndtri((np.cumsum(counts) - 0.5 * counts) / num_rows)
    scores -= np.average(scores, weights=counts)
    deviation = np.sqrt(np.average(scores**2, weights=counts))
    return values.astype(np.float32), (scores / max(deviation, _LEAST_DEVIATION)).astype(np.float32)


def _fit_rotated(drawn: Attributes, decision: Decision, seen: list[Seen], rule: str, pca: int | None) -> Rotated:
    chosen = np.array(decision.columns(rule), np.int64)
    how = decision.sparse_values if rule == "sparse" else "as they are"
    ends = np.array([seen[k].high if seen[k].high else seen[k].low for k in chosen])
    values = group_values(how, ends)
    asked = COMPONENTS[rule] if pca is None else pca
    found = principal.fit(lambda: (values(block[:, chosen]) for _, block in blocks(drawn)), asked)
    if pca is not None and found.loadings.shape[1] < pca:
        log.info("attributes.pca=%d is cut to %d, the rank of its columns", pca, found.loadings.shape[1])
    variances = found.variances * ((drawn.shape[0] - 1) / drawn.shape[0])
    divisor = np.sqrt(variances if OWN_DEVIATION[rule] else np.full(len(variances), variances.mean()))
    return Rotated(chosen, how, ends, found, 1.0 / np.where(divisor > 0, divisor, 1.0))
