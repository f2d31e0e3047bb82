"""The drift stage: does the graph that is scored look like the one that the samples were trained on?

    out/  manifest.json    the distance of every feature, of degrees and of predicted hops; what moved; the line

Looks at no more than 65,536 nodes of either graph.
"""

import logging
from pathlib import Path

import numpy as np

from hcm_scale.base import files
from hcm_scale.features.survey import sample
from hcm_scale.score.drift import Drift, Samples, drift
from hcm_scale.score.table import FILE, read_scores
from hcm_scale.stages.purify import Purified

log = logging.getLogger(__name__)

KIND = "hcm_scale drift"
FORMAT = 1


def compare(before: Purified, now: Purified, scores_before: Path, scores_now: Path, out: Path) -> Drift:
    """Compares two graphs by their features and scores; says what it found, and writes it into the folder `out`."""
    rows = [np.asarray(sample(graph.features)) for graph in (before, now)]
    samples: dict[str, Samples] = {name: (rows[0][:, k], rows[1][:, k]) for k, name in enumerate(before.columns)}
    tables = [read_scores(scores / FILE, ("degree", "ahp")) for scores in (scores_before, scores_now)]
    degrees, hops = ([np.asarray(table[name], np.float64) for table in tables] for name in ("degree", "ahp"))
    linked = [values[degree > 0] for values, degree in zip(hops, degrees, strict=True)]
    for name, values in (("degree", degrees), ("predicted hop", linked)):
        while name in samples:  # an attribute is called so
            name += " of the graph"
        samples[name] = (_some(values[0]), _some(values[1]))
    found = drift(samples)
    (log.warning if found.moved else log.info)("%s", found.line())
    files.write_manifest(out, KIND, FORMAT, found._asdict() | {"line": found.line()})
    return found


def drift_line(folder: Path) -> str:
    """What a finished folder says."""
    return str(files.read_manifest(folder, KIND, FORMAT)["line"])


def _some(values: np.ndarray) -> np.ndarray:
    return np.asarray(sample(values.astype(np.float32)[:, None]))[:, 0]
