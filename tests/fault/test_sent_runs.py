"""What came with version 1.0 in a run that somebody sent, or a careless user: new edges, queries, plug-ins, cleaning.

`test_hostile_runs.py` goes through all files of a run; here are single faults that were found beside it.
"""

import gc
import os
import shutil
import signal
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import FAST, as_words, small_detector, small_graph
from strangers import repair, write_tables

from hcm_scale import HCM, plugins
from hcm_scale.base import files
from hcm_scale.cli import commands
from hcm_scale.cli.errors import error_line
from hcm_scale.cli.main import main
from hcm_scale.encoders import Encoder, Gat
from hcm_scale.ingest.remote import named_files, queries_stamp, query_tables
from hcm_scale.posterior.samples import open_samples
from hcm_scale.review import verdicts
from hcm_scale.run.finished import FinishedRun
from hcm_scale.serve.server import Views

EMBEDDED = "purified-00000.npy"


@pytest.fixture(scope="module")
def sent(tmp_path_factory) -> Path:
    """A finished run of tables that has scored new edges."""
    place = tmp_path_factory.mktemp("sent")
    write_tables(place)
    edges, nodes, run = place / "edges.parquet", place / "nodes.parquet", place / "run"
    assert main(["run", str(edges), str(nodes), f"run_dir={run}", *as_words(FAST)]) == 0
    commands.score_edges([str(run), str(place / "new.parquet"), "-o", str(place / "first.csv")])
    return run


@pytest.fixture
def run(sent, tmp_path) -> Path:
    return Path(shutil.copytree(sent, tmp_path / "run"))


def edit(path: Path, **changes: object) -> None:
    """Changes entries of a JSON file, and its seal; `section__key` is one in a section."""
    body = files.read_sealed(path)
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (body[section] if section else body)[key] = value
    files.write_sealed(path, body)


# New edges.


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:2],  # read behind its end
        lambda a: a.ravel(),
        lambda a: a.astype([("a", "f4")]),
        lambda a: a.astype(np.int32),
        lambda a: a * np.nan,
        np.asfortranarray,
    ],
)
def test_embeddings__of_others_are_refused_by_name(run, sent, change):
    path = run / "embeddings" / EMBEDDED
    np.save(path, change(np.load(path)))
    edit(run / "embeddings" / files.MANIFEST, files={EMBEDDED: files.hash_file(path)})
    with pytest.raises(files.FolderError, match=EMBEDDED):
        commands.score_edges([str(run), str(sent.parent / "new.parquet"), "-o", str(run / "out.csv")])


@pytest.mark.parametrize("entry", [{"files": [1]}, {"files": None}, {"flags_end": "x"}, {"flags_end": None}])
def test_embeddings__whose_manifest_is_of_other_types_are_refused_by_name(run, sent, entry):
    edit(run / "embeddings" / files.MANIFEST, **entry)
    with pytest.raises(files.FolderError, match=r"embeddings/manifest\.json is damaged"):
        commands.score_edges([str(run), str(sent.parent / "new.parquet"), "-o", str(run / "out.csv")])


@pytest.mark.parametrize("option", ["graph__source_column", "graph__id_type", "seed"])
def test_options__of_others_are_refused_by_the_name_of_their_file(run, sent, option):
    edit(run / "config.json", **{option: [1]})
    with pytest.raises(files.FolderError, match=f"{run / 'config.json'}"):
        commands.score_edges([str(run), str(sent.parent / "new.parquet"), "-o", str(run / "out.csv")])


