"""Charts as geometry: lines, histograms, bars. Numbers in, a `Chart` out, which `templates/figure.html` writes as SVG.

Colours, strokes and fonts belong to the page's style sheet (`s1` .. `s6` are the series, told apart by dash as well as
by colour), so one drawing serves the light page, the dark page and paper. The drawing is 320 units wide, about what a
phone or a third of a desktop page gives it, so that its 11-unit text stays near 11 pixels. Series are short: the caller
thins them to a few hundred points. None and NaN interrupt a line.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hcm_scale.report.explain import finite
from hcm_scale.report.quantities import percent, short

Number = float | None


class Line(NamedTuple):
    """One line of a chart; `key` is its entry in the legend, `band` a (low, high) to shade behind it."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    key: str = ""
    band: Sequence[Sequence[Number]] = ()


class Path(NamedTuple):
    """A stroke or an area of a drawing: its classes, its SVG path data, its tooltip and its entry in the legend."""

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
        """(place, text) of round numbers along the axis."""
        return [(round(self.x(value), 1), short(value)) for value in ticks(self.x_low, self.x_high)]

    def y_ticks(self, text: Callable[[float], str] = short) -> list[tuple[float, str]]:
        return [(round(self.y(value), 1), text(value)) for value in ticks(self.y_low, self.y_high)]


@dataclass(frozen=True)
class Chart:
    """A drawing and its caption; `label` tells it to those who cannot see it, `values` are (x, y, text) above bars.

    `note` is what to bear in mind when reading it.
    """

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


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Chart:
    """Lines over a common frame; `diagonal` draws the line of chance."""
    x_low, x_high = x_range or _range(line.x for line in lines)
    y_low, y_high = y_range or _padded(*_range(side for line in lines for side in (line.y, *line.band)))
    frame = Frame(x_low, x_high, y_low, y_high)
    styled = [(f"s{i % 6 + 1}", line) for i, line in enumerate(lines)]
    paths = [Path("chance", _path(frame, (x_low, x_high), (y_low, y_high)))] if diagonal else []
    paths += [Path(f"band {style}", _band(frame, line.x, *line.band)) for style, line in styled if line.band]
    paths += [Path(f"line {style}", _path(frame, line.x, line.y), line.name, line.key) for style, line in styled]
    label = f"{y_label} against {x_label}: {', '.join(line.name for line in lines)}"
    return Chart(title, label, x_label, y_label, frame, frame.x_ticks(), frame.y_ticks(), paths)


def histogram_chart(
    title: str,
    edges: Sequence[float],
    groups: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    sizes: Mapping[str, int] | None = None,
    note: str = "",
) -> Chart:
    """Overlapping histograms; `edges` has one more entry than each group, `sizes` are told in the legend."""
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


def _path(frame: Frame, xs: Iterable[Number], ys: Iterable[Number]) -> str:
    commands, pen = "", "M"
    for x, y in zip(map(finite, xs), map(finite, ys), strict=True):
        if x is None or y is None:
            pen = "M"
            continue
        commands += f"{pen}{frame.x(x):.1f} {frame.y(y):.1f}"
        pen = "L"
    return commands


def _band(frame: Frame, xs: Sequence[Number], low: Sequence[Number], high: Sequence[Number]) -> str:
    """There along the upper side, back along the lower."""
    return _path(frame, [*xs, *reversed(xs)], [*high, *reversed(low)]) + "Z"


def _steps(frame: Frame, edges: Sequence[float], heights: Sequence[float]) -> str:
    tops = "".join(f"V{frame.y(h):.1f}H{frame.x(right):.1f}" for h, right in zip(heights, edges[1:], strict=True))
    return f"M{frame.x(edges[0]):.1f} {frame.base}{tops}V{frame.base}Z"


def _range(columns: Iterable[Sequence[Number]]) -> tuple[float, float]:
    values = [number for column in columns for number in map(finite, column) if number is not None]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little air, down to zero where zero is near."""
    air = 0.06 * (high - low)
    return (0.0 if 0.0 <= low <= 0.5 * high else low - air), high + air
