"""From a list to verdicts to a list: the commands review, teach and export, Python, and tomorrow's run."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from helpers import FAST, small_run

from hcm_scale import HCM
from hcm_scale.base import files
from hcm_scale.base.files import FolderError, file_lock
from hcm_scale.cli import commands
from hcm_scale.cli.main import main
from hcm_scale.config import Config
from hcm_scale.detector.results import verdict_table
from hcm_scale.ingest.policy import InputError
from hcm_scale.review import teach, verdicts
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, as_trained


def write_verdicts(path: Path, graph, nodes) -> Path:
    """The truth about some nodes as a table."""
    words = ["bad" if graph.y[node] else "good" for node in nodes]
    pa.csv.write_csv(pa.table({"id": graph.ids.take(pa.array(nodes)), "verdict": words}), path)
    return path


def some_nodes(graph, count=40, seed=0) -> np.ndarray:
    """As many bad nodes as good ones."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.choice(np.flatnonzero(graph.y == y), count // 2, replace=False) for y in (1, 0)])


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_review_and_teach__go_round(run_dir, graph, tmp_path):
    """What a person does: a list, verdicts in its empty column, a new list, and a list without the nodes known."""
    sheet, truth = tmp_path / "review.csv", dict(zip(graph.ids.to_pylist(), graph.y.tolist(), strict=True))
    said = commands.review_run([str(run_dir), "30", "--csv", str(sheet)])
    assert said.startswith("30 nodes in")
    assert f"hcm-scale teach {run_dir} {sheet}" in said
    shown = pd.read_csv(sheet, dtype={"verdict": str})
    assert list(shown.columns) == ["id", "verdict", "rank", "why", "chance", "reason"]
    assert shown["verdict"].isna().all()
    assert shown["reason"].str.len().min() > 10
    shown["verdict"] = ["Bad" if truth[name] else "OK" for name in shown["id"]]
    shown.loc[3, "verdict"] = None
    shown.to_csv(sheet, index=False)
    before = folder_bytes(run_dir / "scores")
    said = commands.teach_run([str(run_dir), str(sheet), "--by", "anna"])
    assert "29 verdicts of 30 rows in review.csv: id in column id, verdict in verdict" in said
    assert "29 verdicts (" in said
    assert "worth reading as long as 20 % of the nodes there are bad" in said
    assert folder_bytes(run_dir / "scores") == before
    taught = pq.read_table(run_dir / "taught" / "taught.parquet")
    assert taught.column_names == ["id", "node", "taught", "taught_rank", "verdict"]
    assert taught["taught_rank"].to_pylist() == list(range(1, graph.num_nodes + 1))
    assert (np.diff(taught["taught"].to_numpy()) <= 0).all()
    given = {row["id"]: row["verdict"] for row in taught.to_pylist() if row["verdict"]}
    assert given == {name: "bad" if truth[name] else "good" for name in shown["id"].drop(3)}
    following = commands.review_run([str(run_dir), "30", "--csv", str(sheet)])
    assert following.startswith("30 nodes in")
    assert not {*pd.read_csv(sheet)["id"]} & given.keys()
    filled = pd.read_csv(sheet, dtype={"verdict": str}).assign(verdict="good").to_csv(index=False)
    sheet.write_text(filled)
    with pytest.raises(ValueError, match=r"holds 30 verdicts that .* does not know"):
        commands.review_run([str(run_dir), "30", "--csv", str(sheet)])
    assert sheet.read_text() == filled


def test_review__repeats_itself_until_there_is_a_verdict_and_writes_nothing(run_dir):
    said = commands.review_run([str(run_dir)])
    assert said == commands.review_run([str(run_dir)])
    assert said.count("\n          ") == 20
    assert (
        said.count("(drawn at random, by a chance of") == said.count("(kinds of evidence disagree, by a chance of") == 2
    )
    assert not (run_dir / verdicts.FILE).exists()
    verdicts.append(run_dir, [("a000", "good"), ("a001", "bad")], "anna")
    assert said != commands.review_run([str(run_dir)])


