"""What is kept about the rows of a table: nothing by time where there is none, and histories by names of currencies."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.ingest.policy import Columns
from hcm_scale.ingest.tables import read_tables
from hcm_scale.rows.evidence import MadeEvidence, open_row_evidence, rows_before, rows_of
from hcm_scale.rows.history import sorts_among
from hcm_scale.score.kinds import history as kinds
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.kinds.burst import BURST
from hcm_scale.score.kinds.history import HISTORY
from hcm_scale.score.kinds.row_phrases import amount_text

ENDS = Columns(source="payer", target="payee")


def events(count, seed=0):
    rng = np.random.default_rng(seed)
    names = np.array([f"a{number}" for number in range(12)])
    payer = rng.integers(0, 12, count)
    payee = (payer + rng.integers(1, 12, count)) % 12
    return {"payer": names[payer], "payee": names[payee], "amount": rng.lognormal(3, 0.05, count)}


def test_rows_without_a_time__are_in_no_burst_chain_or_flow(tmp_path):
    """Amounts that fit each other in the order of the table are no chain."""
    made = MadeEvidence(rows_of(read_tables(tmp_path / "g", pa.table(events(400)), columns=ENDS)))
    assert [kind.of_rows(made).any() for kind in ROW_KINDS] == [kind is HISTORY for kind in ROW_KINDS]


def test_rows_before__have_the_currencies_of_this_table_by_name(tmp_path):
    """Currencies are numbered as they come, and a currency that this table lacks is no history."""
    graphs = []
    for number, names in enumerate((["EUR", "USD", "GBP"], ["USD", "EUR"])):
        data = events(300, number) | {"currency": np.resize(names, 300), "day": np.arange(300)}
        graphs.append(read_tables(tmp_path / str(number), pa.table(data), columns=ENDS))
    earlier, graph = graphs
    before = rows_before(graph, earlier)
    own, other = (np.array(each.info["rows"]["currencies"]) for each in (graph, earlier))
    kept = np.isin(other[earlier.rows.currency], own)
    assert own[before.currency].tolist() == other[earlier.rows.currency][kept].tolist()
    np.testing.assert_array_equal(before.time, earlier.rows.time[kept])


@pytest.mark.parametrize(
    ("first", "last"), [(0, 300), (0, 400), (100, 400), (300, 400)], ids=["same", "grown", "slid", "later"]
)
def test_rows_before__are_those_that_this_table_does_not_hold(tmp_path, first, last):
    """Of rows that are equal, as many are left as the earlier table has more of: no row is its own history."""
    data = pa.table(events(400) | {"day": np.arange(400) // 4})
    data = pa.concat_tables([data.slice(0, 60), data.slice(40)])  # twenty rows are there twice
    earlier = read_tables(tmp_path / "earlier", data.slice(0, 300), columns=ENDS)
    graph = read_tables(tmp_path / "today", data.slice(first, last - first), columns=ENDS)
    before = rows_before(graph, earlier)
    expected = data.slice(0, min(first, 300)).take(np.argsort(data["day"].to_numpy()[: min(first, 300)], kind="stable"))
    np.testing.assert_allclose(np.exp(before.amount), expected["amount"].to_numpy())
    assert graph.ids.take(pa.array(before.payer)).to_pylist() == expected["payer"].to_pylist()


def test_own_rows__are_the_strangest_of_an_account_with_its_sums_by_currency(tmp_path):
    data = events(300) | {"currency": np.resize(["EUR", "USD", None], 300), "day": np.arange(300)}
    data["amount"][::7], data["amount"][5::50] = np.nan, -3.0
    data["payee"][:9] = data["payer"][:9]
    graph = read_tables(
        tmp_path / "g",
        pa.table({name: pa.array(values, from_pandas=True) for name, values in data.items()}),
        columns=ENDS,
    )
    MadeEvidence(rows_of(graph)).save(tmp_path, ROW_KINDS)
    evidence = open_row_evidence(tmp_path, graph, ROW_KINDS)
    for account, name in enumerate(graph.ids.to_pylist()):
        own = evidence.own_rows(account, most=5)
        payer, payee = ((data[end] == name)[evidence.number] for end in ("payer", "payee"))
        strongest = sorted(np.flatnonzero(payer | payee), key=lambda row: (-evidence.surprise[row], row))
        assert own.rows.tolist() == strongest[:5]
        for sums, is_end in ((own.paid, payer), (own.received, payee & ~payer)):
            slow = {}
            for row in evidence.number[is_end]:
                if np.isfinite(data["amount"][row]):
                    slow[data["currency"][row]] = slow.get(data["currency"][row], 0.0) + data["amount"][row]
            assert sums == pytest.approx(slow)


def test_sentences__compare_amounts_of_one_currency_and_look_at_a_payer_once(tmp_path, monkeypatch):
    """A payer of 400 rows in two currencies, of which one is ten times the others of its own."""
    amount = np.where(np.arange(400) % 2, 10.0, 2_000.0)
    amount[200] = 20_000.0
    data = {"payer": ["hub"] * 400, "payee": [f"a{k}" for k in range(400)], "day": np.arange(400), "amount": amount}
    graph = read_tables(tmp_path / "g", pa.table(data | {"currency": np.resize(["JPY", "EUR"], 400)}), columns=ENDS)
    MadeEvidence(rows_of(graph)).save(tmp_path, ROW_KINDS)
    kept, looked = open_row_evidence(tmp_path, graph, ROW_KINDS), []
    monkeypatch.setattr(kinds, "sorts_among", lambda *rows: looked.append(1) or sorts_among(*rows))
    said = [HISTORY.row_sentence(SimpleNamespace(rows=kept), row) for row in range(400)]
    assert said[200] == "it is 10.0 times what its payer usually pays, 2,000.00 by 199 other payments"
    assert said[201] == "it is 1.0 times what its payer usually pays, 10.00 by 199 other payments"
    assert len(looked) == 1
    nats = np.zeros_like(kept.surprises)
    nats[200, 0] = 9.0
    odd = SimpleNamespace(rows=replace(kept, surprises=nats))
    told = HISTORY.reason(SimpleNamespace(evidence=odd, node=int(kept.rows.payer[0]), number=1.0))["details"]
    assert (told["odd"], told["usual"]) == (20_000.0, 2_000.0)


@pytest.mark.parametrize("has_amounts", [True, False])
def test_rows_of_one_day__are_said_to_be_so_and_are_payments_where_they_have_amounts(tmp_path, has_amounts):
    day = np.array("2024-01-01", "M8[D]") + np.arange(401) // 4
    many = {"payer": ["z"] * 9, "payee": [f"a{i}" for i in range(9)], "amount": [5e17] * 9, "day": [day[200]] * 9}
    columns = events(401) | {"day": day}
    data = {name: np.concatenate([values[:201], many[name], values[201:]]) for name, values in columns.items()}
    graph = read_tables(
        tmp_path / "g", pa.table(data if has_amounts else data | {"amount": np.full(410, "x")}), columns=ENDS
    )
    made = MadeEvidence(rows_of(graph))
    made.save(tmp_path, ROW_KINDS)
    rows = open_row_evidence(tmp_path, graph, ROW_KINDS)
    said = BURST.row_sentence(SimpleNamespace(rows=rows, graph=graph), 205)
    assert said == f"it is one of 9 {'payments' if has_amounts else 'rows'} by its payer on the same day"
    assert amount_text({"amount": 5e17, "currency": None}) == "5e+17"


def test_row_of_a_new_category__is_said_to_be_so_by_its_name(tmp_path):
    data = events(600) | {"day": np.arange(600), "type": np.array(["a", "b", "c"])[np.arange(600) % 3]}
    own = np.flatnonzero(data["payer"] == "a3")
    data["type"] = np.where(np.isin(np.arange(600), own), "a", data["type"])
    data["type"][own[-8::2]] = "z"
    graph = read_tables(tmp_path / "g", pa.table(data), columns=ENDS)
    made = MadeEvidence(rows_of(graph))
    assert made.once(kinds.history_of).of_accounts.argmax() == graph.ids.to_pylist().index("a3")
    made.save(tmp_path, ROW_KINDS)
    evidence = SimpleNamespace(rows=open_row_evidence(tmp_path, graph, ROW_KINDS), graph=graph)
    said = HISTORY.row_sentence(evidence, int(own[-4]))
    assert said == f"3 of 5 payments of the category z, which none of its payer's {len(own) - 8} before had"
    around = SimpleNamespace(evidence=evidence, node=graph.ids.to_pylist().index("a3"))
    around.number = float(made.once(kinds.history_of).of_accounts.max())
    details = HISTORY.reason(around)["details"]
    assert details["category"].startswith("4 of 7 payments of the category z, which none of its ")
    assert "its payer's" not in details["category"]
