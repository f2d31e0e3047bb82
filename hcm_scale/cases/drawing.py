"""A small drawing of a case: its members, who pays whom or is joined to whom, and when.

`draw` places things in a box of WIDTH units and leaves the marks to a template (`report/templates/case.html`). Where
money moves, those who only pay stand on the left, those who are only paid on the right and the others between; where
all pass on, and in groups, members stand on a circle. At most `_DRAWN` members are drawn, the core first, and it is
said how many are not. Below, a time line has a tick for every row, higher for larger amounts.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hcm_scale.base.text import clip
from hcm_scale.cases.describe import describe, links_of
from hcm_scale.cases.store import Cases
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.sections import cut_id
from hcm_scale.score.kinds.row_phrases import time_text

WIDTH, _HEIGHT, _DRAWN, _LABELLED = 320, 200, 14, 8
_COLUMN = {"pays in": 0, "pays out": 0, "passes on": 1, "collects": 1, "member": 1, "contact": 1, "is paid": 2}
_ASIDE = 26.0  # units, by which every other one of those in the middle is to the left, and the others to the right
_TICKS = 24  # units that a time line takes, besides its labels


def drawn(evidence: Evidence, cases: Cases, position: int) -> dict[str, Any]:
    """Everything that is told of a case, with its drawing, as a page shows it."""
    told = describe(evidence, cases, position)
    drawing = draw(told, links_of(evidence, cases[position]))
    for one in (*told["members"], *told["rows"]):
        one |= {key: cut_id(one[key]) for key in ("id", "payer", "payee") if key in one}
        one |= {"time": time_text(one["time"], one["steps"])} if "time" in one else {}  # JSON has seven digits
    return told | {"drawing": drawing}


def draw(told: Mapping[str, Any], links: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The places of members, arrows between them and ticks in time; `links` are pairs of members that are joined."""
    members = told["members"]
    arrows = _arrows(told)
    busy = {name: number for number, name in enumerate(dict.fromkeys(name for pair in arrows for name in pair))}
    order = sorted(range(len(members)), key=lambda i: (not members[i]["core"], members[i]["id"] not in busy, i))[
        :_DRAWN
    ]
    shown = sorted(order, key=lambda i: (busy.get(members[i]["id"], len(busy)), i))  # as they come in the rows
    places = _places([members[i]["role"] for i in shown], bool(arrows))
    nodes = [
        {"x": x, "y": y, "label": clip(members[i]["id"], 14), "side": _side(x, y)}
        | {name: members[i][name] for name in ("id", "core", "role")}
        for i, (x, y) in zip(shown, places, strict=True)
    ]
    at = {members[i]["id"]: place for i, place in zip(shown, places, strict=True)}
    position = dict(zip(shown, places, strict=True))
    drawn = [(at[a], at[b], label) for (a, b), label in arrows.items() if a in at and b in at]
    lines = [(position[a], position[b]) for a, b in links if a in position and b in position]
    return {
        "width": WIDTH,
        "height": _HEIGHT,
        "nodes": nodes,
        "arrows": [_arrow(*one, labelled=len(drawn) <= _LABELLED) for one in drawn],
        "lines": [[*a, *b] for a, b in lines],
        "hidden": told["num_members"] - len(shown),
        "ticks": _ticks(told),
    }


def _arrows(told: Mapping[str, Any]) -> dict[tuple[Any, Any], str]:
    """What was paid between two members, in words."""
    amounts = defaultdict(list)
    for row in told["rows"]:
        amounts[row["payer"], row["payee"]].append(row["amount"])
    return {pair: _sum_text(some) for pair, some in amounts.items() if pair[0] != pair[1]}


def _sum_text(amounts: Sequence[float | None]) -> str:
    known = [amount for amount in amounts if amount is not None]
    total = f"{sum(known):,.0f}" if known else ""
    return total if len(amounts) == 1 else f"{len(amounts)}: {total}" if total else f"{len(amounts)}"


def _places(roles: Sequence[str], has_rows: bool) -> list[tuple[float, float]]:
    columns = [_COLUMN[role] for role in roles]
    if not has_rows or len({*columns}) == 1:
        return _circle(len(roles))
    places, xs = [(0.0, 0.0)] * len(roles), (84.0, WIDTH / 2, WIDTH - 84.0)
    used = sorted({*columns})
    x_of = dict(zip(used, xs if len(used) == 3 else (84.0, WIDTH - 84.0), strict=True))
    for column in used:
        inside = [i for i, own in enumerate(columns) if own == column]
        aside = _ASIDE if x_of[column] == WIDTH / 2 and len(inside) > 2 else 0.0  # so that arrows pass no label
        for number, i in enumerate(inside):
            y = round(16.0 + (_HEIGHT - 32.0) * (number + 0.5) / len(inside), 1)
            places[i] = x_of[column] + (aside if number % 2 else -aside), y
    return places


def _circle(count: int) -> list[tuple[float, float]]:
    if count == 1:
        return [(WIDTH / 2, _HEIGHT / 2)]
    turns = [2.0 * math.pi * (i + 0.5) / count - math.pi / 2.0 for i in range(count)]
    return [(round(WIDTH / 2 + 80 * math.cos(t), 1), round(_HEIGHT / 2 + 78 * math.sin(t), 1)) for t in turns]


def _side(x: float, y: float) -> str:
    """On which side of its dot a label has room."""
    is_end = abs(x - WIDTH / 2) < 0.15 * WIDTH and abs(y - _HEIGHT / 2) > 0.3 * _HEIGHT
    if is_end or x == WIDTH / 2:
        return "below" if y > 0.75 * _HEIGHT else "above"
    return "left" if x < WIDTH / 2 else "right"


def _arrow(start: tuple[float, float], end: tuple[float, float], label: str, *, labelled: bool) -> dict[str, Any]:
    """A line that stops short of both dots, bent a little so that two ways differ, and its head."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    x1, y1, x2, y2 = x1 + 7 * dx, y1 + 7 * dy, x2 - 9 * dx, y2 - 9 * dy
    bend = 0.08 * length
    cx, cy = (x1 + x2) / 2 - bend * dy, (y1 + y2) / 2 + bend * dx
    tx, ty = x2 - cx, y2 - cy
    norm = math.hypot(tx, ty) or 1.0
    tx, ty = tx / norm, ty / norm
    head = [(x2, y2), (x2 - 6 * tx - 3 * ty, y2 - 6 * ty + 3 * tx), (x2 - 6 * tx + 3 * ty, y2 - 6 * ty - 3 * tx)]
    path = f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in head)
    middle = {"x": round(0.5 * cx + 0.25 * (x1 + x2), 1), "y": round(0.5 * cy + 0.25 * (y1 + y2), 1)}
    return {"path": path, "head": corners, "label": label if labelled else "", "text": label} | middle


def _ticks(told: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(x, height) of every row on the time line; none where there is no time between the first and the last."""
    if "first" not in told or told["last"] <= told["first"]:
        return []
    amounts = [abs(row["amount"] or 0.0) for row in told["rows"]]
    most, span = max(amounts, default=0.0) or 1.0, told["last"] - told["first"]
    heights = (6.0 + (_TICKS - 6.0) * math.sqrt(amount / most) for amount in amounts)
    times = (row["time"] for row in told["rows"])
    return [
        (round(10 + (WIDTH - 20) * (time - told["first"]) / span, 1), round(h, 1))
        for time, h in zip(times, heights, strict=True)
    ]