def test_teach__is_the_same_whatever_the_order_of_verdicts_and_however_often(run_dir, finished, graph, tmp_path):
    nodes, other = some_nodes(graph), Path(shutil.copytree(finished, tmp_path / "other"))
    table = write_verdicts(tmp_path / "v.csv", graph, nodes)
    commands.teach_run([str(run_dir), str(table)])
    lines = (run_dir / verdicts.FILE).read_bytes()
    first = folder_bytes(run_dir / "taught")
    commands.teach_run([str(run_dir), str(table)])
    assert (run_dir / verdicts.FILE).read_bytes() == lines  # known already
    assert folder_bytes(run_dir / "taught") == first
    commands.teach_run([str(other), str(write_verdicts(tmp_path / "turned.csv", graph, nodes[::-1]))])
    assert folder_bytes(other / "taught") == first


def test_teach__finds_more(run_dir, graph, tmp_path):
    """Verdicts on forty nodes move others of their kind up."""
    nodes = some_nodes(graph)
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes))])
    run = FinishedRun(run_dir)
    taught = teach.open_taught(run_dir, run_dir / "scores")
    assert taught is not None
    rest = np.setdiff1d(np.arange(graph.num_nodes), nodes)

    def auc(score):
        ranks = pd.Series(score[rest]).rank()
        bad = graph.y[rest] == 1
        return (ranks[bad].mean() - (bad.sum() + 1) / 2) / (~bad).sum()

    assert auc(taught.scores) > auc(run.column("score")) - 0.01


@pytest.mark.parametrize("count", [1, 4])
def test_teach__a_few_verdicts_move_nothing(run_dir, graph, tmp_path, count):
    table = write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph)[:count])
    said = commands.teach_run([str(run_dir), str(table), "--out", str(tmp_path / "list.csv")])
    assert "the list keeps its order" in said
    listed = pd.read_csv(tmp_path / "list.csv")
    assert (listed["taught_rank"] == listed["rank"]).all()


def test_teach__known_cases_alone_are_enough(run_dir, graph, tmp_path):
    table = write_verdicts(tmp_path / "v.csv", graph, np.flatnonzero(graph.y)[::2])
    said = commands.teach_run([str(run_dir), str(table)])
    assert "(16 bad)" in said
    assert "estimated share" not in said
    assert "how good the list is takes verdicts on good nodes too" in said


def test_teach__verdicts_that_are_all_good_say_how_rare_bad_nodes_are(run_dir, graph, tmp_path):
    table = write_verdicts(tmp_path / "v.csv", graph, np.flatnonzero(graph.y == 0)[:30])
    said = commands.teach_run([str(run_dir), str(table)])
    assert "30 verdicts (30 good)" in said
    assert "estimated share of bad" in said


def test_teach__a_sheet_without_verdicts_is_told(run_dir, tmp_path):
    (tmp_path / "v.csv").write_text("id,verdict\na001,\na002,\n")
    with pytest.raises(ValueError, match="has no verdicts on nodes of its graph yet"):
        commands.teach_run([str(run_dir), str(tmp_path / "v.csv")])


def test_teach__names_ids_that_are_not_there_and_takes_the_rest(run_dir, tmp_path):
    (tmp_path / "v.csv").write_text("id,verdict\na001,bad\nnobody,bad\na002,good\na001,good\n")
    said = commands.teach_run([str(run_dir), str(tmp_path / "v.csv")])
    assert "1 id not in this graph: nobody" in said
    assert "1 id with two verdicts, of which the later one counts: a001" in said
    assert verdicts.latest(run_dir).by_id() == {"a001": "good", "a002": "good"}
    (tmp_path / "v.csv").write_text("id,verdict\nnobody,bad\n")
    with pytest.raises(InputError, match=r"none of these ids is in the graph of .*, where they look like 'a000'"):
        commands.teach_run([str(run_dir), str(tmp_path / "v.csv")])


