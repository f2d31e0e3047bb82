"""Commands without a configuration: options, and doctor, export and clean over one small finished run."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hcm_scale.base.files import FolderError, file_lock, read_sealed, write_sealed
from hcm_scale.cli import commands, help
from hcm_scale.config import Config, options, with_options
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.run.workspace import write_list
from hcm_scale.serve.server import Views
from hcm_scale.synthetic import families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
FEW = {"hops.num_sources": 30, "hops.pairs_per_class": 10, "sampling.batch_pairs": 64}
FEW |= {"model.width": 8, "model.head_width": 8, "posterior.burn_in_steps": 2, "posterior.num_samples": 2}
FEW |= {"posterior.thin_steps": 1, "posterior.checkpoint_every": 1, "world.device": "cpu"}


def run(run_dir: Path, **changed: object) -> None:
    graph = families.community(120, num_attributes=4, seed=1)
    pipeline.run(with_options(Config(run_dir=str(run_dir)), FEW | changed), graph=graph)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("commands") / "run"
    run(run_dir)
    return run_dir


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_doctor__names_versions_the_machine_and_what_is_missing(monkeypatch):
    said = commands.doctor([])
    for word in ("hcm-scale", "torch", "cores", "GiB of memory", "GPU", "kernels"):
        assert word in said
    monkeypatch.setattr(commands, "EXTRAS", {"sweeps": ("no_such_module", "a search")})
    assert "no  no_such_module  for a search: pip install 'hcm-scale[sweeps]'" in commands.doctor([])


def test_finished_run__is_explained_served_and_listed_without_torch(finished, tmp_path):
    code = """
import sys
from hcm_scale.cli.main import main
run, file = sys.argv[1:]
for words in (["explain", run, "3"], ["review", run], ["export", run, file]):
    assert main(words) == 0, words
