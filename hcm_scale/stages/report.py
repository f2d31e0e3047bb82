"""The report stage: the folders of earlier stages joined into report.json and report.html; the summary in the terminal.

Reads the scores folder (scores.parquet, edges_mean.npy, edges_var.npy), and the labels folder's manifest where it is
given; without it the page leaves its section out.
"""

import logging
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from numpy.typing import NDArray

import hcm_scale
from hcm_scale import shards
from hcm_scale.base import files
from hcm_scale.base.text import clip, counted, p_text
from hcm_scale.base.threads import num_cores
from hcm_scale.cases.changes import changes_line, changes_text
from hcm_scale.cases.describe import MOST_MEMBERS
from hcm_scale.cases.drawing import drawn
from hcm_scale.cases.store import open_cases
from hcm_scale.cases.tables import case_lines
from hcm_scale.edges.payments import edges_of_report
from hcm_scale.edges.strange import CountRows
from hcm_scale.features.purify import attribute_signal
from hcm_scale.graph import Graph
from hcm_scale.graph.size import Size
from hcm_scale.report import wording
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import label_of
from hcm_scale.report.reasons import first_by_kind
from hcm_scale.report.wording import found_text, score_title
from hcm_scale.report.write import FORMAT, AboutRun, ScoredGraph, write_report
from hcm_scale.score import table
from hcm_scale.score.edges import open_hops
from hcm_scale.score.result import FORMAT as SCORES_FORMAT
from hcm_scale.score.result import KIND, TYPES
from hcm_scale.score.table import FILE, RankedFile, kinds_of, ranked_by
from hcm_scale.stages.drift import read_drift

__all__ = ["FORMAT", "report", "summary"]
_TOP = 10
NUM_EXPLAINED = 10  # nodes, first of the ranking; `explain` and `serve` explain all others
_HEAD = 5  # of each kind of evidence
_MOST_CASES = 30  # of a report
_FEW_EDGES = 50_000  # half a second beside a run of 8

log = logging.getLogger(__name__)


def report(
    graph: Graph,
    purified: Graph | None,
    scores: Path | str,
    out: Path | str,
    *,
    x: NDArray[np.float32] | None = None,
    run: Mapping[str, Any],
    labels: Path | str | None = None,
    features: Mapping[str, Any] | None = None,
    drift: Path | None = None,
    cases: Path | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    ranks_edges: bool = True,
    count_rows: CountRows | None = None,
) -> dict[str, Any]:
    """The report of one run, written into the folder `out`.

    `graph` is the graph with the user's own attributes, `scores` the folder of the score stage, `x` the features. `run`
    says what ran (name, seed, command); samples, version, date and hardware are filled in. `features` is the record
    of the purify stage, `drift` and `cases` the folders of those stages; `ranks_edges`, `count_rows` are those of
    `edges_of_report`.
    """
    edge_mean, edge_var = open_hops(Path(scores), graph.num_edges)
    facts = found_by(Path(scores))
    counts = dict.fromkeys(("counts", "stored"), list[int] | None)
    labelled = None if labels is None else files.read_manifest(Path(labels), shards.KIND, shards.FORMAT, types=counts)
    num_lonely = graph.num_nodes - int(np.count_nonzero(np.diff(graph.indptr)))
    signal, ranked = attribute_signal(graph, x), _open_ranked(Path(scores), graph)
    weak = wording.weak_attributes_text(signal, kinds_of(ranked), facts.get("shares", {}))
    others = wording.unstable_text(facts.get("stability")), wording.lonely_text(num_lonely, graph.num_nodes)
    ties = wording.ties_text(ranked.slice(0, wording.TIED)[ranked_by(ranked)].to_numpy())
    hints = [hint for hint in (weak, *others, ties) if hint]
    moved = None if drift is None else read_drift(drift)
    for hint in hints:
        log.warning("%s", hint)
    about = AboutRun(
        run=report_facts() | {"num_samples": facts.get("num_samples")} | dict(run),
        found=facts,
        labels=labelled,
        features=features,
        notes=hints if moved is None else [*hints, f"Drift: {moved['line']}."],
        drift=moved,
        stages=stages,
    )
    scored = ScoredGraph(Path(scores) / table.FILE, graph, purified, edge_mean, edge_var, x)
    edges = partial(edges_of_report, ranks=ranks_edges, count_rows=count_rows)
    shown = (lambda _: None) if cases is None else partial(cases_of_report, folder=cases)
    return write_report(out, scored, about, top=NUM_EXPLAINED, strange_edges=edges, cases=shown)


