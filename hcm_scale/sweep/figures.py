"""Figures of a sweep: which options vary, mean and spread of the results over seeds, and panels of curves as pictures.

Jobs that differ only in the seed are repeats of one point. Options that follow from another (a data set's path from its
name, an injection seed from the seed) do not count as varied. A figure over one option has a curve for every setting of
the others that was run at two or more of its values, so grids and one-at-a-time studies in one folder both come out.

A figure is one PNG and one SVG, with error bars. A panel shows up to `MAX_CURVES` curves; its title says how
many are left out. matplotlib is an extra (`plots`), imported when drawing; the Agg and SVG canvases are used directly,
so that no display and no global figure state is involved.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hcm_scale.base.names import RANKINGS
from hcm_scale.graph.store import KIND_NAMES
from hcm_scale.sweep.jobs import Job

MAX_CURVES = 8
_KINDS = KIND_NAMES[1:]
_FIRST = ("graph.name", "seed")  # other options follow from these, not the other way round


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over repeats at each x."""

    label: str
    x: tuple[Any, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Curves in one frame."""

    title: str
    xlabel: str
    curves: tuple[Curve, ...]


def varied(jobs: Sequence[Job]) -> list[str]:
    """The options that the jobs differ in, without those that follow from another.

    >>> asked = [{"seed": s, "inject.seed": s, "purify.ratio": r} for s in (0, 1) for r in (0.0, 0.2)]
    >>> varied([Job("", options, {}) for options in asked])
    ['seed', 'purify.ratio']
    """
    columns = {key: [str(job.options.get(key)) for job in jobs] for key in differing(jobs)}
    causes: list[str] = []
    for key in sorted(columns, key=lambda key: (key not in _FIRST, -len(set(columns[key])), key)):
        if not any(_follows(key, cause, columns) for cause in causes):
            causes.append(key)
    return causes


def differing(jobs: Sequence[Job]) -> list[str]:
    """All options that the jobs differ in, as they stand in the configuration."""
    keys = {key: None for job in jobs for key in job.options}
    return [key for key in keys if len({str(job.options.get(key)) for job in jobs}) > 1]


def _follows(key: str, other: str, columns: Mapping[str, list[str]]) -> bool:
    """Whether the values of `key` follow from those of `other`, so that `key` was not varied itself.

    Only seeds follow from the seed: an option run once per value beside it was swept. From an option that no two jobs
    share everything seems to follow; then only what stands beside it does.
    """
    cause, effect = columns[other], columns[key]
    num_causes = len(set(cause))
    if len(set(zip(cause, effect, strict=True))) > num_causes:
        return False
    if other == "seed" or key.endswith(".seed"):
        return key.endswith(".seed")
    return num_causes < len(cause) or key.partition(".")[0] == other.partition(".")[0]


def _curve(label: str, points: Iterable[tuple[Any, float | None]]) -> Curve:
    """The curve through the means of the values at each x; None stands for a job without the value."""
    values_at = defaultdict(list)
    for at, value in points:
        if value is not None:
            values_at[at].append(value)
    x = sorted(values_at, key=_order)
    values = [values_at[at] for at in x]
    return Curve(label, tuple(x), tuple(map(statistics.fmean, values)), tuple(map(spread, values)))


def spread(values: Any) -> float:
    """The standard deviation of repeats; 0 for a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, text such as `all` after them, no value last.

    >>> sorted(["all", "25", None, 3], key=_order)
    [3, '25', 'all', None]
    """
    if value is None:
        return 2, 0.0, ""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, str(value)


def settings(jobs: Sequence[Job], keys: Sequence[str]) -> dict[str, list[Job]]:
    """Jobs by their values of `keys`, as text."""
    grouped = defaultdict(list)
    for job in sorted(jobs, key=lambda job: [_order(job.options.get(key)) for key in keys]):
        values = [f"{'' if key == 'graph.name' else f'{key}='}{job.options.get(key)}" for key in keys]
        grouped[", ".join(values)].append(job)
    return dict(grouped)


def option_panels(jobs: Sequence[Job], key: str, others: Sequence[str]) -> list[Panel]:
    """The panels of the figure over option `key`; none if no setting of `others` was run at two of its values."""

    def over_key(label: str, group: Sequence[Job], number: str) -> Curve:
        return _curve(label, ((job.options.get(key), job.numbers.get(number)) for job in group))

    groups = settings(jobs, others)
    groups = {label: group for label, group in groups.items() if len({str(j.options.get(key)) for j in group}) > 1}
    if len(groups) == 1:
        (group,) = groups.values()
        by = group[0].rank_by
        frames = [
            ("ROC-AUC by score", [over_key(score, group, f"{score}_auc") for score in RANKINGS]),
            (f"ROC-AUC by kind of anomaly ({by})", [over_key(kind, group, f"{by}_auc_{kind}") for kind in _KINDS]),
        ]
    else:
        frames = [("ROC-AUC", [over_key(label, group, "auc") for label, group in groups.items()])]
        for kind in _KINDS:
            curves = [over_key(label, group, f"{group[0].rank_by}_auc_{kind}") for label, group in groups.items()]
            frames.append((f"{kind} anomalies", curves))
    return _panels(frames, key)


def score_panels(jobs: Sequence[Job], others: Sequence[str]) -> list[Panel]:
    """The panels of the figure over the scores themselves: all anomalies, and each kind of them."""
    frames = []
    for label, group in settings(jobs, others).items():
        curves = []
        for kind in ("", *_KINDS):
            names = {score: f"{score}_auc_{kind}".rstrip("_") for score in RANKINGS}
            points = ((score, job.numbers.get(name)) for score, name in names.items() for job in group)
            curves.append(_curve(kind or "all anomalies", points))
        frames.append((label or "ROC-AUC", curves))
    return _panels(frames, "score")


def _panels(frames: Iterable[tuple[str, list[Curve]]], xlabel: str) -> list[Panel]:
    made = [Panel(title, xlabel, tuple(curve for curve in curves if curve.x)) for title, curves in frames]
    return [panel for panel in made if panel.curves]


_WIDTH, _HEIGHT = 5.2, 4.2  # inches a panel
_FONTS: Any = {"font.size": 13, "axes.titlesize": 14, "axes.labelsize": 13, "legend.fontsize": 11}
_FONTS |= {"svg.hashsalt": "hcm-scale"}  # equal tables give equal bytes


def draw(panels: Sequence[Panel], path: Path) -> list[Path]:
    """Draws `panels` side by side into path.png and path.svg, and returns both."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_FONTS):
        figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        made = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]
        figure.savefig(made[0], dpi=150)
        figure.savefig(made[1], metadata={"Date": None})
    return made


