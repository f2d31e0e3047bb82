"""Which column is what, where nobody said so: the ends of edges and the ids of nodes."""

import pandas as pd
import pyarrow as pa
import pytest

from hcm_scale.ingest.guess import guess_columns
from hcm_scale.ingest.readers import InputError

DAYS = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-02", "2024-01-03"]).date
PEOPLE = {"age": [30, 40, 50, 60, 30], "account": ["a", "b", "c", "d", "e"]}
MONEY = {"amount": [3.5, 1.0, 2.5, 4.0]}
TEXT = {"x": ["a", "b", "c", "a"], "y": ["b", "c", "d", "e"]}
MIXED = [7 * i % 30 for i in range(30)]
MANY = range(150)
ACCOUNTS = {"fra": [f"n{i * 7 % 90}" for i in MANY], "til": [f"n{i * 11 % 80 + 5}" for i in MANY]}
WHOLE = {"x": [1, 4, 2, 1], "y": [2, 3, 4, 3]}


def guessed(edges: dict, nodes: dict | None = None, prefix: str = "graph.", **known: str) -> tuple[str, ...]:
    tables = pa.table(edges), None if nodes is None else pa.table(nodes)
    found = guess_columns(tables, known, prefix)
    return tuple(found[name] for name in ("source_column", "target_column", "id_column") if name in found)


@pytest.mark.parametrize(
    ("edges", "nodes", "expected"),
    [
        (
            {"Timestamp": TEXT["x"], "Bank": [7, 8, 7, 9], "Account": TEXT["x"], "Account.1": TEXT["y"]},
            PEOPLE,
            "Account Account.1",
        ),
        ({"User": TEXT["x"], "Card": [0, 1, 0, 1], "Merchant": TEXT["y"]}, PEOPLE, "User Merchant"),
        ({"tx_id": [1, 2, 3, 4], "date": DAYS, "payer": TEXT["x"], "payee": TEXT["y"]} | MONEY, PEOPLE, "payer payee"),
        ({"date": DAYS, "to_account": TEXT["y"], "from_account": TEXT["x"]}, PEOPLE, "from_account to_account"),
        ({"note": ["b", "a", "a", "c"], "nameOrig": TEXT["x"], "nameDest": TEXT["y"]}, PEOPLE, "nameOrig nameDest"),
        ({"date": DAYS, "what": ["p", "q", "p", "p"]} | TEXT | MONEY, PEOPLE, "x y"),
        ({"x": ["a", "b", "c", "who"], "note": ["p", "q", "a", "r"], "y": TEXT["y"]}, PEOPLE, "x y"),
        ({"x": [*MIXED[:29], 99], "y": MIXED[::-1], "z": [1] * 30}, {"account": MIXED}, "x y"),
        ({"from": DAYS, "to": DAYS} | TEXT, PEOPLE, "x y"),
        (WHOLE | MONEY, {"account": [1, 2, 3, 4, 5], "group": [1, 1, 2, 2, 3]}, "x y"),
        ({"tx_id": [1, 2, 3, 4]} | WHOLE, {"account": [1, 2, 3, 4, 5]}, "x y"),
        ({"x": [1, 2, 3, 4], "y": [2, 3, 4, 5], "many": [7, 9, 8, 9]}, {"account": [1, 2, 3, 4, 5]}, "x y"),
        ({"score": [2, 1, 4, 3], "v1": WHOLE["x"], "v2": WHOLE["y"]}, {"account": [1, 2, 3, 4, 5]}, "v1 v2"),
        ({"score": [2, 1, 4, 3], "node_B": TEXT["x"], "node_A": TEXT["y"]}, PEOPLE, "node_A node_B"),
        ({"__index_level_0__": [4, 2, 3, 1]} | WHOLE, {"account": [1, 2, 3, 4, 5]}, "x y"),
    ],
)
def test_guess__ends_and_id_are_found_together(tmp_path, edges, nodes, expected):
    assert guessed(edges, nodes) == (*expected.split(), "account")
    paths = tuple(str(tmp_path / f"{name}.csv") for name in ("edges", "nodes"))
    for path, columns in zip(paths, (edges, nodes), strict=True):
        pd.DataFrame(columns).to_csv(path, index="__index_level_0__" not in edges)  # pandas adds a column without name
    if "__index_level_0__" not in edges:
        assert tuple(guess_columns(paths, {}).values()) == (*expected.split(), "account")


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"weight": [1.0], "target": ["b"], "source": ["a"]}, "source target"),
        ({"source": [1.0], "target": [2.0]}, "source target"),
        ({"date": DAYS, "rate": MONEY["amount"], "n": [5, 6, 7, 8]} | TEXT, "x y"),
        ({"x": [1], "y": [2], "w": [3]}, "x y"),
        ({"x": [1, 2, 3], "y": [2, 3, 4]}, "x y"),
        ({"trans_date": ["a"], "cc_num": [4], "merchant": ["s"], "unix_time": [1_700_000_000]}, "cc_num merchant"),
        ({"who": [4, 5], "whom": [8, 4], "unix_time": [1_700_000_000, 1_700_000_100], "amt": [5, 1]}, "who whom"),
        ({"unix_time": [1_700_000_000, 1_700_000_100], "who": [4, 5], "whom": [8, 4]}, "who whom"),
        (
            {
                "Auftraggeber": ["A. Weber"],
                "Empfänger": ["B. Weber"],
                "IBAN_Auftraggeber": ["x"],
                "IBAN_Empfänger": ["y"],
            },
            "IBAN_Auftraggeber IBAN_Empfänger",
        ),
        (
            {"ref": [f"r{i}" for i in MANY], "sort": ["a", "b"] * 75, "branch": [f"f{i % 40}" for i in MANY]}
            | ACCOUNTS,
            "fra til",
        ),
        (
            {
                "ref": [7 * i for i in MANY],
                "sort": ["a", "b"] * 75,
                "day": [f"{i % 28 + 1:02}.01.24" for i in MANY],
                "kort": [f"k{i * 7 % 90}" for i in MANY],
                "butik": [f"f{i % 40}" for i in MANY],
            },
            "kort butik",
        ),
        ({"paper": [*MANY], "cites": [i % 50 for i in MANY], "field": ["a", "b", "c"] * 50}, "paper cites"),
    ],
)
def test_guess__without_nodes_ends_are_named_or_the_first_that_can_hold_ids(edges, expected):
    assert guessed(edges) == tuple(expected.split())


