"""Ours, as `hcm-scale run experiment=...` has it, through the Python face; settings are read from conf/, not repeated.

Hydra composes those files on the command line; where it is not installed they still have to be read, so `settings`
follows the two rules that they use: a group's choice comes from config.yaml unless the experiment overrides it, and the
experiment's own keys come last. The harness brings the graph, so the groups `graph`, `inject` and `world` are left out.
"""

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.config import WHOLE
from hcm_scale.detector import HCM

CONF = Path(__file__).resolve().parents[2] / "conf"
_ROOMS = ("attributes", "purify", "hops", "sampling", "model", "posterior", "score")


def default(problem: Problem, device: str) -> Scores:
    """`HCM()`, not one option said: what a user gets who knows nothing of the graph."""
    return {"HCM default": HCM(seed=problem.seed, device=device).fit(problem.graph).scores}


def encoders(problem: Problem, device: str) -> Scores:
    """`HCM(encoder=...)` for those of the package: all evidence, and AHP, which alone depends on the encoder."""
    found: Scores = {}
    for name in ("gcn", "sage", "gat"):
        fitted = HCM(encoder=name, seed=problem.seed, device=device).fit(problem.graph)
        found |= {f"HCM {name}": fitted.scores, f"HCM {name}, AHP": _column(fitted, "ahp")}
    return found


def paper(problem: Problem, device: str) -> Scores:
    """experiment=paper/...: encoder on the original graph, as the paper has it."""
    found = _fit("paper/", problem, device)
    return {f"HCM paper, {column.upper()}": _column(found, column) for column in ("ahp", "hav")}


def best(problem: Problem, device: str) -> Scores:
    """experiment=best/...: our settings; the first row ranks as the experiment says, the others are its parts."""
    found = _fit("best/", problem, device)
    parts = {f"HCM best, {column.upper()}": _column(found, column) for column in ("ahp", "hav")}
    return {"HCM best": found.scores, **parts}


def mini(problem: Problem, device: str) -> Scores:
    """experiment=fidelity/mini_...: one view, mini-batches as they are by default."""
    found = _fit("fidelity/mini_", problem, device)
    return {"HCM mini-batch, AHP": _column(found, "ahp"), "HCM mini-batch": found.scores}


def full(problem: Problem, device: str) -> Scores:
    """experiment=fidelity/full_...: the same with one batch of everything a step."""
    found = _fit("fidelity/full_", problem, device)
    return {"HCM full batch, AHP": _column(found, "ahp"), "HCM full batch": found.scores}


def _fit(family: str, problem: Problem, device: str) -> HCM:
    experiment = None if problem.name == "Planted" else f"{family}{problem.name.lower()}"
    graph = problem.one_way if is_directed(experiment) else problem.graph
    return HCM(settings(experiment), seed=problem.seed, device=device).fit(graph)


def _column(found: HCM, name: str) -> NDArray[np.float64]:
    return np.asarray(found.table.sort_by("node")[name].to_numpy())


def settings(experiment: str | None, conf: Path = CONF) -> dict[str, Any]:
    """The options of an experiment (None: of the defaults), by dotted key, rooms only."""
    body = _load(conf / "experiment" / f"{experiment}.yaml") if experiment else {}
    entries = [*_load(conf / "config.yaml")["defaults"], *body.get("defaults", [])]
    chosen = {
        group.removeprefix("override /"): name
        for entry in entries
        if isinstance(entry, dict)
        for group, name in entry.items()
    }
    options: dict[str, Any] = {}
    for room in _ROOMS:
        path = conf / room / f"{chosen[room]}.yaml" if chosen[room] else None
        said = _load(path) if path else {}
        sections = said if path and path.read_text().startswith(WHOLE) else {room: said}
        for section, values in (*sections.items(), (room, body.get(room) or {})):
            options |= {f"{section}.{name}": value for name, value in values.items()}
    return options


def is_directed(experiment: str | None, conf: Path = CONF) -> bool:
    """Whether an experiment keeps the arcs of its file one-way."""
    graph = _load(conf / "experiment" / f"{experiment}.yaml").get("graph") if experiment else None
    return bool((graph or {}).get("directed", False))


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the settings of this data set are not written")
    return yaml.safe_load(path.read_text()) or {}
