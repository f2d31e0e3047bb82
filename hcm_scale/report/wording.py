"""An explanation in words: a list of reasons, for the page and for a terminal.

Each notable kind of evidence is told in one line, the strongest first: what it is, its numbers, and the node's rank by
this kind. Attributes are cited under the user's own column names; text that was hashed is cited only where no other
column differs. Ids and column names come from the user's data, so on their way to a terminal they lose control
characters (an id must not move the cursor) and excess length.
"""

from collections.abc import Callable
from typing import NamedTuple

from hcm_scale.base.names import GAP_SUFFIX
from hcm_scale.report.dates import date_text
from hcm_scale.report.explain import Difference, Explanation
from hcm_scale.report.kinds import WORDS
from hcm_scale.report.quantities import percent
from hcm_scale.report.reasons import Reason

_NOTABLE_DEVIATIONS = 2.0  # below this an attribute is like the neighbours'
_NOTABLE_SHARE = 0.25  # of a node's edges: fewer dropped ones are not worth a line
_CITED = 2  # attributes in a line
_TITLES = {"residual": "Odd attributes", "context_closure": "Unlike triangles"}


class Told(NamedTuple):
    """A reason in words."""

    kind: str
    title: str
    text: str


def clip(value: object, width: int) -> str:
    r"""One printable line of at most `width` characters.

    >>> clip("a\x1b[2Jb", 20), clip("abcdefgh", 5)
    ('a�[2Jb', 'abcd…')
    """
    line = "".join(c if c.isprintable() else "�" for c in str(value))
    return line if len(line) <= width else line[: width - 1] + "…"


def score_title(name: str) -> str:
    """A score as a heading: short names are initials.

    >>> score_title("ahp"), score_title("score"), score_title("residual")
    ('AHP', 'Score', 'Odd attributes')
    """
    return _TITLES.get(name) or (name.upper() if len(name) <= 3 else name.replace("_", " ").capitalize())


def reasons(e: Explanation) -> list[Told]:
    """Why the node is ranked where it is, the strongest reason first."""
    return [Told(r.kind, WORDS[r.kind], _TELL[r.kind](e, r) + _rank(r)) for r in e.reasons]


def lead(e: Explanation) -> str:
    """What is to be said before the reasons: that none is notable, or that there are no neighbours."""
    if e.degree == 0:
        return "It has no neighbours, so only its attributes can tell."
    if e.reasons and e.reasons[0].rank is not None and not any(r.notable for r in e.reasons):
        return "Nothing about it stands out. What comes nearest:"
    return ""


def flag(e: Explanation) -> str:
    """The node's p, whether it is flagged, and where flags end; nothing where nobody judged."""
    if e.p is None or e.flagged is None or e.fdr is None:
        return ""
    end = "no node is flagged" if e.flags_end is None else f"flags end at p {e.flags_end:.1e}"
    state = "flagged" if e.flagged else "not flagged"
    return f"p {e.p:.1e}, {state}: at a false-discovery rate of {percent(e.fdr)} {end}"


def in_a_sentence(e: Explanation) -> str:
    """The strongest reason alone, for a table."""
    return " ".join(filter(None, [lead(e), *(f"{told.title}: {told.text}" for told in reasons(e)[:1])]))


def dropped(e: Explanation) -> str:
    """How many of its edges purification dropped, where they are many."""
    count = sum(bool(n.dropped) for n in e.neighbors)
    if count < max(1.0, _NOTABLE_SHARE * e.degree):
        return ""
    if e.degree == 1:
        return "Before learning its only edge was dropped, because its ends are so unlike."
    some = f"{'all' if count == e.degree else f'{count:,} of'} its {e.degree:,} edges"
    return f"Before learning {some} {'was' if count == 1 else 'were'} dropped, because their ends are so unlike."


def _rank(r: Reason) -> str:
    return "" if r.rank is None else f" (rank {r.rank:,} of {r.num_ranked:,} by {r.kind})"


def _hop(e: Explanation, r: Reason) -> str:
    if r.value is None:
        return "none of its edges was scored"
    usual = "" if r.usual is None else f", where {r.usual:.1f} is usual for two neighbours"
    if r.count == 1:
        return (
            f"its only {'scored ' if e.degree > 1 else ''}neighbour looks {r.value:.1f} hops away to the model{usual}"
        )
    return f"its {r.count:,} neighbours look {r.value:.1f} hops away to the model, on average{usual}"


