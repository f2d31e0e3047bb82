"""What the sections of the report page show: functions from the report dict to charts and table rows."""

from collections.abc import Mapping
from typing import Any

from hcm_scale.report.charts import Chart, Line, bar_chart, histogram_chart, line_chart
from hcm_scale.report.digest import class_names
from hcm_scale.report.glossary import OF_KNOWN, TERMS
from hcm_scale.report.listing import long_name, sentence
from hcm_scale.report.quantities import fixed
from hcm_scale.report.ranking import columns, listed_scores

_CURVES = (
    ("roc", "roc_auc", "ROC curve", "false_positive_rate", "true_positive_rate"),
    ("pr", "average_precision", "Precision and recall", "recall", "precision"),
)
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
        "attributes": attribute_tables(report) or None,
        "cost": report["stages"] or None,
        "glossary": TERMS | (OF_KNOWN if report["accuracy"] else {}),
    }
    return {name: content for name, content in shown.items() if content is not None}


def attribute_tables(report: dict[str, Any]) -> dict[str, Any]:
    """What became of the columns of the user's tables, and of the attributes; either may be missing."""
    tables = {name: report[name] for name in ("columns", "attributes")}
    return tables if any(tables.values()) else {}


def ranking(report: dict[str, Any]) -> dict[str, Any]:
    """The table as the page's script reads it: what the columns are, and a list of values for each."""
    known = {key: column for key, column in report["table"].items() if key == "rank" or any(column)}
    scores = listed_scores(report["scores"], report["ranked_by"], "evidence" in known)
    shown = columns([*known, *scores], scores)
    values = {column["key"]: report["table"][column["key"]] for column in shown}
    return {"columns": shown, "values": values | {"id": [str(value) for value in values["id"]]}}  # a script rounds them


def score_charts(report: dict[str, Any]) -> list[Chart]:
    """Distributions, and where labels are known how well the scores tell anomalies apart."""
    known = report["accuracy"]
    charts = []
    for name in report["scores"]:
        if shown := report["distributions"][name]:
            title, share = sentence(long_name(name)), "share of nodes" if len(shown["sizes"]) == 1 else "share of group"
            bars = shown["edges"], shown["groups"]
            charts.append(histogram_chart(title, *bars, "", share, shown["sizes"], _folded(shown["folded"])))
    return charts + ([_curve(known, *curve) for curve in _CURVES] if known else [])


def _folded(counts: list[int]) -> str:
    """Whom the outermost bars stand for besides their own.

    >>> _folded([0, 4]), _folded([1, 3])
    ('The last bar counts 4 nodes farther out.', 'The first and last bars count 1 and 3 nodes farther out.')
    """
    below, above = counts
    if below and above:
        return f"The first and last bars count {below:,} and {above:,} nodes farther out."
    some = below or above
    return f"The {'first' if below else 'last'} bar counts {some:,} node{'s' * (some > 1)} farther out." if some else ""


def _curve(known: Mapping[str, Any], curve: str, measure: str, title: str, x_key: str, y_key: str) -> Chart:
    lines = []
    for score, numbers in known["scores"].items():
        name, points = sentence(long_name(score)), known["curves"][score][curve]
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
