"""What the sections of the report page show: functions from the report dict to charts and table rows."""

from collections.abc import Mapping
from typing import Any

from hcm_scale.report.charts import Chart, Line, bar_chart, histogram_chart, line_chart
from hcm_scale.report.digest import class_names
from hcm_scale.report.kinds import WORDS
from hcm_scale.report.quantities import fixed
from hcm_scale.report.wording import score_title
from hcm_scale.score.table import kind_rank

_CURVES = (
    ("roc", "roc_auc", "ROC curve", "false_positive_rate", "true_positive_rate"),
    ("pr", "average_precision", "Precision and recall", "recall", "precision"),
)
_DIGITS = {"iv": 4, "score": 2}
_KIND_TITLES = {  # short, because five of them stand side by side
    "hop": "Hop",
    "closure": "Closure",
    "context": "Context",
    "context_closure": "Context closure",
    "attributes": "Attributes",
}
_TRENDS = (
    ("loss", "Loss", "cross entropy"),
    ("accuracy", "Accuracy per class", "accuracy"),
    ("auc", "ROC-AUC of the samples so far", "ROC-AUC"),
    ("pairs_per_second", "Throughput", "pairs a second"),
    ("step_size", "Step size", "step size"),
)


def all_sections(report: dict[str, Any]) -> dict[str, Any]:
    """What the template of each section shows, in the order of the page; sections with nothing to show are left out."""
    shown = {
        "ranking": ranking(report),
        "groups": report["groups"] or None,
        "kinds": report["kinds"] or None,
        "explained": report["top"] or None,
        "scores": score_charts(report) or None,
        "training": training_charts(report["training"]) or None,
        "graph": graph_charts(report),
        "attributes": report.get("attributes") or None,
        "cost": report["stages"] or None,
    }
    return {name: content for name, content in shown.items() if content is not None}


def ranking(report: dict[str, Any]) -> dict[str, Any]:
    """The table as the page's script reads it: columns, and rows as lists in their order."""
    rows = report["table"]
    first = report["ranked_by"]
    has = set(rows[0]) if rows else set()
    apart = "evidence" in has  # then ranks by kind say more than the numbers behind them
    order = [first, *(name for name in report["scores"] if name != first and not apart)]
    columns: list[dict[str, Any]] = [
        {"key": "rank", "name": "Rank", "kind": "count"},
        {"key": "id", "name": "Node", "kind": "text"},
    ]
    for name in order:
        shown = {"key": name, "name": score_title(name), "kind": "score"}
        columns.append(shown | {"digits": _DIGITS.get(name, 3), "bar": name == first})
    if apart:
        columns.append({"key": "evidence", "name": "Stands out by", "kind": "text"})
        columns += [{"key": kind_rank(kind), "name": name, "kind": "count"} for kind, name in _KIND_TITLES.items()]
    if "p" in has:
        columns.append({"key": "p", "name": "p", "kind": "p"})
    columns.append({"key": "degree", "name": "Degree", "kind": "count"})
    for key, name in (("flagged", "Flagged"), ("label", "Known as"), ("flags", "Flags")):
        if any(row.get(key) for row in rows):
            columns.append({"key": key, "name": name, "kind": "text"})
    keys = [column["key"] for column in columns]
    return {"columns": columns, "rows": [[_cell(key, row[key]) for key in keys] for row in rows]}


def _cell(key: str, value: Any) -> Any:
    """A value as the table shows and searches it."""
    if key == "id":
        return str(value)
    if key == "evidence":
        return WORDS.get(value, value)
    return ("yes" if value else "") if key == "flagged" else value


def score_charts(report: dict[str, Any]) -> list[Chart]:
    """Distributions, and where labels are known how well the scores tell anomalies apart."""
    known = report["accuracy"]
    spread = [(score_title(name), report["distributions"][name]) for name in report["scores"]]
    charts = [
        histogram_chart(f"{name} of every node", d["edges"], d["groups"], name, "share of its group", d["sizes"])
        for name, d in spread
        if d
    ]
    return charts + ([_curve(known, *curve) for curve in _CURVES] if known else [])


def _curve(known: Mapping[str, Any], curve: str, measure: str, title: str, x_key: str, y_key: str) -> Chart:
    lines = []
    for score, numbers in known["scores"].items():
        name, points = score_title(score), known["curves"][score][curve]
        lines.append(Line(name, points[x_key], points[y_key], f"{name} {fixed(numbers[measure])}"))
    labels = x_key.replace("_", " "), y_key.replace("_", " ")
    return line_chart(title, lines, *labels, x_range=(0, 1), y_range=(0, 1), diagonal=curve == "roc")


def accuracy_rows(by_score: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    """One row a measure, one column a score."""
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


def training_charts(curves: Mapping[str, Any]) -> list[Chart]:
    """Loss, accuracy per class, AUC trend and speed over the steps, whichever were logged."""
    charts = []
    for key, title, y_label in _TRENDS:
        if key in curves:
            y_range = (0, 1) if key == "accuracy" else None
            charts.append(line_chart(title, _lines(key, title, curves[key]), "step", y_label, y_range=y_range))
    return charts


def _lines(key: str, title: str, found: Any) -> list[Line]:
    """A line for every class or name, or a single one with its band."""
    if key == "accuracy":
        found = {f"hop {name}": curve for name, curve in zip(class_names(len(found)), found, strict=True)}
    elif key != "auc":
        return [Line(title, found["step"], found["mean"], band=(found["low"], found["high"]))]
    named = [(name.replace("_", " "), curve) for name, curve in found.items()]
    return [Line(name, curve["step"], curve["mean"], key=name) for name, curve in named]


def graph_charts(report: dict[str, Any]) -> list[Chart]:
    """Class counts of the labelled pairs, predicted hops of the edges, and what purification dropped."""
    charts = []
    counts, edges = (report["labels"] or {}).get("counts"), report["edges"]
    if counts:
        names = class_names(len(counts))
        charts.append(bar_chart("Pairs per hop class, purified graph", names, counts, "hops", "pairs"))
    if edges["hops"]:
        shares = {"edges": edges["hops"]["shares"]}
        labels = "predicted hop", "share of edges"
        charts.append(histogram_chart("Predicted hop of every edge", edges["hops"]["edges"], shares, *labels))
    lost = (edges["purified"] or {}).get("dropped_share")
    if lost:
        percents = [100 * share for share in lost.values()]
        labels = "nodes", "% of edges dropped"
        charts.append(bar_chart("Edges dropped, by kind of node", list(lost), percents, *labels))
    return charts
