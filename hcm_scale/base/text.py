"""Numbers, durations, dates and names as people read them.

Ids and column names come from the user's data, so on their way to a terminal they lose control characters (an id must
not move the cursor) and excess length (`clip`).
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np


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
    """A share as a percentage, such as 25%."""
    return f"{100 * value:.3g}%"


def fixed(value: float | None) -> str:
    """Three decimals, a dash where there is no number."""
    return "–" if value is None else f"{value:.3f}"


def p_text(value: float) -> str:
    """A chance, with three decimals or as a power of ten, of which no tail is known beyond a millionth.

    >>> [p_text(p) for p in (0.25, 0.00021, 3e-9)]
    ['0.250', '2e-4', 'below 1e-6']
    """
    if value < 1e-6:
        return "below 1e-6"
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


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "node"), counted(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def detail_text(detail: Any) -> str:
    """The numbers and words that a stage reports of itself.

    >>> detail_text({"num_edges": 1200, "edges_per_second": 5e6})
    '1,200 edges · 5M edges/s'
    """
    if not isinstance(detail, Mapping):
        return str(detail or "")
    return " · ".join(_fact(str(name), value) for name, value in detail.items() if isinstance(value, int | float | str))


def _fact(name: str, value: Any) -> str:
    words = name.removeprefix("num_").replace("_", " ")
    if name == "line":  # says it all
        return str(value)
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


def amount(value: float) -> str:
    """An amount with two decimals; one that is tiny or huge with four digits in all.

    >>> [amount(v) for v in (1234.5, 0.05, 0.00012345, 3.00783e21)]
    ['1,234.50', '0.05', '0.0001234', '3.008e+21']
    """
    has_cents = abs(value) < 1e15 and (abs(value) >= 1.0 or round(value, 2) == value)
    return f"{value:,.2f}" if has_cents else f"{value:.4g}"


def weight(value: float, percent: int) -> str:
    """The weight of an edge among all weights: `1,200.00 (heavier than 99 % of edges)`."""
    amount = f"{value:,.2f}" if 0.1 <= value < 1e12 else f"{value:.3g}"
    return f"{amount} (heavier than {percent} % of edges)"


def value_text(value: float, first_day: str | None) -> str:
    """The value of an attribute: four digits, or the date that it means where it counts days since a first one.

    >>> value_text(0.12345, None), value_text(1.4, "2024-01-31"), value_text(0.5, "2024-01-31T08:00")
    ('0.1235', '2024-02-01', '2024-01-31 20:00')
    """
    if first_day is None:
        return f"{value + 0.0:.4g}"
    steps = value * 1440 if "T" in first_day else value
    return str(np.datetime64(first_day) + round(steps)).replace("T", " ")


def clip(value: object, width: int) -> str:
    r"""One printable line of at most `width` characters.

    >>> clip("a\x1b[2Jb", 20), clip("abcdefgh", 5)
    ('a�[2Jb', 'abcd…')
    """
    line = "".join(c if c.isprintable() else "�" for c in str(value))
    return line if len(line) <= width else line[: width - 1] + "…"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def words(name: str) -> tuple[str, ...]:
    """The words of a name, in small letters.

    >>> words("From_Account"), words("nameOrig"), words("SENDER ID"), words("Währung")
    (('from', 'account'), ('name', 'orig'), ('sender', 'id'), ('währung',))
    """
    cases = "".join("A" if c.isupper() else "a" if c.isalpha() else "0" if c.isdecimal() else " " for c in name)
    return tuple(name[slice(*word.span())].lower() for word in re.finditer(r"A?a+|A+|0+", cases))
