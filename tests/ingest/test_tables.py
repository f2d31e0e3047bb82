"""Parquet and CSV tables as users bring them, clean and otherwise."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import xxhash

from hcm_scale.base.files import MANIFEST
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import Columns, InputError, Policy, column_report, ingest_summary, read_tables
from hcm_scale.ingest.table_files import files_at

EDGES = {"source": ["a", "b", "b", "c", "a"], "target": ["b", "a", "b", "a", "b"]}
NODES = {
    "id": ["c", "a", "b", "lonely"],
    "size": [1.5, None, 4.5, 0.0],
    "flag": [True, False, None, True],
    "kind": ["x", None, "y", "x"],
    "odd": [0, 1, 0, 0],
}


@pytest.fixture(params=["parquet", "csv", "tsv", "csv.gz"])
def save(request, tmp_path):
    """Writes columns as a table of each format; returns its path."""

    def write(name, columns):
        path = tmp_path / f"{name}.{request.param}"
        table = pa.table(columns)
        if request.param == "parquet":
            pq.write_table(table, path)
        else:
            options = pacsv.WriteOptions(delimiter="\t" if request.param == "tsv" else ",", quoting_style="needed")
            pacsv.write_csv(table, tmp_path / "plain", options)
            text = (tmp_path / "plain").read_bytes()
            path.write_bytes(gzip.compress(text) if request.param == "csv.gz" else text)
        return path

    return write


def test_unknown_ids__that_differ_by_zeros_are_told_what_reads_them_alike(tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n42,7\n7,42\n")
    (tmp_path / "n.csv").write_text("id,age\n0042,1\n0007,2\n")
    with pytest.raises(ValueError, match=r"not a node .*graph\.id_type=integer reads 0042 and 42 as one id"):
        read_tables(tmp_path / "g", tmp_path / "e.csv", tmp_path / "n.csv", columns=Columns(id_type="text"))
    (tmp_path / "e.csv").write_text("source,target\n0042,x\n0007,0042\n")
    with pytest.raises(ValueError, match=r"not a node .*add makes nodes of them, without attributes"):
        read_tables(tmp_path / "g", tmp_path / "e.csv", tmp_path / "n.csv", columns=Columns(id_type="text"))


def test_csv_without_names_of_columns__is_warned_of(tmp_path, caplog):
    a, b, c = "abc"
    (tmp_path / "e.csv").write_text(f"{a},{b}\n{b},{c}\n{c},{a}\n")
    read_tables(
        tmp_path / "g", tmp_path / "e.csv", columns=Columns(source=a, target=b), policy=Policy(featureless="degree")
    )
    assert f"is taken for the names of columns, and '{a}' and '{b}' are ids too: put names before it" in caplog.text
    (tmp_path / "e.csv").write_text(f"source,target\n{b},{c}\n{c},{a}\n")
    caplog.clear()
    read_tables(tmp_path / "g", tmp_path / "e.csv", policy=Policy(featureless="degree"))
    assert "names of columns" not in caplog.text


def test_ids_of_telephones__are_text(tmp_path):
    (tmp_path / "e.csv").write_text("caller,callee,start\n+491,+492,2024-01-01\n+492,+493,2024-01-02\n")
    graph = read_tables(tmp_path / "g", tmp_path / "e.csv", columns=Columns(source="caller", target="callee"))
    assert graph.ids.to_pylist() == ["+491", "+492", "+493"]


def test_ids_with_leading_zeros__are_text(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("source,target\n7,007\n007,12\n")
    graph = read_tables(tmp_path / "graph", edges, policy=Policy(featureless="degree"))
    assert sorted(graph.external_id(node) for node in range(graph.num_nodes)) == ["007", "12", "7"]
    whole = Columns(id_type="integer")
    assert read_tables(tmp_path / "g2", edges, columns=whole, policy=Policy(featureless="degree")).num_nodes == 2


@pytest.mark.parametrize("name", ["12e2", "0x1", "1.5e+3", " 007"])
def test_csv_ids_that_a_number_would_not_keep__are_text(tmp_path, name):
    (tmp_path / "e.csv").write_text(f"source,target\n{name},1\n1200,1500\n7,2\n")
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", policy=Policy(featureless="degree"))
    assert sorted(g.ids.to_pylist()) == sorted([name, "1", "1200", "1500", "7", "2"])


def test_csv_ids__are_exact_beside_floats_and_spaces(tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n9007199254740993,1\n9007199254740992, 2\n3.0,4\n")
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", policy=Policy(featureless="degree"))
    assert g.ids.to_pylist() == [1, 2, 3, 4, 9007199254740992, 9007199254740993]


def parquet(path, columns):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def edge_set(graph):
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    names = [graph.external_id(i) for i in range(graph.num_nodes)]
    return {(names[u], names[v]) for u, v in zip(rows, graph.indices, strict=True)}


def told(graph):
    """What became of each column: (use, distinct values, gaps)."""
    lines = graph.info["ingest"]["told"]
    return {f"{line['table']}.{line['column']}": (line["use"], line["distinct"], line["gaps"]) for line in lines}


AMOUNT = "the amount of each row"


def test_told__has_a_line_for_every_column_of_both_tables(tmp_path):
    more = {"amount": [1.0] * 5, "at": [DAY] * 5}
    nodes = NODES | {
        "gone": ["x"] * 4,
        "void": pa.nulls(4, pa.int8()),
        "spent": pa.array([1, 2, 2, None]),
        "w": [-0.0, 0.0, 0.0, 0.0],
    }
    edges, nodes = parquet(tmp_path / "e.parquet", EDGES | more), parquet(tmp_path / "n.parquet", nodes)
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(label="odd", exclude=("gone",)))
    end, flag = (
        "of each row; edges have no direction: graph.directed=true keeps it",
        ", and a flag where there is a gap",
    )
    assert told(g) == {
        "edges.source": (f"the payer {end}", 3, 0),
        "edges.target": (f"the payee {end}", 2, 0),
        "edges.amount": (AMOUNT, None, None),
        "edges.at": ("the time of each row (dates and times, sorted)", None, None),
        "nodes.id": ("names the nodes", 4, 0),
        "nodes.size": (f"a number, as it is{flag}", 3, 1),
        "nodes.flag": (f"a number, as it is{flag}", 2, 1),
        "nodes.kind": (f"a 0/1 column for each value{flag}", 2, 1),
        "nodes.odd": ("the label, 1 = anomaly: it measures the ranking and decides nothing", 2, 0),
        "nodes.gone": ("not used: graph.exclude names it", None, None),
        "nodes.void": ("not used: it has no value", 0, 4),
        "nodes.spent": (f"a number, as it is{flag}", 2, 1),
        "nodes.w": ("a number, as it is", 1, 0),
    }
    lines = column_report(g).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [name.split(".") for name in told(g)]
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(attributes=("size",)), policy=Policy(directed=True))
    assert told(g)["edges.target"] == ("where each edge ends", 2, 0)
    assert told(g)["nodes.kind"] == ("not used: graph.include does not name it", None, None)


def types_of(graph, u, v):
    at = graph.indptr[u] + graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist().index(v)
    return [name for i, name in enumerate(graph.info["edge_types"]) if graph.edge_types[at] >> i & 1]


def test_types__of_edges_are_kept_beside_them(save, tmp_path):
    table = {
        "source": [3, 1, 1, 2, 0, 0, 9],
        "target": [1, 3, 2, 1, 0, 3, 0],
        "kind": ["call", "mail", None, "mail", "x", "call", "y"],
    }
    columns, options = Columns(type="kind"), {"featureless": "degree", "unknown": "drop"}
    nodes = save("n", {"id": [0, 1, 2, 3], "s": [1.0, 2.0, 3.0, 4.0]})
    g = read_tables(tmp_path / "g", save("e", table), nodes, columns=columns, policy=Policy(**options))
    assert g.info["edge_types"] == ["call", "mail", "x", "y"]
    expected = {(1, 3): ["call", "mail"], (1, 2): ["mail"], (0, 3): ["call"]}
    for (u, v), names in expected.items():
        assert types_of(g, u, v) == types_of(g, v, u) == names
    assert told(g)["edges.kind"] == ("the type of each edge, told in explanations; it decides no score", 4, 1)
    assert Graph.open(g.path).edge_types.tolist() == g.edge_types.tolist()
    d = read_tables(tmp_path / "d", save("e", table), nodes, columns=columns, policy=Policy(directed=True, **options))
    assert (types_of(d, 3, 1), types_of(d, 1, 3), types_of(d, 1, 2)) == (["call"], ["mail"], [])
    many = {"source": range(17), "target": range(1, 18), "kind": [f"k{i}" for i in range(17)]}
    with pytest.raises(InputError, match=r"graph\.type_column='kind' has more than 16 values: k0, k1"):
        read_tables(tmp_path / "m", save("e", many), columns=columns, policy=Policy(featureless="degree"))
    with pytest.raises(InputError, match=r"graph\.type_column='nope' is not a column of e\."):
        read_tables(tmp_path / "m", save("e", many), columns=Columns(type="nope"))


def test_types__may_be_the_folders_of_several_edge_tables(tmp_path):
    for kind, row in (("call", [0, 1]), ("mail", [1, 2])):
        (tmp_path / "edges" / f"kind={kind}").mkdir(parents=True)
        parquet(tmp_path / "edges" / f"kind={kind}" / "a.parquet", {"source": row[:1], "target": row[1:]})
    nodes = parquet(tmp_path / "n.parquet", OK_NODES)
    g = read_tables(tmp_path / "g", tmp_path / "edges", nodes, columns=Columns(type="kind"))
    assert (types_of(g, 1, 0), types_of(g, 1, 2)) == (["call"], ["mail"])


def test_told__counts_gaps_and_nodes_of_the_rows_that_are_dropped(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": ["a", "z", None], "target": ["b", "a", None]})
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", NODES), policy=Policy(unknown="drop"))
    assert [told(g)[f"edges.{end}"][1:] for end in ("source", "target")] == [(1, 1), (1, 1)]


def test_told__shows_the_first_of_very_many_columns(tmp_path):
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1, 2]} | {f"f{i}": [i, 1, 2] for i in range(70)})
    g = read_tables(tmp_path / "g", parquet(tmp_path / "e.parquet", OK_EDGES), nodes)
    lines = column_report(g).splitlines()
    assert (len(lines), lines[-1]) == (62, "and 13 more columns, told in graph/manifest.json")
    assert len(g.info["ingest"]["told"]) == 73


def test_read_tables__encodes_every_kind_of_column(save, tmp_path):
    g = read_tables(tmp_path / "g", save("e", EDGES), save("n", NODES), columns=Columns(label="odd"))
    assert g.columns == ("size", "size is null", "flag", "flag is null", "kind=x", "kind=y", "kind is null")
    mean = 2 / 3
    expected = [
        [1.5, 0, 1, 0, 1, 0, 0],
        [2, 1, 0, 0, 2 / 3, 1 / 3, 1],
        [4.5, 0, mean, 1, 0, 1, 0],
        [0, 0, 1, 0, 1, 0, 0],
    ]
    np.testing.assert_allclose(g.x, np.array(expected, np.float32))
    assert g.y.tolist() == [0, 1, 0, 0]
    assert g.ids.to_pylist() == NODES["id"]
    assert edge_set(g) == {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}
    counted = ingest_summary(g)
    assert (counted.edge_rows, counted.self_loops, counted.repeated_edges, counted.reversed_edges) == (5, 1, 1, 1)
    assert (counted.num_edges, counted.isolated_nodes, counted.imputed_values, counted.num_anomalies) == (2, 1, 3, 1)
    methods = {c["name"]: (c["method"], c["nulls"]) for c in g.info["ingest"]["columns"]}
    assert methods == {"size": ("number", 1), "flag": ("number", 1), "kind": ("one-hot", 1)}


def test_read_tables__keeps_directions_on_request(save, tmp_path):
    g = read_tables(
        tmp_path / "g", save("e", EDGES), policy=Policy(directed=True, featureless="degree"), columns=Columns()
    )
    assert edge_set(g) == {("a", "b"), ("b", "a"), ("c", "a")}
    assert g.columns == ("log1p(degree)",)
    np.testing.assert_allclose(g.x[:, 0], np.log1p([3, 2, 1]), rtol=1e-6)


def test_read_tables__numbers_nodes_in_ascending_order_without_a_node_table(save, tmp_path):
    policy = Policy(featureless="degree")
    g = read_tables(
        tmp_path / "g", save("e", {"u": [3, 0, 1], "v": [2, 1, 2]}), columns=Columns("u", "v"), policy=policy
    )
    assert g.ids is None
    assert g.indices.tolist() == [1, 0, 2, 1, 3, 2]
    g = read_tables(tmp_path / "g", save("e", {"u": [30, 10], "v": [20, 30]}), columns=Columns("u", "v"), policy=policy)
    assert g.ids.to_pylist() == [10, 20, 30]
    assert edge_set(g) == {(30, 20), (20, 30), (10, 30), (30, 10)}


def test_read_tables__hashes_many_categories_the_same_everywhere(tmp_path):
    names = [f"value {i}" for i in range(40)]
    nodes = parquet(tmp_path / "n.parquet", {"id": list(range(40)), "c": names})
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    rules = {"max_categories": 39, "hash_buckets": 8}
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(categorical=("c",), **rules))
    assert g.columns == tuple(f"c#{b}" for b in range(8))
    np.testing.assert_array_equal(
        np.argmax(g.x, axis=1), [xxhash.xxh3_64_intdigest(name.encode()) % 8 for name in names]
    )
    assert (g.x.sum(axis=1) == 1).all()
    one_hot = read_tables(tmp_path / "h", edges, nodes, columns=Columns(max_categories=40))
    assert one_hot.columns == tuple(f"c={name}" for name in sorted(names))


def test_read_tables__reads_folders_and_globs_in_the_order_of_names(tmp_path):
    for i in range(3):
        parquet(tmp_path / "edges" / f"part-{i}.parquet", {"source": [i], "target": [i + 1]})
        parquet(tmp_path / "nodes" / f"part-{i}.pq", {"id": [i, 10 + i], "a": [float(i), 1.0]})
    g = read_tables(tmp_path / "g", tmp_path / "edges", str(tmp_path / "nodes" / "*.pq"), policy=Policy(unknown="drop"))
    assert g.ids.to_pylist() == [0, 10, 1, 11, 2, 12]
    assert ingest_summary(g).unknown_edges == 1
    assert ingest_summary(g).origin == f"edges (3 files), {tmp_path}/nodes/*.pq (3 files)"


def test_faults__are_named_by_the_part_and_the_line_that_an_editor_shows(tmp_path):
    for i, target in enumerate((1, "x")):
        (tmp_path / "edges").mkdir(exist_ok=True)
        (tmp_path / "edges" / f"part-{i}.csv").write_text(f"source,target\n0,1\n1,{target}\n")
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1, 1], "a": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"^edges \(2 files\), .*1 ids are no .* line 3 of edges/part-1\.csv: x\. "):
        read_tables(tmp_path / "g", tmp_path / "edges", nodes, policy=Policy(repeated="first"))
    (tmp_path / "edges" / "part-1.csv").write_text("source,target\n0,1\n7,1\n")
    with pytest.raises(ValueError, match=r"rows from 0\): row 2: 1"):
        read_tables(tmp_path / "g", tmp_path / "edges", nodes)
    with pytest.raises(
        ValueError, match=r"^edges \(2 files\), .* in the edge table: line 3 of edges/part-1\.csv: 7 -> 1"
    ):
        read_tables(tmp_path / "g", tmp_path / "edges", nodes, policy=Policy(repeated="first"))


def test_folders__hold_columns_in_their_names_as_spark_writes_them(save, tmp_path):
    ending = save("probe", {"id": [0]}).name.removeprefix("probe.")
    rows = {
        "2024-01-31/land=at": [0, 1],
        "2024-02-02/land=a%20b": [2],
        "2024-02-02/land=__HIVE_DEFAULT_PARTITION__": [3],
    }
    for number, (place, ids) in enumerate(rows.items()):
        folder = tmp_path / "nodes" / f"day={place}" / "year=7"
        folder.mkdir(parents=True)
        save("part", {"id": ids, "s": [1.5] * len(ids)}).rename(folder / f"part-0000{number}.{ending}")
        (folder / f".part-0000{number}.{ending}.crc").write_bytes(b"crc")
    (tmp_path / "nodes" / "_SUCCESS").touch()
    edges = save("e", OK_EDGES)
    g = read_tables(tmp_path / "g", edges, tmp_path / "nodes")
    assert g.columns == ("s", "day", "land=a b", "land=at", "land is null", "year")
    assert g.x[:, 1].tolist() == [0, 0, 2, 2]
    assert g.x[:, 2:4].tolist() == [[0, 1], [0, 1], [np.float32(1 / 3), np.float32(2 / 3)], [1, 0]]
    assert told(g)["nodes.day"] == ("a number: days since 2024-01-31", 2, 0)
    by_glob = read_tables(tmp_path / "g", edges, f"{tmp_path}/nodes/day=*/*/*/*.{ending}")
    assert by_glob.columns == g.columns
    inner = f"{tmp_path}/nodes/day=2024-01-31/land=*/*/*.{ending}"
    some = read_tables(
        tmp_path / "g", edges, inner, policy=Policy(unknown="drop"), columns=Columns(categorical=("year",))
    )
    assert some.columns == ("s", "land=at", "year=7")
    alone = read_tables(tmp_path / "g", edges, tmp_path / "nodes", columns=Columns(attributes=("year", "day")))
    assert alone.columns == ("year", "day")


def test_folders__must_hold_the_same_columns_and_a_file_s_own_column_wins(tmp_path):
    edges = parquet(tmp_path / "e.parquet", OK_EDGES)
    (tmp_path / "n" / "k=1").mkdir(parents=True)
    parquet(tmp_path / "n" / "k=1" / "a.parquet", OK_NODES | {"k": [5, 6, 7]})
    assert read_tables(tmp_path / "g", edges, tmp_path / "n").x[:, 1].tolist() == [5, 6, 7]
    parquet(tmp_path / "n" / "j=1" / "b.parquet", OK_NODES)
    with pytest.raises(InputError, match=r"graph\.nodes=.* columns \['j'\], .* folders of \['k'\]; legal are the same"):
        read_tables(tmp_path / "g", edges, tmp_path / "n")


@pytest.mark.parametrize(
    ("log", "kind"),
    [("_delta_log/00000.json", "Delta"), (".hoodie/x", "Hudi"), ("metadata/v1.metadata.json", "Iceberg")],
)
def test_folders__of_tables_with_a_log_of_their_own_are_refused(log, kind, tmp_path):
    (tmp_path / "lake" / log).parent.mkdir(parents=True)
    (tmp_path / "lake" / log).touch()
    parquet(tmp_path / "lake" / "part-0.parquet", OK_EDGES)
    with pytest.raises(InputError, match=rf"graph\.path=.*lake' is the folder of a {kind} table, .* or deleted since"):
        read_tables(tmp_path / "g", tmp_path / "lake")


def test_delta_table__is_read_as_the_page_says_without_the_rows_that_are_gone(tmp_path, monkeypatch):
    deltalake, dataset = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow.dataset")
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"payer": ["a", "b", "c", "d"], "payee": ["b", "c", "d", "a"], "day": ["1", "1", "2", "2"]})
    rows = rows.append_column("amount", [[1.0, 2.0, 3.0, 4.0]])
    deltalake.write_deltalake("payments", rows.slice(0, 2), partition_by=["day"])
    deltalake.write_deltalake("payments", rows.slice(2), mode="append")
    deltalake.DeltaTable("payments").delete("payer = 'a'")
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "DeltaTable" in block)
    exec(textwrap.dedent(block), {})
    columns = Columns("payer", "payee")
    read = read_tables(tmp_path / "g", tmp_path / "plain", columns=columns)
    assert read.info["ingest"]["counts"]["edge_rows"] == 3
    parts = dataset.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
    dataset.write_dataset(rows.slice(1), tmp_path / "by_day", format="parquet", partitioning=parts)
    again = read_tables(tmp_path / "h", tmp_path / "by_day", columns=columns)
    assert (again.num_nodes, again.num_edges) == (read.num_nodes, read.num_edges)


HIDDEN = ("_SUCCESS", "_temporary/0/part-9.csv", ".ipynb_checkpoints/part-0-checkpoint.csv", "._part-0.csv", "_old.csv")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (".", ["part-0.csv", "sub/part-1.csv"]),
        ("*", ["part-0.csv"]),
        ("**/*.csv", ["part-0.csv", "sub/part-1.csv"]),
        ("*/*/*.csv", []),
        ("_SUCCESS", ["_SUCCESS"]),
        ("_old.csv", ["_old.csv"]),
        ("_*.csv", ["_old.csv"]),
        ("._part-?.csv", ["._part-0.csv"]),
        ("_temporary", ["_temporary/0/part-9.csv"]),
        ("_temporary/*/*.csv", ["_temporary/0/part-9.csv"]),
        (".ipynb_checkpoints/*", [".ipynb_checkpoints/part-0-checkpoint.csv"]),
        ("../_out/*.csv", ["part-0.csv"]),
    ],
)
def test_files_at__passes_over_hidden_names_that_the_user_does_not_spell(tmp_path, where, found):
    root = tmp_path / "_out"
    for name in ("part-0.csv", "sub/part-1.csv", *HIDDEN):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("source,target\n0,1\n")
    assert [path.resolve().relative_to(root).as_posix() for path in files_at(f"{root}/{where}")] == found
    if found and found != ["_SUCCESS"]:
        graph = read_tables(tmp_path / "g", f"{root}/{where}", policy=Policy(featureless="degree"))
        assert ingest_summary(graph).edge_rows == len(found)


def test_files_at__names_a_folder_that_may_not_be_read(tmp_path):
    for name in ("a.csv", "locked/b.csv", ".hidden/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("source,target\n0,1\n")
    for name in ("locked", ".hidden"):
        (tmp_path / name).chmod(0)
    words = [sys.executable, "-c", f"from hcm_scale.ingest.table_files import files_at; files_at({str(tmp_path)!r})"]
    if os.geteuid() == 0:  # who may read anything, unless that is taken away
        if shutil.which("setpriv") is None:
            pytest.skip("root may read anything")
        words = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search", *words]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/locked'" in done.stderr


def test_read_tables__reads_a_file_once_whatever_links_lead_to_it(tmp_path, caplog):
    def num_rows(where):
        return ingest_summary(read_tables(tmp_path / "g", where, policy=Policy(featureless="degree"))).edge_rows

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part-1.csv").write_text("source,target\n0,1\n")
    (tmp_path / "in" / "again").symlink_to(".")
    (tmp_path / "in" / "latest.csv").symlink_to("part-1.csv")
    for where in ("in", "in/**/*.csv"):
        assert num_rows(tmp_path / where) == 1
    assert "links lead to files that are there already (1); each file is read once" in caplog.text
    (tmp_path / "part-1").write_text("source,target\n0,1\n")
    (tmp_path / "named.csv").symlink_to("part-1")
    assert num_rows(tmp_path / "named.csv") == 1


def test_read_tables__takes_dictionaries_whole_floats_and_integers_as_categories(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": [0.0, 1.0], "target": [1.0, 2.0]})
    column = pa.array(["u", "v", "u"]).dictionary_encode()
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1, 2], "c": column, "e": [1, 2, 1]})
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(categorical=("e",)))
    assert g.columns == ("c=u", "c=v", "e=1", "e=2")
    assert g.x.tolist() == [[1, 0] * 2, [0, 1] * 2, [1, 0] * 2]


def test_read_tables__chooses_columns(tmp_path):
    edges, nodes = parquet(tmp_path / "e.parquet", EDGES), parquet(tmp_path / "n.parquet", NODES)
    assert read_tables(tmp_path / "g", edges, nodes, columns=Columns(attributes=("flag",))).columns == (
        "flag",
        "flag is null",
    )
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(exclude=("kind", "flag"), label="odd"))
    assert g.columns == ("size", "size is null")


def test_read_tables__leaves_out_columns_of_nulls_and_says_so(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    nothing = pa.nulls(2, pa.float64())
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1], "a": [1, 2], "n": nothing, "m": pa.nulls(2)})
    g = read_tables(tmp_path / "g", edges, nodes)
    assert g.columns == ("a",)
    assert [c["method"] for c in g.info["ingest"]["columns"]] == ["number", "left out", "left out"]


def test_read_tables__takes_nan_as_a_gap(save, tmp_path):
    nodes = {"id": [0, 1, 2], "s": [1.0, np.nan, 3.0], "n": [np.nan] * 3, "t": ["NaN", "y", "x"]}
    paths = save("edges", {"source": [0, 1], "target": [1, 2]}), save("nodes", nodes)
    g = read_tables(tmp_path / "g", *paths)
    assert g.columns == ("s", "s is null", "t=NaN", "t=x", "t=y")
    assert g.x[:, :2].tolist() == [[1, 0], [2, 1], [3, 0]]
    lines = {line["column"]: (line["gaps"], line["use"]) for line in g.info["ingest"]["told"]}
    assert lines["s"] == (1, "a number, as it is, and a flag where there is a gap")
    assert lines["n"] == (3, "not used: it has no value")
    assert (ingest_summary(g).imputed_values, ingest_summary(g).nonfinite_values) == (1, 0)


def test_read_tables__takes_nan_among_codes_as_a_gap(tmp_path):
    edges = parquet(tmp_path / "e.parquet", OK_EDGES)
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1, 2], "code": [7.0, np.nan, 8.0]})
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(categorical=("code",)))
    assert g.columns == ("code=7", "code=8", "code is null")


DAY = datetime(2020, 2, 28, 12)


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns", "Europe/Vienna"), pa.timestamp("us")]
)
def test_read_tables__counts_dates_in_days_since_the_earliest(tmp_path, kind):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    dates = pa.array([DAY + timedelta(days=2), None, DAY, DAY + timedelta(days=20_000)], pa.timestamp("s")).cast(kind)
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", {"id": range(4), "t": dates}))
    assert g.columns == ("t", "t is null")
    np.testing.assert_allclose(g.x, [[2, 0], [20_002 / 3, 1], [0, 0], [20_000, 0]], rtol=1e-6)
    first = "2020-02-28" if pa.types.is_date(kind) else "2020-02-28T12:00"
    assert told(g)["nodes.t"] == (f"a number: days since {first}, and a flag where there is a gap", 3, 1)


def test_read_tables__reads_dates_and_times_of_a_csv(tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    (tmp_path / "n.csv").write_text(
        "id,day,moment\n0,2020-01-31,2020-01-31 06:00:00\n1,2020-02-02,2020-01-31 18:00:00\n"
    )
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", tmp_path / "n.csv")
    assert g.x.tolist() == [[0, 0], [2, 0.5]]
    assert told(g)["nodes.moment"] == ("a number: days since 2020-01-31T06:00", 2, 0)


def test_read_tables__leaves_out_text_that_is_nearly_unique_and_says_so(tmp_path, caplog):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    text = {"name": [f"n{i}" for i in range(200)], "city": [f"c{i % 80}" for i in range(200)]}
    nodes = parquet(tmp_path / "n.parquet", {"id": range(200), **text})
    g = read_tables(tmp_path / "g", edges, nodes)
    assert g.columns == tuple(f"city#{b}" for b in range(32))
    assert "column 'name' is left out: it has 200 distinct values in 200 rows" in caplog.text
    assert "graph.categorical=[name]" in caplog.text
    assert told(g)["nodes.name"][0].startswith("not used: nearly every row has a value of its own (a name, free text)")
    assert told(g)["nodes.city"] == ("32 0/1 columns, by a hash of the text", 80, 0)
    for columns in (Columns(categorical=("name",)), Columns(attributes=("name", "city"))):
        assert "name#0" in read_tables(tmp_path / "g", edges, nodes, columns=columns).columns


def test_read_tables__says_of_text_that_it_looks_like_numbers_or_dates(tmp_path, caplog):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    columns = {
        "us": [f"{17 * i:,}.50" for i in range(200)],
        "euro": [f"1.{100 + i},56 €" for i in range(200)],
        "day": [f"{1 + i % 12:02}/{1 + i % 11:02}/{1900 + i % 97}" for i in range(200)],
        "often": [f"{1 + i % 12:02}/02/{1990 + i % 7}" for i in range(200)],
        "code": [f"{i:05}" for i in range(200)],
        "phone": [f"+49 176 93{i:05}" for i in range(200)],
        "mixed": ["n/k" if i % 5 == 0 else f"{i},000.5" for i in range(200)],
    }
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", {"id": range(200), **columns}))
    uses = {name: told(g)[f"nodes.{name}"][0] for name in columns}
    assert uses["euro"] == "a number; read without the currency, with a decimal comma"
    for name, like in (("us", "numbers"), ("day", "dates"), ("often", "dates")):
        written = {"numbers": "1234.56", "dates": "2024-01-31"}[like]
        assert f"text that looks like {like}, which are read where they are written as {written}" in uses[name]
    assert "column 'us' is left out" in caplog.text
    assert "if these are dates, write them as 2024-01-31; graph.categorical=[day]" in caplog.text
    assert uses["often"].startswith("32 0/1 columns, by a hash of the text; text that looks")
    assert all("a name, free text" in uses[name] for name in ("code", "phone", "mixed"))


def test_read_tables__without_an_id_in_a_row_says_what_adding_nodes_needs(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": ["a", "b"], "target": [None, "c"]})
    nodes = parquet(tmp_path / "n.parquet", {"id": ["a", "b"], "w": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"1 missing ids .* drops their rows$"):
        read_tables(tmp_path / "g", edges, nodes)
    with pytest.raises(ValueError, match=r"and all that name no node; to add those, leave rows without an id out"):
        read_tables(tmp_path / "g", edges, nodes, policy=Policy(unknown="add"))


def test_read_tables__says_how_to_leave_out_whole_numbers_that_may_be_ids(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    columns = {"crm": range(7000, 7200), "age": [i % 80 for i in range(200)], "paid": [i + 0.5 for i in range(200)]}
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", {"id": range(200), **columns}))
    assert told(g)["nodes.crm"][0] == "a number, as it is; if it is an id, graph.exclude=[crm] leaves it out"
    assert told(g)["nodes.age"][0] == told(g)["nodes.paid"][0] == "a number, as it is"


def test_read_tables__gap_alone_is_no_anomaly(tmp_path):
    rng = np.random.default_rng(0)
    n = 2000
    columns = {
        "age": rng.normal(40, 10, n),
        "income": rng.lognormal(10, 1, n),
        "land": np.array(["at", "de", "fr", "li"])[rng.choice(4, n, p=[0.5, 0.3, 0.19, 0.01])],
        "born": DAY + np.arange(n) * timedelta(hours=7),
    }
    gap = {name: rng.random(n) < 0.03 for name in columns}
    cells = {name: pa.array(values, mask=gap[name]) for name, values in columns.items()}
    nodes = parquet(tmp_path / "n.parquet", {"id": range(n), **cells})
    g = read_tables(tmp_path / "g", parquet(tmp_path / "e.parquet", OK_EDGES), nodes)
    norms = np.linalg.norm(transform(g.x, scale="auto", columns=g.columns).x, axis=1)
    with_gap = np.any(list(gap.values()), axis=0)
    for share in (0.5, 0.95):
        assert np.quantile(norms[with_gap], share) < 1.05 * np.quantile(norms[~with_gap], share)


def test_read_tables__reads_csv_ids_to_the_last_digit(tmp_path):
    (tmp_path / "e.csv").write_text("source,target\n9007199254740993,9007199254740992\n")
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", policy=Policy(featureless="degree"))
    assert g.ids.to_pylist() == [9007199254740992, 9007199254740993]
    (tmp_path / "e.csv").write_text("source,target\n001,1\n-5,1\n")
    g = read_tables(
        tmp_path / "g", tmp_path / "e.csv", columns=Columns(id_type="text"), policy=Policy(featureless="degree")
    )
    assert g.ids.to_pylist() == ["-5", "001", "1"]


def test_read_tables__adds_unknown_nodes_as_rows_of_nulls(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": ["a", "z"], "target": ["b", "y"]})
    nodes = parquet(tmp_path / "n.parquet", {"id": ["b", "a"], "s": [1.0, 3.0], "k": ["u", "v"], "l": [0, 1]})
    g = read_tables(tmp_path / "g", edges, nodes, columns=Columns(label="l"), policy=Policy(unknown="add"))
    assert g.ids.to_pylist() == ["b", "a", "y", "z"]
    assert g.columns == ("s", "s is null", "k=u", "k=v", "k is null")
    assert g.x[2:].tolist() == [[2, 2, 0.5, 0.5, 2]] * 2
    assert g.y.tolist() == [0, 1, 0, 0]
    assert (ingest_summary(g).added_nodes, ingest_summary(g).unknown_edges, ingest_summary(g).imputed_values) == (
        2,
        0,
        4,
    )


def test_read_tables__keeps_the_first_of_repeated_rows(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": [1], "target": [2]})
    nodes = parquet(tmp_path / "n.parquet", {"id": [1, 2, 1, 3, 2], "s": [1.0, 2.0, 9.0, 3.0, np.nan]})
    g = read_tables(tmp_path / "g", edges, nodes, policy=Policy(repeated="first"))
    assert g.x.ravel().tolist() == [1, 2, 3]
    assert ingest_summary(g).repeated_nodes == 2


@pytest.mark.parametrize(("nonfinite", "filler"), [("zero", 0.0), ("mean", 2.0)])
def test_read_tables__replaces_values_that_are_not_finite(tmp_path, nonfinite, filler):
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    nodes = parquet(tmp_path / "n.parquet", {"id": range(5), "s": [1.0, -np.inf, 3.0, np.inf, 1e39]})
    g = read_tables(tmp_path / "g", edges, nodes, policy=Policy(nonfinite=nonfinite))
    assert g.x.ravel().tolist() == [1, filler, 3, filler, filler]
    assert ingest_summary(g).nonfinite_values == 3


def test_told__columns_that_later_files_alone_have(save):
    extra = {"kind": ["x", "x"], "size": [1.0, 2.0]}
    edges = save("e", {"source": [0, 1], "target": [1, 2]})
    suffix = edges.name.partition(".")[2]
    save("n1", {"id": [0, 1], "size": [1.0, 2.0]}), save("n2", {"id": [2, 3], "new": [1, 2]} | extra)
    g = read_tables(edges.parent / "g", edges, str(edges.parent / f"n?.{suffix}"))
    assert told(g)["nodes.kind"] == (f"not used: only in {edges.parent}/n2.{suffix}, not in the first file", None, None)
    assert [line["column"] for line in g.info["ingest"]["told"]][2:] == ["id", "size", "new", "kind"]
    assert g.columns == ("size",)


INDEX = ("not used: the index that pandas wrote beside the columns", None, None)


def test_index_of_pandas__is_no_attribute_and_told(tmp_path):
    edges, nodes = pd.DataFrame(OK_EDGES), pd.DataFrame(OK_NODES)
    edges.to_csv(tmp_path / "e.csv"), nodes[nodes.s != 2].to_csv(tmp_path / "n.csv")
    edges[:1].set_axis([7]).to_parquet(tmp_path / "e.parquet")
    nodes.set_axis([5, 9, 8]).to_parquet(tmp_path / "n.parquet")
    text = read_tables(tmp_path / "text", tmp_path / "e.csv", tmp_path / "n.csv", policy=Policy(unknown="add"))
    assert told(text)["edges.(no name)"] == told(text)["nodes.(no name)"] == INDEX
    packed = read_tables(tmp_path / "packed", tmp_path / "e.parquet", tmp_path / "n.parquet")
    assert told(packed)["edges.__index_level_0__"] == told(packed)["nodes.__index_level_0__"] == INDEX
    assert packed.columns == ("s",)
    assert text.columns == ("s", "s is null")
    named = Columns(attributes=("__index_level_0__",))
    assert read_tables(
        tmp_path / "g", tmp_path / "e.parquet", tmp_path / "n.parquet", columns=named
    ).x.ravel().tolist() == [5, 9, 8]
    (tmp_path / "u.csv").write_text(",id,s\n3,0,1\n1,1,1\n2,2,1\n")
    assert read_tables(tmp_path / "u", tmp_path / "e.csv", tmp_path / "u.csv").columns == ("", "s")


def test_decimal_commas__are_numbers_where_all_values_are(save):
    commas = {"s": ["6451,65", None, "-1.234,5"], "whole": ["1.234,5-", "2", "0"]}
    commas |= {"list": ["1,5", "1,2,3", "1,5"], "unsure": ["1,250", "17", "2,500"]}
    edges = save("e", OK_EDGES | {"amount": ["1,5", "2.000,25"]})
    nodes = save("n", {"id": [0, 1, 2]} | commas)
    g = read_tables(edges.parent / "g", edges, nodes, columns=Columns(weight="amount"))
    assert sorted(set(g.weights.tolist())) == [1.5, 2000.25]
    assert told(g)["edges.amount"][0].endswith("a heavier neighbour counts for more; written with a decimal comma")
    assert told(g)["nodes.s"] == (
        "a number, and a flag where there is a gap; written with a decimal comma",
        2,
        1,
    )
    assert told(g)["nodes.unsure"][0].startswith("a 0/1 column for each value")
    assert told(g)["nodes.list"][0].startswith("a 0/1 column for each value")
    np.testing.assert_allclose(g.x[[0, 2], 0], [6451.65, -1234.5])
    assert g.x[:, g.columns.index("whole")].tolist() == [-1234.5, 2, 0]
    kept = read_tables(edges.parent / "kept", edges, nodes, columns=Columns(categorical=("s",)))
    assert kept.columns[:2] == ("s=-1.234,5", "s=6451,65")
    if edges.name != "e.parquet":
        assert told(kept)["edges.amount"][0] == AMOUNT + "; written with a decimal comma"
    wrong = save("w", OK_EDGES | {"amount": ["1,5", "2.5"]})
    with pytest.raises(InputError, match=r"of type string; legal .* or all with a decimal comma \(6451,65\)"):
        read_tables(edges.parent / "w", wrong, nodes, columns=Columns(weight="amount"))


GROUPS = {"few": ["323", "2.955", "250.000"], "many": ["1.250.000", "-2.000", "1.000"]}
DECIMALS = {"three": ["1.250", "2.500", "12.125"], "small": ["0.125", "17", "1.250"], "whole": ["1", "20", "999"]}


@pytest.mark.parametrize("sign", [";", ","])
def test_points_of_thousands__are_read_where_semicolons_separate_and_told_of_elsewhere(tmp_path, sign):
    columns = {"id": ["0", "1", "2"], **GROUPS, **DECIMALS}
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    (tmp_path / "n.csv").write_text("\n".join(sign.join(row) for row in rows))
    (tmp_path / "e.csv").write_text("source,target,amount\n0,1,323\n1,2,2.955\n".replace(",", sign))
    weighed = Columns(weight="amount")
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", tmp_path / "n.csv", columns=weighed)
    few, factor = g.x[:, g.columns.index("few")].tolist(), 1000 if sign == ";" else 1
    np.testing.assert_allclose(few, [323, 2.955 * factor, 250 * factor])
    np.testing.assert_allclose(sorted(set(g.weights.tolist())), sorted([323, 2.955 * factor]))
    assert all(told(g)[f"nodes.{name}"][0] == "a number, as it is" for name in DECIMALS)
    np.testing.assert_allclose(g.x[:, g.columns.index("small")], [0.125, 17, 1.25])
    if sign == ";":
        assert told(g)["nodes.few"][0] == told(g)["nodes.many"][0] == "a number; its points are of thousands"
        assert told(g)["edges.amount"][0].endswith("; its points are of thousands")
        assert g.x[:, g.columns.index("many")].tolist() == [1_250_000, -2000, 1000]
    else:
        hint = "; if its points are of thousands (2.955 for 2955), write it without them"
        assert told(g)["nodes.few"][0] == "a number, as it is" + hint
        assert told(g)["edges.amount"][0].endswith(hint)


@pytest.mark.parametrize("mark", ["-", "--", "#N/A", "#NV", "n/a"])
def test_marks_of_gaps__are_gaps_in_a_csv(tmp_path, mark):
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    (tmp_path / "n.csv").write_text(f'id,s,t\na,1.5,{mark}\nb,{mark},x\nc,2.5,"{mark}"\n')
    g = read_tables(tmp_path / "g", tmp_path / "e.csv", tmp_path / "n.csv")
    assert g.columns == ("s", "s is null", f"t={mark}", "t=x", "t is null")
    assert g.x[:, 0].tolist() == [1.5, 2, 2.5]
    (tmp_path / "e.csv").write_text(f"source,target\na,b\n{mark},c\n")
    with pytest.raises(InputError, match="1 missing ids in the edge table: line 3"):
        read_tables(tmp_path / "h", tmp_path / "e.csv", tmp_path / "n.csv")


def test_text_of_nearly_all_numbers__says_how_many_and_shows_the_first_other(tmp_path, caplog):
    columns = {
        "sap": ["k.A." if i == 150 else f"{i},58-" for i in range(200)],
        "often": ["k.A." if i % 20 == 7 else str(i % 80) for i in range(200)],
        "few": [("k.A.", "?", "none", "n")[i // 20 % 4] if i % 20 == 7 else str(i % 10) for i in range(200)],
        "code": ["A1" if i == 150 else f"0{i:04}" for i in range(200)],
    }
    edges = parquet(tmp_path / "e.parquet", {"source": [0], "target": [1]})
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", {"id": range(200), **columns}))
    uses = {name: told(g)[f"nodes.{name}"][0] for name in columns}
    sap = "199 of its 200 values look like numbers, and not 'k.A.'"
    assert uses["sap"].startswith(
        f"not used: {sap}: graph.numbers=[sap] reads it, with gaps in place of these; graph.categorical"
    )
    assert f"{sap}, graph.numbers=[sap] reads it" in caplog.text
    most = "; 190 of its 200 values look like numbers, and not 'k.A.'"
    assert uses["often"].startswith("32 0/1 columns, by a hash of the text" + most)
    few = "190 of its 200 values look like numbers, and not 'k.A.', '?', 'none'"
    assert uses["few"].startswith(f"a 0/1 column for each value; {few}")
    assert f"column 'few' is read as text: {few}; graph.numbers=[few] reads it, with gaps" in caplog.text
    assert "a name, free text" in uses["code"]


def test_numbers__are_read_with_gaps_in_place_of_other_text(save):
    edges, count = save("e", {"source": [0], "target": [1]}), 200
    marks = {"whole": "{}", "comma": "{},5", "money": "{}.50 EUR"}
    columns = {name: [("k.A.", form.format(i))[i % 40 != 7] for i in range(count)] for name, form in marks.items()}
    g = read_tables(
        edges.parent / "g", edges, save("n", {"id": range(count), **columns}), columns=Columns(numbers=(*marks,))
    )
    assert g.columns == tuple(column for name in marks for column in (name, f"{name} is null"))
    kept = np.arange(count) % 40 != 7
    for at, name in enumerate(marks):
        np.testing.assert_array_equal(g.x[:, 2 * at + 1], ~kept)
        np.testing.assert_allclose(g.x[kept, 2 * at], np.arange(count)[kept] + 0.5 * (name != "whole"))
    mixed = save("m", {"id": range(4), "whole": ["1,5", "2.25", "k.A.", "3 EUR"]})
    with pytest.raises(InputError, match=r"graph\.numbers=\[whole\]: its values in m\..* are not written in one way"):
        read_tables(edges.parent / "h", edges, mixed, columns=Columns(numbers=("whole",)))


def test_minus_at_the_end__is_that_of_a_number(save):
    edges, nodes = save("e", OK_EDGES), save("n", {"id": [0, 1, 2], "s": ["12.5-", "3", "322.58"]})
    assert read_tables(edges.parent / "g", edges, nodes).x.ravel().tolist() == [-12.5, 3, pytest.approx(322.58)]


def test_text_of_numbers_and_dates__is_read_as_in_a_csv(save):
    columns = {
        "day": ["2008-10-01", None, "2008-10-03"],
        "moment": ["2008-10-01 06:00:00", "2008-10-01 18:00:00", "2008-10-02 06:00:00"],
        "number": ["7.123", "8.5", "-1"],
    }
    edges, nodes = save("e", OK_EDGES), save("n", {"id": [0, 1, 2], **columns})
    g = read_tables(edges.parent / "g", edges, nodes)
    assert g.columns == ("day", "day is null", "moment", "number")
    np.testing.assert_allclose(g.x[:, [0, 2, 3]], [[0, 0, 7.123], [1, 0.5, 8.5], [2, 1, -1]])
    assert told(g)["nodes.day"][0].startswith("a number: days since 2008-10-01, and a flag")


def test_text_of_codes__stays_text(tmp_path):
    codes = {"zip": ["007", "12", "300"], "zeros": ["01.5", "2.5", "3.5"], "no_day": ["2024-02-31"] * 3}
    nodes = parquet(tmp_path / "n.parquet", {"id": [0, 1, 2], **codes})
    g = read_tables(tmp_path / "g", parquet(tmp_path / "e.parquet", OK_EDGES), nodes)
    assert all(told(g)[f"nodes.{name}"][0].startswith("a 0/1 column for each value") for name in codes)


def test_read_tables__says_why_no_edge_is_left(save):
    edges = save("e", {"source": [0, 7, 8, 1], "target": [9, 0, 1, 1]})
    said = (
        r"no edges: 4 rows read, 1 of them self loops, and by graph\.unknown=drop 3 dropped that name an id that is not"
    )
    with pytest.raises(InputError, match=said):
        read_tables(edges.parent / "g", edges, save("n", OK_NODES), policy=Policy(unknown="drop"))


OK_NODES = {"id": [0, 1, 2], "s": [1.0, 2.0, 3.0]}
OK_EDGES = {"source": [0, 1], "target": [1, 2]}


@pytest.mark.parametrize(
    ("edges", "nodes", "columns", "message"),
    [
        ({"source": [0, 7, 8], "target": [1, 1, 9]}, OK_NODES, {}, r"2 rows name .* row 1: 7 -> 1; row 2: 8 -> 9"),
        ({"source": [0, -1], "target": [1, 1]}, OK_NODES, {}, r"1 negative .* edge table \(rows from 0\): row 1: -1"),
        ({"source": [0, 0.5], "target": [1, 1]}, OK_NODES, {}, r"1 fraction.* edge table \(rows from 0\): row 1: 0\.5"),
        ({"source": [0, None], "target": [1, 1]}, OK_NODES, {}, r"1 missing .* edge table \(rows from 0\): row 1"),
        ({"source": ["a"], "target": ["b"]}, OK_NODES, {}, "ids are of two types"),
        ({"source": pa.array([], pa.string()), "target": []}, OK_NODES, {}, r"^e\.parquet holds no rows"),
        ({"source": [0], "target": [0]}, OK_NODES, {}, "no edges: 1 rows read, 1 of them self loops"),
        (OK_EDGES, {"id": [0, 1, 2, 1], "s": [1.0] * 4}, {}, r"1 rows repeat an id .* row 3: 1\. graph\.repeated="),
        (OK_EDGES, {"id": [0, 1, -2], "s": [1.0] * 3}, {}, r"1 negative .* node table \(rows from 0\): row 2: -2"),
        (OK_EDGES, {"id": [0, 1, 2.5], "s": [1.0] * 3}, {}, "1 fractional ids in the node table"),
        (OK_EDGES, {"id": [0, 1, None], "s": [1.0] * 3}, {}, r"1 missing .* node table \(rows from 0\): row 2"),
        (OK_EDGES, {"id": pa.array([], pa.int64()), "s": pa.array([], pa.float64())}, {}, r"^n\.parquet holds no rows"),
        (OK_EDGES, {"id": [0, 1, 2], "s": [1, -np.inf, np.inf]}, {}, r"2 attribute .* row 1 column 's' = -inf; row 2"),
        (OK_EDGES, {"id": [0, 1, 2], "s": [1, np.nan, np.inf]}, {}, r": 1 attribute value is .* row 2 column 's'"),
        (OK_EDGES, {"id": [0, 1, 2], "s": [np.nan] * 3}, {}, "zero attributes"),
        (OK_EDGES, {"id": [0, 1, 2]}, {}, r"zero attributes; graph\.featureless=degree"),
        (OK_EDGES, {"id": [0, 1, 2], "s": pa.nulls(3)}, {}, "zero attributes"),
        (OK_EDGES, OK_NODES, {"source": "from"}, r"graph\.source_column='from' is no.* it has \['source', 'target'\]"),
        (OK_EDGES, OK_NODES, {"id": "name"}, r"graph\.id_column='name' is not a column"),
        (OK_EDGES, OK_NODES, {"label": "y"}, r"graph\.label_column='y' is not a column"),
        (OK_EDGES, OK_NODES, {"exclude": ("q",)}, r"graph\.exclude='q' is not a column"),
        (OK_EDGES, OK_NODES, {"label": "s", "attributes": ("s",)}, "zero attributes"),
        (OK_EDGES, {**OK_NODES, "l": [0, 1, 2]}, {"label": "l"}, r": 1 label is .* graph\.label_column='l' .* 2: 2"),
        (OK_EDGES, {**OK_NODES, "l": [0, 2, None]}, {"label": "l"}, "2 labels are not 0 or 1 .* row 2: None"),
        (OK_EDGES, {**OK_NODES, "l": ["a", "b", "c"]}, {"label": "l"}, r"graph\.label_column='l' is of type string"),
        (OK_EDGES, {**OK_NODES, "t": [[1], [2], [3]]}, {}, "column 't' of type .* is no attribute"),
    ],
)  # fmt: skip
def test_read_tables__refuses(tmp_path, edges, nodes, columns, message):
    paths = parquet(tmp_path / "e.parquet", edges), parquet(tmp_path / "n.parquet", nodes)
    with pytest.raises(ValueError, match=message):
        read_tables(tmp_path / "g", *paths, columns=Columns(**columns))
    assert not (tmp_path / "g").exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_read_tables__drops_rows_with_missing_ends_on_request(tmp_path):
    edges = parquet(tmp_path / "e.parquet", {"source": [0, None], "target": [1, 1]})
    g = read_tables(tmp_path / "g", edges, parquet(tmp_path / "n.parquet", OK_NODES), policy=Policy(unknown="drop"))
    assert (ingest_summary(g).unknown_edges, ingest_summary(g).num_edges) == (1, 1)


def test_read_tables__refuses_what_is_no_table(tmp_path):
    with pytest.raises(ValueError, match=r"graph\.path='nowhere\.parquet' names no Parquet or CSV file"):
        read_tables(tmp_path / "g", "nowhere.parquet")
    parquet(tmp_path / "mixed" / "a.parquet", OK_EDGES)
    (tmp_path / "mixed" / "b.csv").write_text("source,target\n")
    with pytest.raises(ValueError, match="must name files of one kind"):
        read_tables(tmp_path / "g", tmp_path / "mixed")
    with pytest.raises(ValueError, match="need a node table"):
        read_tables(tmp_path / "g", tmp_path / "mixed" / "a.parquet", columns=Columns(label="y"))


@pytest.mark.parametrize("ids", [pa.nulls(2), pa.nulls(2, pa.int64()), pa.nulls(2, pa.string())])
def test_edges_without_any_id__are_said_to_have_none(tmp_path, ids):
    edges = parquet(tmp_path / "e.parquet", {"source": ids, "target": ids})
    message = r"e\.parquet: graph\.source_column=source and graph\.target_column=target hold no ids"
    with pytest.raises(ValueError, match=message):
        read_tables(tmp_path / "g", edges, policy=Policy(featureless="degree"))


def test_read_tables__says_how_to_read_a_csv_column_that_changes_its_type(tmp_path):
    rows = "".join(f"{i},{i + 1}\n" for i in range(400_000))
    (tmp_path / "e.csv").write_text(f"source,target\n{rows}x,y\n")
    policy = Policy(featureless="degree")
    with pytest.raises(ValueError, match=r"e\.csv: 2 ids are no plain .*: line 400,002: x; .*graph\.id_type=text"):
        read_tables(tmp_path / "g", tmp_path / "e.csv", policy=policy)


def test_read_tables__keeps_the_old_graph_when_the_new_one_is_refused(tmp_path):
    edges, nodes = parquet(tmp_path / "e.parquet", OK_EDGES), parquet(tmp_path / "n.parquet", OK_NODES)
    before = read_tables(tmp_path / "g", edges, nodes).fingerprint
    parquet(edges, {"source": [0], "target": [9]})
    with pytest.raises(ValueError, match="unknown"):
        read_tables(tmp_path / "g", edges, nodes)
    assert (tmp_path / "g" / MANIFEST).exists()
    assert read_tables(tmp_path / "h", parquet(edges, OK_EDGES), nodes).fingerprint == before


DEBIAN = Columns(source="package", target="needs", id="package")


def test_read_tables__takes_debian_packages_as_they_come(real_data, tmp_path):
    edges, nodes = real_data("debian_packages/edges.parquet"), real_data("debian_packages/nodes.parquet")
    with pytest.raises(ValueError, match="4 rows repeat an id"):
        read_tables(tmp_path / "g", edges, nodes, columns=DEBIAN)
    with pytest.raises(ValueError, match="41,528 rows name an id that is not a node"):
        read_tables(tmp_path / "g", edges, nodes, columns=DEBIAN, policy=Policy(repeated="first"))
    dropped = read_tables(tmp_path / "d", edges, nodes, columns=DEBIAN, policy=Policy(unknown="drop", repeated="first"))
    assert (dropped.num_nodes, ingest_summary(dropped).unknown_edges, ingest_summary(dropped).repeated_nodes) == (
        62_662,
        41_528,
        4,
    )
    added = read_tables(tmp_path / "a", edges, nodes, columns=DEBIAN, policy=Policy(unknown="add", repeated="first"))
    assert ingest_summary(added).repeated_edges == 5_149
    assert added.num_nodes == 62_662 + ingest_summary(added).added_nodes
    assert {"section=libs", "source#0", "source is null", "arch_all"} <= set(added.columns)
    assert np.isfinite(added.x).all()


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.gz"])
def test_separator__is_a_space_where_the_first_lines_have_nothing_else(tmp_path, ending):
    text = b'protein1 protein2 combined_score\r\n9606.A 9606.B 490\r\n9606.B "9606.C" 198\r\n'
    path = tmp_path / f"links.{ending}"
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    columns = Columns(source="protein1", target="protein2", weight="combined_score")
    graph = read_tables(tmp_path / "g", path, columns=columns, policy=Policy(featureless="degree"))
    assert sorted(set(graph.weights.tolist())) == [198, 490]
    names = tmp_path / f"names.{ending}"
    text = b"full name\nAnna\nBert Brecht\n"
    names.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with pytest.raises(InputError, match=r"it has \['full name'\]$"):
        read_tables(tmp_path / "h", path, names, columns=columns)


@pytest.mark.parametrize(("sign", "ending"), [(";", "csv"), ("|", "csv.gz"), ("\t", "csv"), (",", "csv")])
def test_separator__is_found_in_the_first_line(tmp_path, sign, ending):
    def write(name: str, rows: list[list[str]]) -> str:
        text = "\n".join(sign.join(row) for row in rows).encode()
        path = tmp_path / f"{name}.{ending}"
        path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
        return str(path)

    edges = write("edges", [["source", "target"], ["a", "b"], ["b", "c"]])
    notes = '"one, two; three | four"'
    nodes = write("nodes", [["id", "size", "note"], ["a", "1.5", notes], ["b", "2", "x"], ["c", "3", "x"]])
    graph = read_tables(tmp_path / "graph", edges, nodes)
    assert graph.num_edges == 2
    assert graph.columns[0] == "size"
    assert np.asarray(graph.x)[:, 0].tolist() == [1.5, 2.0, 3.0]


@pytest.mark.parametrize("unknown", ["error", "drop", "add"])
def test_records_of_rows__are_gone_with_success_and_failure(tmp_path, unknown):
    edges = {"source": ["b", "a", "b"], "target": ["a", "c", "c"], "kind": ["x", None, "y"], "paid": [1.0, 2.0, 4.0]}
    nodes = {"id": ["b", "c", "a"], "s": [1.0, 2.0, 3.0]}
    columns, policy = Columns(type="kind", weight="paid"), Policy(unknown=unknown)
    g = read_tables(tmp_path / "g", pa.table(edges), pa.table(nodes), columns=columns, policy=policy)
    assert g.weights.tolist() == [4, 1, 4, 2, 1, 2]  # nodes b, c, a
    assert g.edge_types.tolist() == [2, 1, 2, 0, 1, 0]
    assert not [path for path in g.path.iterdir() if path.is_dir()]
    with pytest.raises(ValueError, match="weights are missing"):
        read_tables(tmp_path / "h", pa.table(edges | {"paid": [1.0, None, 4.0]}), pa.table(nodes), columns=columns)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_types__may_be_an_end_or_the_weight(tmp_path):
    edges = pa.table({"source": [7, 8], "target": [8, 9], "paid": [2, 5]})
    for column, names in (("source", ["7", "8"]), ("paid", ["2", "5"])):
        columns = Columns(type=column, weight="paid")
        g = read_tables(tmp_path / column, edges, columns=columns, policy=Policy(featureless="degree"))
        assert (g.info["edge_types"], g.edge_types.tolist(), g.weights.tolist()) == (names, [1, 1, 2, 2], [2, 2, 5, 5])


def test_workbook__is_read_as_the_same_table_of_text(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    rows = [("source", "target", "amount"), *((f"0{i}", f"0{(i * 7 + 1) % 20}", i / 4) for i in range(20))]
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "edges.xlsx")
    (tmp_path / "edges.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    degree = Policy(featureless="degree")
    of_text, of_book = (
        read_tables(tmp_path / end, tmp_path / f"edges.{end}", policy=degree) for end in ("csv", "xlsx")
    )
    assert of_text.fingerprint == of_book.fingerprint