from hcm_scale.run.finished import FinishedRun
from hcm_scale.serve.server import Views
Views(FinishedRun(run)).page()
heavy = {"hydra", "pandas", "scipy.optimize", "torch"} & sys.modules.keys()
assert not heavy, heavy
"""
    words = [sys.executable, "-c", code, str(finished), str(tmp_path / "list.csv")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor__tells_what_a_run_and_its_graph_hold(finished):
    stages = commands.doctor([str(finished)])
    assert [line.split()[0] for line in stages.splitlines()[1:4]] == ["graph", "purified", "labels"]
    said = commands.doctor([str(finished / "graph")])
    assert "nodes         120" in said
    assert "attributes    4" in said
    with pytest.raises(FolderError, match="scores"):
        commands.doctor([str(finished / "scores")])


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_doctor__of_a_run_looks_at_the_configuration_too(copied, damage):
    damage(copied / "config.json")
    with pytest.raises(FolderError, match=r"config\.json is (missing|damaged)"):
        commands.doctor([str(copied)])


def test_doctor__of_a_run_that_has_finished_nothing_says_so(tmp_path):
    write_list(tmp_path, [])
    with pytest.raises(ValueError, match="has finished no stage yet"):
        commands.doctor([str(tmp_path)])


def test_doctor__of_a_run_finds_a_flipped_bit(copied):
    assert "as it was written" in commands.doctor([str(copied)])
    path = copied / "graph" / "x.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for folder in (copied, copied / "graph"):
        with pytest.raises(FolderError, match=r"x\.npy"):
            commands.doctor([str(folder)])


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["run", "--deep"]])
def test_doctor__refuses_what_it_does_not_know(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        commands.doctor(words)


@pytest.mark.parametrize(("top", "rows"), [(None, 120), (7, 7), (500, 120)])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_export__writes_the_first_rows_of_the_table(finished, tmp_path, ending, top, rows):
    out = tmp_path / f"list.{ending}"
    said = commands.export_run([str(finished), str(out), *([] if top is None else ["--top", str(top)])])
    assert said.startswith(f"{rows} nodes")
    found = pq.read_table(out) if ending == "parquet" else pa.csv.read_csv(out)
    whole = pq.read_table(finished / "scores" / "scores.parquet")
    for name in ("id", "rank", "evidence"):
        assert found[name].to_pylist() == whole[name].slice(0, rows).to_pylist()
    assert found.column_names[:8] == ["rank", "id", "score", "evidence", "p", "flagged", "degree", "reason"]
    assert {*found.column_names} == {*whole.column_names, "reason"}
    told = [reason for reason in found["reason"].to_pylist() if reason]
    assert len(told) == (100 if top is None else rows)
    printed = " ".join(FinishedRun(finished).explained_text([str(found["id"][0])]).split())
    assert all(sentence in printed for sentence in told[0].removesuffix(".").split("). "))  # all reasons, whole


def test_export__writes_flagged_nodes_and_those_that_are_new(finished, forged, tmp_path):
    flags = np.arange(pq.read_metadata(finished / "scores" / "scores.parquet").num_rows) % 3 == 1

    def flag(rows: pa.Table) -> pa.Table:
        return rows.set_column(rows.schema.get_field_index("flagged"), "flagged", pa.array(flags))

    today = forged(finished, tmp_path / "today", rows_edited(flag))
    whole = pq.read_table(today / "scores" / "scores.parquet").filter(flags)
    flags[: 3 * 10] = False
    yesterday = forged(finished, tmp_path / "yesterday", rows_edited(flag))
    for words, wanted in [
        (["--flagged"], whole),
        (["--flagged", "--top", "4"], whole.slice(0, 4)),
        (["--since", str(yesterday)], whole.slice(0, 10)),
        (["--since", str(today)], whole.slice(0, 0)),
        (["--top", "4", "--since", str(yesterday)], whole.slice(0, 4)),
    ]:
        assert f"{len(wanted)} flagged nodes" in commands.export_run([str(today), str(tmp_path / "list.csv"), *words])
        found = pa.csv.read_csv(tmp_path / "list.csv")
        assert found["id"].to_pylist() == wanted["id"].to_pylist()
        assert all(found["reason"].to_pylist())
    commands.export_run([str(today), str(tmp_path / "all.csv")])
    found = pa.csv.read_csv(tmp_path / "all.csv", convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    told = found.filter(pa.compute.is_valid(found["reason"]))["rank"].to_pylist()
    assert told == sorted({*range(1, 101), *whole["rank"].to_pylist()})


@pytest.mark.parametrize(("ending", "read"), [("graphml", nx.read_graphml), ("gexf", nx.read_gexf)])
def test_export__writes_neighbourhoods_for_graph_programs(finished, tmp_path, ending, read):
    out = tmp_path / f"near.{ending}"
    commands.export_run([str(finished), str(out), "--top", "3"])
    found = read(out)
    table = pq.read_table(finished / "scores" / "scores.parquet")
    by_rank = {data["rank"]: node for node, data in found.nodes(data=True)}
    for row in table.slice(0, 3).to_pylist():
        node = by_rank[row["rank"]]
        assert found.degree(node) == row["degree"]
        assert found.nodes[node]["evidence"] == row["evidence"]
    assert all(1 <= hop <= 4 for _, _, hop in found.edges(data="hop"))


def rows_edited(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    def edit(run: Path) -> None:
        path = run / "scores" / "scores.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return edit


def nodes_set(change: Callable[[np.ndarray], object]) -> Callable[[Path], object]:
    def edit(rows: pa.Table) -> pa.Table:
        nodes = pa.array(change(rows["node"].to_numpy()), pa.int64())
        return rows.set_column(rows.schema.get_field_index("node"), "node", nodes)

    return rows_edited(edit)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (rows_edited(lambda rows: rows.slice(0, 5)), r"scores\.parquet is damaged: (5 rows|its column \w+ holds)"),
        (rows_edited(lambda rows: rows.drop_columns("node")), r"scores\.parquet .* its column node is missing"),
        (
            rows_edited(lambda rows: rows.drop_columns("score")),
            r"scores\.parquet .* ranked by 'score', which is none",
        ),
        (rows_edited(lambda rows: rows.append_column("node", rows["node"])), r"scores\.parquet .* each there once"),
        (nodes_set(lambda nodes: np.full(len(nodes), 10**9)), r"scores\.parquet is damaged: its column node does not"),
        (nodes_set(lambda nodes: -1 - nodes), r"scores\.parquet is damaged: its column node does not"),
        (nodes_set(lambda nodes: nodes // 2), r"scores\.parquet is damaged: its column node does not"),
        (nodes_set(lambda nodes: [None, *nodes[1:].tolist()]), r"scores\.parquet is damaged: its column node has gaps"),
        (
            lambda run: np.save(run / "scores" / "edges_mean.npy", np.zeros(3, np.float32)),
            r"edges_mean\.npy holds float32 \(3,\); legal is",
        ),
        (lambda run: (run / "scores" / "edges_var.npy").write_bytes(b"torn"), r"edges_var\.npy is damaged"),
    ],
)
def test_scores_of_others__are_refused_by_explain_export_and_serve_alike(forged, finished, tmp_path, edit, told):
    run_dir = forged(finished, tmp_path / "run", edit)
    with pytest.raises(FolderError, match=told):
        FinishedRun(run_dir).explained_text(["3"])
    with pytest.raises(FolderError, match=told):
        Views(FinishedRun(run_dir))
    for name in ("out.graphml", "out.csv"):
        with pytest.raises(FolderError, match=told):
            commands.export_run([str(run_dir), str(tmp_path / name)])
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "words", [["list.xls"], ["list.csv", "--top", "0"], ["nowhere/list.csv"], ["list.gexf", "--flagged"]]
)
def test_export__refuses_before_it_writes(finished, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"list|--top"):
        commands.export_run([str(finished), *words])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["scores/scores.parquet", "report/mine.csv", "train-purified/samples/a.gexf"])
@pytest.mark.parametrize("way", ["as it is", "relative", "linked folder", "linked file", "since"])
def test_export__refuses_a_file_in_the_folder_of_a_stage(finished, copied, target, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, run_dir = copied / target, finished if way == "since" else copied
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    if way == "relative":
        out = Path("run") / ".." / "run" / target
    elif way == "linked folder":
        Path("elsewhere").symlink_to(out.parent)
        out = Path("elsewhere") / out.name
    elif way == "linked file":
        Path(f"mine{out.suffix}").symlink_to(out)
        out = Path(f"mine{out.suffix}")
    with pytest.raises(ValueError, match=rf"is in {out.resolve().parents[target.count('/') - 1]}, .* another place"):
        commands.export_run([str(run_dir), str(out)])
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_export__refuses_a_file_among_stages_that_runs_share_or_that_are_set_aside(copied, tmp_path):
    run(tmp_path / "job", share_dir=str(tmp_path / "stages"))
    (copied / "records" / "scores.before").mkdir()
    for folder in (tmp_path / "job" / "scores", copied / "records" / "scores.before"):
        with pytest.raises(ValueError, match="another place"):
            commands.export_run([str(copied), str(folder / "scores.parquet")])


@pytest.mark.parametrize("ending", ["csv", "parquet", "graphml", "gexf"])
def test_export__that_fails_leaves_the_earlier_file(finished, tmp_path, ending):
    link, out = tmp_path / f"link.{ending}", tmp_path / f"list.{ending}"
    link.symlink_to(out.name)
    commands.export_run([str(finished), str(link), "--top", "3"])
    whole = out.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(OSError):
            commands.export_run([str(finished), str(link)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert out.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([link.name, out.name])


def test_clean__removes_what_is_listed_and_the_run_goes_on(copied):
    run(copied, **{"purify.ratio": 0.3})
    (copied / "records").joinpath("graph.before").mkdir(exist_ok=True)  # left by a kill between two writes
    told = commands.clean([str(copied)])
    assert "checkpoints" in told
    assert "set aside" in told
    assert commands.clean([str(copied)]) == told
    commands.clean([str(copied), "--yes"])
    assert commands.clean([str(copied)]).endswith("nothing to remove")
    assert commands.doctor([str(copied)])
    run(copied, **{"purify.ratio": 0.3})


def test_clean__keeps_runs_of_an_age_and_what_they_need(copied, tmp_path):
    names = ("young", "old", "model", "reviewed", "linked")
    for name in names:
        shutil.copytree(copied, tmp_path / "runs" / name)
        if name != "young":
            os.utime(tmp_path / "runs" / name / "stages.json", (0, time.time() - 40 * 86_400))
    young = tmp_path / "runs" / "young"
    write_sealed(young / "config.json", read_sealed(young / "config.json") | {"trained": "elsewhere/model"})
    (tmp_path / "runs" / "reviewed" / "verdicts.jsonl").touch()
    (tmp_path / "runs" / "latest").symlink_to("linked")
    words = [str(tmp_path / "runs"), "--keep", "30d"]
    told = commands.clean(words)
    old = [line.split()[-1] for line in told.splitlines() if line.startswith("old run")]
    assert old == [str(tmp_path / "runs" / "old")]
    assert f"{words[0]} --keep 30d --yes removes them" in told
    assert (tmp_path / "runs" / "old").is_dir()
    with file_lock(tmp_path / "runs" / "old" / ".lock"), pytest.raises(ValueError, match="in use"):
        commands.clean([*words, "--yes"])
    commands.clean([*words, "--yes"])
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {*names, "latest"} - {"old"}
    assert "old run" not in commands.clean([str(tmp_path / "runs"), "--keep", "7w"])
    with pytest.raises(ValueError, match="--keep 30 is not legal: a whole number of hours, days or weeks"):
        commands.clean([*words[:1], "--keep", "30"])


def test_clean__passes_over_links_that_lead_to_each_other(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    assert "nothing to remove" in commands.clean([str(tmp_path)])


def test_clean__knows_shared_stages_that_no_run_links_to(tmp_path):
    for name, ratio in (("a", 0.1), ("b", 0.3)):
        run(tmp_path / name, **{"purify.ratio": ratio, "share_dir": str(tmp_path / "stages")})
    assert "unused" not in commands.clean([str(tmp_path)])
    shutil.rmtree(tmp_path / "b")
    lines = [line for line in commands.clean([str(tmp_path)]).splitlines() if line.startswith("unused")]
    assert {Path(line.split()[-1]).name.rsplit("-", 1)[0] for line in lines} >= {"purified", "labels", "scores"}
    assert not any("/graph-" in line for line in lines)
    commands.clean([str(tmp_path), "--yes"])
    assert commands.doctor([str(tmp_path / "a")])


def test_clean__removes_nothing_through_a_link(tmp_path):
    kept = tmp_path / "mine" / "graph.before"
    kept.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records").symlink_to(tmp_path / "mine")
    assert "nothing to remove" in commands.clean([str(tmp_path / "run"), "--yes"])
    assert kept.is_dir()


def test_options__has_words_for_every_option_and_the_page_is_what_the_schema_gives():
    assert help.WORDS.keys() == options().keys()
    assert PAGE.read_text() == help.list_options(["--markdown"]) + "\n", "run: hcm-scale options --markdown"


def test_options__lists_those_that_begin_so_and_names_the_nearest():
    listed = help.list_options(["purify"])
    assert listed.startswith("purify.similarity=euclidean\n")
    assert "at least 0.0 and at most 0.99" in listed
    assert "hops" not in listed
    with pytest.raises(ValueError, match=r"did you mean 'purify.ratio'"):
        help.list_options(["purify.ratoi"])
