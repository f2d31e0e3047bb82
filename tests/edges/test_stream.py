"""New payments by a run that keeps rows: the same numbers in one table and in days, kept in the run and sealed."""

import json
import logging
import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hcm_scale.base import files
from hcm_scale.cli import commands
from hcm_scale.cli.main import main
from hcm_scale.edges import new as new_edges
from hcm_scale.edges import stream
from hcm_scale.edges.new import open_new_edges, write_scored
from hcm_scale.edges.rows import EdgeRows
from hcm_scale.ingest.policy import Columns
from hcm_scale.ingest.table_files import open_table
from hcm_scale.run.finished import FinishedRun
from tests.helpers import FAST, as_words

OF_ROWS = ("rank", "surprise", "p", "flagged", "evidence", "history", "burst", "chain", "reason")
NAMES = np.array([f"a{i:03d}" for i in range(150)])
CHAIN = [f"a{i:03d}" for i in (9, 39, 69, 99, 129, 19, 49)]


def payments(seed: int, first_day: int, days: int, per_day: int = 40) -> pd.DataFrame:
    """Accounts that pay some partners amounts of their own; rows come in no order."""
    rng = np.random.default_rng(seed)
    payer = rng.integers(0, 150, days * per_day)
    seconds = (first_day + rng.random(len(payer)) * days) * 86_400
    amount = np.exp(rng.normal(3 + 4 * (payer % 10) / 10, 0.25)).round(2)
    payee = (payer + rng.choice([1, 2, 5, 11], len(payer))) % 150
    return frame(NAMES[payer], NAMES[payee], seconds, amount, rng.choice(["EUR", "USD"], len(payer), p=[0.9, 0.1]))


def frame(payer, payee, seconds, amount, currency="EUR") -> pd.DataFrame:
    when = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.round(seconds), unit="s")
    return pd.DataFrame({"payer": payer, "payee": payee, "when": when, "amount": amount, "currency": currency})


def chain_at(seconds) -> pd.DataFrame:
    return frame(CHAIN[:-1], CHAIN[1:], seconds + np.arange(6) * 7_200, 735 * 0.98 ** np.arange(6))