def test_import__of_ids_that_lost_their_zeros_says_so(run_dir):
    run = FinishedRun(run_dir)
    vars(run)["graph"] = dataclasses.replace(run.graph, ids=pa.array([f"00{i}" for i in range(run.graph.num_nodes)]))
    told = teach.import_verdicts(run, pa.table({"id": ["001", "77"], "verdict": ["bad", "bad"]}))
    assert told[-1].startswith("1 id not in this graph: 77; some lack the zeros before them")


def test_teach__a_verdict_is_taken_back(run_dir, graph, tmp_path):
    nodes = some_nodes(graph)
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes))])
    back = pa.table({"id": graph.ids.take(pa.array(nodes)), "verdict": ["none"] * len(nodes)})
    pa.csv.write_csv(back, tmp_path / "back.csv")
    said = commands.teach_run([str(run_dir), str(tmp_path / "back.csv")])
    assert "the list keeps its order after 0 verdicts" in said
    run = FinishedRun(run_dir)
    assert np.array_equal(teach.open_taught(run_dir, run_dir / "scores").scores, run.column("score"))


def test_teach__refuses_what_it_cannot_use(run_dir, tmp_path, capsys):
    (tmp_path / "v.csv").write_text("id,verdict\na001,awful\n")
    for words, told in {
        (str(run_dir),): "has no verdicts on nodes of its graph yet; hcm-scale review",
        (str(run_dir), str(tmp_path / "v.csv")): "v.csv, line 2: 'awful' is no verdict; legal are bad, good, unsure",
        (str(run_dir), str(tmp_path / "w.csv")): "w.csv",
        (str(run_dir), "--worth", "20"): "--worth 20 is not legal: a share above 0 and at most 1",
        (str(run_dir), "--out", str(run_dir / "scores" / "x.csv")): "a folder of a run",
        (str(tmp_path / "none"),): "is not there",
    }.items():
        assert main(["teach", *words]) == 2
        assert told in capsys.readouterr().err
    assert not (run_dir / "taught").exists()
    assert not (run_dir / verdicts.FILE).exists()


def test_teach__a_damaged_file_of_verdicts_stops_it_and_stays(run_dir, graph, tmp_path):
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph)))])
    path = run_dir / verdicts.FILE
    lines = path.read_text().splitlines()
    lines[7] = lines[7][:20]
    path.write_text("\n".join(lines))
    damaged, taught = path.read_bytes(), folder_bytes(run_dir / "taught")
    for command in (commands.teach_run, commands.review_run):
        with pytest.raises(FolderError, match=r"verdicts.jsonl: line 8 is damaged"):
            command([str(run_dir)])
    assert (path.read_bytes(), folder_bytes(run_dir / "taught")) == (damaged, taught)


def test_teach__waits_for_no_run(run_dir, graph, tmp_path):
    table = write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph))
    with file_lock(run_dir / ".lock"), pytest.raises(ValueError, match="is at work"):
        commands.teach_run([str(run_dir), str(table)])
    assert len(verdicts.latest(run_dir).table) == 40


def test_review__writes_the_verdicts_given(run_dir, finished, graph, tmp_path):
    commands.teach_run(
        [str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph))), "--by", "anna"]
    )
    assert commands.review_run([str(run_dir), "--given", str(tmp_path / "given.csv")]).startswith("40 verdicts in")
    assert {*pd.read_csv(tmp_path / "given.csv")["by"]} == {"anna"}
    verdicts.append(run_dir, [(graph.ids[0].as_py(), "bad", "CASE", "stolen card")])
    commands.review_run([str(run_dir), "--given", str(tmp_path / "given.csv")])
    assert pd.read_csv(tmp_path / "given.csv").iloc[-1][["case", "note"]].tolist() == ["CASE", "stolen card"]
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    commands.teach_run([str(other), str(tmp_path / "given.csv")])
    assert verdicts.latest(other).by_id() == verdicts.latest(run_dir).by_id()


