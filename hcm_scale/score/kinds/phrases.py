"""Phrases that the sentences of kinds are made of: neighbours, pairs of them, what is usual, and single attributes.

Two numbers that are held against each other have as many digits as tell them apart. Attributes are cited under the
user's own column names. `e` is a `report.explain.Explanation`, `d` one of its differences.
"""

from typing import Any

from hcm_scale.base.names import AS_END, EITHER_END, GAP_SUFFIX, ONCE, ROWS
from hcm_scale.base.text import clip, percent, value_text

ID_WIDTH, NAME_WIDTH = 40, 48
_HARDLY_ANY = 1e-3  # of rows: what is stored of an account without one is no share to cite
NOTABLE_DEVIATIONS = 2.0  # below this an attribute is like the neighbours'


def held_against(value: float, usual: float | None, digits: int, whom: str) -> tuple[str, str, bool]:
    """A value, what is usual for whom, and whether the value is larger, as far as digits tell: up to two more."""
    if usual is None:
        return f"{value:.{digits}f}", "; too few nodes have as many neighbours to say what is usual", False
    for more in range(3):
        own, other = f"{value:.{digits + more}f}", f"{usual:.{digits + more}f}"
        if own != other:
            return own, f", where {other} is usual for {whom}", value > usual
    return own, f", as is usual for {whom}", False


def some_neighbors(count: int, degree: int) -> str:
    """So many of its neighbours."""
    own = f"its {degree:,} neighbours" if degree > 1 else "its only neighbour"
    return own if count == degree else f"{count:,} of {own}"


def joined_pairs(num_joined: int, count: int, degree: int) -> str:
    """How many pairs are joined among so many of its neighbours."""
    some, pairs = some_neighbors(count, degree), count * (count - 1) // 2
    if count == 2:
        return f"{some} are joined to each other"
    joined = f"all {pairs:,} pairs" if num_joined == pairs else f"{num_joined:,} of the {pairs:,} pairs"
    return f"{joined} among {some} {'is' if num_joined == 1 else 'are'} joined"


def like_text(e: Any) -> str:
    """The nodes of like degree and type (`Evidence.usual`)."""
    if e.degree < 2:
        return _nodes(e, "nodes with 1 neighbour" if e.degree else "nodes without neighbours")
    low = 1 << e.degree.bit_length() - 1
    return _nodes(e, f"nodes with {low:,} to {2 * low - 1:,} neighbours")


def compared_with(e: Any) -> str:
    """What attributes are compared with: `its neighbours`, `all nodes`, or those of the node's type."""
    return f"its {_nodes(e, 'neighbours')}" if _num_alike(e) else f"all {_nodes(e, 'nodes')}"


def _num_alike(e: Any) -> int:
    return int(e.degree if e.num_alike is None else e.num_alike)


def _nodes(e: Any, what: str) -> str:
    """Nodes, or neighbours, of the types that it is compared with, where that is not all."""
    return what if e.type is None or e.num_alike is None else f"{clip(e.type, ID_WIDTH)} {what}"


def difference_text(e: Any, d: Any) -> str:
    """One attribute, as a value, a category, a gap or a text."""
    where = "around it" if e.degree else "over all nodes"
    where = where if e.num_alike is None else f"of {compared_with(e)}"
    column = column_text(d.column)
    if d.column.startswith(ROWS) and not d.value:
        return f"it is never `{clip(d.column.removeprefix(ROWS), NAME_WIDTH)}`"
    if d.is_text:
        return f"{text_name(d)} unlike that {where}"
    if d.value in (0.0, 1.0) and 0.0 <= (d.neighbors or 0.0) <= 1.0 and (category := category_text(d.column)):
        share = "nothing" if d.neighbors is None else percent(d.neighbors if d.value else 1.0 - d.neighbors)
        return f"{category[0]} is {'' if d.value else 'not '}{category[1]}, which is so of {share} {where}"
    if d.counts is not None:
        share = "hardly any" if d.usual is not None and d.usual < _HARDLY_ANY else percent(d.usual or 0.0)
        usual = "" if d.usual is None else f", where {share} is usual"
        of = ("partner" if d.column.startswith(ONCE + AS_END) else "row") + "s" * (d.counts[1] != 1)
        return f"{column}: {d.counts[0]:,} of its {d.counts[1]:,} {of}{usual}"
    own, mean, usual = (quantity(value, d.first_day) for value in (d.value, d.neighbors or 0.0, d.usual or 0.0))
    if d.never:
        return f"{column} = {own} where {_never_text(d, mean, usual, where)}"
    if d.usual is None:
        return f"{column} = {own} where " + (
            f"nothing {where} has one" if d.neighbors is None else f"the mean {where} is {mean}"
        )
    around = f" and {mean} the mean {where}" * (_num_alike(e) > 0 and d.neighbors is not None)
    return (
        f"{column} = {own}, as is usual{around}" if own == usual else f"{column} = {own} where {usual} is usual{around}"
    )


def _never_text(d: Any, mean: str, usual: str, where: str) -> str:
    """What is usual of an attribute of one end of rows, and the mean around it, where some of them are never there."""
    never = f"never `{clip(d.column.rpartition(AS_END)[2], NAME_WIDTH)}`"
    whose = ["most nodes"] * ("usual" in d.never) + [f"all {where}"] * ("neighbors" in d.never)
    numbers = [f"{usual} is usual"] * (d.usual is not None and "usual" not in d.never)
    numbers += [f"{mean} is the mean {where}"] * ("neighbors" not in d.never)
    return " and ".join([*numbers, *[f"{' and '.join(whose)} are {never}"] * bool(whose)])


def column_text(column: str) -> str:
    """The name of an attribute: `amount` when it is `payer`, of what is made of the rows that have it at this end."""
    what, is_of_end, end = column.rpartition(AS_END)
    if not is_of_end or end == EITHER_END:
        return f"`{clip(column, NAME_WIDTH)}`"
    return f"`{clip(what, NAME_WIDTH)}` when it is `{clip(end, NAME_WIDTH)}`"


def category_text(column: str) -> tuple[str, str] | None:
    """Name and value of a column `NAME=VALUE`, or of one of gaps; None of others."""
    gap, (name, is_category, category) = column.removesuffix(GAP_SUFFIX), column.partition("=")
    if gap != column:
        return f"`{clip(gap, NAME_WIDTH)}`", "missing"
    return (f"`{clip(name, NAME_WIDTH)}`", f"`{clip(category, NAME_WIDTH)}`") if is_category else None


def text_name(d: Any) -> str:
    """A column of hashed text, or of vectors."""
    is_vector = d.column.endswith("[]")
    return f"{'vector' if is_vector else 'text in'} `{clip(d.column.removesuffix('[]'), NAME_WIDTH)}`"


def quantity(value: float, first_day: str | None = None) -> str:
    """The value of an attribute with a few digits, or as a date."""
    if first_day is not None:
        return value_text(value, first_day)
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value + 0.0:.3g}"  # -0.0 + 0.0 is 0.0
