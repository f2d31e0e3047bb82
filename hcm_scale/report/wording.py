"""An explanation in words: one plain sentence, and a page for a terminal.

The sentence has up to four clauses, each left out where there is nothing to tell: how far the neighbours are
predicted, how many triangles far edges close around it, how many edges purification dropped, and the attribute that
differs most. Ids and column names come from the user's data, so on their way to a terminal they lose control characters
(an id must not move the cursor) and excess length.
"""

import math
import textwrap

from hcm_scale.report.explain import Explanation

_NOTABLE_DEVIATIONS = 2.0  # below this an attribute is like the neighbours'
_NOTABLE_SHARE = 0.25  # of a node's neighbours: fewer are not worth a clause
_NOTABLE_TRIANGLES = 1.0  # far triangles a neighbour
_ID_WIDTH = 40
_LINE_WIDTH = 100


def clip(value: object, width: int) -> str:
    r"""One printable line of at most `width` characters.

    >>> clip("a\x1b[2Jb", 20), clip("abcdefgh", 5)
    ('a�[2Jb', 'abcd…')
    """
    line = "".join(c if c.isprintable() else "�" for c in str(value))
    return line if len(line) <= width else line[: width - 1] + "…"


def score_title(name: str) -> str:
    """A score as a heading: short names are initials.

    >>> score_title("ahp"), score_title("closure")
    ('AHP', 'Closure')
    """
    return name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize()


def reason(e: Explanation) -> str:
    """Why the node is ranked where it is, in one sentence."""
    if e.degree == 0:
        return "It has no neighbours, so there is nothing to predict."
    sentence = "; ".join(clause for clause in (_hops(e), _closure(e), _dropped(e), _attributes(e)) if clause)
    return sentence[0].upper() + sentence[1:] + "."


def _hops(e: Explanation) -> str:
    """Counts the neighbours at the largest whole hop that a notable share of them reaches."""
    hops = [n.hop for n in e.neighbors if n.hop is not None]
    if not hops:
        return "none of its edges was scored"
    if len(hops) == 1:
        return f"its only {'scored ' if e.degree > 1 else ''}neighbour is predicted {hops[0]:.1f} hops away"
    for far in range(int(max(hops)), 1, -1):
        count = sum(hop >= far for hop in hops)
        if count >= _NOTABLE_SHARE * len(hops):
            which = f"all {count}" if count == len(hops) else f"{count} of its {len(hops)}"
            return f"{which} neighbours {'is' if count == 1 else 'are'} predicted {far} or more hops away"
    return f"its neighbours are predicted {sum(hops) / len(hops):.2f} hops away on average"


def _closure(e: Explanation) -> str:
    """Far triangles around the node, where there is at least one a neighbour."""
    per_neighbor = math.expm1(e.scores.get("closure") or 0.0)
    if per_neighbor < _NOTABLE_TRIANGLES:
        return ""
    return f"its far edges close {round(per_neighbor * e.degree):,} triangles with each other"


def _dropped(e: Explanation) -> str:
    count = sum(bool(n.dropped) for n in e.neighbors)
    if count < max(1.0, _NOTABLE_SHARE * e.degree):
        return ""
    if e.degree == 1:
        return "purification dropped its only edge"
    return f"purification dropped {'all' if count == e.degree else count} of its {e.degree} edges"


def _attributes(e: Explanation) -> str:
    if not e.differences:
        return ""
    first = e.differences[0]
    if abs(first.deviations) < _NOTABLE_DEVIATIONS:
        return "its attributes are like theirs"
    direction = "above" if first.deviations > 0 else "below"
    return f"its `{clip(first.column, 48)}` is {abs(first.deviations):.1f} deviations {direction} theirs"


def text(e: Explanation, limit: int = 20) -> str:
    """The whole explanation for a terminal, with at most `limit` neighbours."""
    return "\n".join([*_heading(e), *_neighbor_lines(e, limit), *_difference_lines(e)])


def _heading(e: Explanation) -> list[str]:
    scores = "   ".join(f"{score_title(name)} {_number(value)}" for name, value in e.scores.items())
    return [
        f"{clip(e.id, 80)}   rank {e.rank:,} of {e.num_nodes:,} (above {e.percentile:.2f} % of all nodes)",
        f"{scores}   degree {e.degree:,}" + (f"   known to be: {e.label}" if e.label else ""),
        "",
        *textwrap.wrap(reason(e), _LINE_WIDTH),
    ]


def _neighbor_lines(e: Explanation, limit: int) -> list[str]:
    shown = e.neighbors[:limit]
    if not shown:
        return []
    width = max(10, *(len(clip(n.id, _ID_WIDTH)) for n in shown))
    lines = ["", f"{'neighbour':<{width}}   predicted hop   edge"]
    for n in shown:
        hop = "  not scored " if n.hop is None else f"{n.hop:5.2f} ± {n.std or 0.0:<5.2f}"
        edge = {None: "", True: "dropped", False: "kept"}[n.dropped]
        lines.append(f"{clip(n.id, _ID_WIDTH):<{width}}   {hop}   {edge}".rstrip())
    hidden = e.degree - len(shown)
    return [*lines, f"and {hidden:,} nearer"] if hidden else lines


def _difference_lines(e: Explanation) -> list[str]:
    if not e.differences:
        return []
    width = max(10, *(len(clip(d.column, _ID_WIDTH)) for d in e.differences))
    lines = ["", f"{'attribute':<{width}}   {'its value':>12}   {'neighbours':>12}   deviations"]
    for d in e.differences:
        values = f"{d.value:>12.4g}   {d.neighbors:>12.4g}   {d.deviations:>+10.1f}"
        lines.append(f"{clip(d.column, _ID_WIDTH):<{width}}   {values}")
    return lines


def _number(value: float | None) -> str:
    """Three significant digits, a dash where there is no number."""
    return "-" if value is None else f"{value:.3g}"
