"""New edges are scored as the run scores its own: own ones alike, others as a slow count has them, in any parts."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hcm_scale import HCM
from hcm_scale.cli import commands
from hcm_scale.cli.main import main
from hcm_scale.edges import new as new_edges
from hcm_scale.edges.new import open_new_edges
from hcm_scale.edges.surprise import EdgeNumbers
from hcm_scale.features.purify import cosine_distance
from hcm_scale.posterior.samples import open_samples
from hcm_scale.run.finished import FinishedRun
from hcm_scale.run.workspace import open_stages, read_stages, write_list
from hcm_scale.stages.purify import open_purified
from tests.helpers import FAST, as_words, small_graph, small_run

ROOT = Path(__file__).resolve().parents[2]
NUM_NODES = 200
NAMES = np.array([f"a{node:03d}" for node in range(NUM_NODES)])
NUMBERS = ("hop", "hop_variance", "around", "unlike", "shared", "expected_shared", "source_degree", "target_degree")


def table(pairs, **more) -> pa.Table:
    return pa.table({"sender": [str(a) for a, _ in pairs], "receiver": [str(b) for _, b in pairs], **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run over payments between accounts of two communities."""
    folder, graph = tmp_path_factory.mktemp("payments"), small_graph(NUM_NODES, 3)
    left = np.repeat(np.arange(NUM_NODES), graph.degrees)
    pq.write_table(table(NAMES[np.stack([left, graph.indices], axis=1)]), folder / "payments.parquet")
    nodes = pa.table({"account": NAMES} | {f"x{k}": graph.x[:, k].astype(float) for k in range(3)})
    pq.write_table(nodes, folder / "accounts.parquet")
    given = [str(folder / f"{name}.parquet") for name in ("payments", "accounts")]
    assert main(["run", *given, f"run_dir={folder / 'run'}", *as_words(FAST)]) == 0
    return folder / "run"


def new_pairs(count: int = 40, seed: int = 3) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [tuple(pair) for pair in NAMES[rng.integers(0, NUM_NODES, (count, 2))]]


def scored(run: Path, pairs, **more) -> list[dict]:
    return open_new_edges(FinishedRun(run), table(pairs, **more)).table().to_pylist()


def slow_embeddings(run: Path):
    """(embedding of every node, parameters) of each sample, by view: dense products, layer by layer."""
    folders = open_stages(run, "graph", "purified", "train-purified", "train-original")
    graph = FinishedRun(run).edges.evidence.graph
    purified = open_purified(folders[1], graph)
    for structure, folder in ((purified.graph, folders[2]), (graph, folders[3])):
        near = np.eye(structure.num_nodes)
        for u, (first, last) in enumerate(pairwise(structure.indptr.tolist())):
            near[u, structure.indices[first:last]] = 1.0
        scale = 1.0 / np.sqrt(near.sum(axis=1))
        near *= scale[:, None] * scale
        view = []
        for sample in open_samples(folder / "samples"):
            w = {name: value.numpy().astype(float) for name, value in sample.items()}
            h = np.maximum(near @ purified.features @ w["encoder.0.weight"] + w["encoder.0.bias"], 0.0)
            view.append((near @ h @ w["encoder.1.weight"] + w["encoder.1.bias"], w))
        yield view


def slow_hop(views, of_left, of_right) -> tuple[float, float]:
    """Mean hop and variance of a pair; `of_left` and `of_right` are the nodes whose mean embedding an end has."""
    means, variances = [], []
    for view in views:
        hops = []
        for z, w in view:
            apart = np.abs(z[of_left].mean(axis=0) - z[of_right].mean(axis=0))
            hidden = np.maximum(apart @ w["head.0.weight"] + w["head.0.bias"], 0.0)
            chance = np.exp(hidden @ w["head.1.weight"] + w["head.1.bias"])
            hops.append((chance / chance.sum()) @ np.arange(1, len(chance) + 1))
        means.append(np.mean(hops))
        variances.append(np.var(hops))
    return float(np.mean(means)), float(np.mean(variances))


