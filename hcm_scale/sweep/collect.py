"""Gathers the jobs of a sweep into one table, collected.parquet and collected.csv in its folder.

The table has a row for every job: its folder, whether it finished or why not, the options that the jobs differ in, and
all numbers (ROC-AUC of each score, whole and by kind of anomaly, seconds and memory per stage). Failed jobs are rows
too, and are listed. Of jobs with equal options only the first counts. Files are written whole or not at all.

Jobs that differ only in the seed are repeats of one point. Options that follow from another (a data set's path from its
name, an injection seed from the seed) do not count as varied.
"""

import io
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hcm_scale.base import files
from hcm_scale.base.names import RANKINGS
from hcm_scale.base.sheets import quoted
from hcm_scale.sweep.jobs import Job, count_planned, find_jobs, read_job

_FIRST = ("graph.name", "seed")  # other options follow from these, not the other way round


def collect(folder: Path) -> str:
    """Writes the table of the sweep in `folder` into it, and returns an overview as text."""
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
    num_planned = count_planned(folder)
    missing = f"; the last sweep planned {num_planned}, so some never started" if num_planned > len(jobs) else ""
    failed = [f"  {job.name}: {job.error}" for job in jobs if job.error]
    paragraphs = [f"{len(jobs)} jobs, {len(finished)} finished and different{missing}", _overview(finished)]
    paragraphs.append("\n".join(["not finished (run the same sweep again to go on):", *failed]) if failed else "")
    paragraphs.append("\n".join(map(str, made)))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _job_table(jobs: Sequence[Job], finished: Sequence[Job]) -> pa.Table:
    """One row a job, by folder name; jobs with the options of another are marked `repeated`."""
    different = {job.name for job in finished}
    status = ["failed" if job.error else "finished" if job.name in different else "repeated" for job in jobs]
    facts = {"job": [job.name for job in jobs], "status": status, "error": [job.error for job in jobs]}
    keys = ["graph.name", "seed", *varied(jobs), *differing(jobs), "score.rank_by"]
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
    keys = [key for key in varied(jobs) if key != "seed"]
    lines = [f"{'setting':<44}{'runs':>5}" + "".join(f"{score + ' ROC-AUC':>20}" for score in RANKINGS)]
    for label, group in settings(scored, keys).items():
        cells = "".join(f"{_mean_std(group, f'{score}_auc'):>20}" for score in RANKINGS)
        lines.append(f"{label or 'all jobs':<44}{len(group):>5}{cells}")
    return "\n".join(lines)


def _mean_std(group: Sequence[Job], number: str) -> str:
    values = [job.numbers[number] for job in group if number in job.numbers]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.3f}{deviation}" if values else "-"


def varied(jobs: Sequence[Job]) -> list[str]:
    """The options that the jobs differ in, without those that follow from another.

    >>> asked = [{"seed": s, "inject.seed": s, "purify.ratio": r} for s in (0, 1) for r in (0.0, 0.2)]
    >>> varied([Job("", options, {}) for options in asked])
    ['seed', 'purify.ratio']
    """
    columns = {key: [str(job.options.get(key)) for job in jobs] for key in differing(jobs)}
    causes: list[str] = []
    for key in sorted(columns, key=lambda key: (key not in _FIRST, -len(set(columns[key])), key)):
        if not any(_follows(key, cause, columns) for cause in causes):
            causes.append(key)
    return causes


def differing(jobs: Sequence[Job]) -> list[str]:
    """All options that the jobs differ in, as they stand in the configuration."""
    keys = {key: None for job in jobs for key in job.options}
    return [key for key in keys if len({str(job.options.get(key)) for job in jobs}) > 1]


def _follows(key: str, other: str, columns: Mapping[str, list[str]]) -> bool:
    """Whether the values of `key` follow from those of `other`, so that `key` was not varied itself.

    Only seeds follow from the seed: an option run once per value beside it was swept. From an option that no two jobs
    share everything seems to follow; then only what stands beside it does.
    """
    cause, effect = columns[other], columns[key]
    num_causes = len(set(cause))
    if len(set(zip(cause, effect, strict=True))) > num_causes:
        return False
    if other == "seed" or key.endswith(".seed"):
        return key.endswith(".seed")
    return num_causes < len(cause) or key.partition(".")[0] == other.partition(".")[0]


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, text such as `all` after them, no value last.

    >>> sorted(["all", "25", None, 3], key=_order)
    [3, '25', 'all', None]
    """
    if value is None:
        return 2, 0.0, ""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, str(value)


def settings(jobs: Sequence[Job], keys: Sequence[str]) -> dict[str, list[Job]]:
    """Jobs by their values of `keys`, as text."""
    grouped = defaultdict(list)
    for job in sorted(jobs, key=lambda job: [_order(job.options.get(key)) for key in keys]):
        values = [f"{'' if key == 'graph.name' else f'{key}='}{job.options.get(key)}" for key in keys]
        grouped[", ".join(values)].append(job)
    return dict(grouped)
