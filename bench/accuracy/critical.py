"""The critical-difference figure (Demsar 2006): mean ranks on an axis, thick bars joining what does not differ.

Rank 1 is on the left. The better half of the methods is named on the left side, from the best down, the other half on
the right, from the worst down, so that no line crosses another; a bar as long as the critical difference stands above
the axis.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.accuracy.ranks import groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE, _BAR, _INK, _OURS = 0.26, 0.16, "#333333", "#b2182b"  # heights in inches of a name and a bar; colours
_WIDTH, _SIDE = 9.0, 2.6  # inches: the whole, and what names take on each side


def draw(ranks: Mapping[str, float], difference: float, ours: str = "HCM") -> "Figure":
    """The figure of mean ranks by method; names that begin with `ours` stand out."""
    from matplotlib.figure import Figure

    names = sorted(ranks, key=lambda name: (ranks[name], name))
    bars = groups([ranks[name] for name in names], difference)
    below = _BAR * (len(bars) + 1)  # the first name's distance from the axis
    height = 0.8 + below + _LINE * ((len(names) + 1) // 2)
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(-height + 0.8, 0.8))  # so that one unit is one inch, and the axis is at 0
    axes.axis("off")
    _axis(axes, len(names), difference)
    for level, (first, last) in enumerate(bars, 1):
        ends = [_place(ranks[names[i]], len(names)) for i in (first, last)]
        axes.plot([ends[0] - 0.04, ends[1] + 0.04], [-_BAR * level] * 2, color=_INK, lw=4, solid_capstyle="round")
    for i, name in enumerate(names):
        _name(axes, name, ranks[name], i, len(names), below, _OURS if name.startswith(ours) else _INK)
    return figure


def _place(rank: float, num_methods: int) -> float:
    """Where a rank is on the axis, in inches."""
    return _SIDE + (rank - 1) / max(num_methods - 1, 1) * (_WIDTH - 2 * _SIDE)


def _axis(axes: "Axes", num_methods: int, difference: float) -> None:
    """The axis with its ticks, and the critical difference above it."""
    axes.plot([_place(1, num_methods), _place(num_methods, num_methods)], [0, 0], color=_INK, lw=1)
    step = max(1, num_methods // 12)
    for rank in range(1, num_methods + 1):
        is_named = (rank - 1) % step == 0
        axes.plot([_place(rank, num_methods)] * 2, [0, 0.1 if is_named else 0.05], color=_INK, lw=1)
        if is_named:
            axes.text(_place(rank, num_methods), 0.13, str(rank), ha="center", va="bottom", fontsize=8, color=_INK)
    ends = _place(1, num_methods), min(_place(1 + difference, num_methods), _WIDTH - _SIDE)
    axes.annotate(
        "",
        (ends[0], 0.42),
        (ends[1], 0.42),
        arrowprops={"arrowstyle": "|-|,widthA=.25,widthB=.25", "color": _INK, "shrinkA": 0, "shrinkB": 0},
    )
    longer = " (longer than the axis)" if 1 + difference > num_methods else ""
    said = f"critical difference {difference:.2f}{longer}"
    axes.text(sum(ends) / 2, 0.47, said, ha="center", va="bottom", fontsize=8, color=_INK)


def _name(axes: "Axes", name: str, rank: float, i: int, num_methods: int, below: float, color: str) -> None:
    """A line from the axis down and out to the method's name and mean rank."""
    num_left = (num_methods + 1) // 2
    is_left = i < num_left
    depth = -below - _LINE * (i if is_left else num_methods - 1 - i)
    place, edge = _place(rank, num_methods), _SIDE - 0.15 if is_left else _WIDTH - _SIDE + 0.15
    axes.plot([place, place, edge], [0, depth, depth], color=color, lw=0.8)
    text = f"{name}  {rank:.2f}" if is_left else f"{rank:.2f}  {name}"
    weight = "bold" if color == _OURS else "normal"
    out = -0.06 if is_left else 0.06
    axes.text(
        edge + out, depth, text, ha="right" if is_left else "left", va="center", fontsize=9, color=color, weight=weight
    )
