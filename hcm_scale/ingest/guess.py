"""Guesses which column is what, where no option says so: the two ends of an edge, the id of a node, and its type.

Two columns with names of a pair, such as `source` and `target` or `from_account` and `to_account`, are the ends; so are
the only two that differ in a last 1 and 2 or a and b, such as `protein1` and `protein2`. Two called alike, `Account`
and `Account.1`, or as a customer and a shop are, `User` and `Merchant Name`, are likely. Where no names say so, they
are the two columns whose first values are found most often in one column of the node table, in at least half of all
cases; without a node table, two in which the same texts or large numbers stand, else the first two that can hold ids
and are not called as times and amounts are. A column is an end only where no other fits if it numbers the rows, 7, 8,
9, ..., looks like times or amounts, or has another value in every row, or very few. The id is the column `id`, or one
named as an end is, if it holds at least half of the ends; else the column of distinct values that holds most of them,
or one in which few repeat. Ids are text or whole numbers. Of columns that fit equally well, to a tenth of the values,
the first ones count, and a warning says so. A text column named `type` or `node_type`, of 2 to 64 values and beside
other attributes, is the type of nodes.
"""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base.text import words
from hcm_scale.graph.store import MAX_TYPES
from hcm_scale.ingest.encode import FormatGuess, is_text
from hcm_scale.ingest.policy import InputError, shown_names
from hcm_scale.ingest.row_columns import is_time_or_amount
from hcm_scale.ingest.table_files import TableFiles, open_table
from hcm_scale.ingest.time_formats import guess_format

log = logging.getLogger(__name__)
COLUMNS = ("source_column", "target_column", "id_column")
Pair = tuple[str, str]
_FIRST = 1_000  # rows of edges whose ends are looked for
_ENOUGH = 0.5  # the share of them that an id column holds
_NEARLY = 0.9  # the share of distinct values by which a column holds ids, a few of which repeat
_WIDE = 300  # columns among which ends without a name are looked for
_NAMES = (
    *(("source", "target"), ("src", "dst"), ("source", "destination"), ("src", "dest"), ("from", "to"), ("u", "v")),
    *(("payer", "payee"), ("sender", "receiver"), ("sender", "recipient"), ("debtor", "creditor"), ("buyer", "seller")),
    *(("orig", "dest"), ("origin", "destination"), ("caller", "callee"), ("follower", "followee"), ("citing", "cited")),
    *(("start", "end"), ("absender", "empfänger"), ("absender", "empfaenger"), ("auftraggeber", "empfänger")),
    *(("auftraggeber", "empfaenger"), ("origen", "destino"), ("expediteur", "destinataire"), ("orig", "bene")),
    *((payer, "beneficiary") for payer in ("ordering", "originator", "remitter", "sender", "payer")),
)
_CUSTOMERS = {"user", "customer", "client", "cardholder", "account", "card", "cc", "konto", "kunde"}
_SHOPS = {"merchant", "shop", "store", "vendor", "supplier", "seller", "counterparty", "beneficiary", "host", "item"}
_NUMBERED = (("1", "2"), ("a", "b"))
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+|nan|inf)(e[-+]?\d+)?\s*", re.I)
_TYPES = (("type",), ("node", "type"), ("nodetype",), ("kind", "of", "node"), ("node", "kind"), ("entity", "type"))
_IDS = {"id", "account", "acct", "acc", "key", "no", "nr", "num", "number", "address", "iban"}
_BESIDE = {*_IDS, "node", "user", "name", "customer", "party", "wallet", "institution"}
_FEW, _ENOUGH_ROWS = 10, 100  # values that are few; rows that show it
_LARGE, _NARROW = 100_000, 30  # whole numbers that stand in two columns by no chance; columns that are compared


