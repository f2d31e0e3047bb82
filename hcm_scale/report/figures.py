"""Small pieces of HTML that several sections share: captions, keys, bars in table rows, quantities with units."""

import html
from collections.abc import Sequence
from typing import Any


def figure(title: str, chart: str, keys: Sequence[tuple[str, str]] = ()) -> str:
    """A chart under its caption; `keys` are (kind of mark and series, name), such as ("line s1", "loss")."""
    shapes = {
        "line": '<path class="{0}" d="M1 4H19"/>',
        "area": '<rect class="{0}" x="1" y="0" width="18" height="8"/>',
    }
    marks = "".join(
        f'<span><svg class="swatch" viewBox="0 0 20 8" aria-hidden="true">{shapes[kind.split()[0]].format(kind)}</svg>'
        f"{html.escape(name)}</span>"
        for kind, name in keys
    )
    legend = f'<div class="keys">{marks}</div>' if keys else ""
    return f"<figure><figcaption>{html.escape(title)}{legend}</figcaption>{chart}</figure>"


def id_text(value: Any, tag: str = "span") -> str:
    """An id or a column name: escaped, cut off by the style sheet where it is long, whole in its tooltip.

    >>> id_text("<b>")
    '<span class="id" title="&lt;b&gt;"><bdi>&lt;b&gt;</bdi></span>'
    """
    text = html.escape(str(value), quote=True)
    return f'<{tag} class="id" title="{text}"><bdi>{text}</bdi></{tag}>'


def share_bar(share: float, mark: tuple[float, float] | None = None) -> str:
    """A bar over a rail, `share` of its length; `mark` is a (low, high) whisker, in shares too."""
    width = 100 * min(max(share, 0.0), 1.0)
    whisker = ""
    if mark is not None:
        low, high = (100 * min(max(end, 0.0), 1.0) for end in mark)
        whisker = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="6" y2="6"/>'
    bar = f'<rect class="rail" y="3" width="100" height="6"/><rect y="3" width="{width:.1f}" height="6"/>'
    return _track(bar + whisker)


def signed_bar(share: float) -> str:
    """A bar from the middle of its cell: to the right for +1 .. 0, to the left for 0 .. -1."""
    width = 50 * min(abs(share), 1.0)
    left = 50 if share >= 0 else 50 - width
    bar = f'<rect class="signed" x="{left:.1f}" y="3" width="{width:.1f}" height="6"/>'
    return _track(f'{bar}<line x1="50" x2="50" y1="0" y2="12"/>')


def _track(body: str) -> str:
    return f'<svg class="track" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">{body}</svg>'


def fixed(value: float | None) -> str:
    """Three decimals, a dash where there is no number.

    >>> fixed(0.5), fixed(None)
    ('0.500', '–')
    """
    return "–" if value is None else f"{value:.3f}"


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