def test_guess__what_is_known_stays():
    assert guessed(TEXT, target_column="x") == ("y", "x")
    assert guessed({"source": ["a"], "target": ["b"], "z": ["c"]}, source_column="z") == ("z", "source")
    found = guessed(TEXT | {"z": ["d", "d", "e", "q"]}, PEOPLE, target_column="z", id_column="account")
    assert found == ("x", "z", "account")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({"age": [4, 3, 2, 1], "id": [1, 2, 3, 4]}, "id"),
        ({"id": [11, 12, 13, 14], "number": [1, 2, 3, 4]}, "number"),
        ({"age": [4, 3, 2, 1], "y": [1, 2, 3, 4]}, "y"),
        ({"town": ["1", "2", "3"], "group": [1, 2, 2], "key": [1, 2, 4]}, "key"),
        ({"few": [1, 2, 8, 9], "most": [1, 2, 3, 9]}, "most"),
        ({"id": [1, 11, 12]}, "id"),
    ],
)
def test_guess__id_is_named_or_holds_most_of_the_ends(nodes, expected):
    assert guessed(WHOLE, nodes) == ("x", "y", expected)


def test_guess__says_so_where_nothing_fits():
    said = (
        r"no column of the node table holds the ids in 'x' and 'y' of the edge table \(guessed as the ends of edges; "
    )
    said += (
        r"graph\.source_column= and graph\.target_column= say otherwise\); graph\.id_column= names the column of ids"
    )
    with pytest.raises(InputError, match=said):
        guessed(TEXT | {"z": ["q", "r", "s", "t"]}, {"key": ["k", "l"]})
    with pytest.raises(InputError, match=r"graph\.id_column='id' does not hold the ids in 'x' and 'y' .* \(guessed"):
        guessed(TEXT | {"z": ["q", "r", "s", "t"]}, {"id": ["k", "l"]}, id_column="id")
    with pytest.raises(InputError, match="in 'x' and 'y' of the edge table; id_column= names"):
        guessed(TEXT, {"key": ["k", "l"]}, "", source_column="x", target_column="y")
    with pytest.raises(InputError, match=r"the edge table has the columns .*; legal are two or more of text or whole"):
        guessed({"x": ["a"], "amount": [1.5]})