def guess_columns(tables: tuple[Any, Any], given: dict[str, str], prefix: str = "") -> dict[str, str]:
    """The options that name columns of (edges, nodes or None): `given`, and for the others a guess.

    A table is a path or an Arrow table. `prefix` stands before the names of options in messages.
    """
    edges = _open("graph.path", tables[0])
    nodes = None if tables[1] is None else _open("graph.nodes", tables[1])
    for name in COLUMNS[:2]:
        edges.check_columns(prefix + name, [given.get(name)])
    choices = _likely_ends(edges, given.get("source_column"), given.get("target_column"))
    if nodes is None:
        return given | dict(zip(COLUMNS, choices[0][0], strict=False))
    nodes.check_columns(f"{prefix}id_column", [given.get("id_column")])
    pairs, key = _find_id(edges, nodes, choices, given.get("id_column"))
    if key is None:
        raise InputError(_no_fit_message(edges, nodes, choices[0][0], given, prefix))
    if len(pairs) > 1:
        ends = ", ".join(dict.fromkeys(itertools.chain(*pairs)))
        taken = f"{' and '.join(pairs[0])} are taken, the first: {prefix}source_column= and {prefix}target_column="
        log.warning("%s all look like ends of edges; %s say otherwise", ends, taken)
    return _type_column(nodes, {key, *given.values()}) | given | dict(zip(COLUMNS, (*pairs[0], key), strict=True))


def _type_column(nodes: TableFiles, taken: set[str]) -> dict[str, str]:
    """The option that names the types of nodes, where a column looks like them and others are left as attributes."""
    left = [name for name in nodes.schema.names if name not in taken and name not in nodes.index_columns]
    for name in left if len(left) > 1 else ():
        if words(name) in _TYPES and nodes.casts.get(name) == pa.large_string():
            distinct = pa.array([], pa.large_string())
            for batch in nodes.batches([name]):
                distinct = pa.concat_arrays([distinct, batch.column(0)]).unique().drop_null()
            if 1 < len(distinct) <= MAX_TYPES:
                return {"node_type_column": name}
            what = "column %r has %s values and is taken as an attribute: types of nodes are 2 to %d"
            log.info(what, name, f"{len(distinct):,}", MAX_TYPES)
    return {}


def _open(option: str, where: Any) -> TableFiles:
    """The table, with those columns that can hold ids, which are its casts, read as ids: text or whole numbers."""
    table, casts = open_table(option, where), {}
    _check_names(table)
    table.check_filled()
    for column in table.schema:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_integer(kind):
            casts[column.name] = pa.int64()
        elif is_text(kind) and not pa.types.is_null(kind):
            casts[column.name] = pa.large_string()
    return table.with_casts(casts)


def _check_names(table: TableFiles) -> None:
    """Refuses a CSV table whose first line holds numbers alone: a row, read as names, would be lost without a word.

    Columns that are named by their places from 0, as pandas names them, get a warning only.
    """
    names = table.schema.names
    if not table.is_csv or not all(map(_NUMBER.fullmatch, names)):
        return
    line = f"the first line of {table.origin}, {','.join(names[:5])}{',...' if len(names) > 5 else ''}"
    if names != [str(number) for number in range(len(names))]:
        raise InputError(f"{line}, holds numbers; it must name the columns: put a line such as source,target before it")
    log.warning("%s, is taken for names of columns; if it is a row, put a line such as source,target before it", line)


def log_guesses(guessed: dict[str, str]) -> None:
    """Says in the log what was guessed, by option."""
    if guessed:
        named = ", ".join(f"graph.{name}={value}" for name, value in guessed.items())
        log.info("guessed from the tables: %s (where a guess is wrong, give this option)", named)


def _likely_ends(edges: TableFiles, source: str | None, target: str | None) -> list[list[Pair]]:
    """Pairs of columns that may hold the two ends, in groups, the likeliest first; those that are known stay."""
    if source is not None and target is not None:
        return [[(source, target)]]
    columns = [column for column in edges.schema if column.name not in edges.index_columns]
    able = [c.name for c in columns if is_text(c.type) or pa.types.is_integer(c.type) or pa.types.is_floating(c.type)]
    numbered = [pair for pair in _numbered_ends(able) if any(name in edges.casts for name in pair)]
    named = _named_ends(able) or (numbered if len(numbered) == 1 else [])
    named = [pair for pair in named if source in (None, pair[0]) and target in (None, pair[1])]
    if named:
        return [named]
    known = [pair for pair in _likely_names(able) if source in (None, pair[0]) and target in (None, pair[1])]
    left = [column.name for column in columns if column.name in edges.casts and column.name not in (source, target)]
    others = [name for name in left if not is_time_or_amount(name)]
    left = others if len(others) + ((source or target) is not None) > 1 else left
    pairs = [(source or name, target or name) for name in left]
    if source is None and target is None:
        pairs = list(itertools.combinations(left[:_WIDE], 2))
        pairs.sort(key=lambda pair: edges.casts[pair[0]] != edges.casts[pair[1]])  # ids are of one type
    if not pairs:
        raise InputError(
            f"{edges.origin} has the columns {shown_names(edges.schema.names)}; legal are two or more of text or whole "
            "numbers, the ends of an edge"
        )
    first = _first_rows(edges, left)
    distinct = {name: values.unique().drop_null() for name, values in first.items()}
    unlikely = {name for name, values in first.items() if _is_unlikely(values, distinct[name])}
    shared = [pair for pair in pairs if len(left) <= _NARROW and not unlikely & set(pair)]
    shared = [pair for pair in shared if _has_shared(*(distinct.get(name) for name in pair))]
    shared.sort(key=lambda pair: -min(len(distinct[name]) for name in pair))
    groups = [[pair for pair in pairs if len(unlikely & set(pair)) == count] for count in range(3)]
    if not any((known, shared, *groups[:2])):
        what = "no two columns of %s look like the ends of edges, as in a table of nodes: %s and %s are taken"
        log.warning(what, edges.origin, *pairs[0])
    return [group for group in (known[:1], shared[:1], *groups) if group]


