"""The report page: one HTML file that needs nothing else, made from the report dict alone.

The templates write all markup, and they escape every value; Python prepares numbers, words and geometry. Style, script
and data are written into the page, and its content security policy allows just the first two, by their hashes: whatever
an id or a column name may hold, the browser runs nothing else and asks nobody for anything. The data travel as JSON in
which `<`, `>` and `&` are written as escapes (Jinja's `tojson`), so that no id can close the element it stands in.
"""

import base64
import hashlib
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hcm_scale.report import neighborhood, sections
from hcm_scale.report.quantities import bytes_text, fixed, seconds_text, signed
from hcm_scale.report.wording import score_title

PAGE_ROWS = 15
_LONG_NAMES = {
    "ahp": "average hop prediction (AHP)",
    "iv": "inference variance (IV)",
    "hav": "AHP and IV combined (HAV)",
    "closure": "far triangles per neighbour (log)",
    "strange": "strangeness (AHP and far triangles)",
}


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    style, script = (templates().get_template(name).render(page_rows=PAGE_ROWS) for name in ("page.css", "page.js"))
    return (
        templates()
        .get_template("page.html")
        .render(
            report=report,
            policy=_policy(style, script),
            style=style,
            script=script,
            numbers=_numbers(report),
            facts=_facts(report["run"]),
            sections=sections.all_sections(report),
            page_rows=PAGE_ROWS,
        )
    )


@cache
def templates() -> Environment:
    """The templates, which know how the page writes numbers and names, and refuse a value that is missing."""
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals["hood_size"] = neighborhood.SIZE
    environment.filters |= {
        "count": "{:,}".format,
        "fixed": fixed,
        "signed": signed,
        "score_title": score_title,
        "long_name": long_name,
        "along": _along,
        "accuracy_rows": sections.accuracy_rows,
        "code_parts": re.compile("`([^`]*)`").split,  # text and what stands between ticks, in turns
    }
    return environment


def long_name(score: str) -> str:
    """A score in words.

    >>> long_name("ahp"), long_name("ahp_trend")
    ('average hop prediction (AHP)', 'ahp trend')
    """
    return _LONG_NAMES.get(score, score.replace("_", " "))


def _along(share: float) -> float:
    """A place along a bar of length 100."""
    return round(100 * min(max(share, 0.0), 1.0), 1)


def _policy(style: str, script: str) -> str:
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    sources = f"style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _numbers(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The key numbers: (name, value)."""
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
    return entries


def _facts(run: dict[str, Any]) -> list[str]:
    """What one needs to run it again."""
    facts = [f"hcm-scale {run['version']}"] if run.get("version") else []
    facts += [f"seed {run['seed']}"] if run.get("seed") is not None else []
    return facts + [run[key] for key in ("date", "hardware") if run.get(key)]
