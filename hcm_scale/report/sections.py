"""The sections of the report page: functions from the report dict to HTML, or to "" where there is nothing to show."""

import html
from collections.abc import Mapping
from typing import Any

from hcm_scale.report import cards, charts, costs
from hcm_scale.report.charts import Line
from hcm_scale.report.digest import class_names
from hcm_scale.report.figures import figure, fixed
from hcm_scale.report.wording import score_title

_LONG_NAMES = {
    "ahp": "average hop prediction (AHP)",
    "iv": "inference variance (IV)",
    "hav": "AHP and IV combined (HAV)",
    "closure": "far triangles per neighbour (log)",
    "strange": "strangeness (AHP and far triangles)",
}
_CURVES = (
    ("roc", "roc_auc", "ROC curve", "false_positive_rate", "true_positive_rate"),
    ("pr", "average_precision", "Precision and recall", "recall", "precision"),
)
_TRENDS = (
    ("loss", "Loss", "cross entropy"),
    ("pairs_per_second", "Throughput", "pairs a second"),
    ("step_size", "Step size", "step size"),
)


def all_sections(report: dict[str, Any], page_rows: int) -> list[tuple[str, str, str]]:
    """(anchor, name in the navigation, HTML) of every section, in the order of the page."""
    return [
        ("ranking", "Ranking", ranking(report, page_rows)),
        ("scores", "Scores", scores(report)),
        ("explained", "Explained", cards.explained(report)),
        ("training", "Training", training(report)),
        ("graph", "Graph", graph(report)),
        ("cost", "Cost", costs.cost(report)),
    ]


def long_name(score: str) -> str:
    """A score in words.

    >>> long_name("ahp"), long_name("ahp_trend")
    ('average hop prediction (AHP)', 'ahp trend')
    """
    return _LONG_NAMES.get(score, score.replace("_", " "))


def ranking_data(report: dict[str, Any]) -> dict[str, Any]:
    """The table as the page's script reads it: columns, and rows as lists in their order."""
    rows = report["table"]
    first = report["ranked_by"]
    order = [first, *(name for name in report["scores"] if name != first)]
    columns: list[dict[str, Any]] = [
        {"key": "rank", "name": "Rank", "kind": "count"},
        {"key": "id", "name": "Node", "kind": "text"},
    ]
    for name in order:
        shown = {"key": name, "name": score_title(name), "kind": "score"}
        columns.append(shown | {"digits": 4 if name == "iv" else 3, "bar": name == first})
    columns.append({"key": "degree", "name": "Degree", "kind": "count"})
    for key, name in (("label", "Known as"), ("flags", "Flags")):
        if any(row.get(key) for row in rows):
            columns.append({"key": key, "name": name, "kind": "text"})
    as_text = {c["key"] for c in columns if c["kind"] == "text"}
    values = [[_cell(row.get(c["key"]), c["key"] in as_text) for c in columns] for row in rows]
    return {"columns": columns, "rows": values}


def _cell(value: Any, is_text: bool) -> Any:
    return str(value) if is_text and value is not None else value


def ranking(report: dict[str, Any], page_rows: int) -> str:
    """The frame of the table; the page's script fills it."""
    columns = ranking_data(report)["columns"]
    heads = "".join(
        f'<th scope="col" class="{c["kind"]}" aria-sort="none"><button type="button">{c["name"]}</button></th>'
        for c in columns
    )
    total, shown = report["graph"]["num_nodes"], len(report["table"])
    which = f"The first {shown:,} of {total:,} nodes" if shown < total else f"All {total:,} nodes"
    return (
        f"<h2>Ranking</h2><p>{which}, most anomalous first; the whole list is in <code>scores.parquet</code>.</p>"
        '<div class="tools"><input id="ranking-search" type="search" placeholder="Search nodes" '
        'aria-label="Search nodes by id or label" autocomplete="off" spellcheck="false">'
        '<div class="pager"><span id="ranking-status" role="status"></span>'
        '<button id="ranking-back" type="button" aria-label="Previous page">‹</button>'
        '<button id="ranking-next" type="button" aria-label="Next page">›</button></div></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Ranked nodes"><table id="ranking-table" '
        f'data-page-rows="{page_rows}" data-explained="{len(report["top"])}"><thead><tr>{heads}</tr></thead>'
        "<tbody></tbody></table></div>"
        "<noscript><p>The table needs JavaScript; the same rows are in report.json.</p></noscript>"
    )


def scores(report: dict[str, Any]) -> str:
    """Distributions, and where labels are known how well the scores tell anomalies apart."""
    known = report["accuracy"]
    note = "How the scores are spread, and how well they tell the known anomalies from the rest."
    if not known:
        note = "How the scores are spread. No anomalies are known, so nothing can be said about accuracy."
    shown = [(name, report["distributions"][name]) for name in report["scores"]]
    figures = [_distribution(name, value) for name, value in shown if value]
    if known:
        figures += [_curve(known, *curve) for curve in _CURVES] + [_accuracy_table(known)]
    return f'<h2>Scores</h2><p>{note}</p><div class="grid">{"".join(figures)}</div>' if figures else ""


def _distribution(name: str, shown: Mapping[str, Any]) -> str:
    chart = charts.histogram_chart(shown["edges"], shown["groups"], score_title(name), "share of its group")
    keys = [(f"area s{i}", f"{group} ({shown['sizes'][group]:,})") for i, group in enumerate(shown["groups"], 1)]
    return figure(f"{score_title(name)} of every node", chart, keys)


