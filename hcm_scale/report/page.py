"""The report page: one HTML file that needs nothing else, made from the report dict alone.

Style, script and data are written into the page, and its content security policy allows just the first two, by their
hashes: whatever an id or a column name may hold, the browser runs nothing else and asks nobody for anything. Text from
the data passes through `html.escape`, or travels as JSON in which `<`, `>` and `&` are written as escapes, so that no
id can close the element it stands in.
"""

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any

from hcm_scale.report import sections
from hcm_scale.report.figures import bytes_text, fixed, seconds_text

PAGE_ROWS = 15


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    style, script = _asset("page.css").replace("$rows", str(PAGE_ROWS)), _asset("page.js")
    shown = [(key, title, body) for key, title, body in sections.all_sections(report, PAGE_ROWS) if body]
    return Template(_asset("page.html")).substitute(
        policy=html.escape(_policy(style, script), quote=True),
        title=html.escape(str(report["run"].get("name") or "Anomaly ranking")),
        style=style,
        script=script,
        nav="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown),
        lede=_lede(report),
        numbers=_numbers(report),
        sections="\n".join(f'<section id="{key}">{body}</section>' for key, _, body in shown),
        footer=_footer(report),
        data=embed(sections.ranking_data(report)),
    )


def embed(value: Any) -> str:
    r"""JSON that may stand inside a script element: nothing in it looks like markup.

    >>> embed({"id": "</script><b>&"})
    '{"id":"\\u003c/script\\u003e\\u003cb\\u003e\\u0026"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    sources = f"style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _lede(report: dict[str, Any]) -> str:
    """What ran and on what, in two sentences."""
    run, graph = report["run"], report["graph"]
    kind = "directed " if graph["directed"] else ""
    sizes = f"{graph['num_nodes']:,} nodes, {graph['num_edges']:,} {kind}edges"
    what = f"{sizes} and {graph['num_attributes']:,} attributes" if graph["num_attributes"] else sizes
    samples = f" over {run['num_samples']} parameter samples" if run.get("num_samples") else ""
    how = f"Ranked by {sections.long_name(report['ranked_by'])}{samples}"
    return html.escape(f"{what}. {how}: the higher a node stands, the farther its own neighbours seem to be from it.")


def _numbers(report: dict[str, Any]) -> str:
    """The key numbers as a definition list; the explanation of each stands below it."""
    entries = []
    best = (report["accuracy"] or {"scores": {}})["scores"].get(report["ranked_by"])
    if best:
        entries += [("ROC-AUC", fixed(best["roc_auc"])), ("average precision", fixed(best["average_precision"]))]
        entries += [("known anomalies", f"{report['graph']['num_anomalies']:,}")]
    purified = report["edges"]["purified"]
    if purified and purified["num_edges"]:
        entries.append(("edges dropped", f"{100 * purified['num_dropped'] / purified['num_edges']:.1f}%"))
    ran = [stage for stage in report["stages"] if isinstance(stage.get("seconds"), int | float)]
    if ran:
        entries.append(("in all stages", seconds_text(sum(stage["seconds"] for stage in ran))))
        peaks = [stage["peak_rss_bytes"] for stage in ran if stage.get("peak_rss_bytes")]
        entries += [("peak memory", bytes_text(max(peaks)))] if peaks else []
    boxes = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{value}</dd></div>" for name, value in entries)
    return f'<dl class="numbers">{boxes}</dl>' if boxes else ""


def _footer(report: dict[str, Any]) -> str:
    """The facts one needs to run it again."""
    run = report["run"]
    facts = [f"hcm-scale {run['version']}"] if run.get("version") else []
    facts += [f"seed {run['seed']}"] if run.get("seed") is not None else []
    facts += [str(run[key]) for key in ("date", "hardware") if run.get(key)]
    line = html.escape(" · ".join(facts))
    command = f"<br><code>{html.escape(str(run['command']))}</code>" if run.get("command") else ""
    return line + command
