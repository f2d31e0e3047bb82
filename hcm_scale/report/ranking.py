"""The ranked table as pages show it: which columns, under which headings, and the values of some of its rows.

`columns` describes them (key, heading, what a heading means, how values are written); `values` has a list a column. Ids
stay what they are, but an endless one is cut: nobody reads on, and a page of them would not load.
"""

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from hcm_scale.report.explain import finite, label_of
from hcm_scale.report.glossary import HELP
from hcm_scale.report.kinds import WORDS
from hcm_scale.report.wording import score_title
from hcm_scale.score.evidence import KINDS
from hcm_scale.score.table import kind_rank

_ID_CHARACTERS = 1000
_DIGITS = {"iv": 4, "score": 2}
_KIND_TITLES = {  # short, because five of them stand side by side
    "hop": "Far",
    "closure": "Strangers",
    "context": "Unlike",
    "context_closure": "Unlike group",
    "attributes": "Odd",
}


def columns(names: Collection[str], scores: Sequence[str]) -> list[dict[str, Any]]:
    """What is shown of a ranked table that has `names`, `scores` among them, the one that ranks first.

    `minor` columns are shown only where there is room.

    >>> [column["name"] for column in columns(["rank", "id", "ahp", "degree"], ["ahp"])]
    ['Rank', 'Node', 'AHP', 'Degree']
    """
    apart = "evidence" in names
    shown = [_column("rank", "Rank", "count"), _column("id", "Node", "text")]
    for i, name in enumerate(scores):
        shape = {"digits": _DIGITS.get(name, 3), "bar": i == 0, "minor": apart or i > 0}
        shown.append(_column(name, score_title(name), "score") | shape)
    if apart:
        shown.append(_column("evidence", "Stands out by", "words") | {"words": WORDS})
        for kind, title in _KIND_TITLES.items():
            about: dict[str, Any] = {"help": f"Rank by this alone: {WORDS[kind]} ({kind}). {HELP[kind]}", "minor": True}
            shown.append(_column(kind_rank(kind), title, "count") | about)
    shown.append(_column("p", "p", "p"))
    shown.append(_column("flagged", "Flagged", "flag") | {"minor": True})
    shown.append(_column("degree", "Degree", "count") | {"minor": True})
    shown.append(_column("label", "Known as", "text") | {"minor": True})
    shown.append(_column("flags", "Notes", "text") | {"minor": True})
    return [column for column in shown if column["key"] in names]


def _column(key: str, name: str, kind: str) -> dict[str, Any]:
    return {"key": key, "name": name, "kind": kind, "help": HELP.get(key, "")}


def listed_scores(scores: Sequence[str], ranked_by: str, apart: bool) -> list[str]:
    """The scores that the list shows, the one that ranks first; alone where ranks by kind (`apart`) say more.

    >>> listed_scores(["ahp", "iv"], "iv", apart=False), listed_scores(["ahp", "iv"], "iv", apart=True)
    (['iv', 'ahp'], ['iv'])
    """
    return [ranked_by] if apart else list(dict.fromkeys([ranked_by, *scores]))


def values(table: pa.Table, scores: Collection[str]) -> dict[str, list[Any]]:
    """The rows of a piece of the ranked table, a list a column; `scores` are the floating-point columns to keep."""
    ids, ranks = table["id"].to_pylist(), [kind_rank(kind) for kind in KINDS]
    found: dict[str, list[Any]] = {"rank": table["rank"].to_pylist(), "id": [cut_id(value) for value in ids]}
    for name in scores:
        found[name] = [finite(value) for value in table[name].to_pylist()]
    for name in ("evidence", *ranks, "p", "flagged", "degree"):
        if name in table.column_names:
            found[name] = table[name].to_pylist()
    if "y" in table.column_names:
        kinds = table["kind"].to_pylist() if "kind" in table.column_names else [None] * table.num_rows
        found["label"] = [label_of(y, kind) for y, kind in zip(table["y"].to_pylist(), kinds, strict=True)]
    notes = [flags.replace(",", ", ").replace("_", " ") for flags in table["flags"].to_pylist()]
    return found | {"flags": notes}


def cut_id(value: Any) -> Any:
    """The id, cut where it is longer than a thousand characters."""
    return value[:_ID_CHARACTERS] + "…" if isinstance(value, str) and len(value) > _ID_CHARACTERS else value