NEW = pd.concat(
    [
        payments(1, 99, 30).assign(note=""),
        chain_at(99.85 * 86_400)[2:].assign(note="chain"),  # two are in the run
        frame(NAMES[40:60], "a007", 110.2 * 86_400 + np.arange(20) * 1_000, 60.0).assign(note="burst"),
        frame("a010", ["a011"], 112.3 * 86_400, 9_999.0).assign(note="odd"),
        frame(["new 1", "a092", "new 1", "a005"], ["a004", "new 2", "new 2", "a005"], 115 * 86_400, 70.0).assign(
            note=""
        ),
        frame(["a001", "a001"], ["a002", "a003"], 116 * 86_400, [np.nan, -5.0]).assign(note=""),
        frame("a001", ["a002"], 20 * 86_400, 12.0).assign(note="late"),
        frame("a001", ["a002"], 0.0, 12.0, "JPY").assign(when=pd.NaT, note="no time"),
    ],
    ignore_index=True,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    table = pd.concat([payments(0, 0, 100), chain_at(99.85 * 86_400)[:2]])
    table[table["when"] < "2024-04-10"].to_csv(folder / "payments.csv", index=False)
    words = [str(folder / "payments.csv"), f"run_dir={folder / 'run'}", *as_words(FAST)]
    assert main(["run", *words]) == 0
    open_new_edges(FinishedRun(folder / "run"), arrow(NEW[:50])).table()  # embeddings are made
    shutil.rmtree(folder / "run" / stream.FOLDER)
    return folder / "run"


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def arrow(table: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(table, preserve_index=False)


def scored(run: Path, table: pd.DataFrame) -> pd.DataFrame:
    return open_new_edges(FinishedRun(run), arrow(table)).table().to_pandas()


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    own = table[[f"edge_{name}" for name in OF_ROWS]].reset_index(drop=True)
    return own.assign(edge_reason=own["edge_reason"].fillna("").astype(object))


def test_new_rows__planted_ones_are_ranked_first_and_say_why(run):
    table = scored(run, NEW).sort_values("edge_surprise", ascending=False, kind="stable")
    first = table[table["note"] != ""].set_index("note")
    assert {"chain", "burst", "odd"} <= {*table["note"][:12]}
    assert first.loc["odd", "edge_evidence"] == "history"
    assert " times what its payer usually pays, " in first.loc["odd", "edge_reason"]
    bursts = first.loc["burst"]
    assert (bursts["edge_evidence"] == "burst").sum() >= 12
    assert bursts["edge_reason"].str.contains("it is one of 2. payments to its payee within").any()
    last = first.loc["chain"].sort_values("when").iloc[-1]
    assert last["edge_evidence"] == "chain"
    assert last["edge_reason"].startswith("a009 paid a039 735.00 EUR on 9 April 2024 20:24, a039 paid a069 720.30 EUR")
    assert "a019 paid a049 664.38 EUR on 10 April 2024 06:24" in last["edge_reason"]
    assert first.loc["late", ["edge_burst", "edge_chain"]].tolist() == [0, 0]
    assert first.loc["no time", ["edge_history", "edge_burst", "edge_chain"]].tolist() == [0, 0, 0]
    assert not table["edge_reason"].dropna().str.contains("\n").any()


def test_new_rows__are_on_the_scale_of_the_rows_of_the_run(run):
    table, own = scored(run, NEW), FinishedRun(run).strange_rows
    surprise = own.rows.surprise
    for row in table.to_dict("records"):
        assert row["edge_rank"] == 1 + (surprise > row["edge_surprise"]).sum()
        usual = 4 * np.exp(-3 - row["edge_surprise"]) if row["edge_surprise"] else 1.0
        assert row["edge_p"] == pytest.approx(min(1.0, usual))
        assert (row["edge_evidence"] == "pair") == (row["edge_surprise"] == 0) == (row["edge_p"] == 1.0)
        assert (row["edge_evidence"] == "pair") == (row["edge_reason"] == stream.ORDINARY)
    end = own.p[own.flagged].max(initial=own.edges.rate / len(surprise))
    assert table["edge_flagged"].tolist() == (table["edge_p"] <= end).tolist()


def test_new_rows__what_is_said_of_the_pair_stays(run, made, monkeypatch):
    with_rows = open_new_edges(FinishedRun(run), arrow(NEW)).table()
    monkeypatch.setattr(new_edges, "open_new_rows", lambda *_: None)
    pairs = open_new_edges(FinishedRun(run), arrow(NEW)).table()
    assert "edge_pair_rank" not in pairs.column_names
    for name in (name for name in pairs.column_names if name.startswith("edge_")):
        of_pair = name.replace("edge_", "edge_pair_")
        assert with_rows[of_pair if of_pair in with_rows.column_names else name].equals(pairs[name]), name


@pytest.mark.parametrize("days", [1, 9])
def test_new_rows__in_days_one_after_the_other_are_those_of_one_table(made, run, tmp_path, days):
    late = NEW["when"].isna() | (NEW["when"] < "2024-04-01")
    table = NEW[~late].sort_values("when", kind="stable", ignore_index=True)
    other = Path(shutil.copytree(made, tmp_path / "other"))
    whole = scored(other, table)
    day = (table["when"] - table["when"].min()).dt.days // days
    blocks = [numbers(scored(run, block)) for _, block in table.groupby(day)]
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), numbers(whole))
    kept = np.load(run / "stream" / "rows.npy")
    assert kept["time"].min() >= kept["time"].max() - (20 + days + 1) * 86_400
    assert whole["edge_chain"].max() > 5 and whole["edge_burst"].max() > 5  # noqa: PT018


def test_new_rows__scored_again_have_the_same_numbers_and_are_kept_once(run):
    days = NEW["when"].dt.day
    first, second = (NEW[(NEW["when"] > "2024-04-15") & (days % 2 == k)] for k in (0, 1))
    one = scored(run, first)
    two, kept = scored(run, second), np.load(run / "stream" / "rows.npy")
    pd.testing.assert_frame_equal(scored(run, second), two)
    assert np.load(run / "stream" / "rows.npy").tobytes() == kept.tobytes()
    assert not numbers(two).equals(numbers(one))


