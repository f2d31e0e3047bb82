"""A finished run published to an experiment tracker: `track.to=[mlflow]`, `track.to=[wandb]`, or both.

The project is `hcm_scale` unless MLFLOW_EXPERIMENT_NAME or WANDB_PROJECT, the trackers' own variables, name another.
TensorBoard is not told of a finished run: training writes its files (`posterior/loop.py`).

Parameters are the options by their full keys; metrics the seconds of every stage, what training logged by step, and
how good the ranking is if that is known; artifacts the report and the ranked table. Rank 0 publishes once, at the end,
so that a tracker which cannot be reached costs a warning and nothing else.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hcm_scale.config import Config, TrackConfig, flatten
from hcm_scale.stages.report import read_records

log = logging.getLogger(__name__)
_PROJECT = "hcm_scale"


@dataclass(frozen=True)
class TrackedRun:
    """What is published of a run."""

    name: str
    params: dict[str, Any]
    metrics: list[tuple[str, float, int]]  # (name, value, step)
    artifacts: list[Path]


def check(track: TrackConfig) -> None:
    """Refuses a tracker that is not installed, before any work."""
    for name in track.to:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"track.to={name} needs a package that is not here: pip install 'hcm-scale[track]'")


def publish(config: Config, run_dir: Path, stages: list[dict[str, Any]], seconds: float) -> None:
    """Publishes to every tracker that was asked for; a failure is a warning."""
    for name in (name for name in config.track.to if name in SINKS):
        try:
            where = SINKS[name](gather(config, run_dir, stages, seconds))
            log.info("%-20s told to %s", name, where)
        except Exception as error:
            log.warning("%s could not be told of this run: %s", name, error)


def gather(config: Config, run_dir: Path, stages: list[dict[str, Any]], seconds: float) -> TrackedRun:
    metrics = [(f"seconds/{stage['name']}", float(stage["seconds"]), 0) for stage in stages]
    metrics.append(("seconds/run", seconds, 0))
    for stage in stages:
        numbers = {name: value for name, value in stage["detail"].items() if _is_number(value)}
        metrics += [(f"facts/{stage['name']}/{name}", float(value), 0) for name, value in numbers.items()]
        metrics += list(_training(run_dir / stage["name"] / "metrics.jsonl", stage["name"]))
    wanted = [run_dir / "report" / "report.html", run_dir / "scores" / "scores.parquet"]
    artifacts = [path for path in wanted if path.is_file()]
    return TrackedRun(config.graph.name, dict(flatten(asdict(config))), metrics, artifacts)


def _training(path: Path, stage: str) -> Iterator[tuple[str, float, int]]:
    for reading in read_records(path):
        step = reading.pop("step", 0)
        yield from ((f"{stage}/{name}", float(value), step) for name, value in reading.items() if _is_number(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mlflow(tracked: TrackedRun) -> str:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client, project = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
    existing = client.get_experiment_by_name(project)
    experiment = existing.experiment_id if existing else client.create_experiment(project)
    run = client.create_run(experiment, run_name=tracked.name)
    number, now = run.info.run_id, run.info.start_time
    params = [Param(name, str(value)) for name, value in tracked.params.items()]
    metrics = [Metric(name, value, now, step) for name, value, step in tracked.metrics]
    for at in range(0, max(len(params), len(metrics)), 100):  # the most that one call takes
        client.log_batch(number, metrics=metrics[at : at + 100], params=params[at : at + 100])
    for path in tracked.artifacts:
        client.log_artifact(number, str(path))
    client.set_terminated(number)
    return f"{project}, run {number}"


def _wandb(tracked: TrackedRun) -> str:
    import wandb

    project = os.environ.get("WANDB_PROJECT", _PROJECT)
    run = wandb.init(project=project, name=tracked.name, config=tracked.params)
    for step in sorted({step for _, _, step in tracked.metrics}):
        run.log({name: value for name, value, at in tracked.metrics if at == step}, step=step)
    for path in tracked.artifacts:
        run.save(str(path), base_path=str(path.parent), policy="now")
    run.finish()
    return f"{project}, run {run.id}"


SINKS: dict[str, Callable[[TrackedRun], str]] = {"mlflow": _mlflow, "wandb": _wandb}
