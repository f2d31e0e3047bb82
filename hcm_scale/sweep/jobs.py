"""The jobs of a sweep, read from their folders: the options, results and costs of each, or why it failed.

A job is a folder with a `config.json` (written when it starts) or a `log` (written even when its configuration was
refused). It is finished when its `stages.json` lists the scores. Folders of shared stages
and hidden folders are skipped. Only JSON and manifests are read, a few kilobytes a job.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcm_scale.base import files
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.result import open_scores

_PLACES = ("run_dir", "share_dir")  # where a job ran: no option of the experiment
_ERROR = re.compile(r"\d{4}-\d\d-\d\d \S+ error: (.*)")  # a line of a log


@dataclass(frozen=True)
class Job:
    """One job: `options` by dotted key, results and costs by name; `error` is empty if it finished."""

    name: str
    options: Mapping[str, Any]
    numbers: Mapping[str, float]
    rank_by: str = ""
    error: str = ""


def find_jobs(folder: Path) -> list[Path]:
    """The folders of jobs at or below `folder`, sorted."""
    jobs = []
    for path, inside, names in os.walk(folder):
        if "config.json" in names or "log" in names:
            jobs.append(Path(path))
            inside.clear()
        inside[:] = [name for name in inside if name != "stages" and not name.startswith(".")]
    return sorted(jobs)


def count_planned(folder: Path) -> int:
    """How many jobs the last sweep in `folder` planned, by the multirun.yaml that Hydra leaves; 0 without one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    path = folder / "multirun.yaml"
    if not path.is_file():
        return 0
    hydra = OmegaConf.load(path).hydra
    swept = [f"{key}={values}" for key, values in (hydra.sweeper.get("params") or {}).items()]
    parsed = OverridesParser.create().parse_overrides([*swept, *hydra.overrides.task])
    return math.prod(len(list(entry.sweep_string_iterator())) for entry in parsed if entry.is_discrete_sweep())


def read_job(path: Path, name: str) -> Job:
    """Reads one job's folder; whatever is missing or damaged becomes its `error`."""
    options: Mapping[str, Any] = {}
    try:
        run = FinishedRun(path)
        stored = {k: v for k, v in run.options.items() if k not in _PLACES and v != {}}
        options = {k: "+".join(map(str, v)) if isinstance(v, list) else v for k, v in stored.items()}
        stages = run.stages
        if "scores" not in run.keys:
            last = stages[-1]["name"] if stages else "nothing"
            raise files.FolderError(f"stopped after {last}")
        scores = open_scores(path / "scores")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Job(name, options, {}, error=_last_error(path / "log") or f"unfinished: {str(error).split(chr(10))[0]}")
    seconds = {f"{stage['name']}_seconds": float(stage["seconds"]) for stage in stages}  # as if no stage were shared
    peak = max((float(stage["peak_rss_bytes"]) for stage in stages), default=0.0)
    costs = {**seconds, "all_seconds": sum(seconds.values()), "peak_rss_bytes": peak}
    return Job(name, options, {**_quality(scores.metrics or {}, scores.rank_by), **costs}, scores.rank_by)


def _quality(metrics: Mapping[str, Any], rank_by: str) -> dict[str, float]:
    """ROC-AUC and average precision of every score, whole and by kind of anomaly; `auc` is that of the ranking score.

    >>> _quality({"ahp": {"roc_auc": 0.8, "average_precision": 0.3}}, "ahp")
    {'auc': 0.8, 'ahp_auc': 0.8, 'ahp_average_precision': 0.3}
    """
    quality = {"auc": metrics[rank_by]["roc_auc"]} if rank_by in metrics else {}
    for score, numbers in metrics.items():
        quality[f"{score}_auc"] = numbers["roc_auc"]
        quality[f"{score}_average_precision"] = numbers["average_precision"]
        for kind, apart in numbers.get("by_kind", {}).items():
            quality[f"{score}_auc_{kind}"] = apart["roc_auc"]
    return quality


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((match[1] for line in reversed(lines) if (match := _ERROR.match(line))), "")
