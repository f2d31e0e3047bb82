"""The report page: one HTML file that needs nothing else, made from the report dict alone.

The templates write all markup and escape every value; Python prepares numbers, words and geometry. Style, script and
data are written into the page, and its content security policy allows just the first two, by their hashes: whatever an
id or a column name may hold, the browser runs nothing else and asks nobody for anything. The data travel as JSON in
which `<`, `>` and `&` are written as escapes (Jinja's `tojson`), so that no id can close the element it stands in.
"""

import base64
import hashlib
import os
import re
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined

from hcm_scale.base import text
from hcm_scale.base.kernel_cache import kernel_folder
from hcm_scale.report import card, sections, wording
from hcm_scale.score.kinds.all import ROW_TITLES
from hcm_scale.score.kinds.row_phrases import amount_text

PAGE_ROWS = 15
_NUMBERS = ("fixed", "percent", "seconds_text", "bytes_text", "detail_text", "p_text", "value_text", "weight")
_WORDING = ("sentence", "score_title", "long_name", "meaning", "headline", "found_text")


def render(report: dict[str, Any]) -> str:
    page, style, script = (templates().get_template(f"page.{kind}") for kind in ("html", "css", "js"))
    allowed = {"style": style.render(), "script": script.render()}
    shown = {"report": report, "numbers": _findings(report), "sections": sections.all_sections(report)}
    return page.render(**shown, policy=policy(**allowed), **allowed)


@cache
def templates() -> Environment:
    """The templates, which know how the page writes numbers and names, and refuse a value that is missing.

    They are compiled once, into the folder of compiled kernels, unless another user has made it, as in an image.
    """
    folder = kernel_folder()
    keeps = folder is not None and os.access(folder, os.W_OK)
    environment = Environment(
        loader=PackageLoader(__package__),
        bytecode_cache=FileSystemBytecodeCache(str(folder), "%s.jinja") if keeps else None,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals |= {"page_rows": PAGE_ROWS, "most_columns": 200, "hood_size": card.SIZE}
    environment.globals |= {"edge_words": wording.EDGE_TITLES | ROW_TITLES}
    environment.filters |= {name: getattr(text, name) for name in _NUMBERS}
    environment.filters |= {name: getattr(wording, name) for name in _WORDING}
    environment.filters |= {
        "count": "{:,}".format,
        "amount_text": amount_text,
        "accuracy_rows": sections.accuracy_rows,
        "code_parts": re.compile("`([^`]*)`").split,  # text and what stands between backticks, alternating
    }
    return environment


def policy(**allowed: str) -> str:
    """A content security policy that allows the given `style` and `script`, and pictures written into the page."""
    hashes = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in allowed.items()}
    sources = "; ".join(f"{kind}-src 'sha256-{value}'" for kind, value in hashes.items())
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _findings(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The key numbers at the top of the page: (name, value)."""
    flagged, cases, numbers = report["flagged"], report["cases"], []
    if flagged is not None and flagged["num"]:  # else the headline says that there are none
        numbers.append(("nodes stand out" if flagged["num"] > 1 else "node stands out", f"{flagged['num']:,}"))
        kinds = sorted(flagged["by_kind"].items(), key=lambda entry: -entry[1])
        titles = {kind: about["title"] for kind, about in report["kind_words"].items()}
        numbers += [(f"of them: {titles[kind]}", f"{count:,}") for kind, count in kinds if count]
    if cases is not None and cases["num_flagged"]:
        numbers.insert(0, (f"case{'s' * (cases['num_flagged'] > 1)} to look at", f"{cases['num_flagged']:,}"))
    best = (report["accuracy"] or {"scores": {}})["scores"].get(report["ranked_by"])
    if best:
        numbers.append(("known anomalies", f"{report['graph']['num_anomalies']:,}"))
        numbers.append(("ROC-AUC", text.fixed(best["roc_auc"])))
        numbers.append(("average precision", text.fixed(best["average_precision"])))
    return numbers
