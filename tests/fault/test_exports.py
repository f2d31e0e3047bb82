"""Exports of ids that a stranger chose: XML stays XML, a spreadsheet runs nothing, and what was there before stays."""

import csv
import datetime as dt
import io
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import small_config, small_graph, small_run

from hcm_scale.base.sheets import quoted, read_sheet, table_writer, without_quotes
from hcm_scale.cli import commands
from hcm_scale.config import TablesGraph
from hcm_scale.report.write import stream_csv
from hcm_scale.review import verdicts
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.serve.search import Filter, passing_rows
from hcm_scale.serve.server import Views

RUN = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1,2)", "\t=1", "\r=1", "\n=1", "＝1+1", "-"]
QUOTED = ["'=already", "''+1"]
NUMBERS = ["-5", "+491701234567", "-1.5e3", "007", "-0,5", "{=1+1}", "https://a.b/"]
NOT_XML = ["\x01control", "bell\x07", "\ufffe", "\x7f is legal", "\x1b[2J"]
IDS = [*RUN, *QUOTED, *NUMBERS, *NOT_XML]
WOULD_RUN = re.compile(r"[=+\-@\t\r\n＝＋－＠].", re.DOTALL)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "run"
    graph = small_graph()
    ids = [*IDS, *(f"n{i}" for i in range(graph.num_nodes - len(IDS)))]
    small_run(folder, replace(graph, ids=pa.array(ids)), **{"score.views": ["purified"]})
    return folder


def shown(name: str) -> str:
    """A text that a spreadsheet would run, as it stands in CSV."""
    return "'" + re.sub("([\t\r\n])=", r"\1'=", name)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(("ending", "read"), [("graphml", nx.read_graphml), ("gexf", nx.read_gexf)])
def test_graph_export__escapes_what_xml_cannot_hold_and_says_so_once(run_dir, tmp_path, ending, read):
    out = tmp_path / f"near.{ending}"
    out.write_text("the one before")
    said = commands.export_run([str(run_dir), str(out), "--top", "200"])
    assert said.count("XML") == 1
    assert "4 labels hold characters that XML cannot, written as \\x01" in said
    found = read(out)
    labels = {str(data.get("label", node)) for node, data in found.nodes(data=True)}
    assert {r"\x01control", r"bell\x07", r"\ufffe", "\x7f is legal", r"\x1b[2J"} <= labels
    assert len(found) == 200
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_csv__holds_nothing_that_a_spreadsheet_runs_and_numbers_as_they_are(run_dir, tmp_path):
    nodes, edges = tmp_path / "list.csv", tmp_path / "edges.csv"
    said = commands.export_run([str(run_dir), str(nodes)])
    assert f"{len(RUN) + len(QUOTED) - 1} cells begin with ' " in said
    commands.export_run([str(run_dir), str(edges), "--edges", "--pairs"])
    for path in (nodes, edges):
        rows = rows_of(path)
        cells = {cell for row in rows for cell in (*row, *row.values())}
        assert {cell for cell in cells if WOULD_RUN.match(cell) and not re.fullmatch(r"[-+]?[\d.,e+-]+", cell)} == set()
        assert all(float(row["p"]) >= 0 for row in rows)
    found = {row["id"] for row in rows_of(nodes)}
    assert {*NUMBERS, *NOT_XML, "-", *map(shown, (*RUN[:-1], *QUOTED))} <= found


PIECES = ("=cmd|' /C calc'!A0", "+1", "-5", "@a", "'", "''=1", ";", "\t", "\n", "a", " ", "＝b", "=", "-")


def test_csv__has_no_formula_where_semicolons_separate():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PIECES, rng.integers(1, 6))) for _ in range(2_000)]
    found, count = quoted(pa.table({"text": ["x;=cmd|' /C calc'!A0", *texts]}))
    cells = [cell for text in found["text"].to_pylist() for cell in re.split("[;\t\r\n]", text)[1:]]
    assert found["text"][0].as_py() == "x;'=cmd|' /C calc'!A0"
    assert [cell for cell in cells if re.match("[=+@＝-]", cell)] == []
    assert without_quotes(found["text"].combine_chunks()).to_pylist()[1:] == texts
    assert count == sum(a != b for a, b in zip(found["text"].to_pylist()[1:], texts, strict=True)) + 1