def test_scored_edges__empty_no_folder_that_a_link_leads_to(run, sent, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    (tmp_path / ".out.csv.parts").symlink_to(mine)
    with pytest.raises(ValueError, match="is a link"):
        commands.score_edges([str(run), str(sent.parent / "new.parquet"), "-o", str(tmp_path / "out.csv")])
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("entry", [{"fdr": {}}, {"num_flagged": {"a": 1}}, {"edges": [None]}, {"edges": [{}]}])
def test_strange_edges__that_cannot_be_shown_are_ranked_again(run, entry):
    shown = Views(FinishedRun(run)).edges({})
    edit(run / "strange_edges.json", **entry)
    assert Views(FinishedRun(run)).edges({}) == shown


def test_source__of_another_type_is_refused_by_the_name_of_its_file(run, tmp_path):
    words = [str(run), str(tmp_path / "out.csv"), "--edges", "--top", "3"]
    for source in ([1], "nowhere"):
        edit(run / "config.json", graph__source=source)
        with pytest.raises(files.FolderError, match=r"config\.json is damaged"):
            commands.export_run(words)
        with pytest.raises(files.FolderError, match=r"config\.json is damaged"):
            commands.export_run([*words, "--pairs"])  # which files it must not write to is not known


# Queries.


def writes(place: Path) -> list[str]:
    copy, select = f"copy (select 1) to '{place}'", "select 1 as source, 2 as target"
    return [
        f"{select}) q; {copy}; select 1, 2 from (select 1",
        f"select 1; {copy}",
        copy,
        f"with a as ({copy}) {select}",
        f"with a as (insert into t values (1) returning *) {select}",
        f"{select} union all select 1, 2 from enable_profiling(save_location='{place}')",
        f"{select} union all select 1, 2 from enable_logging(storage_path='{place}')",
        f"{select} where exists (from enable_logging(storage_path='{place}'))",
        f"{select} from query('select 1')",
        f"attach '{place}' as a",
    ]


def reads_elsewhere(place: Path) -> list[str]:
    return [
        f"select content as source, 1 as target from read_text('{place}')",
        f"select content as source, 1 as target from read_blob('{place}')",
        f"select file as source, 1 as target from glob('{place.parent}/*')",
        "select 1 as source, 2 as target from 'https://127.0.0.1:9/edges.parquet'",
        "select 1 as source, 2 as target from read_parquet('s3://bucket/edges.parquet')",
        f"select * from read_csv(concat('{place.parent}', '/secret.csv'))",
        "select * from sqlite_scan('a.db', 'b')",
        "select * from secret",
    ]


def test_query__that_does_more_than_read_what_it_names_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    place, home = tmp_path / "stolen.csv", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    secret = pa.table({"source": ["hush"], "target": ["hush"]})  # noqa: F841  a variable that DuckDB would find
    (tmp_path / "secret.csv").write_text("source,target\nhush,hush\n")
    names = sorted(path.name for path in tmp_path.iterdir())
    for query in [*writes(place), *reads_elsewhere(tmp_path / "secret.csv"), "load '/nowhere/extension'", ""]:
        with pytest.raises(ValueError, match=r"graph\.edges"):
            queries_stamp("duckdb://", {"graph.edges": query})
        with (
            pytest.raises(ValueError, match=r"graph\.edges"),
            query_tables(tmp_path / "graph", "duckdb://", {"graph.edges": query}),
        ):
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert not list(home.iterdir())
    csv = f"from read_csv(['{tmp_path}/secret.csv'], header = true)"
    for query in ("from range(3) t(source)", "with a as (select 1 as b) select * from a -- all", "values (1, 2);", csv):
        with query_tables(tmp_path / "graph", "duckdb://", {"graph.edges": query}) as (path,):
            assert pq.read_table(path).num_rows in (1, 3)


def test_query__of_a_database_that_a_stranger_filled_can_do_nothing_either(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    stolen = tmp_path / "stolen"
    with duckdb.connect(str(tmp_path / "a.db")) as database:
        database.execute("create table t as select 1 as source, 2 as target")
        database.execute(f"create macro f() as table from enable_logging(storage_path='{stolen}')")
        database.execute(f"create view v as select 1 as source, 2 as target from glob('{tmp_path}/*')")
    uri = f"duckdb://{tmp_path}/a.db"
    assert queries_stamp(uri, {"graph.edges": "from t"})
    for query in ("from f()", "from v"):
        with pytest.raises(ValueError, match=r"graph\.edges"):
            queries_stamp(uri, {"graph.edges": query})
    assert not stolen.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.timeout(60)
def test_query__of_a_pipe_is_refused_and_not_waited_for(tmp_path):
    pytest.importorskip("duckdb")
    os.mkfifo(tmp_path / "edges.csv")
    for query in (f"from '{tmp_path}/edges.csv'", f"from read_csv(['{tmp_path}/edges.csv'])"):
        with pytest.raises(ValueError, match="a pipe or a device"):
            queries_stamp("duckdb://", {"graph.edges": query})


def test_files_of_a_query__are_those_that_its_glob_matches(tmp_path):
    pytest.importorskip("duckdb")
    names = ["a.csv", "b.csv", "notes.txt", "deep/c.csv", "deep/.d.csv"]
    (tmp_path / "deep").mkdir()
    for name in names:
        (tmp_path / name).write_text("source,target\n1,2\n")

    def named(pattern: str) -> list[str]:
        paths = named_files("duckdb://", {"graph.edges": f"from read_csv('{pattern}')"}, tmp_path)
        return sorted(str(path.relative_to(tmp_path)) for path in paths)

    assert named("*.csv") == ["a.csv", "b.csv"]
    assert named("**/*.csv") == ["a.csv", "b.csv", "deep/.d.csv", "deep/c.csv"]
    assert named(str(tmp_path)) == sorted(names)
    assert queries_stamp("duckdb://", {"graph.edges": f"from '{tmp_path}/*.csv'"})[0][0] == "2"


def test_query__in_a_run_of_others_is_not_run_unless_told(run, tmp_path):
    pytest.importorskip("duckdb")
    stolen, out = tmp_path / "stolen.csv", ["--edges", "--top", "3"]
    edit(run / "config.json", graph__path="https://127.0.0.1:9/edges.csv")
    with pytest.raises(ValueError, match=r"was not made here, and fetches https"):
        commands.export_run([str(run), str(tmp_path / "out.csv"), *out])
    source = {"graph__source": "sql", "graph__path": "duckdb://", "graph__nodes": None}
    for query in ["select 1 as source, 2 as target", *writes(stolen)]:
        edit(run / "config.json", **source, graph__edges=query)
        with pytest.raises(ValueError, match=r"was not made here, and runs a query .* --trust-queries"):
            commands.export_run([str(run), str(tmp_path / "out.csv"), *out])
        with pytest.raises(ValueError, match=r"graph\.edges"):
            commands.export_run([str(run), str(tmp_path / "out.csv"), *out, "--trust-queries"])
        assert "3 edges" in commands.export_run([str(run), str(tmp_path / "out.csv"), *out, "--pairs"])
    assert not stolen.exists()


# Plug-ins.


def typed_in(source: str) -> object:
    """What an interpreter or a notebook makes of the source, which nobody can read again."""
    names = {"Encoder": Encoder, "Gat": Gat, "__name__": "__main__"}
    exec(source, names)
    return names["Mine"]


@pytest.mark.parametrize(
    "source",
    [
        "class Mine(Gat): heads = {}",
        "class Mine(Encoder):\n def make_layer(self, a, b, k={}): return k",
        "class Mine(Encoder):\n @staticmethod\n def of(a): return a + {}",
        "def Mine(graph, features):\n f = lambda a: a\n return f(features) + {}",
        "def Mine(graph, features):\n f = lambda a: a + {}\n return f(features)",
        "def Mine(graph, features, *, k={}): return k",
        "k = {}\ndef Mine(graph, features): return k",
    ],
)
def test_identity__differs_where_the_plug_in_does(source):
    one, other, same = (plugins._source_hash(typed_in(source.format(number))) for number in (2, 8, 2))
    assert one == same != other


def test_identity__of_a_class_follows_what_its_methods_close_over():
    def make(k: int) -> type:
        class Mine(Encoder):
            def make_layer(self, num_inputs, num_outputs):
                return num_outputs * k

        return Mine

    assert plugins._source_hash(make(2)) == plugins._source_hash(make(2)) != plugins._source_hash(make(3))


def test_evidence__that_reads_a_number_of_the_notebook_is_made_again_where_it_changed(tmp_path):
    names: dict[str, object] = {"np": np, "sign": 1.0}
    exec("def along(graph, features): return sign * np.arange(graph.num_nodes)", names)
    detector = small_detector(run_dir=tmp_path / "run", evidence=[names["along"]], views=["purified"])
    graph, places = small_graph(), []
    for names["sign"] in (1.0, -1.0):
        found = detector.fit(graph).table
        places.append(found["along_rank"].to_numpy()[np.argsort(found["node"].to_numpy())])
    assert np.array_equal(places[0], 1 + len(places[1]) - places[1])


@pytest.mark.parametrize("name", ["gcn@", "gcn@x", "os:system", "../../mine"])
def test_samples__of_an_encoder_that_is_none_are_refused_by_name(run, name):
    path = run / "train-purified" / "samples" / files.MANIFEST
    model = files.read_sealed(path)["model"]
    edit(path, model=model | {"encoder": name})
    repair(run)
    with pytest.raises(files.FolderError, match=str(path)):
        open_samples(path.parent)


def test_load__names_the_folder_that_needs_a_plug_in(tmp_path):
    small_detector(small_graph(), views=["purified"]).save(tmp_path / "saved")
    parameters = files.read_sealed(tmp_path / "saved" / files.MANIFEST)["parameters"]
    edit(tmp_path / "saved" / files.MANIFEST, parameters=parameters | {"evidence": ["nowhere"]})
    with pytest.raises(files.FolderError, match=f"{tmp_path / 'saved'}.*evidence=nowhere"):
        HCM.load(tmp_path / "saved")


@pytest.mark.parametrize("line", ['{"step": "x", "loss": [1]}', '{"loss": "x"}'])
def test_trace__of_others_is_refused_by_name(tmp_path, line):
    small_detector(small_graph(), views=["purified"]).save(tmp_path / "saved")
    path = tmp_path / "saved" / "train-purified" / "metrics.jsonl"
    path.write_text(f"{line}\n")
    repair(tmp_path / "saved")
    with pytest.raises(files.FolderError, match=str(path)):
        _ = HCM.load(tmp_path / "saved").trace_


# Careless users.


def test_clean__leaves_a_folder_of_runs_that_is_itself_an_old_run(sent, tmp_path):
    runs = Path(shutil.copytree(sent, tmp_path / "runs"))
    for name in ("old", "young", "judged", "linked"):
        shutil.copytree(sent, runs / name)
    for path in (runs, runs / "old", runs / "judged", runs / "linked"):
        os.utime(path / "stages.json", (0, 0))
    verdicts.append(runs / "judged", [("n1", "bad")])
    (runs / "latest.html").symlink_to(runs / "linked" / "report" / "report.html")
    edit(runs / "young" / "config.json", trained=[1])
    commands.clean([str(runs), "--keep", "30d", "--yes"])
    assert [(runs / name).is_dir() for name in ("old", "young", "judged", "linked")] == [False, True, True, True]


@pytest.mark.parametrize("words", ["teach {} verdicts", "teach RUN {}", "score-edges RUN {}", "doctor {}", "clean {}"])
@pytest.mark.parametrize("address", ["https://me:HUSH@host.invalid/a.csv", "https://host.invalid/a.csv?sig=HUSH"])
def test_secret__in_a_word_of_a_command_is_never_shown(words, address, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(words.format(address).split()) == 2
    said = "".join(capfd.readouterr())
    assert "HUSH" not in said
    assert "holds a secret" in said


def test_full_disk__of_an_export_is_named_by_its_file(sent, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for name in ("list.csv", "list.parquet", "list.xlsx") if find_spec("xlsxwriter") else ("list.csv",):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
            with pytest.raises(OSError, match="too large") as raised:
                commands.export_run([str(sent), str(tmp_path / name)])
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert error_line(raised.value).startswith(f"{tmp_path / name} cannot be written")
            del raised
            with warnings.catch_warnings(action="ignore"):  # XlsxWriter does not close its temporary files then
                gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_views_of_text__in_a_table_of_edges_are_exported(tmp_path):
    write_tables(tmp_path)
    edges = pq.read_table(tmp_path / "edges.parquet")
    note = pa.array(["é"] * len(edges), pa.string_view())
    pq.write_table(edges.append_column("note", note), tmp_path / "edges.parquet")
    data = tmp_path / "edges.parquet", tmp_path / "nodes.parquet"
    small_detector(data, run_dir=tmp_path / "run", views=["purified"])
    commands.export_run([str(tmp_path / "run"), str(tmp_path / "out.csv"), "--edges", "--top", "3"])
    assert "é" in (tmp_path / "out.csv").read_text()
