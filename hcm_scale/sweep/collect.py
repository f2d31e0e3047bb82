"""Gathers the jobs of a sweep: one table as Parquet and CSV, one figure per varied option as PNG and SVG.

    sweep/  collected.parquet  collected.csv  figure-purify.ratio.png  figure-purify.ratio.svg ...

The table has a row for every job: its folder, whether it finished or why not, the options that the jobs differ in, and
all numbers (ROC-AUC of each score, whole and by kind of anomaly, seconds and memory per stage). Failed jobs are rows
too, and are listed; they stop nothing. Two jobs that were asked the same count once. Files appear whole or not at all.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hcm_scale.base import files
from hcm_scale.base.names import RANKINGS
from hcm_scale.sweep import figures as curves
from hcm_scale.sweep.jobs import Job, count_planned, find_jobs, read_job

TABLE = "collected"


def collect(folder: Path) -> str:
    """Writes the table and the figures of the sweep in `folder` into it, and returns what a person wants to see."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder of a sweep, such as multirun/blogcatalog")
    sweeps = sorted(path.parent.name for path in folder.glob("*/multirun.yaml"))
    if len(sweeps) > 1:
        raise ValueError(f"{folder} holds {len(sweeps)} sweeps; collect one of them: {', '.join(sweeps)}")
    jobs = [read_job(path, path.relative_to(folder).as_posix()) for path in find_jobs(folder)]
    if not jobs:
        raise ValueError(f"{folder} holds no jobs: no config.json and no log below it")
    finished = once([job for job in jobs if job.finished])
    made = write_table(job_table(jobs, finished), folder)
    drawn, said = draw_figures(finished, folder)
    parts = [_counted(jobs, finished, count_planned(folder)), overview(finished), failures(jobs), said]
    parts.append("\n".join(str(path) for path in [*made, *drawn]))
    return "\n\n".join(part for part in parts if part)


def _counted(jobs: Sequence[Job], finished: Sequence[Job], num_planned: int) -> str:
    missing = f"; the last sweep planned {num_planned}, so some never started" if num_planned > len(jobs) else ""
    return f"{len(jobs)} jobs, {len(finished)} finished and different{missing}"


def once(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without those that were asked the same as an earlier one."""
    asked: dict[str, Job] = {}
    for job in jobs:
        asked.setdefault(files.hash_value(dict(job.options)), job)
    return list(asked.values())


def job_table(jobs: Sequence[Job], finished: Sequence[Job]) -> pa.Table:
    """One row a job, by folder name; jobs asked the same as another are marked `repeated`."""
    different = {job.name for job in finished}
    status = ["failed" if job.error else "finished" if job.name in different else "repeated" for job in jobs]
    columns: dict[str, Any] = {"job": [job.name for job in jobs], "status": status, "error": [j.error for j in jobs]}
    for key in dict.fromkeys(["graph.name", "seed", *curves.varied(jobs), *curves.differing(jobs), "score.rank_by"]):
        columns[key] = _column([job.options.get(key) for job in jobs])
    for name in dict.fromkeys(name for job in jobs for name in job.numbers):
        columns[name] = pa.array([job.numbers.get(name) for job in jobs], pa.float64())
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    """Numbers stay numbers; anything mixed becomes text."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        whole = all(isinstance(value, int) for value in known)
        return pa.array(values, pa.int64() if whole else pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def write_table(table: pa.Table, folder: Path) -> list[Path]:
    """collected.parquet and collected.csv."""
    parquet, text = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, write_page_checksum=True)
    pyarrow.csv.write_csv(table, text)
    made = [folder / f"{TABLE}.parquet", folder / f"{TABLE}.csv"]
    for path, data in zip(made, (parquet, text), strict=True):
        files.write_bytes(path, data.getvalue())
    return made


def overview(jobs: Sequence[Job]) -> str:
    """Mean and deviation of every score's ROC-AUC over the seeds, one line a setting."""
    scored = [job for job in jobs if "auc" in job.numbers]
    if not scored:
        return "no job has known anomalies: there is no ROC-AUC to compare" if jobs else ""
    keys = [key for key in curves.varied(jobs) if key != "seed"]
    lines = [f"{'setting':<44}{'runs':>5}" + "".join(f"{score + ' ROC-AUC':>20}" for score in RANKINGS)]
    for label, group in curves.settings(scored, keys).items():
        cells = "".join(f"{_mean_std(group, f'{score}_auc'):>20}" for score in RANKINGS)
        lines.append(f"{label or 'all jobs':<44}{len(group):>5}{cells}")
    return "\n".join(lines)


def _mean_std(group: Sequence[Job], number: str) -> str:
    found = [job.numbers[number] for job in group if number in job.numbers]
    deviation = f" ± {curves.spread(found):.3f}" if len(found) > 1 else ""
    return f"{sum(found) / len(found):.3f}{deviation}" if found else "-"


def failures(jobs: Sequence[Job]) -> str:
    """The jobs that did not finish and why; empty where all did."""
    lines = [f"  {job.name}: {job.error}" for job in jobs if job.error]
    return "\n".join(["not finished (run the same sweep again to go on):", *lines]) if lines else ""


def draw_figures(jobs: Sequence[Job], folder: Path) -> tuple[list[Path], str]:
    """The figures, and what to say where none can be drawn."""
    figures = {f"figure-{name}": panels for name, panels in _figures(jobs).items() if panels}
    if not figures:
        return [], ""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [], "no figures: pip install 'hcm-scale[plots]'"
    from hcm_scale.sweep.figures import draw

    return [path for name, panels in figures.items() for path in draw(panels, folder / name)], ""


def _figures(jobs: Sequence[Job]) -> dict[str, list[curves.Panel]]:
    keys = [key for key in curves.varied(jobs) if key != "seed"]
    made = {"scores": curves.score_panels(jobs, keys)} if not keys or keys == ["graph.name"] else {}
    for key in keys:
        if key != "graph.name":
            made[key] = curves.option_panels(jobs, key, [other for other in keys if other != key])
    return made | {"trend": curves.trend_panels(jobs, keys)}