def test_guess__of_tables_in_the_wrong_order_says_so():
    payments, accounts = {"payer": ["a", "b"], "payee": ["b", "c"]}, {"account": ["a", "b"], "land": ["at", "de"]}
    with pytest.raises(InputError, match="; if the node table is the table of edges, it comes first"):
        guessed(accounts, payments)
    with pytest.raises(InputError) as refused:
        guessed(payments, accounts | {"account": ["x", "y"]})
    assert "comes first" not in str(refused.value)


def test_guess__of_an_empty_table_says_so_first(tmp_path):
    with pytest.raises(InputError, match=r"^the edge table holds no rows"):
        guessed({"x": []})
    (tmp_path / "nodes.csv").write_text("account,age\n")
    with pytest.raises(InputError, match=r"^nodes\.csv holds no rows"):
        guess_columns((pa.table(TEXT), str(tmp_path / "nodes.csv")), {})


def test_guess__a_first_line_of_numbers_is_no_header(tmp_path, caplog):
    path = tmp_path / "e.csv"
    path.write_text("3,4\n4,5\n")
    with pytest.raises(InputError, match=r"the first line of e\.csv, 3,4, holds numbers; it must name the columns"):
        guess_columns((str(path), None), {})
    path.write_text("0,1\n4,5\n")  # as pandas writes a frame without names
    assert guess_columns((str(path), None), {}) == {"source_column": "0", "target_column": "1"}
    assert "the first line of e.csv, 0,1, is taken for names of columns; if it is a row, put" in caplog.text


def test_guess__of_very_many_columns_takes_the_first_two():
    assert guessed({f"c{i}": [1, 4, 2, 1] for i in range(20_000)}) == ("c0", "c1")


def test_guess__of_pairs_that_fit_alike_takes_the_first_and_says_so(caplog):
    nodes = {"account": [1, 2, 3, 4, 5]}
    assert guessed({"i": WHOLE["x"], "j": WHOLE["y"], "calls": [1, 1, 3, 2]}, nodes)[:2] == ("i", "j")
    assert "i, j, calls all look like ends of edges; i and j are taken, the first: graph.source_column=" in caplog.text


def test_guess__a_numbered_end_of_floats_is_not_passed_over_for_another_column():
    edges = {"score": [2, 1, 4, 3], "gene1": [1.0, 4.0, None, 1.0], "gene2": WHOLE["y"]}
    with pytest.raises(InputError, match="'gene1' and 'gene2'"):
        guessed(edges, {"account": [1, 2, 3, 4, 5], "group": [1, 1, 2, 2, 3]})


def test_guess__ids_of_which_few_repeat_are_the_ids_all_the_same():
    names = [f"n{number}" for number in range(40)]
    edges = {"x": names[:-1], "y": names[1:]}
    assert guessed(edges, {"age": [*range(40), 7], "gene": [*names, "n3"]}) == ("x", "y", "gene")


def test_guess__lists_few_of_many_columns():
    wide = {f"s{number}": [0.5] for number in range(3_000)}
    with pytest.raises(InputError, match="and 2,988 more") as caught:
        guessed({"x": ["a"], "y": ["b"]}, wide)
    assert len(str(caught.value)) < 700


def test_guess__says_that_tables_seem_swapped_where_ends_are_numbered_or_start_and_end():
    people = {"name": ["p", "q"], "label": ["r", "s"]}
    for ends in ((":START_ID", ":END_ID"), ("gene1", "gene2")):
        with pytest.raises(InputError, match="is the table of edges, it comes first"):
            guessed(people, {ends[0]: ["a", "b"], ends[1]: ["b", "c"]})
