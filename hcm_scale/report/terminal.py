"""An explanation as a page for a terminal: where the node stands, its reasons, its neighbours, its attributes."""

import textwrap

from hcm_scale.report.dates import value_text
from hcm_scale.report.explain import Explanation
from hcm_scale.report.wording import clip, dropped, flag, lead, reasons, score_title, weight

_ID_WIDTH = 40
_LINE_WIDTH = 100


def text(e: Explanation, limit: int = 20) -> str:
    """The whole explanation for a terminal, with at most `limit` neighbours."""
    return "\n".join([*_heading(e), *_neighbor_lines(e, limit), *_difference_lines(e)])


def _heading(e: Explanation) -> list[str]:
    shown = {name: value for name, value in e.scores.items() if e.ranked_by in ("", name)}
    scores = "".join(f"{score_title(name)} {_number(value)}   " for name, value in shown.items())
    lines = [
        f"{clip(e.id, 80)}   rank {e.rank:,} of {e.num_nodes:,} (above {e.percentile:.2f} % of all nodes)",
        f"{scores}degree {e.degree:,}" + (f"   known to be: {e.label}" if e.label else ""),
        *([flag(e)] if flag(e) else []),
        "",
        *([lead(e)] if lead(e) else []),
    ]
    for told in reasons(e):
        lines += textwrap.wrap(f"{told.title}: {told.text}", _LINE_WIDTH, subsequent_indent="  ")
    return lines + ([dropped(e)] if dropped(e) else [])


def _neighbor_lines(e: Explanation, limit: int) -> list[str]:
    shown = e.neighbors[:limit]
    if not shown:
        return []
    width = max(10, *(len(clip(n.id, _ID_WIDTH)) for n in shown))
    wide = max(len("type"), *(len(", ".join(n.types)) for n in shown)) if any(n.types for n in shown) else 0
    name = clip(shown[0].weight.name, _ID_WIDTH) if shown[0].weight else ""
    lines = ["", f"{'neighbour':<{width}}   predicted hop   {_edge_cells('edge', 'type' * bool(wide), wide, name)}"]
    for n in shown:
        hop = "  not scored " if n.hop is None else f"{n.hop:5.2f} ± {n.std or 0.0:<5.2f}"
        edge = {None: "", True: "dropped", False: "kept"}[n.dropped]
        told = weight(n.weight.value, n.weight.percent) if n.weight else ""
        cells = _edge_cells(edge, ", ".join(n.types), wide, told)
        lines.append(f"{clip(n.id, _ID_WIDTH):<{width}}   {hop}   {cells}".rstrip())
    hidden = e.degree - len(shown)
    return [*lines, f"and {hidden:,} nearer"] if hidden else lines


def _edge_cells(edge: str, types: str, wide: int, told: str) -> str:
    """Columns about an edge, the last its weight; `wide` is the room of its types, 0 where no edge has any."""
    return "   ".join([f"{edge:<8}", *([f"{types:<{wide}}"] if wide else []), told]).rstrip()


def _difference_lines(e: Explanation) -> list[str]:
    if not e.differences:
        return []
    names = [clip(f"text in {d.column}" if d.is_text else d.column, _ID_WIDTH) for d in e.differences]
    width = max(10, *map(len, names))
    own = ["" if d.is_text else value_text(d.value, d.first_day) for d in e.differences]
    theirs = ["" if d.is_text else value_text(d.neighbors, d.first_day) for d in e.differences]
    wide = max(12, *map(len, own + theirs))
    lines = ["", f"{'attribute':<{width}}   {'its value':>{wide}}   {'neighbours':>{wide}}   deviations"]
    for name, left, right, d in zip(names, own, theirs, e.differences, strict=True):
        lines.append(f"{name:<{width}}   {left:>{wide}}   {right:>{wide}}   {d.deviations:>+10.1f}")
    return lines


def _number(value: float | None) -> str:
    """Three significant digits, a dash where there is no number."""
    return "-" if value is None else f"{value:.3g}"
