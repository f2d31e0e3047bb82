"""Ours, as `hcm-scale run experiment=...` has it, through the Python face: settings are read from conf/, not repeated here.

Hydra composes those files on the command line; where it is not installed they still have to be read, so `settings`
follows the two rules that they use: a group's choice comes from config.yaml unless the experiment overrides it, and the
experiment's own keys come last. The harness brings the graph, so the groups `graph`, `inject` and `world` are left out.
"""

from pathlib import Path
from typing import Any

import yaml

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores
from hcm_scale.detector import HCM

CONF = Path(__file__).resolve().parents[2] / "conf"
_ROOMS = ("attributes", "purify", "hops", "shards", "sampling", "model", "posterior", "score")


def paper(problem: Problem, device: str) -> Scores:
    """experiment=paper/...: encoder on the original graph, as the paper has it."""
    return _fit("paper", problem, device, ("ahp", "hav"))


def best(problem: Problem, device: str) -> Scores:
    """experiment=best/...: our settings; `strange` adds the closure of a node's neighbourhood to AHP."""
    return _fit("best", problem, device, ("strange", "ahp", "hav"))


def _fit(family: str, problem: Problem, device: str, columns: tuple[str, ...]) -> Scores:
    options = settings(None if problem.name == "Planted" else f"{family}/{problem.name.lower()}")
    found = HCM(options, seed=problem.seed, device=device).fit(problem.graph).table.sort_by("node")
    return {f"HCM {family}, {column.upper()}": found[column].to_numpy() for column in columns}


def settings(experiment: str | None, conf: Path = CONF) -> dict[str, Any]:
    """The options of an experiment (None: of the defaults), by dotted key, rooms only."""
    body = _load(conf / "experiment" / f"{experiment}.yaml") if experiment else {}
    entries = [*_load(conf / "config.yaml")["defaults"], *body.get("defaults", [])]
    chosen = {group.removeprefix("override /"): name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    options: dict[str, Any] = {}
    for room in _ROOMS:
        own = body.get(room) or {}
        for name, value in {**_load(conf / room / f"{chosen[room]}.yaml"), **own}.items():
            options[f"{room}.{name}"] = value
    return options


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the settings of this data set are not written")
    return yaml.safe_load(path.read_text()) or {}