def test_export__has_the_columns_of_the_lesson(run_dir, graph, tmp_path):
    plain, both, by_lesson = (tmp_path / name for name in ("plain.csv", "both.parquet", "taught.csv"))
    commands.export_run([str(run_dir), str(plain)])
    with pytest.raises(ValueError, match="hcm-scale teach"):
        commands.export_run([str(run_dir), str(both), "--taught"])
    nodes = some_nodes(graph)
    said = commands.teach_run(
        [str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes)), "--out", str(by_lesson)]
    )
    assert f"400 nodes in {by_lesson}" in said
    commands.export_run([str(run_dir), str(both)])
    before, after, sorted_ = pd.read_csv(plain), pd.read_parquet(both), pd.read_csv(by_lesson)
    assert {"taught", "taught_rank", "verdict"} == {*after.columns} - {*before.columns}
    assert (after[["id", "rank", "flagged"]] == before[["id", "rank", "flagged"]]).all(axis=None)
    assert sorted_["taught_rank"].tolist() == list(range(1, 401))
    assert sorted_["reason"].notna().sum() >= 100
    assert sorted_["reason"][:100].notna().all()
    lesson = pq.read_table(run_dir / "taught" / "taught.parquet").to_pandas()
    for listed in (after, sorted_):
        joined = listed.merge(lesson, on="node", suffixes=("", "_own"))
        assert (joined["taught_rank"] == joined["taught_rank_own"]).all()
        assert np.allclose(joined["taught"], joined["taught_own"])
        assert (joined["verdict"].fillna("") == joined["verdict_own"].fillna("")).all()
    commands.export_run([str(run_dir), str(plain), "--top", "5", "--taught"])
    assert pd.read_csv(plain)["taught_rank"].tolist() == [1, 2, 3, 4, 5]


def test_new_scores__keep_the_verdicts_and_leave_the_old_lesson_unread(run_dir, graph, tmp_path):
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph)))])
    lines = (run_dir / verdicts.FILE).read_bytes()
    small_run(run_dir, dataclasses.replace(graph, y=None, kind=None), until="score", **{"score.trim": 0.3})
    assert (run_dir / verdicts.FILE).read_bytes() == lines
    assert teach.open_taught(run_dir, run_dir / "scores") is None
    commands.export_run([str(run_dir), str(tmp_path / "list.csv")])
    assert "taught" not in pd.read_csv(tmp_path / "list.csv").columns
    commands.teach_run([str(run_dir)])
    assert teach.open_taught(run_dir, run_dir / "scores") is not None


def test_damaged_lesson__is_told_by_its_file(run_dir, graph, tmp_path):
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph)))])
    (run_dir / "taught" / "lesson.safetensors").write_bytes(b"")
    with pytest.raises(FolderError, match=r"lesson.safetensors is damaged.*hcm-scale teach"):
        commands.export_run([str(run_dir), str(tmp_path / "list.csv")])


FORGED = {
    "its column node does not have every node of the graph once": lambda t: with_column(t, "node", [7] * len(t)),
    "its column taught_rank holds 2 to 400; legal are 1 to 399": lambda t: t.slice(1),
    "its rows are not in the order of taught": lambda t: with_column(t, "taught", [float("nan")] * len(t)),
    "its rows are not in the order of taught, a number": lambda t: t.take(list(range(len(t)))[::-1]),
    "its column taught is missing": lambda t: t.drop_columns("taught"),
    "its column taught_rank is double": lambda t: with_column(t, "taught_rank", [1.5] * len(t)),
}


def with_column(rows: pa.Table, name: str, values: list) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, pa.array(values))


@pytest.mark.parametrize("told", FORGED)
def test_forged_lesson__is_refused_by_its_file(run_dir, graph, tmp_path, told, capsys):
    """Bytes with the right hashes that are no list of this run's nodes."""
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, some_nodes(graph)))])
    folder = run_dir / "taught"
    pq.write_table(FORGED[told](pq.read_table(folder / teach.FILE)), folder / teach.FILE)
    facts = files.read_manifest(folder, teach.KIND, teach.FORMAT)
    facts["files"] = {name: files.hash_file(folder / name) for name in facts["files"]}
    files.write_sealed(folder / files.MANIFEST, facts)
    for words in (["export", str(run_dir), str(tmp_path / "x.csv")], ["review", str(run_dir)]):
        assert main(words) == 2
        assert f"taught.parquet is damaged: {told}" in capsys.readouterr().err


