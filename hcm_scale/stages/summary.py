"""The last page in the terminal: the strangest nodes, their groups, the first by each kind of evidence, how good the
ranking is where that is known, what it cost, and what to type next.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hcm_scale.graph import Graph
from hcm_scale.listed import StageRecord
from hcm_scale.report.explain import label_of
from hcm_scale.report.groups import groups, num_first
from hcm_scale.report.kinds import WORDS, heads, named
from hcm_scale.report.listing import found_text, group_text
from hcm_scale.report.wording import clip, score_title
from hcm_scale.score.table import FILE, kind_rank, read_scores
from hcm_scale.stages.drift import drift_line
from hcm_scale.stages.report import found_by
from hcm_scale.stages.scored import open_scores

_TOP = 10
_COLUMNS = ("id", "node", "rank", "evidence", "degree", "p", "flagged", "y", "kind")
_HEAD = 5  # of each kind of evidence
_MEMBERS = 15  # of a group


def summary(run_dir: Path, folders: Mapping[str, Path], records: Sequence[StageRecord], seconds: float) -> str:
    """What a person wants to know at the end of a run of so many seconds, as text."""
    parts = []
    if "scores" in folders:
        parts.append(_list(folders["scores"], Graph.open(folders["graph"], verify=False)))
        parts.append(_quality(folders["scores"]))
    notes = [note for record in records for note in record.detail.get("notes", [])]
    parts += [note for note in notes if not note.startswith("Drift: ")]  # which has a line of its own
    if "drift" in folders:
        parts.append(f"drift   {drift_line(folders['drift'])}")
    parts.append(_costs(records, seconds))
    if "report" in folders:
        parts.append(f"report  {run_dir / 'report' / 'report.html'}\nscores  {run_dir / 'scores' / FILE}")
        parts.append(_next_steps(run_dir, folders["scores"]))
    else:
        parts.append(f"made in {run_dir}; `hcm-scale run` goes on to the report")
    return "\n\n".join(part for part in parts if part)


def _next_steps(run_dir: Path, scores: Path) -> str:
    """Commands to type next, of this run; an id that cannot be typed is left out."""
    (first,) = next(pq.ParquetFile(scores / FILE).iter_batches(1, columns=["id"]))["id"].to_pylist()
    steps = [["explain", str(run_dir), f"node={first}"]] if str(first).isprintable() else []
    steps += [["serve", str(run_dir)], ["export", str(run_dir), "list.csv"]]
    told = ["why the first node is there", "a local page over all nodes", "the whole list for other programs"]
    lines = [shlex.join(["hcm-scale", *words]) for words in steps]
    width = max(len(line) for line in lines)
    shown = zip(lines, told[-len(lines) :], strict=True)
    return "\n".join(["next, beside opening the report", *(f"  {line:<{width}}   # {text}" for line, text in shown)])


def _list(scores: Path, graph: Graph) -> str:
    """The first nodes, how many stand out, the first by each kind of evidence, and groups among the first."""
    table = _table(scores)
    found = found_text(found_by(scores))
    heads = _heads(graph, table)
    return "\n\n".join(part for part in (_strangest(table), found, _groups(graph, table), heads) if part)


def _table(scores: Path) -> pa.Table:
    """The columns of the ranked table that are shown; the whole of it may be large."""
    ranks = [kind_rank(kind) for kind in WORDS]
    return read_scores(scores / FILE, {*_COLUMNS, open_scores(scores).rank_by, *ranks})


def _strangest(table: pa.Table) -> str:
    by = table.schema.metadata[b"rank_by"].decode()
    has_p, has_flag, has_y = (name in table.column_names for name in ("p", "flagged", "y"))
    columns = f"{score_title(by):>10}   {'stands out by':<39}degree"
    lines = [f"rank  id                      {columns}{'         p' if has_p else ''}{'   known as' if has_y else ''}"]
    for row in table.slice(0, _TOP).to_pylist():
        known = [label_of(row.get("y"), row.get("kind")) or "", "flagged" if has_flag and row["flagged"] else ""]
        kind = named(row["evidence"]) if row.get("evidence") else ""
        p = f"{row['p']:>10.1e}" if has_p else ""
        numbers = f"{row[by]:>10.2f}   {kind:<39}{row['degree']:>6,}{p}"
        lines.append(
            f"{row['rank']:>4}  {clip(row['id'], 24):<24}{numbers}   {', '.join(filter(None, known))}".rstrip()
        )
    return "\n".join(lines)


def _groups(graph: Graph, table: pa.Table) -> str:
    """One line a group."""
    lines = []
    for group in groups(graph, table.slice(0, num_first(table)))[:_TOP]:
        ids = ", ".join(clip(member["id"], 24) for member in group["members"][:_MEMBERS])
        more = len(group["members"]) - _MEMBERS
        ids += f" and {more:,} more" if more > 0 else ""
        lines.append(f"{group['members'][0]['rank']:>4}  {len(group['members']):,} nodes, {group_text(group)}: {ids}")
    return "\n".join([f"groups among the first {num_first(table):,}, by their best rank", *lines]) if lines else ""


def _heads(graph: Graph, table: pa.Table) -> str:
    lines = []
    for kind, rows in heads(graph, table, _HEAD).items():
        lines.append(f"  {named(kind):<42}" + ", ".join(clip(row["id"], 24) for row in rows))
    return "\n".join(["the first by each kind", *lines]) if lines else ""


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


def _costs(records: Sequence[StageRecord], seconds: float) -> str:
    lines = ["stage                  seconds   peak GiB"]
    for record in records:
        kept = "   kept from before" if record.skipped else ""
        lines.append(f"{record.name:<20}{record.seconds:>10.1f}{record.peak_rss_bytes / 2**30:>11.2f}{kept}")
    lines.append(f"{'this run':<20}{seconds:>10.1f}")
    return "\n".join(lines)
