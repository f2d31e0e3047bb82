"""Columns of an edge table as attributes of both ends: against a loop over rows, and what is told of each column."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hcm_scale.ingest import edge_columns
from hcm_scale.ingest.readers import Columns, InputError, Policy, column_encodings, column_report, read_tables

ENDS = Columns(source="payer", target="payee")


def payment_table(num_rows=400, num_nodes=30, seed=0):
    rng = np.random.default_rng(seed)
    amount = rng.lognormal(4, 1.5, num_rows).round(2)
    amount[::7] = 100.0 * rng.integers(1, 200, len(amount[::7]))
    amount[::11] *= -1
    seconds = rng.integers(0, 90 * 86_400, num_rows)
    return pa.table(
        {
            "payer": [f"n{i}" for i in rng.integers(0, num_nodes, num_rows)],
            "payee": [f"n{i}" for i in rng.integers(0, num_nodes, num_rows)],
            "amount": pa.array(amount, mask=rng.random(num_rows) < 0.05),
            "time": np.datetime64("2024-03-01T00:00:00", "s") + seconds,
            "kind": pa.array(rng.choice(["a", "b", "c"], num_rows), mask=rng.random(num_rows) < 0.1),
        }
    )


def slow_attributes(table, unit):
    """Every attribute of every node by plain loops: {node: {attribute: value}}."""
    rows = [row for row in table.to_pylist() if row["payer"] != row["payee"]]
    latest, earliest = (end(table["time"].to_pylist()) for end in (max, min))
    of_pairs = Counter((row["payer"], row["payee"]) for row in rows)
    usual_once = sum(count == 1 for count in of_pairs.values()) / len(of_pairs)
    found = defaultdict(dict)
    for node in sorted({*table["payer"].to_pylist(), *table["payee"].to_pylist()}):
        of_both = []
        for end, other in (("payer", "payee"), ("payee", "payer")):
            own = [row for row in rows if row[end] == node]
            of_both += own

            def share(is_so, own=own):
                usual = sum(map(is_so, rows)) / len(rows)
                return (sum(map(is_so, own)) + 10 * usual) / (len(own) + 10)

            partners = Counter(row[other] for row in own).values()
            once = (sum(count == 1 for count in partners) + 10 * usual_once) / (len(partners) + 10)
            amounts = [row["amount"] for row in own if row["amount"] is not None]
            mean = sum(amounts) / max(1, len(amounts))
            spread = math.sqrt(sum((value - mean) ** 2 for value in amounts) / max(1, len(amounts)))
            largest = max(map(abs, amounts), default=0.0)
            said = {"sum of": sum(amounts), "mean of": mean, "largest": largest, "spread of": spread}
            found[node] |= {
                f"rows, as {end}": math.log1p(len(own)),
                f"partners, as {end}": math.log1p(len({row[other] for row in own})),
                f"partners of one row, as {end}": once,
                **{f"{w} amount, as {end}": math.copysign(math.log1p(abs(v) / unit), v) for w, v in said.items()},
                f"round amount, as {end}": share(lambda row: is_round(row["amount"])),
                f"negative amount, as {end}": share(lambda row: (row["amount"] or 0) < 0),
                **{f"kind: {k}, as {end}": share(lambda row, k=k: row["kind"] == k) for k in "abc"},
            }
            for low in (0, 6, 12, 18):
                of_hours = share(lambda row, low=low: low <= row["time"].hour < low + 6)
                found[node][f"time from {low} to {low + 6} h, as {end}"] = of_hours
        times = sorted(row["time"] for row in of_both)
        for number, day in enumerate(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")):
            usual = sum(row["time"].weekday() == number for row in rows) / len(rows)
            share_of_day = (sum(time.weekday() == number for time in times) + 10 * usual) / (len(times) + 10)
            found[node][f"time on {day}, as either end"] = share_of_day
        pauses = [(b - a).total_seconds() / 86_400 for a, b in itertools.pairwise(times)]
        mean = sum(pauses) / max(1, len(pauses))
        spread = math.sqrt(sum((pause - mean) ** 2 for pause in pauses) / max(1, len(pauses)))
        bursts = (spread - mean) / (spread + mean) * len(pauses) / (len(pauses) + 10) if mean else 0.0
        for what, value in (
            ("burstiness of time", bursts),
            ("longest pause of time, in days", max(pauses, default=0.0)),
            ("days since the first time", (latest - (times[0] if times else earliest)).total_seconds() / 86_400),
            ("days since the last time", (latest - (times[-1] if times else earliest)).total_seconds() / 86_400),
        ):
            found[node][f"{what}, as either end"] = value
    return found


def is_round(value):
    digits = "" if value is None else f"{abs(value):.2f}".rstrip("0").rstrip(".")
    return value is not None and abs(value) >= 100 and "." not in digits and len(digits.rstrip("0")) <= 2


@pytest.mark.parametrize("range_ends", [1 << 22, 50])
def test_attributes__are_those_of_a_loop_over_rows(tmp_path, monkeypatch, range_ends):
    monkeypatch.setattr(edge_columns, "_RANGE_ENDS", range_ends)
    table = payment_table()
    graph = read_tables(tmp_path / "g", table, columns=ENDS)
    unit = next(one.unit for one in column_encodings(graph) if one.name == "amount")
    amounts = np.abs([value for value in table["amount"].to_pylist() if value])
    assert unit == pytest.approx(np.median(amounts))
    expected = slow_attributes(table, unit)
    assert {*graph.columns} == {*expected["n0"]}
    for node in range(graph.num_nodes):
        own = expected[graph.external_id(node)]
        found = dict(zip(graph.columns, graph.x[node].tolist(), strict=True))
        assert found == pytest.approx(own, rel=1e-5, abs=1e-6)


def test_partners_of_one_row__are_shares_drawn_to_what_some_sources_show(tmp_path, monkeypatch):
    whole, part = ([], [])
    for found, sample in ((whole, 1 << 22), (part, 100)):  # a quarter of the rows
        monkeypatch.setattr(edge_columns, "_PAIR_SAMPLE", sample)
        graph = read_tables(tmp_path / "g", payment_table(), columns=ENDS)
        (usual,) = column_encodings(graph)[0].shares
        shares = graph.x[:, graph.columns.index("partners of one row, as payee")]
        partners = np.expm1(graph.x[:, graph.columns.index("partners, as payee")])
        found += [usual, shares * (partners + 10) - 10 * usual]
    assert whole[0] != part[0] == pytest.approx(whole[0], abs=0.1)
    np.testing.assert_allclose(whole[1], part[1], atol=1e-4)  # the counts are the same


def test_column_report__has_a_line_of_what_became_of_each_column(tmp_path):
    table = (
        payment_table()
        .append_column("row", pa.array(range(400)))
        .append_column("note", [[f"x{i}" for i in range(400)]])
    )
    said = column_report(read_tables(tmp_path / "g", table, columns=ENDS))
    lines = {line.split()[1]: line for line in said.splitlines()[1:]}
    assert "rows and partners, as payer are attributes" in lines["payer"]
    assert "sum, mean, largest, spread, on a log scale, shares of round and negative ones; " in lines["amount"]
    assert lines["amount"].endswith(" are negative and count with their sign")
    assert "attributes of payer and payee: shares of hours of the day, days of the week, burstiness" in lines["time"]
    assert lines["kind"].endswith("attributes of payer and payee: the share of each value")
    assert lines["row"].endswith("not used: its values rise from row to row, as numbers of rows do")
    assert lines["note"].endswith("not used: it has more than 64 values")


def test_edge_attributes__can_be_left_out_chosen_and_joined_to_a_node_table(tmp_path):
    table = payment_table()
    nodes = pa.table({"id": [f"n{i}" for i in range(31)], "age": np.arange(31.0)})
    with pytest.raises(InputError, match="zero attributes"):
        read_tables(tmp_path / "g", table, columns=ENDS, policy=Policy(edge_attributes="none"))
    branches = pa.array(["north", "south"] * (table.num_rows // 2) + ["north"] * (table.num_rows % 2))
    alone = read_tables(tmp_path / "alone", table.append_column("branch", branches), nodes, columns=ENDS)
    assert alone.columns == ("age",)
    assert "graph.edge_attributes=all makes attributes of both ends of it" in column_report(alone)
    joined = read_tables(tmp_path / "joined", table, nodes, columns=ENDS, policy=Policy(edge_attributes="all"))
    bare = read_tables(tmp_path / "bare", table, columns=ENDS)
    assert joined.columns == ("age", *bare.columns)
    place = [int(bare.external_id(node)[1:]) for node in range(bare.num_nodes)]
    np.testing.assert_array_equal(joined.x[place, 1:], bare.x)
    assert joined.x[30, 0] == 30
    assert joined.x[30, joined.columns.index("rows, as payer")] == 0
    assert read_tables(tmp_path / "id", table, nodes.select(["id"]), columns=ENDS).columns == bare.columns
    chosen = Columns(source="payer", target="payee", exclude=("time", "amount", "kind"))
    with pytest.raises(InputError, match="zero attributes"):
        read_tables(tmp_path / "g", table, columns=chosen)
    counts = read_tables(tmp_path / "counts", table, columns=chosen, policy=Policy(edge_attributes="all"))
    made = ("rows", "partners", "partners of one row")
    assert counts.columns == tuple(f"{what}, as {end}" for end in ("payer", "payee") for what in made)
    with pytest.raises(InputError, match=r"graph\.exclude='day' is not a column"):
        read_tables(tmp_path / "g", table, columns=Columns(source="payer", target="payee", exclude=("day",)))


def test_files__of_one_table_give_what_the_table_gives(tmp_path):
    table = payment_table()
    pacsv.write_csv(table, tmp_path / "payments.csv")
    held, read = (read_tables(tmp_path / "g", source, columns=ENDS) for source in (table, tmp_path / "payments.csv"))
    assert held.columns == read.columns
    np.testing.assert_array_equal(held.x, read.x)


def test_trained_encodings__read_a_later_table_alike(tmp_path):
    first, later = payment_table(), payment_table(300, 20, seed=1)
    known = column_encodings(read_tables(tmp_path / "g", first, columns=ENDS))
    again = read_tables(tmp_path / "again", first, columns=ENDS, trained=known)
    np.testing.assert_array_equal(again.x, read_tables(tmp_path / "g", first, columns=ENDS).x)
    other = read_tables(tmp_path / "later", later, columns=ENDS, trained=known)
    assert other.columns == again.columns
    unit = next(one.unit for one in known if one.name == "amount")
    amounts = [row["amount"] for row in later.to_pylist() if row["payer"] == "n3" != row["payee"] and row["amount"]]
    at = [other.external_id(node) for node in range(other.num_nodes)].index("n3")
    total = sum(amounts)
    stored = math.copysign(math.log1p(abs(total) / unit), total)
    assert other.x[at, other.columns.index("sum of amount, as payer")] == pytest.approx(stored, rel=1e-5)
    with pytest.raises(InputError, match="trained: a column of its edges='time' is not a column of the edge table"):
        read_tables(tmp_path / "g", later.drop_columns("time"), columns=ENDS, trained=known)
    words = later.set_column(3, "time", pa.array(["noon"] * 300))
    with pytest.raises(InputError, match="'time' is of type string, and was a time in the trained graph"):
        read_tables(tmp_path / "g", words, columns=ENDS, trained=known)


@pytest.mark.parametrize("rare_first", [False, True])
def test_trained_encodings__count_their_values_whatever_others_come(tmp_path, rare_first):
    first = payment_table(4_000)
    known = column_encodings(read_tables(tmp_path / "g", first, columns=ENDS))
    texts = np.array(first["kind"].to_pylist(), dtype=object)
    rare = np.arange(len(texts)) < 200 if rare_first else np.arange(len(texts)) % 20 == 0
    many = first.set_column(4, "kind", pa.array(np.where(rare, [f"rare {i}" for i in range(len(texts))], texts)))
    none = first.set_column(4, "kind", pa.array(np.where(rare, None, texts)))
    with_many, with_none = (read_tables(tmp_path / "g", table, columns=ENDS, trained=known) for table in (many, none))
    shares = [name for name in with_many.columns if name.startswith("kind:")]
    assert len(shares) == 6
    np.testing.assert_array_equal(with_many.x, with_none.x)


@pytest.mark.parametrize("power", [0, 3, 6, 9])
def test_whole_numbers_of_an_epoch__are_times(tmp_path, power):
    table = payment_table()
    seconds = table["time"].cast(pa.int64()).to_numpy()
    epochs = table.set_column(3, "time", pa.array(seconds * 10**power))
    as_epochs, as_times = (read_tables(tmp_path / "g", t, columns=ENDS) for t in (epochs, table))
    assert as_epochs.columns == as_times.columns
    np.testing.assert_allclose(as_epochs.x, as_times.x, atol=1e-5)


def test_times_with_a_zone__have_the_hours_of_that_zone(tmp_path):
    table = payment_table()
    noon = pa.array([np.datetime64("2024-07-01T20:30:00", "s")] * 399 + [np.datetime64("2024-07-01T10:30:00", "s")])
    zoned = table.set_column(3, "time", noon.cast(pa.timestamp("s", "UTC")).cast(pa.timestamp("s", "Asia/Tokyo")))
    graph = read_tables(tmp_path / "g", zoned, columns=ENDS)
    shares = graph.x[:, graph.columns.index("time from 0 to 6 h, as payer")]
    assert shares.min() > 0.9


def test_times_of_no_known_zone__are_refused_by_their_column(tmp_path):
    table = payment_table()
    zoned = table.set_column(3, "time", table["time"].cast(pa.timestamp("s", "Mars/Base"), safe=False))
    pq.write_table(zoned, tmp_path / "paid.parquet")
    with pytest.raises(InputError, match=r"paid\.parquet column 'time': .*Mars/Base"):
        read_tables(tmp_path / "g", tmp_path / "paid.parquet", columns=ENDS)


def test_bad_values__are_refused_or_taken_as_gaps(tmp_path):
    table = payment_table().set_column(2, "amount", pa.array([math.inf, *np.arange(1.0, 400.0)]))
    with pytest.raises(InputError, match=r"not finite in the edge table \(rows from 0\): row 0 column 'amount' = inf"):
        read_tables(tmp_path / "g", table, columns=ENDS)
    graph = read_tables(tmp_path / "g", table, columns=ENDS, policy=Policy(nonfinite="zero"))
    assert np.isfinite(graph.x).all()


def test_times_of_other_formats__are_told_and_not_used(tmp_path):
    times = [("31.01.2024 18:00", "2024/01/31 18:00", "01/31/2024 18:00")[i % 3] + f":{i % 50:02}" for i in range(400)]
    table = payment_table().set_column(3, "time", pa.array(times))
    said = column_report(read_tables(tmp_path / "g", table, columns=ENDS))
    line = next(line for line in said.splitlines() if line.split()[1] == "time")
    assert line.endswith("not used: text that looks like dates, which are read where they are written as 2024-01-31")


def test_money__is_read_without_its_currency_unless_there_are_several(tmp_path):
    table = payment_table()
    plain = np.arange(1, 401) * 1000.25

    def read(name, texts):
        graph = read_tables(tmp_path / name, table.set_column(2, "amount", pa.array(texts)), columns=ENDS)
        return graph, next(line for line in column_report(graph).splitlines() if line.split()[1] == "amount")

    expected = read_tables(tmp_path / "g", table.set_column(2, "amount", pa.array(plain)), columns=ENDS)
    for name, texts in {
        "dollars": [f"${value:,.2f}" for value in plain],
        "euros": [f"{value:,.2f} EUR".translate(str.maketrans(",.", ".,")) for value in plain],
        "negative": [f"-{value:.2f} €" for value in plain],
    }.items():
        graph, line = read(name, texts)
        sign = -1 if name == "negative" else 1
        columns = [c for c, column in enumerate(expected.columns) if column.startswith("sum of amount")]
        np.testing.assert_allclose(graph.x[:, columns], sign * expected.x[:, columns], rtol=1e-6)
        assert "read without the currency" in line
    _, line = read("mixed", [f"{value:.2f} {('EUR', 'USD')[i % 2]}" for i, value in enumerate(plain)])
    assert "amounts of several currencies (EUR, USD) are not added up" in line
    assert "sum of" not in line


def test_times_with_several_zones__become_utc(tmp_path):
    table = payment_table()
    forms = "2024-05-01T23:30:00+02:00", "2024-05-01 21:30:00Z", "2024-05-01 21:30:00", "2024-05-01 21:30:00 UTC"
    zones = [forms[i % 4] for i in range(400)]
    graph = read_tables(tmp_path / "g", table.set_column(3, "time", pa.array(zones)), columns=ENDS)
    assert graph.x[:, graph.columns.index("time from 18 to 24 h, as payer")].min() == 1
    assert "its zones become UTC, and times without a zone are taken as UTC" in column_report(graph)


def test_files_whose_columns_change__have_gaps_where_a_column_is_missing_and_a_line_for_each(tmp_path):
    table = payment_table()
    (tmp_path / "in").mkdir()
    pacsv.write_csv(table.slice(0, 200), tmp_path / "in" / "a.csv")
    later = table.slice(200).drop_columns("kind").append_column("purpose", pa.array(["x"] * 200))
    pacsv.write_csv(later, tmp_path / "in" / "b.csv")
    graph = read_tables(tmp_path / "g", tmp_path / "in", columns=ENDS)
    gaps = pa.concat_arrays([table["kind"].slice(0, 200).combine_chunks(), pa.nulls(200, pa.string())])
    known = column_encodings(graph)  # the unit of amounts is that of the first rows
    same = read_tables(tmp_path / "same", table.set_column(4, "kind", gaps), columns=ENDS, trained=known)
    np.testing.assert_array_equal(graph.x, same.x)
    said = column_report(graph)
    assert "in/b.csv has no such column: gaps there" in said
    assert "not used: only in in/b.csv, not in the first file" in said


def test_negative_amounts__may_stand_in_parentheses(tmp_path):
    table = payment_table()
    plain = np.round(np.random.default_rng(3).lognormal(5, 1, 400), 2) * np.where(np.arange(400) % 9, 1, -1)
    numbers = read_tables(tmp_path / "g", table.set_column(2, "amount", pa.array(plain)), columns=ENDS)
    for money in ("{:.2f}", "${:,.2f}", "{:.2f} EUR"):
        texts = [f"({money.format(-value)})" if value < 0 else money.format(value) for value in plain]
        read = read_tables(tmp_path / "h", table.set_column(2, "amount", pa.array(texts)), columns=ENDS)
        np.testing.assert_array_equal(read.x, numbers.x)
        assert "are negative and count with their sign" in column_report(read)
    odd = read_tables(tmp_path / "h", table.set_column(2, "amount", pa.array(["(15.00", *texts[1:]])), columns=ENDS)
    assert "sum of amount, as payer" not in odd.columns


def test_files_whose_types_contradict__are_told_or_refused(tmp_path):
    table = payment_table(200)

    def read(name, first, second, write=pq.write_table):
        folder = tmp_path / name
        folder.mkdir()
        for number, part in enumerate((first, second)):
            write(part, folder / f"{number}.{'csv' if write is pacsv.write_csv else 'parquet'}")
        return read_tables(tmp_path / "g", folder, columns=ENDS)

    whole = table.set_column(2, "amount", pa.array(range(200)))
    both = read("decimals", whole, table)
    one = read_tables(tmp_path / "one", pa.concat_tables([whole.cast(table.schema), table]), columns=ENDS)
    np.testing.assert_array_equal(both.x, one.x)
    numbers = table.set_column(3, "time", table["time"].cast(pa.int64()))
    with pytest.raises(InputError, match=r"1\.parquet column 'time'.* int64, and timestamp\[ms\] in the first file"):
        read("epoch", table.set_column(3, "time", table["time"].cast(pa.timestamp("ms"))), numbers)
    words = table.set_column(2, "amount", pa.array([f"about {i}" for i in range(200)]))
    assert "double in words/1.parquet, read as string" in column_report(read("words", words, table))
    with pytest.raises(InputError, match=r"1\.parquet column 'amount'.* cannot be read as double: .*'about \d+'"):
        read("later words", table, words)
    with pytest.raises(
        InputError, match=r"1\.csv cannot be read with the types of .* first file .*line 2: .*'about 0'"
    ):
        read("csv", table, words, pacsv.write_csv)
    renamed = table.rename_columns(["sender", *table.column_names[1:]])
    with pytest.raises(InputError, match=r"1\.csv has 0 columns 'payer', legal is one, as in the first file"):
        read("renamed", table, renamed, pacsv.write_csv)


def test_column_that_is_nearly_a_number__is_told_with_what_is_none_and_what_reads_it(tmp_path, caplog):
    text = [("k.A.", "ca. 5", "-.-")[i % 3] if i % 97 < 3 else f"{i}.25" for i in range(970)]
    table = pa.table({"payer": [f"a{i % 50}" for i in range(970)], "payee": [f"a{i % 49}" for i in range(970)]})
    table = table.append_column("size", pa.array(text)).append_column("day", pa.array(range(970)))
    ends = {"source": "payer", "target": "payee"}
    read_tables(tmp_path / "g", table, columns=Columns(**ends))
    said = "940 of its 970 values look like numbers, and not 'k.A.', 'ca. 5', '-.-'; graph.numbers=[size] reads it"
    assert f"column 'size' of edges is left out: {said}" in caplog.text
    g = read_tables(tmp_path / "h", table, columns=Columns(**ends, numbers=("size",)))
    assert "sum of size, as payer" in g.columns
    assert g.info["rows"]["amount"] == "size"
    assert np.isnan(g.rows.amount).sum() == 30
