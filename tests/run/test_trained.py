"""Tomorrow's graph by a trained run: what is made and what is not, what stays the same, what is said."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy import sparse

from hcm_scale.base.files import FolderError, read_sealed, write_sealed
from hcm_scale.cli.cases import diff
from hcm_scale.cli.commands import export_run
from hcm_scale.config import Config, TablesGraph
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, as_trained, check_earlier
from hcm_scale.stages.drift import Drift
from hcm_scale.stages.score import open_reference
from hcm_scale.synthetic import families as synthetic
from hcm_scale.synthetic.inject import inject

COMPARED = ("ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual", "score", "p")
COMPARED += ("rank",)


def small(run_dir: Path, trained: Path | None = None) -> Config:
    config = Config(run_dir=str(run_dir), trained=None if trained is None else str(trained))
    config = config if trained is None else as_trained(config)
    config.world.device = "cpu"
    if trained is None:
        config.hops.num_sources, config.hops.pairs_per_class = 200, 40
        config.model.width, config.model.head_width, config.purify.ratio = 16, 16, 0.1
        config.posterior.burn_in_steps, config.posterior.num_samples, config.posterior.thin_steps = 12, 2, 2
    return config


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.community(400, num_attributes=5, seed=1)
    return inject(made, num_cliques=2, clique_size=8, seed=1, num_attribute_anomalies=None)


@pytest.fixture(scope="module")
def yesterday(graph, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "yesterday"
    pipeline.run(small(run_dir), until="score", graph=graph)
    return run_dir


def by_node(run_dir: Path, name: str) -> np.ndarray:
    return FinishedRun(run_dir).table.sort_by("node")[name].to_numpy()


def joined(graph: Graph, x: np.ndarray, edges: list[tuple[int, int]]) -> Graph:
    """The graph with more nodes, of attributes x, and more edges."""
    size = graph.num_nodes + len(x)
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    u, v = np.array(edges, np.int64).reshape(-1, 2).T
    ends = np.concatenate([rows, u, v]), np.concatenate([graph.indices, v, u])
    matrix = sparse.csr_array((np.ones(len(ends[0]), np.int8), ends), shape=(size, size))
    matrix.sort_indices()
    attributes = np.concatenate([np.asarray(graph.x), x]).astype(np.float32)
    return Graph(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), x=attributes)


def test_same_graph__has_the_same_scores(graph, yesterday, tmp_path):
    pipeline.run(small(tmp_path, yesterday), until="score", graph=graph)
    for name in COMPARED:
        np.testing.assert_array_equal(by_node(tmp_path, name), by_node(yesterday, name))


def test_same_graph__with_attributes_that_say_nothing_of_edges_has_the_same_weights(graph, tmp_path):
    noise = replace(graph, x=np.random.default_rng(0).standard_normal((400, 5)).astype(np.float32))
    pipeline.run(small(tmp_path / "yesterday"), until="score", graph=noise)
    assert load_file(tmp_path / "yesterday" / SCALE)["trust"][0] < 1.0
    pipeline.run(small(tmp_path / "today", tmp_path / "yesterday"), until="score", graph=noise)
    for name in COMPARED:
        np.testing.assert_array_equal(by_node(tmp_path / "today", name), by_node(tmp_path / "yesterday", name))


def test_new_nodes__are_scored_without_labels_and_training_and_move_no_other(graph, yesterday, tmp_path, caplog):
    caplog.set_level("INFO")
    far = joined(graph, np.asarray(graph.x)[:3] + 0.1, [(400, 401), (401, 402), (400, 402)])
    said = pipeline.run(small(tmp_path, yesterday), graph=far)
    made = [record["name"] for record in json.loads((tmp_path / "stages.json").read_text())["stages"]]
    views = ("purified", "original")
    steps = ["graph", "purified", *(f"propagated-{v}" for v in views)]
    assert made == [*steps, "scores", "drift", "cases", "report"]
    for name in COMPARED[:-1]:
        np.testing.assert_array_equal(by_node(tmp_path, name)[:400], by_node(yesterday, name))
    assert "drift   like the training graph" in said
    assert '<p class="note">Drift: like the training graph' in (tmp_path / "report" / "report.html").read_text()
    assert "like the training graph" in caplog.text
    assert (tmp_path / "report" / "report.html").is_file()
    assert "like the training graph" in json.loads((tmp_path / "records" / "drift.json").read_text())["detail"]["line"]


def test_new_node_without_edges__ranks_by_its_attributes(graph, yesterday, tmp_path):
    x = np.asarray(graph.x)
    usual = x[np.abs(x - x.mean(axis=0)).sum(axis=1).argsort()[200]]
    more = joined(graph, np.stack([usual, 3 * np.abs(x).max(axis=0)]), [])
    pipeline.run(small(tmp_path, yesterday), until="score", graph=more)
    table = FinishedRun(tmp_path).table
    rank = dict(zip(table["node"].to_pylist(), table["rank"].to_pylist(), strict=True))
    assert rank[401] < 100 < rank[400] < 402


def test_again__keeps_every_stage_and_other_samples_make_it_anew(graph, yesterday, tmp_path):
    pipeline.run(small(tmp_path / "run", yesterday), until="score", graph=graph)
    pipeline.run(small(tmp_path / "run", yesterday), until="score", graph=graph)
    assert all(record["skipped"] for record in json.loads((tmp_path / "run" / "stages.json").read_text())["stages"])
    other = small(tmp_path / "other")
    other.seed = 1
    pipeline.run(other, until="score", graph=graph)
    pipeline.run(small(tmp_path / "run", tmp_path / "other"), until="score", graph=graph)
    kept = {r["name"]: r["skipped"] for r in json.loads((tmp_path / "run" / "stages.json").read_text())["stages"]}
    assert [name for name, was_kept in kept.items() if not was_kept] == ["scores", "drift"]


def test_drift__is_said_where_a_column_moved(graph, yesterday, tmp_path, caplog):
    x = np.array(graph.x)
    x[:, 2] += 3
    config = replace(small(tmp_path, yesterday), fail_on="drift,flagged>100000")
    said = pipeline.run(config, graph=replace(graph, x=x))
    assert "drift   unlike the training graph: " in said
    assert json.loads((tmp_path / "drift" / "manifest.json").read_text())["moved"] == ["predicted hop", "a2"]
    assert "train anew, without trained=" in caplog.text
    told = json.loads((tmp_path / "report" / "report.json").read_text())["drift"]
    assert told["moved"] == ["predicted hop", "a2"]
    assert [*told["distances"]][:2] == told["moved"]  # the largest first
    assert told["distances"]["a2"] > 0.1 > told["distances"]["a0"]
    assert FinishedRun(config.run_dir).failed_checks(config.fail_on) == ["drift"]
    assert "error: fail_on=drift: unlike the training graph" in caplog.text


def test_scale_of_a_trained_run__that_lacks_a_number_names_its_file(yesterday):
    scale = open_reference(yesterday / "scores").scale
    with pytest.raises(FolderError, match=r"scores/scale\.safetensors is damaged: 'no such' is missing"):
        scale["no such"]


def test_graph_that_is_all_unlike_the_trained_one__is_measured_by_itself(graph, yesterday, tmp_path, caplog):
    rng = np.random.default_rng(0)
    noise = replace(graph, x=(40.0 * rng.normal(size=graph.x.shape)).astype(np.float32))
    pipeline.run(small(tmp_path / "r", yesterday), until="score", graph=noise)
    flagged = by_node(tmp_path / "r", "flagged")
    assert re.search(
        r"\d+ of 400 nodes would be flagged, measured by the trained run: .* measured by itself", caplog.text
    )
    assert flagged.sum() < 40


def test_drift__of_attributes_named_as_what_the_graph_adds_is_found(graph, tmp_path):
    named = replace(graph, columns=("a0", "degree", "predicted hop", "degree of the graph", "a4"))
    pipeline.run(small(tmp_path / "old"), until="score", graph=named)
    x = np.array(graph.x)
    x[:, 1:3] += 3
    pipeline.run(small(tmp_path / "new", tmp_path / "old"), until="score", graph=replace(named, x=x))
    found = json.loads((tmp_path / "new" / "drift" / "manifest.json").read_text())
    assert {"degree", "predicted hop"} <= {*found["moved"]}
    assert {*found["distances"]} == {
        *named.columns,
        "degree of the graph of the graph",
        "predicted hop of the graph",
    }
    assert found["distances"]["degree of the graph of the graph"] == 0


def test_options__of_the_trained_run_hold_and_others_are_warned_about(graph, yesterday, tmp_path, caplog):
    config = small(tmp_path, yesterday)
    config.purify.ratio, config.score.fdr = 0.5, 0.3
    pipeline.run(config, until="score", graph=graph)
    assert f"purify.ratio=0.5 has no effect: trained={yesterday} was made with 0.1" in caplog.text
    assert caplog.text.count("has no effect") == 1
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["purify"]["ratio"] == 0.1
    assert stored["score"]["fdr"] == 0.3
    np.testing.assert_array_equal(by_node(tmp_path, "score"), by_node(yesterday, "score"))


@pytest.mark.parametrize(
    ("words", "fdr", "warned"),
    [
        ([], 0.3, []),
        (["score.fdr=0.1"], 0.1, []),
        (["score=strict"], 0.1, []),  # an option file of the user
        (["score.fdr=0.2"], 0.2, []),
        (["purify.ratio=0.2", "purify=euclidean"], 0.3, ["purify.ratio=0.2"]),
        (["model.width=16", "purify=cosine", "attributes.scale=auto"], 0.3, ["purify.similarity=cosine"]),
        (["-m", "score.fdr=0.1,0.2", "purify.ratio=0.2"], 0.1, ["purify.ratio=0.2"] * 2),
    ],
)
def test_options_that_are_said__count_where_they_are_the_defaults_too(
    graph, forged, yesterday, tmp_path, hcm_scale, words, fdr, warned
):
    run = forged(yesterday, tmp_path / "run", options_edited("score", fdr=0.3))
    (tmp_path / "conf" / "score").mkdir(parents=True)
    (tmp_path / "conf" / "score" / "strict.yaml").write_text("fdr: 0.1\n")
    graph.save(tmp_path / "graph")
    places = ["hydra.sweep.dir=new", "hydra.sweep.subdir=${score.fdr}"] if "-m" in words else ["run_dir=new/0.1"]
    done = hcm_scale("run", "until=ingest", "graph=folder", "graph.path=graph", f"trained={run}", *words, *places)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "new" / "0.1" / "config.json").read_text())["score"]["fdr"] == fdr
    assert re.findall(r"(\S+) has no effect", done.stderr) == warned


def test_trained__that_cannot_be_used_is_named_before_anything_is_written(graph, yesterday, tmp_path):
    with pytest.raises(ValueError, match="is not the run_dir of a run"):
        pipeline.run(small(tmp_path / "new", tmp_path / "nothing"), graph=graph)
    with pytest.raises(ValueError, match="is run_dir itself"):
        pipeline.run(small(yesterday, yesterday), graph=graph)
    begun = tmp_path / "begun"
    pipeline.run(small(begun), until="purify", graph=graph)
    with pytest.raises(ValueError, match=f"lists no train-purified: finish the run in run_dir={begun}"):
        pipeline.run(small(tmp_path / "new", begun), graph=graph)
    assert not (tmp_path / "new").exists()


def test_trained__is_checked_and_must_have_trained_itself(graph, yesterday, tmp_path):
    pipeline.run(small(tmp_path / "today", yesterday), until="score", graph=graph)
    with pytest.raises(ValueError, match=f"was itself scored with trained={yesterday}; name that one"):
        pipeline.run(small(tmp_path / "new", tmp_path / "today"), graph=graph)
    pipeline.run(small(tmp_path / "own"), until="score", graph=graph)
    sample = tmp_path / "own" / "train-purified" / "samples" / "sample-00000.safetensors"
    sample.write_bytes(sample.read_bytes()[:-1] + b"?")
    with pytest.raises(FolderError, match="sample-00000"):
        pipeline.run(small(tmp_path / "new", tmp_path / "own"), graph=graph)


def options_edited(section: str, *, sealed: bool = True, **values: object) -> Callable[[Path], object]:
    """Changes options, under a seal that fits them or under that of before."""

    def edit(run: Path) -> None:
        path = run / "config.json"
        before, stored = path.read_text(), read_sealed(path)
        stored[section] |= values
        write_sealed(path, stored)
        if not sealed:
            path.write_text(json.dumps(stored | {"seal": json.loads(before)["seal"]}))

    return edit


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (options_edited("model", width="abc"), r"model\.width='abc' is not legal: int, at least 1"),
        (options_edited("score", views=5), r"score\.views=5 is not legal"),
        (options_edited("score", views=["../x"]), r"score\.views=\.\./x is not known"),
        (options_edited("purify", similarity="???"), r"purify\.similarity is not legal"),
        (options_edited("hops", unheard=1), r"'hops\.unheard' is not an option"),
        (options_edited("score", views=["purified"]), "is not of the run that .*stages.json lists"),
        (options_edited("score", sealed=False, trim=0.1), "is damaged: its seal .*; remove it"),
        (lambda run: write_sealed(run / "config.json", {"model": [1]}), "it has no section"),
        (lambda run: (run / "config.json").write_text("[" * 100_000), "is damaged: .*; remove it"),
        (lambda run: ((run / "config.json").unlink(), os.mkfifo(run / "config.json")), "is damaged: .*; remove it"),
    ],
)
def test_options__of_a_trained_run_are_not_believed(forged, graph, yesterday, tmp_path, edit, told):
    run = forged(yesterday, tmp_path / "run", edit)
    with pytest.raises(FolderError, match=rf"run/config\.json.*{told}") as error:
        pipeline.run(small(tmp_path / "new", run), graph=graph)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()


def tensors_edited(name: str, change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], object]:
    """Changes the arrays of a safetensors file, and leaves out what else is in it."""

    def edit(run: Path) -> None:
        arrays = load_file(run / name)
        change(arrays)
        save_file(arrays, run / name)

    return edit


def table_edited(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    def edit(run: Path) -> None:
        path = run / "scores" / "scores.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return edit


SCALE, FITTED = "scores/scale.safetensors", "purified/fitted.safetensors"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (tensors_edited(FITTED, lambda arrays: None), "fitted.safetensors is damaged: it has no '__metadata__'"),
        (tensors_edited(FITTED, lambda arrays: arrays["means"].fill(np.nan)), "fitted.safetensors .* means holds NaN"),
        (lambda run: (run / FITTED).write_bytes(b"torn"), "fitted.safetensors is damaged"),
        (tensors_edited(SCALE, lambda arrays: arrays["both"].fill(np.nan)), "scale.safetensors .* both holds NaN"),
        (tensors_edited(SCALE, lambda arrays: arrays.pop("centre")), "scale.safetensors .* its centre is None"),
        (tensors_edited(SCALE, lambda arrays: arrays["far"].fill(1e12)), "scale.safetensors .* not a scale"),
        (
            tensors_edited(SCALE, lambda arrays: arrays["trust"].fill(7.0)),
            r"scale.safetensors .* its trust is array\(\[7",
        ),
        (tensors_edited(SCALE, lambda arrays: arrays.update(surprise=np.zeros(3))), "scale.safetensors .* not a scale"),
        (
            table_edited(lambda rows: rows.drop_columns("residual")),
            "scores.parquet .* no column residual of its kind of evidence attributes",
        ),
        (
            table_edited(lambda rows: rows.slice(1)),
            r"scores.parquet .* column \w+ holds 1 to 400",
        ),
        (table_edited(lambda rows: rows.drop_columns("closure_rank")), "scores.parquet .*closure_rank"),
    ],
)
def test_what_a_trained_run_learned__is_not_believed(forged, graph, yesterday, tmp_path, edit, told):
    run = forged(yesterday, tmp_path / "run", edit)
    with pytest.raises(FolderError, match=told):
        pipeline.run(small(tmp_path / "new", run), until="score", graph=graph)


def test_transform_of_a_trained_run__that_asks_for_columns_that_there_are_not_is_named(
    forged, graph, yesterday, tmp_path
):
    def edit(run: Path) -> None:
        path = run / FITTED
        with safe_open(path, "np") as file:
            head = file.metadata()
        arrays = load_file(path)
        arrays["0.columns"][:] = 10**9
        save_file(arrays, path, head)

    run = forged(yesterday, tmp_path / "run", edit)
    with pytest.raises(FolderError, match=r"fitted\.safetensors is damaged: index 1000000000"):
        pipeline.run(small(tmp_path / "new", run), until="score", graph=graph)


def write_tables(folder: Path, kinds: list[str | None], **columns: object) -> TablesGraph:
    """An edge table, a ring with chords, and a node table with a text column and others."""
    folder.mkdir()
    n = len(kinds)
    u = np.arange(2 * n) % n
    ends = pa.table({"source": u, "target": (u + np.repeat([1, 7], n)) % n})
    pq.write_table(ends, folder / "edges.parquet")
    pq.write_table(pa.table({"id": [*range(n)], "kind": kinds, **columns}), folder / "nodes.parquet")
    return TablesGraph(path=str(folder / "edges.parquet"), nodes=str(folder / "nodes.parquet"))


def test_tables__are_read_by_the_encodings_of_the_trained_run(tmp_path, caplog):
    rng, n = np.random.default_rng(0), 60
    kinds = [["a", "b", "c"][i % 3] for i in range(n)]
    size, day = rng.normal(5, 2, n), np.arange(n).astype("datetime64[D]")
    first = small(tmp_path / "one")
    first.graph = write_tables(tmp_path / "day1", kinds, size=size, day=day, old=rng.random(n))
    pipeline.run(first, until="score")
    second = small(tmp_path / "two", tmp_path / "one")
    changed = ["new", None, *kinds[2:-1], "b"]
    second.graph = write_tables(tmp_path / "day2", changed, day=day + 30, size=[None, *size[1:]], extra=size)
    second.fail_on = "missing-column,new-columns,new-values,drift"
    pipeline.run(second, until="score")
    assert FinishedRun(second.run_dir).failed_checks(second.fail_on)[:3] == [
        "missing-column",
        "new-columns",
        "new-values",
    ]
    for check, fact in (
        ("missing-column", "missing_columns is ['old']"),
        ("new-columns", "new_columns is ['extra']"),
        ("new-values", "new_values is ['kind']"),
    ):
        assert f"fail_on={check}: {fact}" in caplog.text
    graphs = [Graph.open(tmp_path / run / "graph") for run in ("one", "two")]
    assert graphs[0].columns == graphs[1].columns == ("kind=a", "kind=b", "kind=c", "size", "day", "old")
    before, now = (np.asarray(graph.x) for graph in graphs)
    np.testing.assert_allclose(now[0, :3], 1 / 3)  # an unknown value, and a gap, are the shares
    np.testing.assert_allclose(now[1, :3], 1 / 3)
    np.testing.assert_array_equal(now[2:-1, :3], before[2:-1, :3])
    assert now[0, 3] == pytest.approx(size.mean())
    np.testing.assert_array_equal(now[:, 4], before[:, 4] + 30)
    assert np.ptp(now[:, 5]) == 0
    assert "column 'kind' has 1 rows with values that the trained graph did not have, taken as gaps: new" in caplog.text
    assert "1 columns of the trained graph are missing here, and taken as gaps: old" in caplog.text
    assert "1 columns are not of the trained graph, and not used: extra" in caplog.text
    assert graphs[1].info["ingest"]["counts"]["imputed_values"] == 2 + n


def test_edge_table__with_new_columns_and_values_fails_the_checks_and_an_equal_one_does_not(tmp_path, caplog):
    def payments(name: str, kinds: list[str | None], **more: object) -> TablesGraph:
        n, rng = len(kinds), np.random.default_rng(0)
        payer = rng.integers(0, 40, n)
        ends = {"payer": payer, "payee": (payer + rng.integers(1, 40, n)) % 40}
        pq.write_table(pa.table(ends | {"amount": rng.random(n), "kind": kinds} | more), tmp_path / name)
        return TablesGraph(path=str(tmp_path / name), source_column="payer", target_column="payee")

    first, checks = small(tmp_path / "one"), "new-columns,new-values"
    first.graph = payments("day1.parquet", ["card", "cash", None] * 100)
    pipeline.run(first, until="score")
    same, other = (small(tmp_path / name, tmp_path / "one") for name in ("two", "three"))
    same.graph = payments("day2.parquet", ["cash", None, "card"] * 100)
    other.graph = payments("day3.parquet", ["card", "cash", "wire"] * 100, note=["x"] * 300)
    for config, failed in ((same, []), (other, checks.split(","))):
        pipeline.run(config, until="score")
        assert FinishedRun(config.run_dir).failed_checks(checks) == failed
    what = "rows with values that the trained graph did not have"
    assert f"column 'kind' has 100 {what}, taken as gaps: wire" in caplog.text


def test_since__tells_that_columns_are_coded_in_another_way_unless_the_model_is_the_same(tmp_path, caplog):
    runs, rng = [tmp_path / name for name in ("60 values", "70 values", "70 trained")], np.random.default_rng(0)
    for run, num_values, trained in zip(runs, (60, 70, 70), (None, None, runs[0]), strict=True):
        config = small(run, trained)
        kinds = [f"k{i % num_values}" for i in range(140)]
        config.graph = write_tables(tmp_path / f"of {run.name}", kinds, age=rng.random(140))
        pipeline.run(config, until="score")
    said = [export_run([str(run), str(tmp_path / "new.csv"), "--since", str(runs[0])]) for run in runs]
    assert ["['kind'] became attributes in another way" in text for text in said] == [False, True, False]
    told = [diff(FinishedRun(runs[0]), FinishedRun(run), as_json=False).splitlines()[0] for run in runs]
    assert [line.startswith(f"{runs[0]}: ['kind'] became attributes in another way") for line in told] == [
        False,
        True,
        False,
    ]
    again = small(tmp_path / "again")
    again.graph = write_tables(tmp_path / "of again", kinds, age=rng.random(140))
    check_earlier(replace(again, since=str(runs[0])), FinishedRun(runs[1]).graph)
    assert f"since={runs[0]}: ['kind'] became attributes in another way" in caplog.text


def test_since__of_a_run_with_ids_of_another_type_is_refused_before_training(graph, yesterday, tmp_path):
    named = replace(graph, ids=pa.array([f"n{i}" for i in range(graph.num_nodes)]))
    with pytest.raises(ValueError, match=r"ids that are whole numbers, and here they are text: graph\.id_type=text"):
        check_earlier(replace(small(tmp_path / "run"), since=str(yesterday)), named)


def test_tables__of_another_type_are_refused_by_name(tmp_path):
    kinds = ["a", "b"] * 20
    first = small(tmp_path / "one")
    first.graph = write_tables(tmp_path / "day1", kinds, size=np.arange(40.0))
    pipeline.run(first, until="score")
    second = small(tmp_path / "two", tmp_path / "one")
    second.graph = write_tables(tmp_path / "day2", kinds, size=[f"{i} kB" for i in range(40)])
    with pytest.raises(ValueError, match="column 'size' is of type string, and was a number in the trained graph"):
        pipeline.run(second, until="score")


def test_drift__of_counts_alone_is_no_reason_to_train_again():
    moved = {"rows, as payer": 0.4, "degree": 0.3, "predicted hop": 0.2}
    longer = Drift(moved | {"sum": 0.01}, [*moved]).line()
    assert "where these edges are of a longer or shorter time" in longer
    assert "longer or shorter" not in Drift({"rows, as payer": 0.4, "sum": 0.3}, ["rows, as payer", "sum"]).line()