def test_explain__says_where_verdicts_have_put_a_node(run_dir, graph, tmp_path, capsys):
    assert main(["explain", str(run_dir), "a001"]) == 0
    assert "taught rank" not in capsys.readouterr().out
    nodes = some_nodes(graph)
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes))])
    name = graph.ids[int(nodes[0])].as_py()
    row = next(row for row in pq.read_table(run_dir / "taught" / teach.FILE).to_pylist() if row["id"] == name)
    other = next(name for name in graph.ids.to_pylist() if name not in {graph.ids[int(at)].as_py() for at in nodes})
    assert main(["explain", str(run_dir), name, other]) == 0
    first, second = capsys.readouterr().out.split("\n\n\n")
    assert f"taught rank {row['taught_rank']} of 400, and its verdict is bad" in first
    assert "taught rank" in second
    assert "verdict" not in second


# Tomorrow.


def tomorrow(run_dir: Path, out: Path, graph) -> str:
    config = as_trained(Config(run_dir=str(out), trained=str(run_dir)))
    config.world.device = "cpu"
    return pipeline.run(config, until="score", graph=graph)


def test_trained__applies_the_lesson_and_knows_the_verdicts(run_dir, graph, tmp_path):
    nodes, out = some_nodes(graph), tmp_path / "tomorrow"
    plain = dataclasses.replace(graph, y=None, kind=None)
    assert "known as bad" not in tomorrow(run_dir, tmp_path / "before", plain)
    assert not (tmp_path / "before" / "taught").exists()
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes)), "--by", "anna"])
    said = tomorrow(run_dir, out, plain)
    assert f"known as bad in {run_dir} and here again, best rank first (20): " in said
    assert verdicts.latest(out).by_id() == verdicts.latest(run_dir).by_id()
    assert {*verdicts.latest(out).table["by"].to_pylist()} == {"anna"}
    today, then = (teach.open_taught(folder, folder / "scores") for folder in (run_dir, out))
    if today.facts["changed"]:
        rest = np.setdiff1d(np.arange(graph.num_nodes), nodes)  # the others are out of their folds there
        assert np.corrcoef(today.scores[rest], then.scores[rest])[0, 1] > 0.9
        assert then.facts["taught_by"] == str(run_dir)
    lines = (out / verdicts.FILE).read_bytes()
    tomorrow(run_dir, out, plain)
    assert (out / verdicts.FILE).read_bytes() == lines  # nothing is known twice
    commands.teach_run([str(out)])
    own = folder_bytes(out / "taught")
    tomorrow(run_dir, out, plain)
    assert folder_bytes(out / "taught") == own  # what was taught there is kept


def test_trained__a_damaged_file_of_verdicts_costs_no_scores(run_dir, graph, tmp_path):
    plain = dataclasses.replace(graph, y=None, kind=None)
    (run_dir / verdicts.FILE).write_text('{"id":\n{"id":"a001","verdict":"bad"}\n')
    said = tomorrow(run_dir, tmp_path / "tomorrow", plain)
    assert "is left out" in said
    assert "line 1 is damaged" in said
    assert len(FinishedRun(tmp_path / "tomorrow").table) == graph.num_nodes


# Python.


