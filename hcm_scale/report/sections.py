"""What the sections of the report page show: functions from the report dict to table columns, rows and charts.

`all_sections` gives what the template of each section shows. The ranked table is described by columns (key, heading,
what the heading means, how values are written) and a list of values per column; very long ids are cut, since a page of
them would not load. The served page and the notebook use the same functions.

A `Chart` is geometry (histograms, bars) that `templates/figures.html` writes as SVG. Colours, strokes and fonts belong
to the style sheet (`s1` .. `s6` are the series), so one drawing serves the light page, the dark page and paper. A
drawing is 320 units wide, about what a phone or a third of a desktop page gives it, so that its 11-unit text stays near
11 pixels.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from hcm_scale.base.text import percent, sentence, short
from hcm_scale.report.digest import class_names
from hcm_scale.report.explain import finite, label_of
from hcm_scale.report.wording import OF_KNOWN, long_name, score_help, score_title, terms
from hcm_scale.score.table import kinds_of

_MAX_ID_LENGTH = 1000
_DIGITS = {"iv": 4, "score": 2}  # else 3


def all_sections(report: dict[str, Any]) -> dict[str, Any]:
    """What the template of each section shows, in the order of the page, without sections that have nothing to show."""
    attributes = {name: report[name] for name in ("columns", "attributes")}  # of the user's tables, and of features
    shown = {
        "cases": report["cases"],
        "ranking": ranking_section(report),
        "kinds": report["kinds"] or None,
        "edges": report["strange_edges"],
        "explained": report["top"] or None,
        "scores": score_charts(report) or None,
        "graph": graph_charts(report),
        "attributes": attributes if any(attributes.values()) else None,
        "cost": report["stages"] or None,
        "glossary": terms(report["kind_words"]) | (OF_KNOWN if report["accuracy"] else {}),
    }
    return {name: content for name, content in shown.items() if content is not None}


def ranking_section(report: dict[str, Any]) -> dict[str, Any]:
    """The table as the page's script reads it: its columns, and a list of values for each."""
    has_some = {key for key, column in report["table"].items() if key in ("rank", "id") or any(column)}
    types = sorted({name for name in report["table"].get("type", ()) if name})
    shown = ranking_columns(has_some | {report["ranked_by"]}, report["ranked_by"], report["kind_words"], types)
    values = {column["key"]: report["table"][column["key"]] for column in shown}
    return {
        "columns": shown,
        "values": values | {"id": [str(value) for value in values["id"]]},
    }  # a script would round numbers


