"""The section of the report page about time, memory and throughput: a row for every stage."""

import html
from collections.abc import Mapping
from typing import Any

from hcm_scale.report.charts import short
from hcm_scale.report.figures import bytes_text, seconds_text, share_bar

_HEADS = (("text", "Stage"), ("", "Time"), ("", ""), ("", "Peak memory"), ("text", "What it did"))


def cost(report: dict[str, Any]) -> str:
    """Time, memory and counts of every stage."""
    stages = report["stages"]
    if not stages:
        return ""
    longest = max((stage.get("seconds") or 0.0 for stage in stages), default=0.0) or 1.0
    rows = "".join(_stage(stage, longest) for stage in stages)
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for kind, name in _HEADS)
    hardware = report["run"].get("hardware")
    note = f"<p>On {html.escape(str(hardware))}.</p>" if hardware else ""
    return (
        f'<h2>Cost</h2>{note}<div class="scroll spaced" tabindex="0" role="region" aria-label="Cost of every stage">'
        f'<table class="stages"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _stage(stage: Mapping[str, Any], longest: float) -> str:
    seconds, peak = stage.get("seconds"), stage.get("peak_rss_bytes")
    time = seconds_text(seconds) if seconds is not None else "–"
    memory = bytes_text(peak) if peak else "–"
    kept = " <small>kept from before</small>" if stage.get("skipped") else ""
    name = html.escape(str(stage.get("name", "")))
    return (
        f'<tr><td class="text">{name}{kept}</td><td>{time}</td>'
        f'<td class="track-cell">{share_bar((seconds or 0.0) / longest)}</td>'
        f'<td>{memory}</td><td class="text detail">{html.escape(_detail(stage.get("detail")))}</td></tr>'
    )


def _detail(detail: Any) -> str:
    """The plain facts of a stage: `num_edges: 1200` reads 1,200 edges, `edges_per_second: 5e6` reads 5M edges/s."""
    if not isinstance(detail, Mapping):
        return str(detail or "")
    return " · ".join(_fact(str(name), value) for name, value in detail.items() if isinstance(value, int | float | str))


def _fact(name: str, value: Any) -> str:
    words = name.removeprefix("num_").replace("_", " ")
    if isinstance(value, bool | str):
        return f"{words} {str(value).lower() if isinstance(value, bool) else value}"
    if name.endswith("_per_second"):
        return f"{short(value)} {words.removesuffix(' per second')}/s"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {bytes_text(value)}"
    if name.endswith("_seconds"):
        return f"{words.removesuffix(' seconds')} {seconds_text(value)}"
    if name.startswith("num_"):
        return f"{value:,} {words}"
    return f"{words} {value:,}" if isinstance(value, int) else f"{words} {value:.4g}"
