"""Strange edges from a table of payments: exported with all of its columns, and explained in true sentences."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hcm_scale import HCM
from hcm_scale.cli import commands
from hcm_scale.cli.main import main
from hcm_scale.ingest.policy import InputError
from hcm_scale.report import wording
from hcm_scale.run.finished import FinishedRun
from hcm_scale.stages import report
from tests.helpers import FAST, as_words, small_graph, small_run

EDGE = ("a0000,1", "a0199,1")  # in no community, many payments


def payments() -> tuple[pa.Table, pa.Table]:
    """Payments of two communities, some pairs more than once, in both directions; and accounts with ids with commas."""
    graph, rng = small_graph(200, 3), np.random.default_rng(0)
    left = np.repeat(np.arange(200), graph.degrees)
    pairs = np.stack([left, graph.indices], axis=1)  # each edge both ways
    pairs = np.concatenate([pairs, [[0, 199]] * 7, [[5, 5]]])
    pairs = pairs[rng.permutation(len(pairs))]
    names = np.array([f"a{node:04d},1" for node in range(200)])
    count = len(pairs)
    edges = pa.table(
        {
            "sender": names[pairs[:, 0]],
            "receiver": names[pairs[:, 1]],
            "size": [f"{value:08.2f}" for value in rng.lognormal(3, 1, count)],
            "note": [f'no "{i}", paid' for i in range(count)],
            "edge_rank": np.arange(count),
        }
    )
    nodes = pa.table({"account": names} | {f"x{k}": graph.x[:, k].astype(float) for k in range(3)})
    return edges, nodes


@pytest.fixture(scope="module", params=["csv", "parquet"])
def made(request, tmp_path_factory) -> tuple[Path, Path, pa.Table]:
    folder = tmp_path_factory.mktemp("payments")
    edges, nodes = payments()
    write = pyarrow.csv.write_csv if request.param == "csv" else pq.write_table
    for name, table in (("payments", edges), ("accounts", nodes)):
        write(table, folder / f"{name}.{request.param}")
    files = [str(folder / f"{name}.{request.param}") for name in ("payments", "accounts")]
    assert main(["run", *files, f"run_dir={folder / 'run'}", *as_words(FAST)]) == 0
    return folder / "run", Path(files[0]), edges


def read(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)


def pair(row) -> tuple[str, ...]:
    return tuple(sorted((row["sender"], row["receiver"])))


def test_export_edges__every_row_of_the_table_inherits_the_numbers_of_its_edge(made, tmp_path):
    run, _, edges = made
    out = tmp_path / "all.parquet"
    said = commands.export_run([str(run), str(out), "--edges"])
    assert "in the order of the table" in said
    rows, ours = read(out), FinishedRun(run).edges.table()
    assert rows.num_rows == edges.num_rows
    for name in edges.column_names:
        assert [str(v) for v in rows[name].to_pylist()] == [str(v) for v in edges[name].to_pylist()]
    of_pair = {tuple(sorted((r["source"], r["target"]))): r for r in ours.to_pylist()}
    for row in rows.to_pylist():
        if row["sender"] == row["receiver"]:
            assert (row["edge_rank_"], row["edge_p"]) == (None, None)
        else:
            mine = of_pair[pair(row)]
            assert (row["edge_rank_"], row["edge_p"], row["edge_shared"]) == (mine["rank"], mine["p"], mine["shared"])


def test_export_edges__the_first_edges_bring_all_their_rows_the_strangest_first(made, tmp_path):
    run, _, edges = made
    out = tmp_path / "first.csv"
    said = commands.export_run([str(run), str(out), "--edges", "--top", "10"])
    rows = read(out)
    ranks = rows["edge_rank_"].to_pylist()
    assert f"{len(ranks)} rows of 10 edges" in said
    assert ranks == sorted(ranks)
    assert {*ranks} == {*range(1, 11)}
    first = {tuple(sorted((r["source"], r["target"]))) for r in FinishedRun(run).edges.table(10).to_pylist()}
    wanted = [row["note"] for row in edges.to_pylist() if pair(row) in first]
    assert sorted(rows["note"].to_pylist()) == sorted(wanted)
    for rank in range(1, 11):  # in the order of the table
        notes = [note for note, of in zip(rows["note"].to_pylist(), ranks, strict=True) if of == rank]
        assert notes == [note for note in edges["note"].to_pylist() if note in notes]


def test_export_edges__pairs_are_one_row_an_edge(made, tmp_path):
    run, _, edges = made
    out = tmp_path / "pairs.parquet"
    commands.export_run([str(run), str(out), "--edges", "--pairs"])
    rows = read(out)
    assert rows.num_rows == len({pair(row) for row in edges.to_pylist() if row["sender"] != row["receiver"]})
    assert rows["rank"].to_pylist() == list(range(1, rows.num_rows + 1))
    assert {"source", "target", "hop", "hop_variance", "around", "unlike", "shared", "p", "flagged"} <= {
        *rows.column_names
    }
    flagged = tmp_path / "flagged.csv"
    commands.export_run([str(run), str(flagged), "--edges", "--flagged"])
    assert sum(rows["flagged"].to_pylist()) == len({*(pair(r) for r in read(flagged).to_pylist())})


def test_export_edges__a_table_that_changed_is_refused_by_name(made, tmp_path):
    run, table, _ = made
    whole = table.read_bytes()
    try:
        table.write_bytes(whole + b"\n" if table.suffix == ".csv" else whole + b" ")
        with pytest.raises(InputError, match=re.escape(str(table)) + ".* changed since the run.*--pairs"):
            commands.export_run([str(run), str(tmp_path / "x.csv"), "--edges"])
        table.unlink()
        with pytest.raises(InputError, match=re.escape(str(table))):
            commands.export_run([str(run), str(tmp_path / "x.csv"), "--edges", "--top", "3"])
        commands.export_run([str(run), str(tmp_path / "x.csv"), "--edges", "--pairs"])
    finally:
        table.write_bytes(whole)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pairs"], "--pairs and --trust-queries go with --edges"),
        (["--edges", "--taught"], "--edges goes with"),
        (["--edges", "--type", "user"], "--edges goes with"),
    ],
)
def test_export_edges__choices_that_make_no_sense_are_refused(made, tmp_path, words, said):
    with pytest.raises(ValueError, match=said):
        commands.export_run([str(made[0]), str(tmp_path / "x.csv"), *words])
    with pytest.raises(ValueError, match="must end in one of"):
        commands.export_run([str(made[0]), str(tmp_path / "x.gexf"), "--edges"])


def test_export_edges__of_a_graph_without_a_table_are_ids(tmp_path):
    small_run(tmp_path / "run", until="score")
    out = tmp_path / "edges.csv"
    assert "5 edges" in commands.export_run([str(tmp_path / "run"), str(out), "--edges", "--top", "5"])
    assert read(out)["source"].type == pa.int64()


def test_explain__says_of_an_edge_what_is_so(made, capsys):
    run, _, _ = made
    assert main(["explain", str(run), f"edge={EDGE[0]},{EDGE[1]}"]) == 0
    said = capsys.readouterr().out
    rows = FinishedRun(run).edges.table().to_pylist()
    (row,) = [row for row in rows if {row["source"], row["target"]} == {*EDGE}]
    assert said.startswith(f"{EDGE[0]} and {EDGE[1]}   ")
    share = float(re.search(r"([\d.e-]+)% of the ([\d,]+) edges are at least as strange", said)[1]) / 100
    first = rows[0]
    assert main(["explain", str(run), f"edge={first['source']},{first['target']}"]) == 0
    assert f"   the strangest of {len(rows):,} edges\n" in capsys.readouterr().out
    assert share == pytest.approx(sum(other["surprise"] >= row["surprise"] for other in rows) / len(rows), rel=0.01)
    if "hops apart" in said:
        assert f"look {row['hop']:.1f}" in said
    if row["shared"] == 0 and "share" in said:
        assert "share no neighbours" in " ".join(said.split())
    assert ("not flagged" in said) != row["flagged"]


def test_explain__of_no_edge_or_no_node_is_an_error(made, capsys):
    run, _, _ = made
    assert main(["explain", str(run), "edge=a0000,1,a0000,1"]) == 2
    assert "no edge joins" in capsys.readouterr().err
    assert main(["explain", str(run), "edge=nobody"]) == 2
    assert "two ids with a comma" in capsys.readouterr().err


def test_edges_of_a_detector__are_a_table_and_explained(made):
    _, table, _ = made
    detector = HCM(FAST).fit((str(table), str(table.with_stem("accounts"))))
    found = detector.edges_
    first = found.slice(0, 1).to_pylist()[0]
    about = detector.explain(edge=(first["source"], first["target"]))
    assert about.data["ends"] == (first["source"], first["target"])
    assert re.search(r"edges are at least as strange|the strangest of [\d,]+ edges", str(about))
    assert about.data["p"] == pytest.approx(first["p"])
    with pytest.raises(TypeError, match="one of them"):
        detector.explain()


def test_report__shows_the_strangest_edges_with_their_rows_and_reasons(made):
    run, _, edges = made
    shown = json.loads((run / "report" / "report.json").read_text())["strange_edges"]
    found = FinishedRun(run).edges
    ours, ranks = found.table(20).to_pylist(), found.evidence.row_of_node + 1
    assert [edge["rank"] for edge in shown["edges"]] == list(range(1, 21))
    for edge, row in zip(shown["edges"], ours, strict=True):
        names = [end["id"] for end in edge["ends"]]
        assert names == [row["source"], row["target"]]
        assert edge["rows"] == sum(pair(each) == tuple(sorted(names)) for each in edges.to_pylist())
        assert [end["rank"] for end in edge["ends"]] == [ranks[found.evidence.graph.node_of(name)] for name in names]
        about = found.explain(*map(found.evidence.graph.node_of, names))
        assert edge["reason"].startswith(
            wording.sentence(wording.edge_reason(about, about.reasons[0], "edges of such"))
        )
    assert any(edge["rows"] > 1 for edge in shown["edges"])
    page = (run / "report" / "report.html").read_text()
    first = shown["edges"][0]["ends"][0]
    assert f'href="#node-{first["rank"]}" title="{first["id"]}, rank' in page.partition('<section id="edges">')[2]
    details = {stage["name"]: stage["detail"] for stage in json.loads((run / "stages.json").read_text())["stages"]}
    assert first["id"] in details["report"]["strange_edges"][1]


def test_report__of_many_edges_says_how_to_rank_them(made, tmp_path, monkeypatch):
    run, table, _ = made
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "report")
    monkeypatch.setattr(report, "_FEW_EDGES", 10)
    files = [str(table), str(table.with_stem("accounts"))]
    assert main(["run", *files, f"run_dir={tmp_path / 'run'}", *as_words(FAST)]) == 0
    written = json.loads((tmp_path / "run" / "report" / "report.json").read_text())
    assert written["strange_edges"] == {"edges": [], "of_rows": False}
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "export RUN strange.csv --edges" in page.partition('<section id="edges">')[2].partition("</section>")[0]


def test_export_edges__of_queries_are_all_columns_of_their_rows(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    edges, nodes = payments()
    with duckdb.connect(str(tmp_path / "bank.db")) as bank:
        for name, table in (("payments", edges), ("accounts", nodes)):
            bank.register("given", table)
            bank.execute(f"create table {name} as from given")
    queries = ["graph.edges=select note, sender, receiver, size from payments", "graph.nodes=select * from accounts"]
    run = tmp_path / "run"
    words = ["graph=sql", f"graph.path=duckdb://{tmp_path}/bank.db", *queries, f"run_dir={run}", *as_words(FAST)]
    words += ["graph.source_column=sender"]  # the other end and the id are guessed
    assert main(["run", *words]) == 0
    commands.export_run([str(run), str(tmp_path / "all.parquet"), "--edges"])
    rows = read(tmp_path / "all.parquet")
    assert rows.column_names[:5] == ["edge_rank", "note", "sender", "receiver", "size"]
    assert sorted(rows["note"].to_pylist()) == sorted(edges["note"].to_pylist())
    first = FinishedRun(run).edges.table(1).to_pylist()[0]
    wanted = [row["note"] for row in edges.to_pylist() if {*pair(row)} == {first["source"], first["target"]}]
    commands.export_run([str(run), str(tmp_path / "first.csv"), "--edges", "--top", "1"])
    assert sorted(read(tmp_path / "first.csv")["note"].to_pylist()) == sorted(wanted)
    with duckdb.connect(str(tmp_path / "bank.db")) as bank:
        bank.execute("delete from payments where note = 'no \"3\", paid'")
    with pytest.raises(InputError, match=r"graph\.edges=select note.* has changed since the run"):
        commands.export_run([str(run), str(tmp_path / "x.csv"), "--edges", "--top", "1"])