def _curve(known: Mapping[str, Any], curve: str, measure: str, title: str, x_key: str, y_key: str) -> str:
    lines, keys = [], []
    for i, name in enumerate(known["scores"]):
        points = known["curves"][name][curve]
        lines.append(Line(score_title(name), points[x_key], points[y_key], f"s{i % 6 + 1}"))
        keys.append((f"line s{i % 6 + 1}", f"{score_title(name)} {fixed(known['scores'][name][measure])}"))
    labels = x_key.replace("_", " "), y_key.replace("_", " ")
    chart = charts.line_chart(lines, *labels, x_range=(0, 1), y_range=(0, 1), diagonal=curve == "roc")
    return figure(title, chart, keys)


def _accuracy_table(known: Mapping[str, Any]) -> str:
    """One row a measure, one column a score."""
    by_score = known["scores"]
    first = next(iter(by_score.values()))
    lines: list[tuple[str, tuple[str, ...]]] = [
        ("ROC-AUC", ("roc_auc",)),
        ("Average precision", ("average_precision",)),
    ]
    lines += [(f"ROC-AUC, {kind} only", ("by_kind", kind, "roc_auc")) for kind in first.get("by_kind", {})]
    same = str(first["num_anomalies"])  # as many places as anomalies: precision and recall are one number
    lines += [(_place_name(k, same), ("precision_at", k)) for k in first["precision_at"]]
    head = "".join(f'<th scope="col">{score_title(name)}</th>' for name in by_score)
    body = ""
    for title, path in lines:
        cells = "".join(f"<td>{fixed(_dig(numbers, path))}</td>" for numbers in by_score.values())
        body += f'<tr><th scope="row" class="text">{html.escape(title)}</th>{cells}</tr>'
    head = f'<thead><tr><th class="text" scope="col">Accuracy</th>{head}</tr></thead>'
    return f'<div class="panel accuracy"><table>{head}<tbody>{body}</tbody></table></div>'


def _place_name(k: str, num_anomalies: str) -> str:
    return f"Precision{' and recall' if k == num_anomalies else ''} in the first {int(k):,}"


def _dig(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def training(report: dict[str, Any]) -> str:
    """Loss, accuracy per class, AUC trend and speed over the steps, whichever were logged."""
    curves = report["training"]
    figures = {key: _trend(curves[key], *labels) for key, *labels in _TRENDS if key in curves}
    if "accuracy" in curves:
        named = dict(
            zip((f"hop {name}" for name in class_names(len(curves["accuracy"]))), curves["accuracy"], strict=True)
        )
        figures["accuracy"] = _trends(named, "Accuracy per class", "accuracy")
    if "auc" in curves:
        named = {name.replace("_", " "): curve for name, curve in curves["auc"].items()}
        figures["auc"] = _trends(named, "ROC-AUC of the samples so far", "ROC-AUC")
    shown = [figures[key] for key in ("loss", "accuracy", "auc", "pairs_per_second", "step_size") if key in figures]
    note = "Lines are means over neighbouring records; the shade behind them reaches from the lowest to the highest."
    return f'<h2>Training</h2><p>{note}</p><div class="grid">{"".join(shown)}</div>' if shown else ""


def _trend(curve: Mapping[str, Any], title: str, y_label: str) -> str:
    line = Line(title, curve["step"], curve["mean"], "s1", (curve["low"], curve["high"]))
    return figure(title, charts.line_chart([line], "step", y_label))


def _trends(curves: Mapping[str, Any], title: str, y_label: str) -> str:
    lines = [Line(name, c["step"], c["mean"], f"s{i % 6 + 1}") for i, (name, c) in enumerate(curves.items())]
    keys = [(f"line {line.style}", line.name) for line in lines]
    return figure(
        title, charts.line_chart(lines, "step", y_label, y_range=(0, 1) if y_label == "accuracy" else None), keys
    )


def graph(report: dict[str, Any]) -> str:
    """Class counts of the labelled pairs, predicted hops of the edges, and what purification dropped."""
    figures = []
    labels, edges = report["labels"] or {}, report["edges"]
    if labels.get("counts"):
        chart = charts.bar_chart(class_names(len(labels["counts"])), labels["counts"], "hops", "pairs")
        figures.append(figure("Pairs per hop class, purified graph", chart))
    if edges["hops"]:
        shares = {"edges": edges["hops"]["shares"]}
        chart = charts.histogram_chart(edges["hops"]["edges"], shares, "predicted hop", "share of edges")
        figures.append(figure("Predicted hop of every edge", chart))
    lost = (edges["purified"] or {}).get("dropped_share")
    if lost:
        chart = charts.bar_chart(list(lost), [100 * share for share in lost.values()], "nodes", "% of edges dropped")
        figures.append(figure("Edges dropped, by kind of node", chart))
    return f'<h2>Graph</h2><p>{_facts(report)}</p><div class="grid">{"".join(figures)}</div>'


def _facts(report: dict[str, Any]) -> str:
    facts, purified = report["graph"], report["edges"]["purified"]
    text = f"The largest degree is {facts['max_degree']:,}; {facts['num_isolated']:,} nodes have no neighbours."
    if purified:
        text += (
            f" Purification dropped {purified['num_dropped']:,} of {purified['num_edges']:,} edges and left "
            f"{purified['num_isolated']:,} nodes without any."
        )
    labels = report["labels"] or {}
    if labels.get("counts") and labels.get("stored"):
        text += f" Of {sum(labels['counts']):,} pairs of nodes, {sum(labels['stored']):,} were kept to learn from."
    return text
