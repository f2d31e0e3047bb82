"""Queries as tables: DuckDB as it is, and a PostgreSQL server that the tests start."""

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.config import Config, SqlGraph
from hcm_scale.ingest.readers import column_report
from hcm_scale.run import pipeline
from hcm_scale.run.sources import check_outside_run_dir, reader, stamp

duckdb = pytest.importorskip("duckdb")

EDGES, NODES = "select payer as source, payee as target, paid from transfers", "select * from accounts"
FILL = [
    "create table accounts (id varchar(8), opened date, credit numeric(10, 2), kind text, open boolean, risk real)",
    "insert into accounts values ('a', '2020-01-01', 1.50, 'shop', true, 1), ('b', '2020-01-03', 2.25, null, false, 2),"
    " ('c', null, null, 'bank', null, 4)",
    "create table transfers (payer varchar(8), payee varchar(8), paid numeric(10, 2))",
    "insert into transfers values ('a', 'b', 9), ('b', 'c', 1), ('b', 'a', 3)",
]
COLUMNS = ("opened", "opened is null", "credit", "credit is null", "kind=bank", "kind=shop", "kind is null")
ROWS = [[0, 0, 1.5, 0, 0, 1, 0], [2, 0, 2.25, 0, 0.5, 0.5, 1], [1, 1, 1.875, 1, 1, 0, 0]]


@pytest.fixture
def database(tmp_path):
    """The URI of a DuckDB file."""
    with duckdb.connect(str(tmp_path / "bank.db")) as connection:
        for statement in FILL:
            connection.execute(statement)
    return f"duckdb://{tmp_path}/bank.db"


def check_graph(made, folder):
    """Whether the accounts and transfers became what they should, and nothing was left beside them."""
    assert (made.columns[:7], made.num_edges) == (COLUMNS, 2)
    np.testing.assert_allclose(made.x[np.argsort(made.ids.to_pylist()), :7], ROWS)
    told = {line["column"]: line["use"] for line in made.info["ingest"]["told"]}
    assert told["paid"] == "the amount of each row"
    assert [path.name for path in folder.glob("*graph*")] == ["graph"]


def test_queries__are_read_as_tables(database, tmp_path):
    graph = SqlGraph(path=database, edges=EDGES, nodes=f"{NODES}; ")
    check_graph(reader(graph)(tmp_path / "graph"), tmp_path)


def test_queries__bring_weights(database, tmp_path):
    made = reader(SqlGraph(path=database, edges=EDGES, nodes=NODES, weight_column="paid"))(tmp_path / "graph")
    names = made.ids.to_pylist()
    row = slice(*made.indptr[names.index("b") :][:2])
    assert {names[v]: w for v, w in zip(made.indices[row], made.weights[row], strict=True)} == {"a": 12, "c": 1}


