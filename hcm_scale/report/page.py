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
from hcm_scale.report.kinds import WORDS
from hcm_scale.report.listing import found_text, group_text, long_name, meaning
from hcm_scale.report.quantities import bytes_text, detail_text, fixed, seconds_text
from hcm_scale.report.wording import score_title

PAGE_ROWS = 15


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    page, style, script = (templates().get_template(f"page.{kind}") for kind in ("html", "css", "js"))
    allowed = {"style": style.render(), "script": script.render()}
    return page.render(
        report=report,
        numbers=_numbers(report),
        sections=sections.all_sections(report),
        policy=_policy(**allowed),
        **allowed,
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
    environment.globals |= {"page_rows": PAGE_ROWS, "hood_size": neighborhood.SIZE, "kind_words": WORDS}
    environment.filters |= {
        "count": "{:,}".format,
        "fixed": fixed,
        "seconds_text": seconds_text,
        "bytes_text": bytes_text,
        "detail_text": detail_text,
        "score_title": score_title,
        "long_name": long_name,
        "meaning": meaning,
        "found_text": found_text,
        "group_text": group_text,
        "accuracy_rows": sections.accuracy_rows,
        "code_parts": re.compile("`([^`]*)`").split,  # text and what stands between ticks, in turns
    }
    return environment


def _policy(**allowed: str) -> str:
    """Nothing but the given `style` and `script`, and pictures written into the page."""
    hashes = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in allowed.items()}
    sources = "; ".join(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items())
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _numbers(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The key numbers: (name, value)."""
    entries = []
    if report["found"].get("num_flagged") is not None:
        entries.append(("nodes stand out", f"{report['found']['num_flagged']:,}"))
    if report["groups"]:
        entries.append(("groups", f"{len(report['groups']):,}"))
    best = (report["accuracy"] or {"scores": {}})["scores"].get(report["ranked_by"])
    if best:
        entries += [("ROC-AUC", fixed(best["roc_auc"])), ("average precision", fixed(best["average_precision"]))]
        entries += [("known anomalies", f"{report['graph']['num_anomalies']:,}")]
    purified = report["edges"]["purified"]
    if purified and purified["num_edges"]:
        entries.append(("edges dropped", f"{100 * purified['num_dropped'] / purified['num_edges']:.1f}%"))
    seconds, peaks = ([stage[key] or 0 for stage in report["stages"]] for key in ("seconds", "peak_rss_bytes"))
    entries += [("in all stages", seconds_text(sum(seconds)))] if seconds else []
    return entries + ([("peak memory", bytes_text(max(peaks)))] if any(peaks) else [])
