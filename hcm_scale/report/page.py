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

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined

from hcm_scale.base.kernel_cache import kernel_folder
from hcm_scale.report import card, sections
from hcm_scale.report.explain import value_text
from hcm_scale.report.reasons import KIND_TITLES
from hcm_scale.report.wording import (
    HELP,
    bytes_text,
    detail_text,
    fixed,
    flag_text,
    group_text,
    headline,
    long_name,
    meaning,
    p_text,
    score_title,
    seconds_text,
    sentence,
    weight,
)

PAGE_ROWS = 15


def render(report: dict[str, Any]) -> str:
    """The whole page."""
    page, style, script = (templates().get_template(f"page.{kind}") for kind in ("html", "css", "js"))
    allowed = {"style": style.render(), "script": script.render()}
    return page.render(
        report=report,
        numbers=_numbers(report),
        sections=sections.all_sections(report),
        policy=policy(**allowed),
        **allowed,
    )


@cache
def templates() -> Environment:
    """The templates, which know how the page writes numbers and names, and refuse a value that is missing.

    They are compiled once, and kept where kernels are.
    """
    folder = kernel_folder()
    environment = Environment(
        loader=PackageLoader(__package__),
        bytecode_cache=FileSystemBytecodeCache(str(folder), "%s.jinja") if folder else None,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals |= {
        "page_rows": PAGE_ROWS,
        "most_columns": 200,
        "hood_size": card.SIZE,
        "kind_words": KIND_TITLES,
        "help": HELP,
    }
    environment.filters |= {
        "count": "{:,}".format,
        "fixed": fixed,
        "seconds_text": seconds_text,
        "bytes_text": bytes_text,
        "detail_text": detail_text,
        "score_title": score_title,
        "long_name": long_name,
        "meaning": meaning,
        "headline": headline,
        "flag_text": flag_text,
        "sentence": sentence,
        "p_text": p_text,
        "value_text": value_text,
        "group_text": group_text,
        "weight": weight,
        "accuracy_rows": sections.accuracy_rows,
        "code_parts": re.compile("`([^`]*)`").split,  # text and what stands between ticks, in turns
    }
    return environment


def policy(**allowed: str) -> str:
    """Nothing but the given `style` and `script`, and pictures written into the page."""
    hashes = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in allowed.items()}
    sources = "; ".join(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items())
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _numbers(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The key findings: (name, value)."""
    flagged, entries = report["flagged"], []
    if flagged is not None:
        entries.append(("nodes stand out", f"{flagged['num']:,}"))
        kinds = sorted(flagged["by_kind"].items(), key=lambda entry: -entry[1])
        entries += [(f"of them: {KIND_TITLES[kind]}", f"{count:,}") for kind, count in kinds if count]
    if report["groups"]:
        entries.append(
            (
                "groups of joined nodes" if len(report["groups"]) > 1 else "group of joined nodes",
                f"{len(report['groups']):,}",
            )
        )
    best = (report["accuracy"] or {"scores": {}})["scores"].get(report["ranked_by"])
    if best:
        entries += [("known anomalies", f"{report['graph']['num_anomalies']:,}")]
        entries += [("ROC-AUC", fixed(best["roc_auc"])), ("average precision", fixed(best["average_precision"]))]
    return entries