def test_file__may_be_named_as_sqlalchemy_does(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = reader(SqlGraph(path="duckdb:///bank.db", edges=EDGES, featureless="degree"))(tmp_path / "graph")
    assert made.ids.to_pylist() == ["a", "b", "c"]


def test_queries__read_files_where_they_lie(tmp_path):
    pq.write_table(pa.table({"u": [0, 1], "v": [1, 2]}), tmp_path / "e.parquet")
    (tmp_path / "n.csv").write_text("id,s\n0,1.5\n1,2.5\n2,3.5\n")
    edges, nodes = f"select u as source, v as target from '{tmp_path}/e.parquet' -- all", f"from '{tmp_path}/n.csv'"
    graph = SqlGraph(path="duckdb://", edges=edges, nodes=nodes)
    before = stamp(graph)
    made = reader(graph)(tmp_path / "graph")
    assert (made.x.ravel().tolist(), made.num_edges) == ([1.5, 2.5, 3.5], 2)
    assert stamp(graph) == before
    (tmp_path / "n.csv").write_text("id,s\n0,1.5\n1,2.5\n2,7.5\n")
    assert stamp(graph) != before


def test_columns__are_guessed_where_nobody_named_them(database, tmp_path, caplog):
    caplog.set_level("INFO")
    nodes = "select opened, id as account, credit from accounts"
    graph = SqlGraph(
        path=database, edges="select paid, payer, payee from transfers", nodes=nodes, source_column="payer"
    )
    with pytest.raises(
        ValueError, match=r"no column of graph\.nodes='select opened.* holds the ids in 'payer' and 'payee' of graph"
    ):
        reader(replace(graph, nodes="select opened, kind from accounts"))(tmp_path / "graph")
    graph.edges = "select payer, payee, paid from transfers"
    made = reader(graph)(tmp_path / "graph")
    assert (made.num_edges, made.ids.to_pylist()) == (2, ["a", "b", "c"])
    assert "guessed from the tables: graph.target_column=payee, graph.id_column=account" in caplog.text


BIOS = "('a', [3, 4, 0]), ('b', [0, 0, 2.5]), ('c', null)"
DIRECTIONS = [[0.6, 0.8, 0, 0], [0, 0, 1, 0], [0.3, 0.4, 0.5, 1]]


def check_vectors(path, table, columns, folder):
    """Whether each of the columns, of the accounts a, b and c, becomes one attribute, the directions of vectors."""
    for number, column in enumerate(columns):
        nodes = f"select id, {column} as bio from {table}"
        made = reader(SqlGraph(path=path, edges=EDGES, nodes=nodes))(folder / f"graph {number}")
        assert made.columns == ("bio[0]", "bio[1]", "bio[2]", "bio is null")
        np.testing.assert_allclose(made.x, DIRECTIONS, rtol=1e-6)
        assert "one attribute, the direction of vectors of 3" in column_report(made)


def test_vectors__are_lists_arrays_or_text(database, tmp_path):
    with duckdb.connect(database.removeprefix("duckdb://")) as connection:
        connection.execute(f"create table bios as select * from (values {BIOS}) v(id, bio)")
    columns = ("bio::float[]", "bio::double[3]", "bio::text", "replace(bio::text, '[', '{').replace(']', '}')")
    check_vectors(database, "bios", columns, tmp_path)
    nodes = "select id, case id when 'b' then '[1, 2]' else bio::text end as bio from bios"
    with pytest.raises(ValueError, match=r"1 vectors are not as many finite numbers .*: row 1 column 'bio' = \[1"):
        reader(SqlGraph(path=database, edges=EDGES, nodes=nodes))(tmp_path / "graph")


def test_query_without_rows__is_named(database, tmp_path):
    with pytest.raises(ValueError, match=r"^graph\.nodes='select id from accounts where false' holds no rows"):
        reader(SqlGraph(path=database, edges=EDGES, nodes="select id from accounts where false"))(tmp_path / "graph")


def test_stamp__is_of_the_rows(database):
    graph = SqlGraph(path=database, edges=EDGES, nodes=NODES)
    before = stamp(graph)
    for statement, is_same in (("create table other (x int)", True), ("update accounts set risk = 3", False)):
        with duckdb.connect(database.removeprefix("duckdb://")) as connection:
            connection.execute(statement)
        assert (stamp(graph)[1] == before[1]) == is_same
        assert stamp(graph)[0] == before[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, r"graph\.path='' is no database that can be read; legal are duckdb:///file\.db"),
        ({"path": "mysql://h/db"}, r"graph\.path='mysql://h/db' is no database"),
        ({"path": "duckdb:///none.db"}, r"graph\.path=duckdb:///none\.db: there is no file /none\.db or none\.db"),
        ({"path": "duckdb://broken.db"}, r"graph\.path=duckdb://broken\.db: .*not a valid DuckDB database"),
        ({"path": "postgresql://u:hush@h/db"}, r"graph\.path=postgresql://\.\.\. holds a secret.*PGPASSWORD"),
        ({"path": "postgresql://h/db?password=hush"}, r"graph\.path=postgresql://\.\.\. holds a secret"),
        ({"edges": ""}, r"graph\.edges is empty; it is a query, such as graph\.edges='select"),
        (
            {"edges": "select * from nope"},
            r"^graph\.edges='select \* from nope': Catalog Error: Table with name nope does not exist!$",
        ),
        ({"nodes": "selec"}, r"graph\.nodes='selec': .*syntax error"),
        ({"edges": "drop table accounts"}, r"graph\.edges='drop table accounts': "),
        ({"edges": "select payer from transfers"}, r"^graph\.edges='select payer from transfers' has the columns \["),
        (
            {"nodes": "select id from accounts", "edge_attributes": "none"},
            r"^graph\.edges, graph\.nodes: the graph has zero attributes",
        ),
    ],
)
def test_faults__are_one_line_that_names_the_option(database, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("broken.db").write_bytes(b"x" * 5000)
    graph = SqlGraph(**{"path": database, "edges": EDGES, "nodes": NODES} | options)
    with pytest.raises(ValueError, match=message) as caught:
        reader(graph)(tmp_path / "graph")
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)
    assert not list(tmp_path.glob("*graph*"))


