"""Rows of an edge table as payments: which columns are taken as what, and what is kept of bad ones."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from hcm_scale.graph import Graph
from hcm_scale.ingest.policy import Columns, InputError, Policy
from hcm_scale.ingest.row_columns import columns_of_new
from hcm_scale.ingest.table_files import open_table
from hcm_scale.ingest.tables import column_table, read_tables

DAY = 86_400.0
ENDS = Columns(source="payer", target="payee")


def table(**columns):
    count = len(next(iter(columns.values())))
    ends = {"payer": [f"a{i % 3}" for i in range(count)], "payee": [f"b{i % 4}" for i in range(count)]}
    return pa.table(ends | columns)


def read(tmp_path, data, **options):
    graph = read_tables(tmp_path / "g", data, columns=Columns(source="payer", target="payee", **options))
    return Graph.open(graph.path)


def lines(graph):
    return {line["column"]: line["use"] for line in graph.info["ingest"]["told"]}


DATES = np.array(["2024-05-03", "2024-05-01", "2024-05-02", "2024-05-04"], "M8[D]")
SECONDS = DATES.astype("M8[s]").astype(np.int64)


@pytest.mark.parametrize(
    ("name", "times", "seconds", "said"),
    [
        ("booked", DATES, SECONDS, "dates, not sorted"),
        ("booked", DATES.astype("M8[s]") + np.timedelta64(90, "m"), SECONDS + 5_400, "dates and times, not sorted"),
        ("ts", SECONDS, SECONDS, "times since 1970, not sorted"),
        ("ts", SECONDS * 1_000, SECONDS, "times since 1970, not sorted"),
        ("step", [1, 2, 2, 5], np.array([1, 2, 2, 5]) * DAY, "numbers of steps, a day each, sorted"),
        (
            "TransactionDT",
            [86_400, 90_000, 99_000, 999_999],
            [86_400, 90_000, 99_000, 999_999],
            "a second each, sorted",
        ),
    ],
)
def test_time__is_read_as_dates_as_seconds_or_as_steps(tmp_path, name, times, seconds, said):
    graph = read(tmp_path, table(**{name: times}, amount=[1.0, 2.0, 3.0, 4.0]))
    order = np.argsort(seconds, kind="stable")
    np.testing.assert_array_equal(graph.rows.time, np.asarray(seconds, float)[order])
    np.testing.assert_array_equal(graph.rows.number, order)
    np.testing.assert_array_equal(graph.rows.amount, (1.0 + np.arange(4))[order])
    assert said in lines(graph)[name]


def test_steps__are_enough_beside_two_ends(tmp_path):
    graph = read(tmp_path, table(timestep=[1, 2, 2, 5]))
    assert graph.columns[:2] == ("rows, as payer", "partners, as payer")
    assert graph.rows.time.tolist() == [DAY, 2 * DAY, 2 * DAY, 5 * DAY]


def test_steps__are_no_amounts_of_their_ends(tmp_path):
    graph = read(tmp_path, table(step=[3, 1, 2, 2], amount=[1.0, 2.0, 3.0, 4.0]))
    assert not [name for name in graph.columns if "step" in name]


@pytest.mark.parametrize("name", ["amount", "Amount Paid", "tx_amt", "value", "Betrag"])
def test_amount__is_the_column_that_is_called_so(tmp_path, name):
    graph = read(tmp_path, table(day=DATES, balance=[9.0, 8.0, 7.0, 6.0], **{name: [1.0, 2.0, 3.0, 4.0]}))
    assert (graph.info["rows"]["amount"], lines(graph)[name][:22]) == (name, "the amount of each row")


def test_options__name_columns_and_refuse_others(tmp_path):
    data = table(day=DATES, other=DATES + 9, x=[1.0, 2.0, 3.0, 4.0], amount=[5.0, 6.0, 7.0, 8.0], note=list("abcd"))
    graph = read(tmp_path, data, time="other", amount="x", category="note")
    assert [graph.info["rows"][role] for role in ("time", "amount", "category")] == ["other", "x", "note"]
    for option, name in (
        ("time", "note"),
        ("amount", "note"),
        ("amount", "day"),
        ("currency", "x"),
        ("category", "x"),
        ("time", "payer"),
    ):
        with pytest.raises(InputError, match=f"graph.{option}_column='{name}' .*legal is a column of"):
            read(tmp_path, data, **{option: name})
    with pytest.raises(InputError, match=r"graph\.time_column"):
        read(tmp_path, data, time="when")


def test_tables_without_time_or_amount__keep_no_rows(tmp_path):
    for columns in ({"kind": list("abcd")}, {"value": [1.0, 2.0, 3.0, 4.0]}, {"strength": [1, 2, 3, 4]}):
        assert read(tmp_path, table(**columns)).rows is None
    assert read(tmp_path, table(amount=[1.0, 2.0, 3.0, 4.0])).rows.time.tolist() == [0.0] * 4
    excluded = Columns(source="payer", target="payee", exclude=("amount",))
    data = table(amount=[1.0, 2.0, 3.0, 4.0], kind=list("abcd"))
    assert read_tables(tmp_path / "g", data, columns=excluded).rows is None


def test_currencies__are_numbered(tmp_path):
    graph = read(tmp_path, table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0], currency=["EUR", "USD", None, "EUR"]))
    names = [*graph.info["rows"]["currencies"]]
    assert [names[code] if code < 255 else None for code in graph.rows.currency] == ["USD", None, "EUR", "EUR"]


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        (["a", "b", None, "a"], {}, "the category of each row, one of 2"),
        (["a", "a", None, "a"], {}, "no category of rows: it has one value at most"),
        ([f"a{i}" for i in range(80)], {}, "no category of rows: it has more than 64 values"),
        (["a", "b", None, "a"], {"exclude": ("payment_type",)}, "not used: graph.exclude names it"),
    ],
)
def test_category__is_the_text_that_is_called_so(tmp_path, values, options, said):
    more = {"day": np.arange(len(values)), "amount": 1.0 + np.arange(len(values)), "fraud_type": ["x", "y"] * 2}
    data = table(payment_type=values, **{n: np.resize(v, len(values)) for n, v in more.items()})
    graph = read(tmp_path, data, **options)
    assert said in lines(graph)["payment_type"]
    assert ("category" in graph.info["rows"]) == said.startswith("the") == (graph.rows.category is not None)
    if graph.rows.category is not None:
        names = [*graph.info["rows"]["categories"]]
        assert [names[code] if code < 255 else None for code in graph.rows.category] == values


def test_bad_rows__are_counted_and_nothing_is_lost(tmp_path):
    """Missing and negative amounts, missing times, the years 1 and 9999, one who pays himself."""
    rng = np.random.default_rng(0)
    times = np.array(["2024-05-01T00:00"], "M8[s]") + rng.integers(0, 90 * 86_400, 200).astype("m8[s]")
    days = pa.array([*times.tolist()], pa.timestamp("s")).to_pylist()
    import datetime

    days[3], days[5], days[7] = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), None
    amount = [*rng.lognormal(3, 1, 200).tolist()]
    amount[0], amount[1] = None, -5.0
    data = table(booked=pa.array(days, pa.timestamp("s")), amount=amount)
    data = data.set_column(1, "payee", pa.array(["a0", *data["payee"].to_pylist()[1:]]))
    graph = read(tmp_path, data)
    assert len(graph.rows.time) == 197
    assert {3, 5, 7}.isdisjoint(graph.rows.number.tolist())
    assert "1 without one, 2 far from all others" in lines(graph)["booked"]
    assert "(1 missing, 1 not above 0)" in lines(graph)["amount"]
    assert "the time of each row" in column_table(graph.info["ingest"]["told"])


def test_rows__of_unknown_ends_are_left_out(tmp_path):
    nodes = pa.table({"id": ["a0", "a1", "b0", "b1"], "x": [1.0, 2.0, 3.0, 4.0]})
    data = table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0])
    policy = Policy(unknown="drop")
    graph = read_tables(tmp_path / "g", data, nodes, columns=Columns(source="payer", target="payee"), policy=policy)
    assert graph.rows.number.tolist() == [1, 0]


def test_amounts_as_text__in_two_formats_are_told(tmp_path):
    (tmp_path / "e.csv").write_text("payer;payee;day;amount\na;b;2024-05-01;1.000,50\nb;c;2024-05-02;20,25\n")
    graph = read(tmp_path, str(tmp_path / "e.csv"))
    assert graph.rows.amount.tolist() == [1000.5, 20.25]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("row_payer", lambda a: a + 100, "nodes are"),
        ("row_time", lambda a: a[::-1].copy(), "order of time"),
        ("row_time", lambda a: a * np.nan, "finite"),
        ("row_amount", lambda a: a[:2], "entries"),
        ("row_number", lambda a: a - 9, "0 and above"),
    ],
)
def test_folder__with_rows_that_cannot_be_is_refused(tmp_path, name, change, said):
    graph = read(tmp_path, table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0]))
    path = graph.path / f"{name}.npy"
    array = change(np.load(path))
    path.unlink()
    np.save(path, array)
    with pytest.raises(Exception, match=said) if len(array) == 4 else pytest.raises(Exception, match=name):
        from hcm_scale.graph.check import check_arrays
        from hcm_scale.graph.store import _arrays

        check_arrays(_arrays(graph) | {name: array}, False, graph.num_attributes, graph.columns)


def seconds_of(*texts):
    return [float(np.datetime64(text, "s").astype(np.int64)) for text in texts]


FOUR = ("2024-01-31T09:30:00", "2024-02-01T00:00:01", "2024-02-29T23:59:59", "2024-03-01T12:00:00")
FOUR_SECONDS = seconds_of(*FOUR)
FOUR_DAYS = seconds_of(*(text[:10] for text in FOUR))


@pytest.mark.parametrize(
    ("columns", "seconds", "said"),
    [
        ({"date": [20240131, 20240201, 20240229, 20240301]}, FOUR_DAYS, "(dates, sorted"),
        (
            {"timestamp": [20240131093000, 20240201000001, 20240229235959, 20240301120000]},
            FOUR_SECONDS,
            "(dates and times",
        ),
        (
            {"Value Date": [*range(240124, 240132)]},
            [FOUR_DAYS[0] + day * DAY for day in range(-7, 1)],
            "(dates, sorted",
        ),
        ({"step": [*range(240128, 240136)]}, [step * DAY for step in range(240128, 240136)], "a day each"),
        ({"timestamp": [s * 1e3 for s in FOUR_SECONDS]}, FOUR_SECONDS, "times since 1970"),
        (
            {"ts": [None, *FOUR_SECONDS[1:]]},
            [FOUR_SECONDS[1], *FOUR_SECONDS[1:]],
            "1 without one: that of the row before",
        ),
        ({"t": [1, 2, 2, 9]}, [DAY, 2 * DAY, 2 * DAY, 9 * DAY], "a day each"),
        ({"week": [1, 2, 2, 9]}, [7 * DAY, 14 * DAY, 14 * DAY, 63 * DAY], "a week each"),
        ({"hour": [1, 2, 2, 29]}, [3600.0, 7200.0, 7200.0, 29 * 3600.0], "an hour each"),
        (
            {"opened": ["2013-05-01", "2009-01-01", "2013-05-01", "2011-01-01"], "when": FOUR},
            FOUR_SECONDS,
            "(dates and",
        ),
        ({"start_of_contract": FOUR[::-1], "shipped": FOUR}, FOUR_SECONDS, "(dates and times, sorted"),
        (
            {"date": [text[:10] for text in FOUR], "time": [text[11:] for text in FOUR]},
            FOUR_SECONDS,
            "(dates and times of date, time",
        ),
        (
            {"date": [text[:10] for text in FOUR], "hour": [9, 0, 23, 12]},
            [s - s % 3600 for s in FOUR_SECONDS],
            "of date, hour",
        ),
        (
            {"Year": [2024] * 4, "Month": [1, 2, 2, 3], "Day": [31, 1, 29, 1], "Time": [text[11:16] for text in FOUR]},
            [s - s % 60 for s in FOUR_SECONDS],
            "of Year, Month, Day, Time",
        ),
        ({"Buchungstag": [text[:10] for text in FOUR], "Laufzeit_bis": [FOUR[0][:10]] * 4}, FOUR_DAYS, "(dates"),
    ],
)
def test_time_of_a_csv__is_read_as_what_it_means(tmp_path, columns, seconds, said):
    data = table(**columns, amount=[1.0 + row for row in range(len(seconds))])
    pyarrow.csv.write_csv(data, tmp_path / "e.csv")
    graph = read(tmp_path, str(tmp_path / "e.csv"))
    assert graph.rows.time.tolist() == seconds
    assert said in lines(graph)[graph.info["rows"]["time"]]
    assert not [name for name in graph.columns if name.startswith(("sum of t", "sum of h", "sum of w", "sum of M"))]


@pytest.mark.parametrize("seconds", ["", ":00"])
def test_time_of_day_as_text__is_added_to_dates(tmp_path, seconds):
    times = [f"{time}{seconds}" for time in ("09:30", "9:31", "23:59", "12:00")]
    data = table(date=DATES, time=times, amount=[1.0] * 4)
    graph = read(tmp_path, data)
    expected = seconds_of("2024-05-01T09:31", "2024-05-02T23:59", "2024-05-03T09:30", "2024-05-04T12:00")
    assert graph.rows.time.tolist() == expected
    new = columns_of_new(open_table("table", data), graph.info["rows"], ENDS)
    assert sorted(new.read_all(graph.info["rows"]["seconds"])[0].tolist()) == expected


def test_days_that_stand_first__may_be_beside_years_that_do(tmp_path):
    times = ["31.01.2024", "2024-02-01", "29.02.2024", "2024-03-01"]
    assert read(tmp_path, table(day=times, amount=[1.0] * 4)).rows.time.tolist() == FOUR_DAYS
    assert read(tmp_path, table(day=["2024-02-01", *["3/4/2024"] * 3], amount=[1.0] * 4)).info["rows"]["time"] is None


def test_amounts__with_their_currency_and_without_are_of_one(tmp_path):
    graph = read(tmp_path, table(day=DATES, amount=["€ 9,31", "1.234,50", "12 €", "7,00"]))
    assert sorted(graph.rows.amount.tolist()) == [7.0, 9.31, 12.0, 1234.5]


def test_amount__is_no_number_of_rows(tmp_path):
    graph = read(tmp_path, table(day=DATES, Umsatz_Nr=[4001, 4002, 4003, 4004], amount_id=[7, 8, 9, 10]))
    assert graph.info["rows"]["amount"] is None


def test_later_table__is_read_as_the_first(tmp_path):
    data = table(
        date=[20240131, 20240201, 20240202, 20240301], time=["09:30", "00:00", "23:59", "12:00"], amount=[1.0] * 4
    )
    pyarrow.csv.write_csv(data, tmp_path / "e.csv")
    about = read(tmp_path, str(tmp_path / "e.csv")).info["rows"]
    new = open_table("table", str(tmp_path / "e.csv"))
    time, *_ = columns_of_new(new, about, ENDS).read_all(about["seconds"])
    assert time.tolist() == seconds_of("2024-01-31T09:30", "2024-02-01", "2024-02-02T23:59", "2024-03-01T12:00")
    with pytest.raises(InputError, match="times of rows are read as"):
        columns_of_new(new, about | {"read": {"columns": ["date"], "how": "stars"}}, ENDS)


def test_category_of_a_later_table__is_numbered_as_in_the_first(tmp_path):
    about = read(tmp_path, table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0], kind=["b", "a", "b", None])).info["rows"]
    later = table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0], kind=["c", "a", None, "b"])
    *_, category = columns_of_new(open_table("table", later), about, ENDS).read_all(about["seconds"])
    assert category.tolist() == [2, about["categories"].index("a"), 255, about["categories"].index("b")]
    with pytest.raises(InputError, match=r"graph\.category_column='kind' is not a column"):
        columns_of_new(open_table("table", later.drop(["kind"])), about, ENDS)


def test_hours_of_the_day__are_no_time_of_rows(tmp_path, caplog):
    caplog.set_level("INFO")
    data = table(hour=[9, 0, 23, 12], amount=[1.0] * 4)
    assert read(tmp_path, data).info["rows"]["time"] is None
    assert "column hour goes round, as hours of a day do: graph.time_column=hour takes it" in caplog.text
    assert read(tmp_path, data, time="hour").rows.time.tolist() == [0.0, 9 * 3600.0, 12 * 3600.0, 23 * 3600.0]
    assert read(tmp_path, table(day=[9, 1, 23, 12], amount=[1.0] * 4)).info["rows"]["time"] == "day"


def test_steps__take_as_long_as_an_option_says_or_as_their_rhythm_shows(tmp_path):
    data = table(step=[1, 2, 2, 5], amount=[1.0, 2.0, 3.0, 4.0])
    assert read(tmp_path, data, step_seconds=60.0).rows.time.tolist() == [60.0, 120.0, 120.0, 300.0]
    with pytest.raises(InputError, match=r"graph\.step_seconds=60\.0 is for a column of numbers; 'day' holds dates"):
        read(tmp_path, table(day=DATES, amount=[1.0] * 4), step_seconds=60.0)
    steps = [step for step in range(240) for _ in range(1 + 9 * (8 < step % 24 < 20))]
    assert read(tmp_path, table(step=steps, amount=[1.0] * len(steps))).info["rows"]["seconds"] == 3_600.0
    steps = [step for step in range(240) for _ in range(1 + 9 * (step % 7 < 5))]
    assert read(tmp_path, table(step=steps, amount=[1.0] * len(steps))).info["rows"]["seconds"] == DAY


@pytest.mark.parametrize(
    ("other", "name"), [("fee_amount", "amount"), ("saldo", "Summe"), ("frais", "montant"), ("saldo", "importe")]
)
def test_amount__is_the_plainest_name(tmp_path, other, name):
    graph = read(tmp_path, table(day=DATES, **{other: [9.0, 8.0, 7.0, 6.0], name: [1.0, 2.0, 3.0, 4.0]}))
    assert graph.info["rows"]["amount"] == name


@pytest.mark.parametrize("name", ["Währung", "devise", "moneda", "Receiving Currency"])
def test_currency__is_called_so_in_several_languages(tmp_path, name):
    graph = read(tmp_path, table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0], **{name: ["EUR", "USD", "EUR", "EUR"]}))
    assert graph.info["rows"]["currency"] == name


def test_attributes__are_of_the_same_time_as_rows(tmp_path, caplog):
    caplog.set_level("INFO")
    graph = read(tmp_path, table(day=DATES, booked=DATES + 9, amount=[1.0, 2.0, 3.0, 4.0]), time="booked")
    assert "booked on Monday, as either end" in graph.columns
    assert "day on Monday, as either end" not in graph.columns
    assert "booked is the time of rows" in lines(graph)["day"]
    assert "column booked: the time of each row (dates" in caplog.text
    assert "column amount: the amount of each row" in caplog.text


@pytest.mark.parametrize(
    ("name", "values", "read_as", "said"),
    [
        ("when", ["2024-01-31", "2024-02-01", "soon", "2024-02-31"], [DAY * 19753] + [DAY * 19754] * 3, "'soon'"),
        ("when", ["31-Jan-2024", "1-Feb-2024", "2.2.24", "03-Mar-2024"], None, "'2.2.24'"),
        ("when", ["2024/01/31 10:00", "2024/02/01 11:00", "?", "2024/02/03 00:00"], None, "'?'"),
        ("amount", ["1.5", "2.5", "about 3", "9.25"], [1.5, 2.5, None, 9.25], "'about 3'"),
        ("amount", ["1.000,5", "2.5", "17,25", "9,5"], [1000.5, None, 17.25, 9.5], "'2.5'"),
    ],
)
def test_values_in_other_formats__are_gaps_and_told(tmp_path, caplog, name, values, read_as, said):
    data = table(**{name: values}, **({"amount": [1.0] * 4} if name == "when" else {"day": DATES[0] + np.arange(4)}))
    pyarrow.csv.write_csv(data, tmp_path / "e.csv")
    graph = read(tmp_path, str(tmp_path / "e.csv"))
    assert f"of its 4 values is not written as the others: {said}" in caplog.text
    assert len(graph.rows.time) == 4
    stored = graph.rows.amount if name == "amount" else graph.rows.time
    if read_as:
        assert [None if np.isnan(value) else value for value in stored] == read_as


def test_dates__that_are_two_things_are_warned_of(tmp_path, caplog):
    read(tmp_path, table(when=["1/2/2024", "3/4/2024"], amount=[1.0, 2.0]))
    assert "column 'when' is no time and no amount of rows: what 03/04/2024 means is not known" in caplog.text


def test_columns_called_as_known_cases__are_no_attributes_unless_they_are_named(tmp_path):
    """A list made with the answer in view would find it."""
    answers = {"isFraud": [0, 1, 0, 0], "Laundering_type": ["no", "smurf", "no", "no"], "alert_id": [-1, 7, -1, -1]}
    rows = table(day=DATES, amount=[1.0, 2.0, 3.0, 4.0], fraud_score=[0.5, 0.1, 0.2, 0.3], **answers)
    graph = read(tmp_path, rows)
    assert all("its name says that it holds known cases" in lines(graph)[name] for name in answers)
    assert not [name for name in graph.columns if any(answer in name for answer in answers)]
    assert any("fraud_score" in name for name in graph.columns)
    named = read(tmp_path / "named", rows, categorical=("isFraud",))
    assert any("isFraud" in name for name in named.columns)

    accounts = pa.table({"id": ["a0", "a1", "a2", "b0"], "age": [4, 3, 2, 1], "is_fraud": [0, 0, 1, 0]})
    of_nodes = read_tables(tmp_path / "nodes", rows.slice(0, 1), accounts, columns=ENDS)
    assert of_nodes.columns == ("age",)
    assert lines(of_nodes)["is_fraud"].endswith("graph.label_column=is_fraud measures by it")