def cases_of_report(evidence: Evidence, folder: Path) -> dict[str, Any] | None:
    """What a page shows of the first cases; None where no node stands out."""
    cases = open_cases(folder, evidence.graph)
    count = min(len(cases), max(_TOP, min(_MOST_CASES, cases.num_flagged)))
    if count:
        evidence.fetch(np.concatenate([cases[at].members[:MOST_MEMBERS] for at in range(count)]))
    shown = [drawn(evidence, cases, at) for at in range(count)]
    counts: dict[str, Any] = {"num": len(cases), "num_flagged": cases.num_flagged, "changes": None}
    if cases.changes is not None:
        lines = changes_text(cases.changes, cases)
        counts["changes"] = {"line": f"since {cases.changes['since']}: {changes_line(cases.changes)}", "lines": lines}
    return {"shown": shown} | counts if shown else None


def ranks_edges_fast(graph: Graph) -> bool:
    """Whether ranking the edges, and counting the rows of their table, adds less than a tenth to the time of a run.

    By the numbers of edges and rows alone, so that a report is the same wherever it is made.
    """
    num_rows = graph.info.get("ingest", {}).get("counts", {}).get("edge_rows", 0)
    return bool(graph.num_edges + num_rows // 4 <= _FEW_EDGES)


def found_by(scores: Path) -> dict[str, Any]:
    """The manifest of the score stage; empty if there is none."""
    return files.read_manifest(scores, KIND, SCORES_FORMAT, types=TYPES) if (scores / files.MANIFEST).is_file() else {}


def report_facts() -> dict[str, Any]:
    accelerator = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    memory = psutil.virtual_memory().total / 2**30
    return {
        "version": hcm_scale.__version__,
        "date": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        "hardware": f"{num_cores()} cores, {memory:.0f} GiB, {platform.machine()}{accelerator}",
    }


def _open_ranked(scores: Path, graph: Graph) -> RankedFile:
    """The ranked table of a scores folder; FolderError if it is not of this graph."""
    ranked = RankedFile(scores / table.FILE)
    table.check_ranked(ranked.path, ranked, graph.num_nodes)
    return ranked


# The summary in the terminal.


def summary(
    run: Any,
    stages: Sequence[Mapping[str, Any]],
    seconds: float,
    verdicts: Sequence[str] = (),
    warned: Sequence[str] = (),
) -> str:
    """The first cases and nodes, how good the list is if that is known, what the run cost, what to type next, as text.

    `run` is a `run.finished.FinishedRun`, in a room above; `stages` are the entries of its list, with their notes,
    `verdicts` what earlier ones mean for it, `warned` what the log has warned of about the data.
    """
    parts = []
    if "scores" in run.keys:
        parts.append(_cases(run) if "cases" in run.keys else "")
        parts += [_strangest(run.ranked.slice(0, _TOP)), found_text(run.scored), _heads(run.graph, run.ranked)]
        parts.append(_quality(run.scored))
    kept = (stage for stage in stages if stage["skipped"])  # others have just told theirs
    notes = [note for stage in kept for note in stage["detail"].get("notes", [])]
    parts += [note for note in notes if not note.startswith("Drift: ")]  # which has a line of its own
    if "drift" in run.keys:
        parts.append(f"drift   {read_drift(run.stage('drift'))['line']}")
    edges = [line for stage in stages for line in stage["detail"].get("strange_edges", [])]
    parts.append("\n".join(edges))
    parts.append("\n".join(verdicts))
    parts.append("\n".join(["look at first, as the log said", *(f"  {line}" for line in warned)] if warned else []))
    parts.append(_costs(stages, seconds))
    if "report" in run.keys:
        parts.append(f"report  {run.folder / 'report' / 'report.html'}\nscores  {run.folder / 'scores' / FILE}")
        parts.append(_next_steps(run))
    else:
        parts.append(f"made in {run.folder}; `hcm-scale run` goes on to the report")
    return "\n\n".join(part for part in parts if part)


def _next_steps(run: Any) -> str:
    """Commands to type next, of this run; an id that cannot be typed is left out."""
    folder, (first,) = str(run.folder), run.ranked.slice(0, 1)["id"].to_pylist()
    steps = {"case=1": "the first case"} if len(run.found_cases) else {}
    steps |= {f"node={first}": "why the first node is there"} if str(first).isprintable() else {}
    lines = {shlex.join(["hcm-scale", "explain", folder, word]): text for word, text in steps.items()}
    others = (
        (["serve", folder], "a local page over all nodes"),
        (["export", folder, "list.csv"], "the whole list for other programs"),
        (["review", folder], "nodes to label, then run teach"),
    )
    lines |= {shlex.join(["hcm-scale", *words]): text for words, text in others}
    width = max(map(len, lines))
    return "\n".join(["next, beside opening the report", *(f"  {line:<{width}}   # {lines[line]}" for line in lines)])


def _cases(run: Any) -> str:
    """The first cases, how many there are, and what has changed since an earlier run."""
    cases = run.found_cases
    lines = case_lines(run.graph, cases, _TOP)
    lines += [f"{counted(len(cases), 'case')}, {cases.num_flagged:,} of them flagged"] if len(cases) > _TOP else []
    if cases.changes:
        lines += [f"since {cases.changes['since']}, of those flagged: {changes_line(cases.changes)}"]
        lines += changes_text(cases.changes, cases)[:_TOP]
    return "\n".join(lines)


def _strangest(table: pa.Table) -> str:
    by, kinds = ranked_by(table), kinds_of(table)
    has_p, has_flag, has_y = (name in table.column_names for name in ("p", "flagged", "y"))
    last = f"{'           p' if has_p else ''}{'   known as' if has_y else ''}"
    lines = [f"rank  id                      {score_title(by):>10}   {'stands out by':<39}degree{last}"]
    for row in table.slice(0, _TOP).to_pylist():
        notes = [label_of(row.get("y"), row.get("kind")) or "", "flagged" if has_flag and row["flagged"] else ""]
        kind = kinds[row["evidence"]].full_title
        p = f"{p_text(row['p']):>12}" if has_p else ""
        line = f"{row['rank']:>4}  {clip(row['id'], 24):<24}{row[by]:>10.2f}   {kind:<39}{row['degree']:>6,}"
        lines.append(f"{line}{p}   {', '.join(filter(None, notes))}".rstrip())
    return "\n".join(lines)


def _heads(graph: Graph, ranked: RankedFile) -> str:
    lines, kinds = [], kinds_of(ranked)
    for kind, rows in first_by_kind(graph, ranked, _HEAD).items():
        lines.append(f"  {kinds[kind].full_title:<42}" + ", ".join(clip(row["id"], 24) for row in rows))
    return "\n".join(["the first by each kind", *lines]) if lines else ""


def _quality(scored: Mapping[str, Any]) -> str:
    lines = []
    for by, numbers in (scored["metrics"] or {}).items():
        kinds = ", ".join(f"{kind} {of_kind['roc_auc']:.3f}" for kind, of_kind in numbers.get("by_kind", {}).items())
        mark = "  <- ranks the list" if by == scored["rank_by"] else ""
        lines.append(f"ROC-AUC by {by:<8}{numbers['roc_auc']:.3f}{f'  ({kinds})' if kinds else ''}{mark}")
    return "\n".join(lines)


def _costs(stages: Sequence[Mapping[str, Any]], seconds: float) -> str:
    lines = ["stage                  seconds   peak GiB"]
    for stage in stages:
        kept = "   kept from before" if stage["skipped"] else ""
        peak_gib = stage["peak_rss_bytes"] / 2**30
        lines.append(f"{stage['name']:<20}{stage['seconds']:>10.1f}{peak_gib:>11.2f}{kept}")
    lines.append(f"{'this run':<20}{seconds:>10.1f}")
    return "\n".join(lines)


def needed_bytes(size: Size, num_features: int, *, ranks_edges: bool) -> int:
    """The table (150 bytes a node), its columns again when sorted and shown; of edges hops, distances or weights.

    Where edges are ranked, mean features around nodes, and sums sorted. Of a row of the table, 60 bytes.
    """
    n, m = size.num_nodes, size.num_edges
    edges = 4 * n * num_features + 58 * m if ranks_edges else 0
    return (80 << 20) + 316 * n + (24 if size.weighted else 20) * m + edges + 60 * size.num_rows
