"""The last page in the terminal: the strangest nodes, how good the ranking is where that is known, and what it cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hcm_scale.report.explain import label_of
from hcm_scale.report.wording import clip
from hcm_scale.score.table import FILE
from hcm_scale.stages.score import open_scores
from hcm_scale.workspace import StageRecord

_TOP = 10


def summary(run_dir: Path, folders: Mapping[str, Path], records: Sequence[StageRecord]) -> str:
    """What a person wants to know at the end of a run, as text."""
    parts = []
    if "scores" in folders:
        parts.append(_strangest(folders["scores"]))
        parts.append(_quality(folders["scores"]))
    parts.append(_costs(records))
    if "report" in folders:
        parts.append(f"report  {run_dir / 'report' / 'report.html'}\nscores  {run_dir / 'scores' / FILE}")
    else:
        parts.append(f"made in {run_dir}; `hcm-scale run` goes on to the report")
    return "\n\n".join(part for part in parts if part)


def _strangest(scores: Path) -> str:
    with pq.ParquetFile(scores / FILE) as file:
        rows = next(file.iter_batches(_TOP)).to_pylist()
    lines = ["rank  id                        hops to neighbours   uncertainty   far triangles   degree   known as"]
    for row in rows:
        known = label_of(row.get("y"), row.get("kind")) or ""
        numbers = f"{row['ahp']:>20.3f}{row['iv'] ** 0.5:>14.3f}{row['closure']:>16.3f}{row['degree']:>9,}"
        lines.append(f"{row['rank']:>4}  {clip(row['id'], 24):<24}{numbers}   {known}")
    return "\n".join(lines)


def _quality(scores: Path) -> str:
    made = open_scores(scores)
    if made.metrics is None:
        return ""
    lines = []
    for by, numbers in made.metrics.items():
        kinds = ", ".join(f"{kind} {found['roc_auc']:.3f}" for kind, found in numbers.get("by_kind", {}).items())
        mark = "  <- ranks the list" if by == made.rank_by else ""
        lines.append(f"ROC-AUC by {by:<8}{numbers['roc_auc']:.3f}{f'  ({kinds})' if kinds else ''}{mark}")
    return "\n".join(lines)


def _costs(records: Sequence[StageRecord]) -> str:
    lines = ["stage                  seconds   peak GiB"]
    for record in records:
        kept = "   kept from before" if record.skipped else ""
        lines.append(f"{record.name:<20}{record.seconds:>10.1f}{record.peak_rss_bytes / 2**30:>11.2f}{kept}")
    total: Any = sum(record.seconds for record in records if not record.skipped)
    lines.append(f"{'this run':<20}{total:>10.1f}")
    return "\n".join(lines)