def _draw_panel(axes: Any, panel: Panel) -> None:
    shown = panel.curves[:MAX_CURVES]
    left_out = len(panel.curves) - len(shown)
    positions = axis_places([value for curve in shown for value in curve.x])
    for number, curve in enumerate(shown):
        _draw_curve(axes, curve, positions, shift=number - (len(shown) - 1) / 2)
    names = [f"{x:g}" if isinstance(x, float) else "default" if x is None else str(x) for x in positions]
    axes.set_xticks(list(positions.values()), names)
    axes.set_title(panel.title + (f" ({left_out} curves not shown)" if left_out else ""))
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel("ROC-AUC, mean and deviation")
    axes.grid(alpha=0.3)
    if len(shown) > 1 or shown[0].label:
        axes.legend(frameon=False)


def _draw_curve(axes: Any, curve: Curve, positions: dict[Any, float], shift: float) -> None:
    """One curve; error bars of neighbouring curves are shifted a little, so that both can be read."""
    mean, std = np.array(curve.mean), np.array(curve.std)
    x = np.array([positions[value] for value in curve.x])
    gap = float(np.diff(sorted(positions.values())).min(initial=np.inf))
    x = x + shift * 0.02 * (gap if np.isfinite(gap) else 1.0)
    are_names = all(isinstance(value, str) and not value[:1].isdigit() for value in curve.x)  # nothing lies between two
    line = "none" if are_names else "-"
    axes.errorbar(x, mean, std, label=curve.label, marker="o", markersize=5, capsize=4, linewidth=1.6, linestyle=line)


def axis_places(values: Sequence[Any]) -> dict[Any, float]:
    """The position of each value on the axis: its own number if numbers are evenly spaced, else 0, 1, 2 ...

    >>> axis_places([0.2, 0.1, 0.3]), axis_places(["5", "all"])
    ({0.1: 0.1, 0.2: 0.2, 0.3: 0.3}, {'5': 0.0, 'all': 1.0})
    """
    ordered = sorted(set(values), key=_order)
    if all(isinstance(value, int | float) for value in ordered):
        steps = np.diff(np.array(ordered, float))
        if len(steps) and np.allclose(steps, steps[0], rtol=1e-6, atol=0.0):
            return {value: float(value) for value in ordered}
    return {value: float(position) for position, value in enumerate(ordered)}