def _is_unlikely(values: pa.Array, distinct: pa.Array) -> bool:
    """Whether a column numbers the rows, looks like times or amounts, or has another value in every row, or very few.

    >>> _is_unlikely(pa.array([7, 8, 9]), pa.array([7, 8, 9])), _is_unlikely(pa.array(["a", "a"]), pa.array(["a"]))
    (True, False)
    """
    if len(values) >= _ENOUGH_ROWS and not _FEW < len(distinct) < len(values):
        return True
    if not pa.types.is_integer(values.type):
        looks = FormatGuess()
        looks.add(distinct, np.ones(len(distinct), np.int64))
        return bool(len(distinct)) and bool(looks.name())
    numbers = values.drop_null().to_numpy()
    is_numbering = len(values) > 2 and not values.null_count and (np.diff(numbers) == 1).all()
    return bool(is_numbering or guess_format(numbers.astype(np.float64)))


def _has_shared(one: pa.Array | None, other: pa.Array | None) -> bool:
    """Whether texts, or numbers that are not small, stand in both columns."""
    if one is None or other is None or one.type != other.type:
        return False
    both = one.filter(pc.is_in(one, other))
    return len(both.filter(pc.greater_equal(both, _LARGE)) if pa.types.is_integer(both.type) else both) >= _FEW


def _named_ends(names: Sequence[str]) -> list[Pair]:
    """The pairs of columns whose names differ in the two words of a pair alone, beside words such as `id`.

    >>> _named_ends(["date", "to_account", "from_account", "FromBank", "userId"])
    [('from_account', 'to_account')]
    """
    words_of = {name: words(name) for name in names}
    by_words = {words_of[name]: name for name in reversed(names)}
    pairs = [
        (name, by_words[other])
        for one, another in _NAMES
        for name, held in words_of.items()
        if one in held and set(held) <= {one, *_BESIDE}
        if (other := tuple(another if word == one else word for word in held)) in by_words
    ]
    return sorted(pairs, key=lambda pair: not _IDS & set(words_of[pair[0]]))  # of two people of one name


def _numbered_ends(names: Sequence[str]) -> list[Pair]:
    """The pairs of columns that alone begin alike and end in 1 and 2 or in a and b.

    >>> _numbered_ends(["combined_score", "protein1", "protein2", "gene_B", "gene_A", "s1", "s2", "s3"])
    [('protein1', 'protein2'), ('gene_A', 'gene_B')]
    """
    by_words = {words(name): name for name in reversed(names)}
    alike = Counter(held[:-1] for held in by_words)
    return [
        (by_words[*begin, one], by_words[*begin, another])
        for one, another in _NUMBERED
        for begin, count in alike.items()
        if begin and count == 2 and (*begin, one) in by_words and (*begin, another) in by_words
    ]


def _likely_names(names: Sequence[str]) -> list[Pair]:
    """The pairs of a column and the one that pandas numbered since it is called alike, or of a customer and a shop.

    >>> _likely_names(["Account", "Account.1"]), _likely_names(["User", "Card", "Merchant Name", "Merchant City"])
    ([('Account', 'Account.1')], [('User', 'Merchant Name'), ('Card', 'Merchant Name')])
    """
    repeated = [(name, f"{name}.1") for name in names if f"{name}.1" in names and f"{name}.2" not in names]
    of = {name: set(words(name)) for name in names}
    customers, shops = (
        [name for name, own in of.items() if own & some and own <= some | _BESIDE] for some in (_CUSTOMERS, _SHOPS)
    )
    return repeated if len(repeated) == 1 else list(itertools.product(customers, shops))