def test_new_rows__of_a_table_that_grows_are_those_of_one_table_and_are_kept_once(made, run, tmp_path):
    """Each file has the rows of those before, and the first has rows of the run: none was paid twice by that."""
    own = pd.read_csv(made.parent / "payments.csv", parse_dates=["when"]).assign(note="")
    table = pd.concat([own[own["when"] > "2024-04-01"], NEW[NEW["when"] > "2024-04-10"]], ignore_index=True)
    whole = numbers(scored(Path(shutil.copytree(made, tmp_path / "other")), table))
    twice = whole["edge_reason"].str.contains("within a day before")
    assert twice.sum() <= 1, table[twice]  # chance has one such row
    scored(run, table[table["when"] < "2024-04-14"])
    pd.testing.assert_frame_equal(numbers(scored(run, table)), whole)
    kept = np.load(run / "stream" / "rows.npy")
    assert len(np.unique(kept[["payer", "payee", "time", "amount"]])) == len(kept)


def test_export__of_rows_of_a_csv_as_a_workbook_has_numbers_and_dates_as_such(made, tmp_path):
    assert main(["export", str(made), str(tmp_path / "x.xlsx"), "--edges", "--top", "20"]) == 0
    names, *rows = openpyxl.load_workbook(tmp_path / "x.xlsx").active.values
    own = {name: {type(row[names.index(name)]) for row in rows} for name in ("payer", "when", "amount", "currency")}
    assert own.pop("amount") <= {int, float}
    assert own == {"payer": {str}, "when": {datetime}, "currency": {str}}


