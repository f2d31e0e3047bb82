"""A kind of evidence is one object: one more, on the list or as a plug-in, is seen everywhere."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from helpers import FAST, planted_graph, small_run

import hcm_scale
from hcm_scale import HCM, plugins
from hcm_scale.cli import commands
from hcm_scale.review import learn, teach
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.kinds import all as every
from hcm_scale.score.kinds.all import KINDS
from hcm_scale.score.kinds.kind import Column, Kind, Reason, TailOnly
from hcm_scale.serve.server import Views

PACKAGE = Path(hcm_scale.__file__).parent
ODD = [3, 14, 159, 265]  # nodes


def numbers(inputs) -> list[np.ndarray]:
    made = np.sin(np.arange(inputs.edges.num_nodes))
    made[ODD] = 60.0
    return [made, -made]


def say(_, reason: Reason) -> str:
    return f"it hums at {reason.value:g} Hz"


HUM = Kind(
    name="hum",
    columns={"hertz": Column("pitch of its hum (Hz)", "How high it hums."), "depth": Column("depth")},
    title="hums strangely",
    short="Hum",
    help="It hums where others are silent.",
    words="It hums at, in hertz",
    numbers=numbers,
    ranks_all_nodes=True,
    tail_only=TailOnly(),
    sentence=say,
)


@pytest.fixture(params=["on the list", "as a plug-in"])
def options(request, monkeypatch) -> Iterator[dict]:
    if request.param == "on the list":
        monkeypatch.setitem(every.KINDS, "hum", HUM)
        yield {}
    else:
        plugins.register("evidence", HUM)
        yield {"score.evidence": ["hum"]}
        del plugins._registered["evidence"]["hum"]


def test_one_more_kind__is_seen_everywhere(options, tmp_path):
    run = tmp_path / "run"
    said = small_run(run, planted_graph(), **options)
    table = pq.read_table(run / "scores/scores.parquet")
    order = np.argsort(table["node"].to_numpy())
    hertz, depth, rank, score = (table[name].to_numpy()[order] for name in ("hertz", "depth", "hum_rank", "score"))
    assert hertz[ODD].tolist() == (-depth[ODD]).tolist() == [60.0] * 4
    assert rank[ODD].tolist() == [2] * 4  # the middle of the first four, rounded towards 1
    assert {*np.array(table["evidence"].to_pylist())[order][ODD]} == {"hum"}
    assert set(ODD) <= set(table["node"].to_pylist()[:10])
    assert {*ODD} <= {row["node"] for row in table.to_pylist() if row["flagged"]}

    assert "hums strangely (hum)" in said
    report, page = json.loads((run / "report/report.json").read_text()), (run / "report/report.html").read_text()
    assert report["scores"][-1] == "hertz"
    assert {row["node"] for row in report["kinds"]["hum"][:4]} == {*ODD}
    assert report["flagged"]["by_kind"]["hum"] >= 4
    for words in ("Hums strangely <small>(hum)</small>", "It hums where others are silent.", "of them: hums strangely"):
        assert words in page
    assert '<option value="hum">Hums strangely</option>' in page

    hums = "it hums at 60 Hz" if not options else "it hums at, in hertz: 60"  # who reads it has not the plug-in's code
    told = " ".join(FinishedRun(run).explained_text([str(ODD[0])]).split())
    assert f"Hums strangely: {hums} (rank 2 of 400 by hum)" in told
    commands.export_run([str(run), str(tmp_path / "list.csv"), "--top", "10"])
    rows = {row["node"]: row for row in csv.read_csv(tmp_path / "list.csv").to_pylist()}
    assert rows[ODD[0]]["hum_rank"] == 2
    assert hums in rows[ODD[0]]["reason"]

    views = Views(FinishedRun(run))
    assert "hum_rank" in [column["key"] for column in views.columns]
    assert {row["evidence"] for row in json.loads(views.rows({"kind": "hum"}))["rows"]} == {"hum"}
    inputs = teach.inputs_of(views.run)
    assert list(inputs.ranks)[-1] == "hum"
    assert inputs.titles[-1] == "hums strangely"
    assert learn._Columns.of(inputs, np.zeros(0, np.int64)).double[-2].tolist() == (2 * rank).tolist()

    every.KINDS.pop("hum", None)
    small_run(tmp_path / "plain", planted_graph(), until="score")
    before = pq.read_table(tmp_path / "plain/scores/scores.parquet")
    was, bulk = before["score"].to_numpy()[np.argsort(before["node"].to_numpy())], hertz < np.quantile(hertz, 0.95)
    np.testing.assert_array_equal(score[bulk], was[bulk])  # of which the tail alone counts
    assert (score[ODD] > was[ODD]).all()


def test_one_more_kind__is_measured_by_the_trained_run(options):
    given = {} if not options else {"evidence": ["hum"]}
    found = HCM(FAST, **given).fit(planted_graph())
    np.testing.assert_array_equal(found.apply(planted_graph()).decision_scores_, found.decision_scores_)


def test_several_tails__count_by_the_largest():
    from hcm_scale.score.evidence import KindNumbers, weigh_evidence
    from hcm_scale.score.threshold import judge

    rng = np.random.default_rng(0)
    usual, tails = rng.gamma(2.0, size=2_000), rng.exponential(size=(2, 2_000))
    tails[0, 7], tails[1, 8] = 40.0, 40.0
    both = [Kind(**{**vars(HUM), "name": name}) for name in ("a", "b")]
    base = {KINDS["attributes"]: usual}

    def p_of(*kinds):
        given = base | {both[kind]: tails[kind] for kind in kinds}
        return judge(weigh_evidence(KindNumbers(given, np.ones(2_000, bool))).sums, 0.1).p

    none, one, two = p_of(), p_of(0), p_of(0, 1)
    assert one[7] < two[7] < 2.5 * one[7]  # the largest of two
    assert two[8] < 1e-3 < one[8]
    bulk = np.argsort(tails.max(axis=0))[:100]
    np.testing.assert_allclose(one[bulk], none[bulk], atol=0.06)
    np.testing.assert_allclose(two[bulk], none[bulk], atol=0.06)


COMMON = ("hop", "attributes", "context")  # words that much else is called by: the hop of an edge, a key of the report


@pytest.mark.parametrize("name", KINDS)
def test_name_of_a_kind__stands_in_its_own_file_alone(name):
    """As text; of names that are common words the columns of ranks are looked for."""
    wanted = {f"{name}_rank"} | (set() if name in COMMON else {name, KINDS[name].column})
    for path in sorted(PACKAGE.rglob("*.py")):
        where = str(path.relative_to(PACKAGE))
        if where != f"score/kinds/{name}.py" and re.match("score|report|stages|review|serve|cli|detector|run", where):
            texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not wanted & {text for text in texts if isinstance(text, str)}, where
