"""The closed table of methods: which function runs each, and which rows of the result it fills.

A function takes a `Problem` and a device ("cpu" or "cuda") and returns scores (n,), larger is stranger, by row. Modules
are imported when a method runs, in the process of its own that it gets, so that what is not installed costs one row.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores


@dataclass(frozen=True)
class Method:
    """A function by module and name, the rows that it fills, and what it is told beyond the problem."""

    module: str
    function: str
    rows: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    def load(self) -> Callable[[Problem, str], Scores]:
        """The function; ImportError where something that it needs is not installed."""
        found = getattr(importlib.import_module(f"bench.accuracy.{self.module}"), self.function)
        return lambda problem, device: found(problem, device, *self.arguments)


def _pygod() -> Iterator[tuple[str, Method]]:
    for name in PYGOD:
        for raw in (False, True):
            method = Method("pygod_methods", "run", (f"{name}{RAW}" if raw else name,), (name, raw))
            yield name.lower() + "-raw" * raw, method


RAW = ", raw"  # a detector on the attributes of the file; without it, on the harness's features
PYGOD = (
    "Radar", "ANOMALOUS", "ONE", "DOMINANT", "GAE", "DONE", "AdONE", "AnomalyDAE", "CoLA", "CONAD", "OCGNN", "GAAN",
    "GUIDE",
)  # fmt: skip
_TRIVIAL = (
    "attribute norm",
    "degree",
    "minus degree",
    "half norm, half root degree",
    "distance to neighbours",
    "cosine distance to neighbours",
)
METHODS = {
    "trivial": Method("trivial", "run", _TRIVIAL),
    "direction": Method("trivial", "direction", ("out-degree less in-degree",)),
    "lof": Method("lof", "run", ("LOF",)),
    "amen": Method("amen", "run", ("AMEN",)),
    **dict(_pygod()),
    "madan": Method("madan", "run", ("MADAN",)),
    "resgcn": Method("resgcn", "run", ("ResGCN",)),
    "hcm-default": Method("hcm", "default", ("HCM default",)),
    "hcm-encoders": Method(
        "hcm", "encoders", tuple(f"HCM {e}{by}" for e in ("gcn", "sage", "gat") for by in ("", ", AHP"))
    ),
    "hcm-paper": Method("hcm", "paper", ("HCM paper, AHP", "HCM paper, HAV")),
    "hcm-mini": Method("hcm", "mini", ("HCM mini-batch, AHP", "HCM mini-batch")),
    "hcm-full": Method("hcm", "full", ("HCM full batch, AHP", "HCM full batch")),
    "hcm-best": Method("hcm", "best", ("HCM best", "HCM best, AHP", "HCM best, HAV")),
}

# ROC-AUC as the paper prints it, Table 2; a dash there is None here.
_PRINTED_ON = ("Flickr", "BlogCatalog", "ACM", "Amazon", "Enron")
_PRINTED: dict[str, tuple[float | None, ...]] = {
    "LOF": (0.488, 0.491, 0.473, 0.490, 0.440),
    "AMEN": (0.604, 0.665, 0.533, 0.470, 0.470),
    "Radar": (0.728, 0.725, 0.693, 0.580, 0.650),
    "ANOMALOUS": (0.716, 0.728, 0.718, 0.602, 0.695),
    "DOMINANT": (0.781, 0.749, 0.749, 0.625, 0.685),
    "MADAN": (None, None, None, 0.680, 0.660),
    "ResGCN": (0.780, 0.785, 0.768, 0.710, 0.660),
    "HCM paper, AHP": (0.791, 0.808, 0.806, 0.62, 0.670),
    "HCM paper, HAV": (0.792, 0.798, 0.761, 0.708, 0.715),
}


def printed(row: str, data: str) -> float | None:
    """The paper's number for a row on a data set, or None.

    >>> printed("DOMINANT", "BlogCatalog"), printed("degree", "BlogCatalog")
    (0.749, None)
    """
    return dict(zip(_PRINTED_ON, _PRINTED[row], strict=True)).get(data) if row in _PRINTED else None


def all_rows() -> Iterator[str]:
    """Every row in the order of the table."""
    for method in METHODS.values():
        yield from method.rows
