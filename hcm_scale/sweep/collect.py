"""Gathers the jobs of a sweep: one table as Parquet and CSV, one figure per varied option as PNG and SVG.

    sweep/  collected.parquet  collected.csv  figure-purify.ratio.png  figure-purify.ratio.svg ...

The table has a row for every job: its folder, whether it finished or why not, the options that the jobs differ in, and
all numbers (ROC-AUC of each score, whole and by kind of anomaly, seconds and memory per stage). Failed jobs are rows
too, and are listed. Of jobs with equal options only the first counts. Files are written whole or not at all.
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
from hcm_scale.base.sheets import quoted
from hcm_scale.sweep import figures as curves
from hcm_scale.sweep.jobs import Job, count_planned, find_jobs, read_job


def collect(folder: Path) -> str:
    """Writes the table and the figures of the sweep in `folder` into it, and returns an overview as text."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder of a sweep, such as multirun/blogcatalog")
    sweeps = sorted(path.parent.name for path in folder.glob("*/multirun.yaml"))
    if len(sweeps) > 1:
        raise ValueError(f"{folder} holds {len(sweeps)} sweeps; collect one of them: {', '.join(sweeps)}")
    jobs = [read_job(path, path.relative_to(folder).as_posix()) for path in find_jobs(folder)]
    if not jobs:
        raise ValueError(f"{folder} holds no jobs: no config.json and no log below it")
    first_of: dict[str, Job] = {}  # of jobs with equal options
    for job in jobs:
        if not job.error:
            first_of.setdefault(files.hash_value(dict(job.options)), job)
    finished = [*first_of.values()]
    made = _write_table(_job_table(jobs, finished), folder)
    drawn, hint = _draw_figures(finished, folder)
    num_planned = count_planned(folder)
    missing = f"; the last sweep planned {num_planned}, so some never started" if num_planned > len(jobs) else ""
    failed = [f"  {job.name}: {job.error}" for job in jobs if job.error]
    paragraphs = [f"{len(jobs)} jobs, {len(finished)} finished and different{missing}", _overview(finished)]
    paragraphs.append("\n".join(["not finished (run the same sweep again to go on):", *failed]) if failed else "")
    paragraphs += [hint, "\n".join(str(path) for path in [*made, *drawn])]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _job_table(jobs: Sequence[Job], finished: Sequence[Job]) -> pa.Table:
    """One row a job, by folder name; jobs with the options of another are marked `repeated`."""
    different = {job.name for job in finished}
    status = ["failed" if job.error else "finished" if job.name in different else "repeated" for job in jobs]
    facts = {"job": [job.name for job in jobs], "status": status, "error": [job.error for job in jobs]}
    keys = ["graph.name", "seed", *curves.varied(jobs), *curves.differing(jobs), "score.rank_by"]
    options = {key: _column([job.options.get(key) for job in jobs]) for key in keys}
    names = dict.fromkeys(name for job in jobs for name in job.numbers)
    numbers = {name: pa.array([job.numbers.get(name) for job in jobs], pa.float64()) for name in names}
    return pa.table(facts | options | numbers)


def _column(values: list[Any]) -> pa.Array:
    """A column of numbers, or of text if the values are mixed."""
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        whole = all(isinstance(value, int) for value in given)
        return pa.array(values, pa.int64() if whole else pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _write_table(table: pa.Table, folder: Path) -> list[Path]:
    parquet, text = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, write_page_checksum=True)
    pyarrow.csv.write_csv(quoted(table)[0], text)
    made = [folder / "collected.parquet", folder / "collected.csv"]
    for path, data in zip(made, (parquet, text), strict=True):
        files.write_bytes(path, data.getvalue())
    return made


def _overview(jobs: Sequence[Job]) -> str:
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
    values = [job.numbers[number] for job in group if number in job.numbers]
    deviation = f" ± {curves.spread(values):.3f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.3f}{deviation}" if values else "-"


def _draw_figures(jobs: Sequence[Job], folder: Path) -> tuple[list[Path], str]:
    """The files of the figures, and a hint if they cannot be drawn."""
    keys = [key for key in curves.varied(jobs) if key != "seed"]
    figures = {"scores": curves.score_panels(jobs, keys)} if keys in ([], ["graph.name"]) else {}
    for key in keys:
        if key != "graph.name":
            figures[key] = curves.option_panels(jobs, key, [other for other in keys if other != key])
    if not any(figures.values()):
        return [], ""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [], "no figures: pip install 'hcm-scale[plots]'"
    drawn = [curves.draw(panels, folder / f"figure-{name}") for name, panels in figures.items() if panels]
    return [path for both in drawn for path in both], ""
