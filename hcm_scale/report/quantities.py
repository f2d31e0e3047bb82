"""Numbers as the report page writes them: on axes, in tables, with units, as the facts of a stage."""

from collections.abc import Mapping
from typing import Any


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


def fixed(value: float | None) -> str:
    """Three decimals, a dash where there is no number.

    >>> fixed(0.5), fixed(None)
    ('0.500', '–')
    """
    return "–" if value is None else f"{value:.3f}"


def p_text(value: float) -> str:
    """A chance, as many digits as matter.

    >>> p_text(0.25), p_text(2.04e-9)
    ('0.250', '2e-9')
    """
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-")


def seconds_text(seconds: float) -> str:
    """A duration as people say it.

    >>> [seconds_text(s) for s in (0.0042, 0.31, 12.34, 95, 7300)]
    ['4.2 ms', '0.31 s', '12.3 s', '1 min 35 s', '2 h 1 min']
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bytes_text(count: float) -> str:
    """An amount of memory.

    >>> [bytes_text(b) for b in (1536, 3.2e8, 5.4e9)]
    ['1.5 KiB', '305 MiB', '5.03 GiB']
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB"


def detail_text(detail: Any) -> str:
    """The plain facts of a stage.

    >>> detail_text({"num_edges": 1200, "edges_per_second": 5e6})
    '1,200 edges · 5M edges/s'
    """
    if not isinstance(detail, Mapping):
        return str(detail or "")
    return " · ".join(_fact(str(name), value) for name, value in detail.items() if isinstance(value, int | float | str))


def _fact(name: str, value: Any) -> str:
    words = name.removeprefix("num_").replace("_", " ")
    if isinstance(value, bool | str):
        return f"{words} {str(value).lower() if isinstance(value, bool) else value}"
    if name.endswith("_per_second"):
        return f"{short(value)} {words.removesuffix(' per second')}/s"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {bytes_text(value)}"
    if name.endswith("_seconds"):
        return f"{words.removesuffix(' seconds')} {seconds_text(value)}"
    if name.startswith("num_"):
        return f"{value:,} {words}"
    return f"{words} {value:,}" if isinstance(value, int) else f"{words} {value:.4g}"