def _closure(e: Explanation, r: Reason) -> str:
    if r.value is None:
        return "few of its far edges close triangles"
    usual = "" if r.usual is None else f", where {r.usual:.1f} is usual"
    far = f"although {_far(r)} look {r.value:.1f} hops apart to the model{usual}"
    return f"{_joined(e, r)}, {far}"


def _context(e: Explanation, r: Reason) -> str:
    if r.value is None or r.usual is None:
        return "its attributes are not like theirs"
    return f"its attributes differ from theirs by {r.value:.2f} of at most 2, where {r.usual:.2f} is usual"


def _context_closure(e: Explanation, r: Reason) -> str:
    if r.value is None or r.usual is None:
        return "edges between unlike nodes close triangles around it"
    far = f"although {_far(r)} differ in their attributes by {r.value:.2f} of at most 2, where {r.usual:.2f} is usual"
    return f"{_joined(e, r)}, {far}"


def _joined(e: Explanation, r: Reason) -> str:
    """How many pairs of its neighbours are joined, among how many of them: a few pairs are no clique."""
    some = f"its {r.count:,} neighbours" if r.count == e.degree else f"{r.count:,} of its {e.degree:,} neighbours"
    if r.count == 2:
        return f"{some} are joined to each other"
    pairs = r.count * (r.count - 1) // 2
    told = f"all {pairs:,} pairs" if r.pairs == pairs else f"{r.pairs:,} of the {pairs:,} pairs"
    return f"{told} among {some} are joined"


def _far(r: Reason) -> str:
    return "they" if r.far_pairs == r.pairs else f"{r.far_pairs:,} of these pairs"


def _attributes(e: Explanation, r: Reason) -> str:
    """The columns that differ most; hashed text only where no column differs."""
    plain = [d for d in e.differences if not d.is_text]
    notable = [d for d in plain if abs(d.deviations) >= _NOTABLE_DEVIATIONS]
    cited = notable[:_CITED] or [d for d in e.differences if d.is_text][:1] or plain[:1]
    whose = "its neighbours'" if e.degree else "all nodes'"
    if not cited:
        return "they are not what its neighbourhood predicts"
    return "; ".join(_difference(d, whose) for d in cited)


def _difference(d: Difference, whose: str) -> str:
    """One attribute, as a value, a category, a gap or a text."""
    column = f"`{clip(d.column, 48)}`"
    if d.is_text:
        return f"text in {column} unlike {whose}"
    name, is_category, category = d.column.partition("=")
    is_share = d.value in (0.0, 1.0) and 0.0 <= d.neighbors <= 1.0
    share = f"{100 * d.neighbors:.0f}% of {whose.removesuffix(chr(39))}"
    if is_share and d.column.endswith(GAP_SUFFIX):
        name = d.column.removesuffix(GAP_SUFFIX)
        return f"`{clip(name, 48)}` is {'missing' if d.value else 'there'}, and missing in {share}"
    if is_share and is_category:
        told = f"`{clip(name, 48)}` is {'' if d.value else 'not '}`{clip(category, 48)}`"
        return f"{told}, which is so in {share}" if d.value else f"{told}, which it is in {share}"
    if d.first_day is not None:
        own, theirs = (date_text(days, d.first_day) for days in (d.value, d.neighbors))
        return f"{column} = {own} where {whose} mean is {theirs}"
    return f"{column} = {_quantity(d.value)} where {whose} mean is {_quantity(d.neighbors)}"


def weight(value: float, percent: int) -> str:
    """The weight of an edge among all weights.

    >>> weight(1200, 99), weight(0.00125, 3)
    ('1,200.00 (heavier than 99 % of edges)', '0.00125 (heavier than 3 % of edges)')
    """
    amount = f"{value:,.2f}" if 0.1 <= value < 1e12 else f"{value:.3g}"
    return f"{amount} (heavier than {percent} % of edges)"


_TELL: dict[str, Callable[[Explanation, Reason], str]] = {
    "hop": _hop,
    "closure": _closure,
    "context": _context,
    "context_closure": _context_closure,
    "attributes": _attributes,
}


def _quantity(value: float) -> str:
    """A value of an attribute as people write it.

    >>> [_quantity(v) for v in (9310.0, 120.25, 0.0417, 3.0, 2.5e9)]
    ['9,310', '120', '0.0417', '3', '2.5e+09']
    """
    if 100 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3g}"