def _find_id(
    edges: TableFiles, nodes: TableFiles, choices: list[list[Pair]], key: str | None
) -> tuple[list[Pair], str | None]:
    """The pairs of ends that fit equally well, and the id; where none do, what their names alone say, or None."""
    ends, is_sure = choices[0][0], sum(map(len, choices)) == 1
    if key is not None and is_sure:
        return [ends], key
    columns = dict.fromkeys(itertools.chain(*itertools.chain(*choices)))
    first = {name: values.unique().drop_null() for name, values in _first_rows(edges, columns).items()}
    names = [name for name in nodes.casts if name not in nodes.index_columns]
    called = [name for name in ("id", *ends) if name in nodes.schema.names] if key is None else [key]
    for name in called:
        if name in names and (best := _best(choices, _shares(first, nodes, name))):
            return best[1], name
    fits = [(*best, n) for n in names if key is None and (best := _best(choices, _shares(first, nodes, n)))]
    likeliest = sorted(fits, key=lambda fit: -fit[0])
    for least in (1.0, _NEARLY):  # ids that repeat are refused by their rows, later
        for _, pairs, name in likeliest:
            ids = pa.chunked_array((batch.column(0) for batch in nodes.batches([name])), nodes.casts[name])
            if pc.count_distinct(ids).as_py() >= least * max(1, len(ids)):
                return pairs, name
    return [ends], called[0] if called and is_sure else None


def _best(choices: list[list[Pair]], shares: Mapping[str, float]) -> tuple[float, list[Pair]] | None:
    """How much is found of a pair at most, to a tenth, and the pairs of which it is; None where it is too little."""
    for group in choices:
        fits = [pair for pair in group if all(shares.get(end, 0.0) >= _ENOUGH for end in pair)]
        if fits:
            totals = {pair: sum(round(shares[end], 1) for end in pair) for pair in fits}
            most = max(totals.values())
            return most, [pair for pair, share in totals.items() if share == most]
    return None


def _shares(first: Mapping[str, pa.Array], nodes: TableFiles, name: str) -> dict[str, float]:
    """Of each column of `first`: the share of its values that a column of the node table holds."""
    of_type = {end: values for end, values in first.items() if values.type == nodes.casts[name]}
    is_held = {end: np.zeros(len(values), np.bool_) for end, values in of_type.items()}
    for batch in nodes.batches([name]):
        for end, mask in is_held.items():
            mask |= pc.is_in(first[end], batch.column(0)).to_numpy(zero_copy_only=False)
        if all(mask.all() for mask in is_held.values()):
            break
    return {end: float(mask.mean()) for end, mask in is_held.items() if len(mask)}


def _no_fit_message(edges: TableFiles, nodes: TableFiles, ends: Pair, given: Mapping[str, str], prefix: str) -> str:
    key = given.get("id_column")
    lacks = f"no column of {nodes.origin} holds" if key is None else f"{prefix}id_column={key!r} does not hold"
    unsaid = " and ".join(f"{prefix}{name}=" for name in COLUMNS[:2] if name not in given)
    guessed = f" (guessed as the ends of edges; {unsaid} say otherwise)" if unsaid else ""
    advice = f"; {prefix}id_column= names the column of ids" if key is None else ""
    has_ends = [bool(_named_ends(table.schema.names) + _numbered_ends(table.schema.names)) for table in (edges, nodes)]
    if "source_column" not in given and has_ends == [False, True]:
        advice += f"; if {nodes.origin} is the table of edges, it comes first"
    return (
        f"{lacks} the ids in {ends[0]!r} and {ends[1]!r} of {edges.origin}{guessed}{advice}. "
        f"Columns of edges are {shown_names(edges.schema.names)}, of nodes {shown_names(nodes.schema.names)}"
    )


def _first_rows(table: TableFiles, names: Iterable[str]) -> dict[str, pa.Array]:
    able = [name for name in names if name in table.casts]
    return dict(zip(able, table.first_batch(able).slice(0, _FIRST).columns, strict=True)) if able else {}