def test_csv__names_a_column_of_no_known_time_zone(tmp_path):
    table = pa.table({"a": [1], "paid": pa.array([0], pa.timestamp("s", "Mars/Base"))})
    for name in ("rows.csv", "rows.xlsx"):
        told = pytest.raises(ValueError, match=rf"{name}: column 'paid' of type .*Mars/Base.* does not fit into")
        with told, table_writer(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    with table_writer(tmp_path / "rows.parquet", table.schema) as writer:
        writer.write_table(table)


def test_csv__is_raw_on_demand(run_dir, tmp_path):
    out = tmp_path / "list.csv"
    assert "begin with '" not in commands.export_run([str(run_dir), str(out), "--raw"])
    assert {*IDS} <= {row["id"] for row in rows_of(out)}
    with pytest.raises(ValueError, match=r"--raw is for \.csv"):
        commands.export_run([str(run_dir), str(tmp_path / "list.parquet"), "--raw"])


def test_parquet__holds_ids_as_they_are(run_dir, tmp_path):
    commands.export_run([str(run_dir), str(tmp_path / "list.parquet")])
    assert {*IDS} <= {*pq.read_table(tmp_path / "list.parquet")["id"].to_pylist()}


def test_names_of_columns__are_cells_too(tmp_path):
    graph = small_graph()
    ends = np.repeat(np.arange(graph.num_nodes), graph.degrees), np.asarray(graph.indices)
    paid = np.where(np.arange(graph.num_edges * 2) % 2, -2, 1)
    pq.write_table(pa.table([*ends, paid, paid], ["source", "target", "=1+1", "paid"]), tmp_path / "edges.parquet")
    config = small_config(tmp_path / "run", **{"score.views": ["purified"]})
    config.graph = TablesGraph(path=str(tmp_path / "edges.parquet"), featureless="degree")
    pipeline.run(config, until="score")
    commands.export_run([str(tmp_path / "run"), str(tmp_path / "out.csv"), "--edges"])
    assert "'=1+1" in rows_of(tmp_path / "out.csv")[0]
    assert {row["paid"] for row in rows_of(tmp_path / "out.csv")} == {"1", "-2"}


def test_sheet_of_verdicts__finds_the_ids_again(run_dir, tmp_path):
    sheet = tmp_path / "review.csv"
    commands.review_run([str(run_dir), "200", "--csv", str(sheet)])
    rows = rows_of(sheet)
    with open(sheet, "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(row | {"verdict": "good"} for row in rows)
    found, _ = verdicts.read_table(sheet)
    assert {*IDS} <= {*found["id"].to_pylist()}


SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def cells_of(path: Path) -> list[list[tuple[str, str]]]:
    """(type, content) of every cell; text is `inlineStr`, numbers have no type."""
    with zipfile.ZipFile(path) as book:
        rows = ET.fromstring(book.read("xl/worksheets/sheet1.xml")).iter(f"{SHEET}row")
        return [[(cell.get("t", ""), "".join(cell.itertext())) for cell in row.iter(f"{SHEET}c")] for row in rows]


@pytest.mark.parametrize("choice", [[], ["--edges", "--pairs"]])
def test_xlsx__holds_ids_as_text_and_numbers_as_numbers(run_dir, tmp_path, choice):
    pytest.importorskip("xlsxwriter")
    out = tmp_path / "list.xlsx"
    commands.export_run([str(run_dir), str(out), *choice])
    header, *rows = cells_of(out)
    names = [name for _, name in header]
    key, p = names.index("source" if choice else "id"), names.index("p")
    assert {row[key][0] for row in rows} == {"inlineStr"}
    assert {row[p][0] for row in rows} == {""}
    if not choice:
        found = {row[key][1] for row in rows}
        assert {name for name in (*RUN, *NUMBERS) if name.strip() == name and name.isprintable()} <= found
        assert "_x0001_control" in found
        assert not any(cell.startswith("<f") for row in rows for _, cell in row)


def test_xlsx__of_whole_numbers_keeps_every_digit(tmp_path):
    pytest.importorskip("xlsxwriter")
    table = pa.table({"id": [7, 2**62 + 1], "paid": [2**62 + 1, 3], "sure": [True, None], "x": [float("nan"), 0.5]})
    table = table.append_column("hash", pa.array([2**64 - 1, None], pa.uint64())).append_column("low", [[0, -(2**63)]])
    with table_writer(tmp_path / "a.xlsx", table.schema) as writer:
        writer.write_table(table)
    text = lambda *cells: [("inlineStr", cell) for cell in cells]  # noqa: E731
    assert cells_of(tmp_path / "a.xlsx")[1:] == [
        [*text("7", str(2**62 + 1)), ("b", "1"), *text(str(2**64 - 1), "0")],
        [*text(str(2**62 + 1), "3"), ("", "0.5"), *text(str(-(2**63)))],
    ]


def test_xlsx__without_its_library_is_refused_at_once(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(commands.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"list\.xlsx needs XlsxWriter: pip install 'hcm-scale\[excel\]'"):
        commands.export_run([str(run_dir), str(tmp_path / "list.xlsx")])


def test_served_list__is_as_safe(run_dir):
    ranked, text = Views(FinishedRun(run_dir)).ranked, io.BytesIO()
    stream_csv(text, passing_rows(ranked, Filter()), ranked.schema)
    ids = {row["id"] for row in csv.DictReader(io.StringIO(text.getvalue().decode(), newline=""))}
    assert {*map(shown, RUN[:-1])} <= ids


def test_xlsx__has_dates_widths_a_header_in_sight_and_filters(tmp_path):
    pytest.importorskip("xlsxwriter")
    when = pa.array([dt.datetime(2024, 2, 29, 12), None], pa.timestamp("ms", "UTC"))
    table = pa.table({"id": ["a", "b" * 40], "when": when, "old": pa.array([dt.date(1850, 1, 1)] * 2)})
    with table_writer(tmp_path / "a.xlsx", table.schema) as writer:
        writer.write_table(table)
    (_, (kind, number), (old_kind, old)), _ = cells_of(tmp_path / "a.xlsx")[1:]
    assert (kind, float(number), old_kind, old) == ("", 45351.5, "inlineStr", "1850-01-01")
    with zipfile.ZipFile(tmp_path / "a.xlsx") as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
    assert 'state="frozen"' in sheet
    assert '<autoFilter ref="A1:C3"/>' in sheet
    assert re.search(r'<col min="1" max="1" width="40', sheet)


def test_xlsx__is_read_as_it_was_written(tmp_path):
    pytest.importorskip("openpyxl")
    pytest.importorskip("xlsxwriter")
    columns = {"id": ["007", "=1+1\r\x0b_x0041_"], "paid": [3, None], "rate": [0.5, 2.0], "sure": [True, False]}
    table = pa.table(columns | {"when": pa.array([dt.datetime(2024, 2, 29, 12)] * 2, pa.timestamp("ms"))})
    with table_writer(tmp_path / "a.xlsx", table.schema) as writer:
        writer.write_table(table)
    assert read_sheet(tmp_path / "a.xlsx").equals(table)
    (tmp_path / "b.xlsx").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"b\.xlsx cannot be read as a workbook"):
        read_sheet(tmp_path / "b.xlsx")


def test_xlsx__of_years_beyond_the_calendar_holds_them_as_text(tmp_path):
    far, last = 472 * 10**12, 253_402_214_400_000  # 16927, and the last day of 9999
    for name, values in (("far", [0, far]), ("last", [0, last])):
        dates = pa.table({"when": pa.array(values, pa.timestamp("ms"))})
        with table_writer(tmp_path / f"{name}.xlsx", dates.schema, False) as sink:
            sink.write_table(dates)
    assert read_sheet(tmp_path / "far.xlsx")["when"][1].as_py().startswith("16927-01-31")
    assert read_sheet(tmp_path / "last.xlsx")["when"][1].as_py() == dt.datetime(9999, 12, 31)


def changed_book(path: Path, more: str) -> Path:
    """A workbook whose sheet has more rows than it says, or says nothing of them."""
    book_table = pa.table({"source": ["a"], "target": ["b"]})
    with table_writer(path, book_table.schema, False) as sink:
        sink.write_table(book_table)
    with zipfile.ZipFile(path) as book:
        members = {name: book.read(name) for name in book.namelist()}
    sheet = members["xl/worksheets/sheet1.xml"].replace(b"</sheetData>", more.encode() + b"</sheetData>")
    members["xl/worksheets/sheet1.xml"] = sheet
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, data in members.items():
            book.writestr(name, data)
    return path


def test_xlsx__of_more_rows_than_it_says_is_read_whole(tmp_path):
    row = '<row><c t="inlineStr"><is><t>c</t></is></c><c t="inlineStr"><is><t>d</t></is></c></row>'
    assert read_sheet(changed_book(tmp_path / "a.xlsx", 3 * row))["source"].to_pylist() == ["a", "c", "c", "c"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "rows",
    [
        '<row r="99999999999"><c r="A99999999999"><v>1</v></c></row>',
        "".join(f'<row r="{r}"><c r="XFD{r}"><v>1</v></c></row>' for r in range(9, 2_000)),
    ],
)
def test_xlsx__of_cells_that_hold_nothing_is_refused_and_not_waited_for(tmp_path, rows):
    path = changed_book(tmp_path / "a.xlsx", rows)
    with pytest.raises(ValueError, match=r"a\.xlsx cannot be read as a workbook: a sheet has 1,048,576 rows at most"):
        read_sheet(path)


def test_xlsx__goes_round_review_and_teach(run_dir, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    run, sheet = shutil.copytree(run_dir, tmp_path / "run"), tmp_path / "review.xlsx"
    commands.review_run([str(run), "6", "--csv", str(sheet)])
    book = openpyxl.load_workbook(sheet)
    names = [cell.value for cell in book.active[1]]
    for at in range(2, 8):
        book.active.cell(at, names.index("verdict") + 1, "bad" if at % 2 else "good")
    book.save(sheet)
    ids = [row[names.index("id")] for row in book.active.iter_rows(2, values_only=True)]
    commands.teach_run([str(run), str(sheet)])
    assert {*FinishedRun(run).verdicts().by_id()} == {*ids}


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_export__that_is_killed_half_way_leaves_the_file_as_it_was(tmp_path, name):
    (tmp_path / name).write_text("as it was")
    code = (
        "import os, signal, sys, pyarrow as pa\nfrom pathlib import Path\n"
        "from hcm_scale.base.sheets import table_writer\n"
        "table = pa.table({'a': [*range(100_000)]})\n"
        "with table_writer(Path(sys.argv[1]), table.schema) as sink:\n"
        "    sink.write_table(table); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / name], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / name).read_text() == "as it was"