def test_python__has_the_bytes_of_the_command_line(run_dir, graph, tmp_path):
    plain, out = dataclasses.replace(graph, y=None, kind=None), tmp_path / "python"
    found = HCM(FAST, run_dir=out).fit(plain)
    assert [row["verdict"] for row in found.review(5)] == [None] * 5
    nodes = some_nodes(graph)
    given = {graph.ids[int(node)].as_py(): bool(graph.y[node]) for node in nodes}
    taught = found.teach(given)
    commands.teach_run([str(run_dir), str(write_verdicts(tmp_path / "v.csv", graph, nodes))])
    theirs, ours = folder_bytes(run_dir / "taught"), folder_bytes(out / "taught")
    assert theirs == ours
    assert "40 verdicts of 40 rows" in repr(taught)
    assert taught.sentences == teach.open_taught(out, out / "scores").facts["sentences"]
    assert taught.decision_scores_.shape == (400,)
    assert taught.to_pandas()["taught_rank"].tolist() == list(range(1, 401))
    assert np.array_equal(found.decision_scores_, HCM(FAST, run_dir=out).fit(plain).decision_scores_)
    first = taught.table["id"][0].as_py()
    assert "taught rank 1" in taught.explain(first)
    assert taught.explain(first).data["taught_rank"] == 1
    share = taught.estimate(50)
    assert tuple(share) == tuple(taught.lesson.facts["shares"]["after"][0])
    before, after = (f"{100 * taught.lesson.facts['shares'][name][0][1]:.0f} % (" for name in ("before", "after"))
    assert re.search(rf"among the first 50 +{re.escape(before)}.+{re.escape(after)}", repr(taught))
    with pytest.raises(ValueError, match="first=401 is not legal: a whole number from 1 to 400"):
        taught.estimate(401)
    assert share.first == 50
    assert 0 <= share.low <= share.share <= share.high <= 1


@pytest.mark.parametrize("form", ["words", "series", "frame", "table", "rows", "path"])
def test_python__takes_verdicts_in_any_form(finished, tmp_path, form):
    run_dir = Path(shutil.copytree(finished, tmp_path / "run"))
    given = {"a001": "bad", "a002": "good", "a003": "unsure"}
    ids, words = list(given), list(given.values())
    pd.DataFrame({"id": ids, "verdict": words}).to_csv(tmp_path / "v.csv", index=False)
    forms = {
        "words": given,
        "series": pd.Series(words, ids),
        "frame": pd.DataFrame({"verdict": words, "id": ids}),
        "table": pa.table({"id": ids, "verdict": words}),
        "rows": [{"id": name, "verdict": word, "rank": 1} for name, word in given.items()],
        "path": str(tmp_path / "v.csv"),
    }
    FinishedRun(run_dir).import_verdicts(verdict_table(forms[form]))
    assert verdicts.latest(run_dir).by_id() == given


def test_python__fit_with_unknown_ones_in_y_teaches(graph, tmp_path):
    plain = dataclasses.replace(graph, y=None, kind=None)
    y = np.full(graph.num_nodes, -1)
    nodes = some_nodes(graph)
    y[nodes] = graph.y[nodes]
    untaught = HCM(FAST, run_dir=tmp_path / "run").fit(plain)
    by_hand = untaught.teach({graph.ids[int(node)].as_py(): bool(graph.y[node]) for node in nodes})
    taught = HCM(FAST, run_dir=tmp_path / "other").fit(plain, y=y)
    assert np.array_equal(taught.decision_scores_, by_hand.decision_scores_)
    assert np.array_equal(taught.labels_, untaught.labels_)
    assert np.array_equal(taught.p_values_, untaught.p_values_)
    taught.save(tmp_path / "saved")
    loaded = HCM.load(tmp_path / "saved")
    assert np.array_equal(loaded.decision_scores_, taught.decision_scores_)
    assert verdicts.latest(tmp_path / "saved").by_id() == verdicts.latest(tmp_path / "other").by_id()
    y[nodes[:10]] = -1  # less is known now
    taught.fit(plain, y=pd.Series(y, graph.ids.to_pylist()))
    assert len(verdicts.latest(tmp_path / "other").table) == 30
    with pytest.raises(InputError, match="y has 2 entries for 400 nodes"):
        taught.fit(plain, y=[1, -1])
    with pytest.raises(InputError, match=r"1 .bad., 0 .good. and -1 .unknown."):
        taught.fit(plain, y=np.append(y[1:], 7))
