"""Charts as SVG text: lines, histograms, bars. Numbers in, a string out; no plotting library, no script.

Colours, strokes and fonts belong to the page's style sheet (`s1` .. `s6` are the series, told apart by dash as well as
by colour), so one drawing serves the light page, the dark page and paper. The drawing is 320 units wide, about what a
phone or a third of a desktop page gives it, so that its 11-unit text stays near 11 pixels. Series are short: the caller
thins them to a few hundred points. None and NaN interrupt a line.
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 320, 204
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 8, 24, 34

Number = float | int | None
Formatter = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One line of a chart; `style` is the class of its stroke, `band` an optional (low, high) to shade behind it."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    style: str = "s1"
    band: tuple[Sequence[Number], Sequence[Number]] | None = None


@dataclass(frozen=True)
class Frame:
    """Maps data onto the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - _TOP - _BOTTOM)


def short(value: float) -> str:
    """A number in at most five characters or so, for an axis.

    >>> [short(v) for v in (0, 0.25, 3, 1500, 20_000_000, 2e-5)]
    ['0', '0.25', '3', '1.5k', '20M', '2e-05']
    """
    for bound, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{suffix}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share as a percentage.

    >>> percent(0.25)
    '25%'
    """
    return f"{100 * value:.3g}%"


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
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> str:
    """Lines over a common frame; `diagonal` draws the line of chance."""
    x_low, x_high = x_range or _range(line.x for line in lines)
    y_low, y_high = y_range or _padded(*_range([*(line.y for line in lines), *_bands(lines)]))
    frame = Frame(x_low, x_high, y_low, y_high)
    parts = [_axes(frame, x_label, y_label, short, short)]
    if diagonal:
        parts.append(f'<path class="chance" d="{_path(frame, (x_low, x_high), (y_low, y_high))}"/>')
    parts += [_band(frame, line) for line in lines if line.band is not None]
    parts += [_named_path(f"line {line.style}", _path(frame, line.x, line.y), line.name) for line in lines]
    return _svg("".join(parts), f"{y_label} against {x_label}: {', '.join(line.name for line in lines)}")


def histogram_chart(edges: Sequence[float], groups: Mapping[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Overlapping histograms; `edges` has one more entry than each group. Group i is drawn in colour i + 1."""
    top = max((max(heights) for heights in groups.values()), default=0.0) or 1.0
    frame = Frame(edges[0], edges[-1], 0.0, top * 1.06)
    parts = [_axes(frame, x_label, y_label, short, percent)]
    for i, (name, heights) in enumerate(groups.items(), start=1):
        parts.append(_named_path(f"area s{i}", _steps(frame, edges, heights), name))
    return _svg("".join(parts), f"Distribution of {x_label}: {', '.join(groups)}")


def bar_chart(names: Sequence[str], values: Sequence[float], x_label: str, y_label: str) -> str:
    """One bar per name, its value written above it."""
    frame = Frame(0.0, float(len(names)), 0.0, (max(values, default=0.0) or 1.0) * 1.14)
    parts = [_axes(frame, x_label, y_label, None, short)]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        middle, width = frame.x(i + 0.5), frame.x(0.62) - frame.x(0.0)
        top, base = frame.y(value), frame.y(0.0)
        size = f'width="{width:.1f}" height="{base - top:.1f}"'
        parts.append(
            f'<rect class="column" x="{middle - width / 2:.1f}" y="{top:.1f}" {size}/>'
            f'<text class="middle value" x="{middle:.1f}" y="{top - 5:.1f}">{short(value)}</text>'
            f'<text class="middle" x="{middle:.1f}" y="{base + 15:.1f}">{html.escape(name)}</text>'
        )
    return _svg("".join(parts), f"{y_label} by {x_label}")


def _svg(body: str, label: str) -> str:
    name = html.escape(label, quote=True)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{body}</svg>'


def _axes(frame: Frame, x_label: str, y_label: str, x_format: Formatter | None, y_format: Formatter) -> str:
    """Horizontal hairlines, tick labels and the two axis titles; no box, no tick marks."""
    base = HEIGHT - _BOTTOM
    parts = []
    for value in ticks(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{y + 3.5:.1f}">{y_format(value)}</text>')
    if x_format is not None:
        for value in ticks(frame.x_low, frame.x_high):
            parts.append(f'<text class="middle" x="{frame.x(value):.1f}" y="{base + 15}">{x_format(value)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="end title" x="{WIDTH - _RIGHT}" y="{HEIGHT - 3}">{html.escape(x_label)}</text>')
    parts.append(f'<text class="title" x="0" y="10">{html.escape(y_label)}</text>')
    return "".join(parts)


def _named_path(style: str, commands: str, name: str) -> str:
    return f'<path class="{style}" d="{commands}"><title>{html.escape(name)}</title></path>'


def _path(frame: Frame, xs: Sequence[Number], ys: Sequence[Number]) -> str:
    commands, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not (_is_number(x) and _is_number(y)):
            pen = "M"
            continue
        commands.append(f"{pen}{frame.x(x):.1f} {frame.y(y):.1f}")  # type: ignore[arg-type]
        pen = "L"
    return "".join(commands)


def _band(frame: Frame, line: Line) -> str:
    low, high = line.band or ((), ())
    points = [(x, a, b) for x, a, b in zip(line.x, low, high, strict=True) if all(map(_is_number, (x, a, b)))]
    upper = "L".join(f"{frame.x(x):.1f} {frame.y(b):.1f}" for x, _, b in points)  # type: ignore[arg-type]
    lower = "L".join(f"{frame.x(x):.1f} {frame.y(a):.1f}" for x, a, _ in reversed(points))  # type: ignore[arg-type]
    return f'<path class="band {line.style}" d="M{upper}L{lower}Z"/>' if points else ""


def _steps(frame: Frame, edges: Sequence[float], heights: Sequence[float]) -> str:
    base = frame.y(0.0)
    tops = "".join(f"V{frame.y(h):.1f}H{frame.x(right):.1f}" for h, right in zip(heights, edges[1:], strict=True))
    return f"M{frame.x(edges[0]):.1f} {base:.1f}{tops}V{base:.1f}Z"


def _is_number(value: Number) -> bool:
    return value is not None and math.isfinite(value)


def _bands(lines: Sequence[Line]) -> list[Sequence[Number]]:
    return [side for line in lines if line.band is not None for side in line.band]


def _range(columns: Iterable[Sequence[Number]]) -> tuple[float, float]:
    values = [v for column in columns for v in column if v is not None and math.isfinite(v)]
    if not values:
        return 0.0, 1.0
    low, high = float(min(values)), float(max(values))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little air, down to zero where zero is near."""
    air = 0.06 * (high - low)
    return (0.0 if 0.0 <= low <= 0.5 * high else low - air), high + air