def test_run__knows_the_rows_it_was_made_from(database, tmp_path):
    config = Config(graph=SqlGraph(path=database, edges=EDGES, nodes=NODES), run_dir=str(tmp_path / "run"))
    pipeline.run(config, until="ingest")
    kept = (tmp_path / "run" / "graph" / "manifest.json").stat().st_mtime_ns
    pipeline.run(config, until="ingest")
    assert (tmp_path / "run" / "graph" / "manifest.json").stat().st_mtime_ns == kept
    with duckdb.connect(database.removeprefix("duckdb://")) as connection:
        connection.execute("delete from transfers where payer = 'a'")
    pipeline.run(config, until="ingest")
    assert (tmp_path / "run" / "graph" / "manifest.json").stat().st_mtime_ns != kept
    check_outside_run_dir(config.graph, tmp_path)


def test_extra__is_named_where_it_is_missing(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(
        ValueError, match=r"graph\.path=duckdb://.* needs the extra sql: pip install 'hcm-scale\[sql\]'"
    ):
        stamp(SqlGraph(path=database, edges=EDGES))


@pytest.fixture(scope="module")
def postgres():
    """The URI of a PostgreSQL server, which refuses to be started by root."""
    pytest.importorskip("adbc_driver_postgresql")
    server = shutil.which("postgres")
    if server is None:
        pytest.skip("postgres is not at hand")
    home, tools = Path("/tmp") / f"hcm-postgres-{os.getpid()}", Path(server).resolve().parent
    home.mkdir()
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(home, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def call(tool, *arguments):
        subprocess.run([tools / tool, *arguments], user=user, cwd=home, check=True, stdout=subprocess.DEVNULL)

    try:
        call("initdb", "-D", home / "data", "-U", "reader", "--auth=trust", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -k {home} -h 127.0.0.1"
        call("pg_ctl", "-D", home / "data", "-w", "-l", home / "log", "-o", options, "start")
        yield f"postgresql://reader@127.0.0.1:{port}/postgres"
        call("pg_ctl", "-D", home / "data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home)


@pytest.mark.gate
def test_postgres__is_read_as_duckdb_is(postgres, tmp_path):
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        for statement in FILL:
            cursor.execute(statement)
        connection.commit()
    graph = SqlGraph(path=postgres, edges=EDGES, nodes=NODES)
    before = stamp(graph)
    check_graph(reader(graph)(tmp_path / "graph"), tmp_path)
    assert stamp(graph) == before
    with dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute("update accounts set credit = 7 where id = 'a'")
        connection.commit()
    assert stamp(graph)[0] == before[0]
    assert stamp(graph)[1] != before[1]
    for options, message in (
        ({"edges": "select * from nope"}, r"^graph\.edges='select \* from nope': relation \"nope\" does not exist$"),
        ({"edges": "delete from transfers returning payer"}, r"^graph\.edges='delete .*read-only|syntax error"),
        (
            {"path": postgres.replace("/postgres", "/none")},
            r"^graph\.path=postgresql://.*database \"none\" does not exist",
        ),
        ({"path": "postgresql://reader@127.0.0.1:9/db"}, r"^graph\.path=postgresql://.*Connection refused"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            reader(SqlGraph(**{"path": postgres, "edges": EDGES, "nodes": NODES} | options))(tmp_path / "other")
        assert "\n" not in str(caught.value)


@pytest.mark.gate
def test_pgvector__is_one_attribute(postgres, tmp_path):
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_available_extensions where name = 'vector'")
        if cursor.fetchone() == (0,):
            pytest.skip("the server has no pgvector")
        for statement in (
            "create extension vector",
            'create table bios (id text, bio vector(3), "Half ""1""" halfvec(3))',
            "insert into bios values ('a', '[3,4,0]', '[3,4,0]'), ('b', '[0,0,2.5]', '[0,0,2.5]'), ('c', null, null)",
            "create table if not exists transfers (payer varchar(8), payee varchar(8), paid numeric(10, 2))",
            "insert into transfers values ('a', 'b', 9), ('b', 'c', 1)",
        ):
            cursor.execute(statement)
        connection.commit()
    check_vectors(postgres, "bios", ("bio", '"Half ""1"""', "bio::real[]", "bio::text"), tmp_path)
    nodes = 'select id, "Half ""1""" from bios;'
    made = reader(SqlGraph(path=postgres, edges=EDGES, nodes=nodes))(tmp_path / "graph")
    assert made.columns[0] == 'Half "1"[0]'