def ranking_columns(
    names: Collection[str], ranked_by: str, words: Mapping[str, Mapping[str, str]], types: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The columns to show of a ranked table that has `names`; `words` are those of its kinds of evidence.

    `minor` columns are shown only where there is room. `types` are those of nodes, to choose one from.

    >>> [column["name"] for column in ranking_columns(["rank", "id", "ahp", "degree"], "ahp", {})]
    ['Rank', 'Node', 'AHP', 'Degree']
    """
    shown = [_column("rank", "Rank", "count"), _column("id", "Node", "text")]
    shown.append(_column("type", "Type", "text", choices=list(types)))
    score = {"digits": _DIGITS.get(ranked_by, 3), "bar": True, "minor": True}
    shown.append(_column(ranked_by, score_title(ranked_by), "score", **score))
    titles = {kind: about["title"] for kind, about in words.items()}
    shown.append(_column("evidence", "Stands out by", "words", words=titles))
    shown += [_column("p", "p", "p"), _column("reason", "Why", "text", minor=True)]
    for kind, about in words.items():
        what = f"Rank by this alone: {about['title']} ({kind}). {about['help']}"
        shown.append(_column(f"{kind}_rank", about["short"], "count", help=what, minor=True))
    last = ("flagged", "Flagged", "flag"), ("degree", "Degree", "count"), ("label", "Known as", "text")
    shown += [_column(*column, minor=True) for column in (*last, ("flags", "Notes", "text"))]
    return [column for column in shown if column["key"] in names]


def _column(key: str, name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "name": name, "kind": kind, "help": score_help(key)} | more


def ranking_values(table: pa.Table, ranked_by: str) -> dict[str, list[Any]]:
    """The rows of a ranked table as lists, by column, with the score that ranks and no other."""
    values: dict[str, list[Any]] = {
        "rank": table["rank"].to_pylist(),
        "id": [cut_id(i) for i in table["id"].to_pylist()],
        ranked_by: [finite(value) for value in table[ranked_by].to_pylist()],
    }
    ranks = [kind.rank_column for kind in kinds_of(table).values()]
    others = ("type", "evidence", *ranks, "p", "flagged", "degree")
    values |= {name: table[name].to_pylist() for name in others if name in table.column_names}
    if "y" in table.column_names:
        kinds = table["kind"].to_pylist() if "kind" in table.column_names else [None] * table.num_rows
        values["label"] = [label_of(y, kind) for y, kind in zip(table["y"].to_pylist(), kinds, strict=True)]
    notes = [flags.replace(",", ", ").replace("_", " ") for flags in table["flags"].to_pylist()]
    return values | {"flags": notes}


def cut_id(value: Any) -> Any:
    """The id, cut where it is longer than a thousand characters."""
    return value[:_MAX_ID_LENGTH] + "…" if isinstance(value, str) and len(value) > _MAX_ID_LENGTH else value


def score_charts(report: dict[str, Any]) -> list["Chart"]:
    """Distributions of the scores, of anomalies and other nodes apart where labels are known."""
    charts = []
    for name in report["scores"]:
        if shown := report["distributions"][name]:
            title, share = sentence(long_name(name)), "share of nodes" if len(shown["sizes"]) == 1 else "share of group"
            bars = shown["edges"], shown["groups"]
            charts.append(histogram_chart(title, *bars, "", share, shown["sizes"], _folded(shown["folded"])))
    return charts


def _folded(counts: list[int]) -> str:
    """Which nodes the outermost bars count besides their own; empty where there are none.

    >>> _folded([0, 4]), _folded([1, 3])
    ('The last bar counts 4 nodes farther out.', 'The first and last bars count 1 and 3 nodes farther out.')
    """
    below, above = counts
    if below and above:
        return f"The first and last bars count {below:,} and {above:,} nodes farther out."
    some = below or above
    return f"The {'first' if below else 'last'} bar counts {some:,} node{'s' * (some > 1)} farther out." if some else ""


def accuracy_rows(by_score: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    """(measure, a value per score) for the table of accuracies."""
    scores = list(by_score.values())
    rows = [
        ("ROC-AUC", [score["roc_auc"] for score in scores]),
        ("Average precision", [score["average_precision"] for score in scores]),
    ]
    for kind in scores[0].get("by_kind", {}):
        rows.append((f"ROC-AUC, {kind} only", [score["by_kind"][kind]["roc_auc"] for score in scores]))
    for k in scores[0]["precision_at"]:  # in as many places as anomalies, precision and recall are one number
        both = " and recall" if k == str(scores[0]["num_anomalies"]) else ""
        rows.append((f"Precision{both} in the first {int(k):,}", [score["precision_at"][k] for score in scores]))
    return rows


def graph_charts(report: dict[str, Any]) -> list["Chart"]:
    """Class counts of the labelled pairs, and predicted hops of the edges."""
    charts, hops = [], report["edges"]["hops"]
    if counts := (report["labels"] or {}).get("counts"):
        names = class_names(len(counts))
        charts.append(bar_chart("Pairs per hop class, purified graph", names, counts, "hops", "pairs"))
    if hops:
        shares, labels = {"edges": hops["shares"]}, ("predicted hop", "share of edges")
        charts.append(histogram_chart("Predicted hop of every edge", hops["edges"], shares, *labels))
    return charts


# Charts.


class Path(NamedTuple):
    """A stroke or an area: its classes, its SVG path data, its tooltip and its entry in the legend."""

    style: str
    d: str
    name: str = ""
    key: str = ""


@dataclass(frozen=True)
class Frame:
    """Maps data onto the drawing, whose axes reach from `left` to `right` and from `top` down to `base`."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    width, height = 320, 204
    left, right, top, base = 36, 312, 24, 170

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.base - (value - self.y_low) / (self.y_high - self.y_low) * (self.base - self.top)

    def x_ticks(self) -> list[tuple[float, str]]:
        """(position, text) of round numbers along the axis."""
        return [(round(self.x(value), 1), short(value)) for value in ticks(self.x_low, self.x_high)]

    def y_ticks(self, text: Callable[[float], str] = short) -> list[tuple[float, str]]:
        return [(round(self.y(value), 1), text(value)) for value in ticks(self.y_low, self.y_high)]


@dataclass(frozen=True)
class Chart:
    """A drawing, its caption and a note; `label` is for screen readers, `values` are (x, y, text) above bars."""

    title: str
    label: str
    x_label: str
    y_label: str
    frame: Frame
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    paths: Sequence[Path] = ()
    values: Sequence[tuple[float, float, str]] = ()
    note: str = ""


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) within [low, high].

    >>> ticks(0, 1), ticks(3, 38)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next((m for m in (1, 2, 5) if m * power >= rough * 0.999), 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def histogram_chart(
    title: str,
    edges: Sequence[float],
    groups: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    sizes: Mapping[str, int] | None = None,
    note: str = "",
) -> Chart:
    """Overlapping histograms; `edges` has one more entry than each group, `sizes` stand in the legend."""
    top = max((max(heights) for heights in groups.values()), default=0.0) or 1.0
    frame = Frame(edges[0], edges[-1], 0.0, top * 1.06)
    paths = [
        Path(f"area s{i}", _steps(frame, edges, heights), name, f"{name} ({sizes[name]:,})" if sizes else "")
        for i, (name, heights) in enumerate(groups.items(), start=1)
    ]
    label = f"Distribution of {x_label}: {', '.join(groups)}"
    return Chart(title, label, x_label, y_label, frame, frame.x_ticks(), frame.y_ticks(percent), paths, note=note)


def bar_chart(title: str, names: Sequence[str], values: Sequence[float], x_label: str, y_label: str) -> Chart:
    """One bar per name, its value written above it."""
    frame = Frame(0.0, float(len(names)), 0.0, (max(values, default=0.0) or 1.0) * 1.14)
    half, base = (frame.x(0.62) - frame.x(0.0)) / 2, frame.base
    x_ticks, paths, texts = [], [], []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        middle, top = frame.x(i + 0.5), frame.y(value)
        x_ticks.append((round(middle, 1), name))
        paths.append(Path("column", f"M{middle - half:.1f} {base}V{top:.1f}h{2 * half:.1f}V{base}Z"))
        texts.append((round(middle, 1), round(top, 1), short(value)))
    return Chart(title, f"{y_label} by {x_label}", x_label, y_label, frame, x_ticks, frame.y_ticks(), paths, texts)


def _steps(frame: Frame, edges: Sequence[float], heights: Sequence[float]) -> str:
    tops = "".join(f"V{frame.y(h):.1f}H{frame.x(right):.1f}" for h, right in zip(heights, edges[1:], strict=True))
    return f"M{frame.x(edges[0]):.1f} {frame.base}{tops}V{frame.base}Z"
