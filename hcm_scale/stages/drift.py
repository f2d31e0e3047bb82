"""The drift stage: does the graph that is scored look like the one that the samples were trained on?

    out/  manifest.json    the distance of every feature, of degrees and of predicted hops; what moved; the line

Two samples of one number are compared by the Kolmogorov-Smirnov distance, the largest gap between their cumulative
distributions: 0 for equal samples, 1 for disjoint ones, whatever the units. A number has moved if the distance exceeds
a tenth by more than chance: with many nodes everything differs a little, and a tenth is where a list begins to mean
something else. No more than 65,536 nodes of either graph are read.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import console, files
from hcm_scale.base.names import AS_END
from hcm_scale.features.auto import sample
from hcm_scale.score.kinds.hop import HOP
from hcm_scale.score.table import FILE, read_scores
from hcm_scale.stages.purify import Purified

KIND = "hcm_scale drift"
FORMAT = 1
USUAL = 0.1  # a distance that makes no difference
_ERROR = 0.01  # probability of reporting a number that has not moved
_NAMED, _HOPS = 5, "predicted hop"
_BOUND = f"up to {USUAL}, and a little more among few nodes,"

log = logging.getLogger(__name__)
Samples = tuple[NDArray[np.floating], NDArray[np.floating]]


class Drift(NamedTuple):
    """The distance of every number, largest first, and the names of those that moved."""

    distances: dict[str, float]
    moved: list[str]

    def line(self) -> str:
        """The result in one sentence.

        >>> Drift({"a": 0.03, "degree": 0.01}, []).line()
        'like the training graph (largest distance 0.03, of a; up to 0.1, and a little more among few nodes, is usual)'
        """
        largest, distance = next(iter(self.distances.items()), ("nothing", 0.0))
        if not self.moved:
            return f"like the training graph (largest distance {distance:.2f}, of {largest}; {_BOUND} is usual)"
        named = ", ".join(f"{name} {self.distances[name]:.2f}" for name in self.moved[:_NAMED])
        more = f" and {len(self.moved) - _NAMED:,} more" if len(self.moved) > _NAMED else ""
        anew = "train anew, without trained="
        causes = [name for name in self.moved if name != _HOPS]  # hops follow from attributes
        if causes and all(name == "degree" or AS_END in name for name in causes):  # which grow with the table's time
            anew = f"where these edges are of a longer or shorter time, score as long a time; else {anew}"
        return f"unlike the training graph: {named}{more} (distance of distributions; {_BOUND} is usual); {anew}"


def drift(samples: Mapping[str, Samples]) -> Drift:
    """The distances of the samples (before, now) of every number."""
    level = np.sqrt(-0.5 * np.log(_ERROR / (2.0 * max(1, len(samples)))))
    distances, moved = {}, []
    for name, (before, now) in samples.items():
        if len(before) and len(now):
            distances[name] = distance(before, now)
            if distances[name] > USUAL + level * np.sqrt(1.0 / len(before) + 1.0 / len(now)):
                moved.append(name)
    ordered = dict(sorted(distances.items(), key=lambda item: -item[1]))
    return Drift(ordered, [name for name in ordered if name in moved])


def distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The Kolmogorov-Smirnov distance of two samples.

    >>> distance(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    below = [np.searchsorted(sample, both, side="right") / len(sample) for sample in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def compare(before: Purified, now: Purified, scores_before: Path, scores_now: Path, out: Path) -> Drift:
    """The drift between two graphs by their features and scores, logged and written into the folder `out`."""
    rows = [np.asarray(sample(graph.features)) for graph in (before, now)]
    samples: dict[str, Samples] = {name: (rows[0][:, k], rows[1][:, k]) for k, name in enumerate(before.columns)}
    tables = [read_scores(scores / FILE, ("degree", HOP.column)) for scores in (scores_before, scores_now)]
    degrees, hops = ([np.asarray(table[name], np.float64) for table in tables] for name in ("degree", HOP.column))
    linked = [values[degree > 0] for values, degree in zip(hops, degrees, strict=True)]
    for name, values in (("degree", degrees), (_HOPS, linked)):
        while name in samples:  # an attribute is called so
            name += " of the graph"
        first, second = (np.asarray(sample(numbers.astype(np.float32)[:, None]))[:, 0] for numbers in values)
        samples[name] = first, second
    result = drift(samples)
    extra = console.event(
        "drift", moved=result.moved, distances={name: result.distances[name] for name in result.moved}
    )
    (log.warning if result.moved else log.info)("%s", result.line(), extra=extra)
    files.write_manifest(out, KIND, FORMAT, result._asdict() | {"line": result.line()})
    return result


def read_drift(folder: Path) -> dict[str, Any]:
    """What the folder says: `moved`, the names of numbers, `distances`, the largest first, and the `line` in words."""
    stored = files.read_manifest(folder, KIND, FORMAT)
    ordered = sorted(stored["distances"].items(), key=lambda item: -item[1])
    return {"moved": stored["moved"], "distances": dict(ordered), "line": stored["line"]}
