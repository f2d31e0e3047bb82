"""The section of the report page about time, memory and throughput: a row for every stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from hcm_scale.report.quantities import bytes_text, seconds_text, short


def stage_rows(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Time, memory and counts of every stage; `share` is its time as a part of the longest one's."""
    longest = max((stage.get("seconds") or 0.0 for stage in stages), default=0.0) or 1.0
    return [
        {
            "name": stage.get("name", ""),
            "kept": stage.get("skipped"),
            "time": "–" if stage.get("seconds") is None else seconds_text(stage["seconds"]),
            "share": (stage.get("seconds") or 0.0) / longest,
            "memory": bytes_text(stage["peak_rss_bytes"]) if stage.get("peak_rss_bytes") else "–",
            "detail": _detail(stage.get("detail")),
        }
        for stage in stages
    ]


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