def test_values__of_a_time_of_day_stay_text(made, tmp_path):
    table = pa.table({"payer": ["a"], "payee": ["b"], "when": ["2024-01-01"], "amount": ["1.5"], "clock": ["04:01"]})
    pyarrow.csv.write_csv(table, tmp_path / "e.csv")
    rows = EdgeRows(open_table("table", str(tmp_path / "e.csv")), Columns("payer", "payee"), FinishedRun(made).graph)
    assert rows.with_values(table)["clock"].to_pylist() == ["04:01"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_score_edges__of_files_in_any_chunks_are_those_of_the_table_in_memory(made, run, tmp_path, monkeypatch, ending):
    expected = numbers(scored(run, NEW))
    shutil.rmtree(run / "stream")
    given, out = tmp_path / f"new.{ending}", tmp_path / f"out.{ending}"
    pyarrow.csv.write_csv(arrow(NEW), given) if ending == "csv" else pq.write_table(
        arrow(NEW), given, row_group_size=300
    )
    monkeypatch.setattr(new_edges, "CHUNK_ROWS", 500)
    monkeypatch.setattr("hcm_scale.ingest.table_files._CSV_BLOCK_BYTES", 20_000)
    assert f"{len(NEW):,} rows in" in commands.score_edges([str(run), str(given), "-o", str(out)])
    found = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    pd.testing.assert_frame_equal(numbers(found), expected, check_dtype=False, rtol=1e-6)
    assert (run / "stream" / "manifest.json").is_file()


def test_score_edges__killed_before_the_output_is_whole_keeps_nothing(run, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(new_edges.files, "replacing_file", fail)
        with pytest.raises(KeyboardInterrupt):
            write_scored(open_new_edges(FinishedRun(run), arrow(NEW)), tmp_path / "out.csv")
    assert not (run / "stream").exists()
    write_scored(open_new_edges(FinishedRun(run), arrow(NEW)), tmp_path / "out.csv")
    assert len(np.load(run / "stream" / "rows.npy")) > 500


def test_state__of_two_at_once_has_the_rows_of_both(run):
    first, second = NEW[NEW["when"] < "2024-04-20"], NEW[NEW["when"] >= "2024-04-20"]
    tables = [open_new_edges(FinishedRun(run), arrow(table)) for table in (first, second)]
    for table in tables:
        table.table()
    assert len(json.loads((run / "stream" / "manifest.json").read_text())["tables"]) == 2


def test_state__is_bounded(run, monkeypatch):
    monkeypatch.setattr(stream, "MOST_ROWS", 100)
    scored(run, NEW)
    assert len(np.load(run / "stream" / "rows.npy")) == 100
    assert scored(run, NEW)["edge_surprise"].notna().all()


def test_state__one_row_years_ahead_does_not_end_it(run):
    ahead = frame("a001", ["a002"], 3e9, 12.0).assign(note="")
    scored(run, pd.concat([NEW, ahead]))
    assert len(np.load(run / "stream" / "rows.npy")) > 500


def test_state__of_other_scores_is_dropped(run, caplog):
    scored(run, NEW)
    path = run / "stream" / "manifest.json"
    files.write_sealed(path, files.read_sealed(path) | {"of": "others"})
    with caplog.at_level(logging.INFO):
        scored(run, NEW[:20])
    assert "came after other scores: they are dropped" in caplog.text
    assert len(np.load(run / "stream" / "rows.npy")) <= 20


def sealed(run: Path, **entries) -> None:
    path = run / "stream" / "manifest.json"
    digest = {"rows.npy": files.hash_file(run / "stream" / "rows.npy")}
    files.write_sealed(path, files.read_sealed(path) | {"files": digest} | entries)


def edited(name, value):
    def edit(run: Path) -> None:
        rows = np.load(run / "stream" / "rows.npy")
        rows[name][-1] = value
        np.save(run / "stream" / "rows.npy", rows)
        sealed(run)

    return edit


def torn(run: Path) -> None:
    path = run / "stream" / "rows.npy"
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (torn, r"rows.npy is damaged.*remove .*stream"),
        (lambda run: (run / "stream" / "rows.npy").unlink(), r"rows.npy is missing; remove .*stream"),
        (lambda run: (run / "stream" / "manifest.json").unlink(), "unfinished"),
        (lambda run: sealed(run, ids=[1]), r"ids is \[1\]"),
        (lambda run: sealed(run, ids=[]), "ends are below 150"),
        (lambda run: sealed(run, tables=[]), "tables below 0"),
        (edited("payer", -1), "ends are below"),
        (edited("payee", 5_000), "ends are below"),
        (edited("time", np.nan), "finite"),
        (edited("chain", np.nan), "finite"),
        (edited("chain", np.inf), "finite"),
        (lambda run: (np.save(run / "stream" / "rows.npy", np.zeros(3)), sealed(run)), "holds float64"),
    ],
)
def test_state__that_is_torn_or_of_others_is_refused_by_name(run, damage, said):
    scored(run, NEW)
    damage(run)
    with pytest.raises(files.FolderError, match=said):
        scored(run, NEW)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="when"), r"graph.time_column='when' is not a column of the table of new edges"),
        (lambda t: t.drop(columns="amount"), r"graph.amount_column='amount' is not a column of the table of new edges"),
        (lambda t: t.assign(when="soon"), r"column 'when' of the table of new edges, the time of its rows, is of type"),
        (
            lambda t: t.assign(amount="much"),
            r"column 'amount' of the table of new edges, the amount of its rows, is of",
        ),
        (lambda t: t[:0], "holds no rows"),
    ],
)
def test_new_rows__of_a_table_without_what_rows_have_in_the_run_are_refused(run, change, said):
    with pytest.raises(ValueError, match=said):
        scored(run, change(NEW))


def test_new_rows__of_a_year_that_no_calendar_has_are_told(run):
    rows = scored(run, chain_at(110 * 86_400).assign(when=np.array(["20240-05-01"], "datetime64[s]") + np.arange(6)))
    assert rows["edge_reason"].str.contains("on second ").any()


def test_new_rows__of_steps_are_in_those_of_the_run(tmp_path):
    table = pd.concat([payments(0, 0, 100), chain_at(97.0 * 86_400)[:2]])
    table["step"] = (table.pop("when") - pd.to_datetime("2024-01-01")).dt.days
    table.to_csv(tmp_path / "payments.csv", index=False)
    assert main(["run", str(tmp_path / "payments.csv"), f"run_dir={tmp_path / 'run'}", *as_words(FAST)]) == 0
    new = pa.table({"payer": ["a069", "a001"], "payee": ["a099", "a002"], "step": [98, 99], "amount": [700.0, 20.0]})
    rows = open_new_edges(FinishedRun(tmp_path / "run"), new.append_column("currency", [["EUR", "EUR"]])).table()
    assert rows["edge_chain"].to_pylist()[0] > 2
    assert np.load(tmp_path / "run" / "stream" / "rows.npy")["time"].tolist() == [98 * 86_400, 99 * 86_400]
