"""Panels of curves as pictures: one PNG and one SVG a figure, with error bars or bands, in fonts that survive a slide.

matplotlib is an extra (`plots`) and imported when drawing; the Agg and SVG canvases are used directly, so that no
display and no global figure state is involved. A panel shows up to `MAX_CURVES` curves; where there are more its title
says how many are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hcm_scale.sweep.curves import Curve, Panel, in_order

MAX_CURVES = 8
_WIDTH, _HEIGHT = 5.2, 4.2  # inches a panel
_STROKES = ((3.0, "-"), (2.6, "--"), (2.6, "-"), (1.4, "--"))  # width and dashes: of two curves that coincide both show
_FONTS: Any = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "legend.fontsize": 11,
    "svg.hashsalt": "hcm-scale",
}


def draw(panels: Sequence[Panel], path: Path, title: str = "") -> list[Path]:
    """Draws `panels` side by side into path.png and path.svg, and returns both."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_FONTS):
        figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        if title:
            figure.suptitle(title)
        made = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]
        figure.savefig(made[0], dpi=150)
        figure.savefig(made[1], metadata={"Date": None})  # equal tables give equal bytes
    return made


def _draw_panel(axes: Any, panel: Panel) -> None:
    shown = panel.curves[:MAX_CURVES]
    left_out = len(panel.curves) - len(shown)
    places = axis_places([value for curve in shown for value in curve.x])
    for number, curve in enumerate(shown):
        _draw_curve(axes, curve, places, panel.band, number, shift=number - (len(shown) - 1) / 2)
    if not panel.band:
        axes.set_xticks(list(places.values()), [_tick(value) for value in places])
    axes.set_title(panel.title + (f" ({left_out} curves not shown)" if left_out else ""))
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel("ROC-AUC, mean and deviation")
    axes.grid(alpha=0.3)
    if len(shown) > 1 or shown[0].label:
        below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}  # bands leave no free corner
        axes.legend(frameon=False, **(below if panel.band else {}))


def _draw_curve(axes: Any, curve: Curve, places: dict[Any, float], band: bool, number: int, shift: float) -> None:
    """One curve; error bars of neighbouring curves stand a little apart, so that both can be read."""
    mean, std = np.array(curve.mean), np.array(curve.std)
    x = np.array([places[value] for value in curve.x])
    if band:
        width, dashes = _STROKES[number % len(_STROKES)]
        (line,) = axes.plot(x, mean, label=curve.label, linewidth=width, linestyle=dashes)
        axes.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.2, linewidth=0)
        return
    gap = float(np.diff(sorted(places.values())).min(initial=np.inf))
    x = x + shift * 0.02 * (gap if np.isfinite(gap) else 1.0)
    line = "none" if has_names(curve.x) else "-"
    axes.errorbar(x, mean, std, label=curve.label, marker="o", markersize=5, capsize=4, linewidth=1.6, linestyle=line)


def has_names(values: Sequence[Any]) -> bool:
    """Whether the values are names: nothing lies between two of them, so no line joins them.

    >>> has_names(["cosine", "jaccard"]), has_names(["5", "all"]), has_names([None, 0.1])
    (True, False, False)
    """
    return all(isinstance(value, str) and not value[:1].isdigit() for value in values)


def axis_places(values: Sequence[Any]) -> dict[Any, float]:
    """Where each value stands on the axis: at its own number where numbers are evenly spaced, else one after another.

    >>> axis_places([0.2, 0.1, 0.3]), axis_places(["5", "all"])
    ({0.1: 0.1, 0.2: 0.2, 0.3: 0.3}, {'5': 0.0, 'all': 1.0})
    """
    ordered = sorted(set(values), key=in_order)
    if all(isinstance(value, int | float) for value in ordered):
        steps = np.diff(np.array(ordered, float))
        if len(steps) and np.allclose(steps, steps[0], rtol=1e-6, atol=0.0):
            return {value: float(value) for value in ordered}
    return {value: float(place) for place, value in enumerate(ordered)}


def _tick(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "default" if value is None else str(value)