def test_new_edges__of_the_run_get_the_numbers_that_they_have_there(run):
    own = FinishedRun(run).edges.table()
    rows = scored(run, [(row["target"], row["source"]) for row in own.to_pylist()])
    assert {row["edge_status"] for row in rows} == {"edge"}
    for name in ("surprise", "p", "flagged", "evidence", *NUMBERS):
        assert [row[f"edge_{name}"] for row in rows] == own[name].to_pylist(), name
    surprise = own["surprise"].to_numpy()
    assert [row["edge_rank"] for row in rows] == [1 + int((surprise > one).sum()) for one in surprise]


def test_new_edges__embeddings_predict_the_hops_of_the_run(run):
    edges = open_new_edges(FinishedRun(run), table([("a000", "a001")]))
    left, right, number = edges.edges.data.edges.edges(0, edges.edges.data.edges.num_edges)
    hop, var = edges.predict(left.astype(np.int64), right.astype(np.int64))
    np.testing.assert_allclose(hop, edges.edges.data.hop[number], rtol=1e-4)  # those of the run are rounded
    np.testing.assert_allclose(var, edges.edges.data.var[number], rtol=1e-3, atol=1e-6)


def test_new_edges__need_no_propagated_features_on_disk(run, tmp_path):
    """A run on a GPU stores none."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("propagated-*", new_edges.FOLDER))
    write_list(copy, [stage for stage in read_stages(run) if not stage["name"].startswith("propagated")])
    assert scored(copy, new_pairs()) == scored(run, new_pairs())


def test_new_edges__between_known_accounts_are_those_of_a_slow_count(run):
    found, views, pairs = FinishedRun(run).edges, list(slow_embeddings(run)), new_pairs()
    data, graph = found.data, found.evidence.graph
    around = [set(graph.indices[first:last].tolist()) for first, last in pairwise(graph.indptr.tolist())]
    num_new = 0
    for row, pair in zip(scored(run, pairs), pairs, strict=True):
        u, v = sorted(int(name[1:]) for name in pair)
        if v in around[u] or u == v:
            continue
        num_new += 1
        hop, var = slow_hop(views, [u], [v])
        means = [data.features[[node, *sorted(around[node])]].mean(axis=0, dtype=float) for node in (u, v)]
        degrees = [len(around[node]) for node in (u, v)]
        expected = min(data.rate * degrees[0] * degrees[1], *degrees)
        slow = {
            **{"hop": hop, "hop_variance": var, "around": float(cosine_distance(*means))},
            "unlike": float(cosine_distance(data.features[u], data.features[v])),
            **{"shared": len(around[u] & around[v]), "expected_shared": expected},
            **{"source_degree": degrees[0] + 1, "target_degree": degrees[1] + 1},
        }
        assert row["edge_status"] == "new"
        assert {name: row[f"edge_{name}"] for name in NUMBERS} == pytest.approx(slow, abs=2e-5)
        as_arrays = [np.array([slow[name]], np.float32) for name in NUMBERS[:5]]
        ends = np.array([u]), np.array([v])
        numbers = EdgeNumbers(*ends, *as_arrays, np.array([expected]), np.array(degrees)[:, None])
        surprise = found.scale.surprises(numbers, data.classes(numbers)).sum()
        assert row["edge_surprise"] == pytest.approx(surprise, abs=1e-2)
        assert row["edge_rank"] == 1 + int((found.ranked.surprise > row["edge_surprise"]).sum())
        p = found.scale.judge(np.array([row["edge_surprise"]]), 0.1).p[0]
        assert row["edge_p"] == pytest.approx(p)
    assert num_new > 20


def test_new_edges__accounts_that_the_run_does_not_know_are_known_by_their_partners(run):
    pairs = [
        *(("zed", "a000"), ("a007", "zed"), ("zed", "a000"), ("zed", "a120")),  # three partners
        *(("one", "a003"), ("zed", "one")),  # one partner; two later accounts that have some
        *(("far", "off"), ("far", "zed"), ("a005", "a005"), ("new", "new")),
    ]
    rows, views = scored(run, pairs, when=range(len(pairs))), list(slow_embeddings(run))
    found = FinishedRun(run).edges
    graph, x, rate = found.evidence.graph, found.data.features, found.data.rate
    assert [row["edge_status"] for row in rows] == ["new account"] * 6 + ["unknown"] * 2 + ["self"] * 2
    assert [row["when"] for row in rows] == list(range(len(pairs)))
    assert all(value is None for row in rows[6:] for name, value in row.items() if name in ("edge_rank", "edge_p"))
    near = set(graph.indices[slice(*graph.indptr[:2])].tolist())
    hop, var = slow_hop(views, [0], [0, 7, 120])
    without = float(cosine_distance(x[[7, 120]].mean(axis=0, dtype=float), x[[0, *near]].mean(axis=0, dtype=float)))
    first = {name: rows[0][f"edge_{name}"] for name in NUMBERS}
    assert first["unlike"] is None
    del first["unlike"]
    assert first == pytest.approx(
        {
            **{"hop": hop, "hop_variance": var, "around": without, "shared": len(near & {7, 120})},
            **{"expected_shared": min(rate * len(near) * 2, 2), "source_degree": len(near) + 1, "target_degree": 3},
        },
        abs=2e-5,
    )
    assert rows[2] == rows[0] | {"when": 2}
    assert rows[4]["edge_around"] is None  # nothing is around an account beside its only partner
    both = slow_hop(views, [0, 7, 120], [3])
    assert (rows[5]["edge_hop"], rows[5]["edge_hop_variance"]) == pytest.approx(both, abs=2e-5)
    assert rows[5]["edge_around"] == pytest.approx(
        float(cosine_distance(x[[0, 7, 120]].mean(axis=0, dtype=float), x[3])), abs=2e-5
    )


def in_files(given: pa.Table, folder: Path, rows: int, ending: str = "csv") -> Path:
    """A folder of files of so many rows each."""
    folder.mkdir()
    write = pyarrow.csv.write_csv if ending == "csv" else pq.write_table
    for first in range(0, len(given), rows):
        write(given.slice(first, rows), folder / f"{first:05d}.{ending}")
    return folder


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_score_edges__parts_of_any_size_make_the_same_rows_in_their_order(run, tmp_path, monkeypatch, ending):
    pairs = [*new_pairs(50), ("zed", "a000"), ("zed", "a001"), ("off", "far")]
    given = table(pairs, amount=[f"n{i:05d}" for i in range(len(pairs))], edge_p=["x"] * len(pairs))
    folder, outs = in_files(given, tmp_path / "new", 7, ending), []
    for rows in (1, 10, 1 << 18):
        monkeypatch.setattr(new_edges, "CHUNK_ROWS", rows)
        outs.append(tmp_path / f"parts-of-{rows}.{ending}")
        assert "53 rows in" in commands.score_edges([str(run), str(folder), "-o", str(outs[-1])])
    *others, whole = (pyarrow.csv.read_csv(out) if ending == "csv" else pq.read_table(out) for out in outs)
    assert all(other.equals(whole) for other in others)
    assert ending == "parquet" or len({out.read_bytes() for out in outs}) == 1
    assert whole.select(given.column_names).equals(given)
    assert whole.column_names[0] == "edge_rank"
    assert "edge_p_" in whole.column_names
    python = open_new_edges(FinishedRun(run), given).table()
    for name in ("edge_rank", "edge_surprise", "edge_p_", "edge_hop"):
        np.testing.assert_allclose(python[name].to_pandas(), whole[name].to_pandas(), rtol=1e-6)
    assert python["edge_status"].to_pylist() == whole["edge_status"].to_pylist()
    assert {path.name for path in tmp_path.iterdir()} == {"new", *(out.name for out in outs)}


KILLED = """
import sys
from pathlib import Path
from hcm_scale.cli import commands
from hcm_scale.edges import new as new_edges
from tests.dying import die_at_change
new_edges.CHUNK_ROWS = 8
die_at_change(int(sys.argv[1]), Path(sys.argv[2]))
commands.score_edges(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("ending", "moment", "num_parts"), [pytest.param("csv", 9, 2, marks=pytest.mark.slow), ("parquet", 19, 4)]
)
def test_score_edges__after_a_kill_goes_on_and_ends_in_the_same_bytes(
    run, tmp_path, monkeypatch, ending, moment, num_parts
):
    monkeypatch.setattr(new_edges, "CHUNK_ROWS", 8)
    words = [str(run), str(in_files(table(new_pairs(50)), tmp_path / "new", 8)), "-o"]
    whole, out = tmp_path / f"whole.{ending}", tmp_path / "killed" / f"out.{ending}"
    commands.score_edges([*words, str(whole)])
    out.parent.mkdir()
    dying = [sys.executable, "-c", KILLED, str(moment), str(out.parent), *words, str(out)]
    died = subprocess.run(dying, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert died.returncode == -9, died.stderr
    assert len(list((out.parent / f".{out.name}.parts").glob("rows-*"))) == num_parts
    assert not out.exists()
    made = []
    monkeypatch.setattr(new_edges.NewEdges, "scored", counting(new_edges.NewEdges.scored, made))
    assert f"50 rows ({min(50, 8 * num_parts)} of them written before)" in commands.score_edges([*words, str(out)])
    assert len(made) == 7 - num_parts
    assert out.read_bytes() == whole.read_bytes()
    assert list(out.parent.iterdir()) == [out]


def stop(*_):
    raise KeyboardInterrupt


def counting(function, calls: list):
    def wrapped(*arguments):
        calls.append(1)
        return function(*arguments)

    return wrapped


def test_score_edges__parts_of_another_table_are_not_taken(run, tmp_path, monkeypatch):
    monkeypatch.setattr(new_edges, "CHUNK_ROWS", 8)
    out, words = tmp_path / "out.csv", [str(run), str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv")]
    pyarrow.csv.write_csv(table(new_pairs(20)), tmp_path / "new.csv")
    with monkeypatch.context() as patch:
        patch.setattr(new_edges.shutil, "copyfileobj", stop)
        with pytest.raises(KeyboardInterrupt):
            commands.score_edges(words)
    assert len(list((tmp_path / ".out.csv.parts").glob("rows-*"))) == 1
    pyarrow.csv.write_csv(table(new_pairs(20, seed=4)), tmp_path / "new.csv")
    assert "20 rows in" in commands.score_edges(words)
    assert pyarrow.csv.read_csv(out)["sender"].to_pylist() == [pair[0] for pair in new_pairs(20, seed=4)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sender": ["a000"], "to": ["a001"]}, r"target_column='receiver' is not a column of .* it has \['sender', 't"),
        ({"sender": ["a000", None], "receiver": ["a001", "a002"]}, r"1 missing ids in it \(rows from 0\).*row 1"),
        ({"sender": [1.5, 2.5], "receiver": ["a001", "a002"]}, "'sender' of .* is double; ids of the run are text"),
        ({"sender": [[1], [2]], "receiver": ["a001", "a002"]}, r"'sender' of type list.* cannot hold ids"),
        ({"sender": pa.array([], pa.string()), "receiver": pa.array([], pa.string())}, "holds no rows"),
        ({"sender": ["b1"], "receiver": ["b2"]}, "no id in 'sender' and 'receiver' .* is one of the run .*: .* 'a000'"),
    ],
)
def test_new_edges__what_cannot_be_scored_is_refused(run, columns, said):
    with pytest.raises(ValueError, match=said):
        open_new_edges(FinishedRun(run), pa.table(columns))


def test_score_edges__files_that_cannot_be_read_or_written_are_refused(run, tmp_path, capsys):
    (tmp_path / "null.csv").write_text("sender,receiver\na000,a001\n,a002\n")
    (tmp_path / "new.xlsx").write_bytes(b"x")
    pq.write_table(table([("a000", "a001")], when=[[1, 2]]), tmp_path / "nested.parquet")
    for words, said in (
        (["null.csv"], "null.csv: 1 missing ids in it: line 3"),
        (["new.xlsx"], "new.xlsx "),
        (["none.csv"], "names no Parquet or CSV file"),
        (["nested.parquet"], "'when' of type list<element: int64> does not fit into CSV"),
    ):
        assert main(["score-edges", str(run), str(tmp_path / words[0]), "-o", str(tmp_path / "out.csv")]) == 2
        assert said in capsys.readouterr().err
    pyarrow.csv.write_csv(table(new_pairs(3)), tmp_path / "new.csv")
    assert main(["score-edges", str(run), str(tmp_path / "new.csv"), "-o", str(tmp_path / "new.csv")]) == 2
    assert "is the table itself" in capsys.readouterr().err
    assert main(["score-edges", str(tmp_path), str(tmp_path / "null.csv"), "-o", str(tmp_path / "out.csv")]) == 2
    assert main(["score-edges", str(run), str(tmp_path / "null.csv"), "-o", str(tmp_path / "out.txt")]) == 2
    assert "must end in one of .csv, .parquet" in capsys.readouterr().err


def test_embeddings__are_made_once_for_the_scores_and_can_be_removed(tmp_path):
    run, new = tmp_path / "run", pa.table({"source": [0, 3], "target": [9, 190]})
    small_run(run, until="score")
    with pytest.raises(
        ValueError, match=r"2 ids are no plain whole numbers .*row 0: 0x1; row 1: me. Ids of the run are wh"
    ):
        open_new_edges(FinishedRun(run), pa.table({"source": ["0x1", "me"], "target": [3, 4]}))
    first = open_new_edges(FinishedRun(run), new).table()
    files = {path.name: path.stat().st_mtime_ns for path in (run / "embeddings").iterdir()}
    assert {"purified-00000.npy", "original-00001.npy", "surprises.npy", "manifest.json"} < files.keys()
    assert open_new_edges(FinishedRun(run), new).table().equals(first)
    assert {path.name: path.stat().st_mtime_ns for path in (run / "embeddings").iterdir()} == files
    small_run(run, until="score", seed=1)
    second = open_new_edges(FinishedRun(run), new).table()
    assert second["edge_hop"].to_pylist() != first["edge_hop"].to_pylist()
    assert "embeddings" in commands.clean([str(run)])
    commands.clean([str(run), "--yes"])
    assert not (run / "embeddings").exists()
    assert open_new_edges(FinishedRun(run), new).table().equals(second)
    damaged = run / "embeddings" / "original-00000.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"original-00000.npy is damaged.* remove .*embeddings"):
        open_new_edges(FinishedRun(run), new)


def test_new_edges__of_a_directed_graph_have_a_direction(tmp_path):
    ends = np.array([(u, (u + step) % 60) for u in range(60) for step in (1, 2, 5)])
    pq.write_table(
        pa.table({"source": ends[:, 0], "target": ends[:, 1], "w": np.sin(ends[:, 0])}), tmp_path / "e.parquet"
    )
    words = [str(tmp_path / "e.parquet"), f"run_dir={tmp_path / 'run'}", "graph.directed=true", *as_words(FAST)]
    assert main(["run", *words]) == 0
    own = FinishedRun(tmp_path / "run").edges.table()
    found = open_new_edges(FinishedRun(tmp_path / "run"), own.select(["source", "target"])).table()
    assert {*found["edge_status"].to_pylist()} == {"edge"}
    assert found["edge_surprise"].to_pylist() == own["surprise"].to_pylist()
    back = pa.table({"source": own["target"], "target": own["source"]})
    assert {*open_new_edges(FinishedRun(tmp_path / "run"), back).table()["edge_status"].to_pylist()} == {"new"}


def test_new_edges__by_a_run_with_the_samples_of_another(tmp_path):
    small_run(tmp_path / "first", until="score")
    small_run(tmp_path / "second", until="score", trained=str(tmp_path / "first"))
    new = pa.table({"source": [0, 3, 5], "target": [9, 190, 77]})
    first, second = (open_new_edges(FinishedRun(tmp_path / name), new).table() for name in ("first", "second"))
    assert second["edge_hop"].to_pylist() == first["edge_hop"].to_pylist()


def test_score_edges__of_a_detector_are_those_of_the_command(run, tmp_path):
    given = table(new_pairs(), amount=np.arange(40.0))
    pq.write_table(given, tmp_path / "new.parquet")
    commands.score_edges([str(run), str(tmp_path / "new.parquet"), "-o", str(tmp_path / "out.parquet")])
    tables = tuple(str(run.parent / f"{name}.parquet") for name in ("payments", "accounts"))
    detector = HCM(FAST).fit(tables)
    by_command = pq.read_table(tmp_path / "out.parquet")
    assert detector.score_edges(given.to_pandas()).cast(by_command.schema).equals(by_command)
    renamed = given.to_pandas().rename(columns={"sender": "a", "receiver": "b"})
    found = detector.score_edges(renamed, source_column="a", target_column="b")
    assert found["edge_surprise"].equals(by_command["edge_surprise"])
    with pytest.raises(ValueError, match="source_column='sender' is not a column of the table of new edges"):
        detector.score_edges(renamed)
    with pytest.raises(ValueError, match=r"1 missing ids.*row 2"):
        detector.score_edges(pd.DataFrame({"sender": ["a000", "a001", np.nan], "receiver": ["a003", "a004", "a005"]}))
