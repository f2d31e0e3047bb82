"""Cases of a table of payments, as a person reads them: who does what, money, dates, drawings, files and commands."""

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from itertools import pairwise

import networkx as nx
import openpyxl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hcm_scale.cases.clue import Taken
from hcm_scale.cases.describe import case_page, describe
from hcm_scale.cases.drawing import draw
from hcm_scale.cases.tables import case_table, row_table
from hcm_scale.cli import cases as cases_of_cli
from hcm_scale.review import teach, verdicts
from hcm_scale.run.finished import FinishedRun
from tests.cases.conftest import COLLECTOR, DAY, PAYERS, RING, TAKER, payments, run_of
from tests.helpers import small_detector

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def case_with(run: FinishedRun, name: str) -> dict:
    node = run.graph.node_of(name)
    return run.case(str(1 + run.cases.of_node(node)[0]))


def test_case__of_money_that_goes_round_has_all_of_it(run):
    told = case_with(run, RING[0])
    assert {member["id"] for member in told["members"]} == {*RING}
    assert {member["role"] for member in told["members"]} == {"passes on"}
    assert told["num_rows"] == len(told["rows"]) >= 6
    inside = [row for row in told["rows"] if row["payer"] in RING and row["payee"] in RING]
    assert len(inside) == len(told["rows"])
    assert told["money"][0]["currency"] == "EUR"
    assert told["money"][0]["inside"] == pytest.approx(sum(row["amount"] for row in told["rows"]), abs=0.01)
    steps = {(one, other) for one, other in zip(RING, [*RING[1:], RING[0]], strict=True)}
    assert steps <= {(row["payer"], row["payee"]) for row in told["rows"]}
    assert "payments between them of" in told["text"]
    assert " EUR" in told["text"]


def test_case__has_no_strange_payment_of_a_member_at_another_time(tmp_path):
    table, day = payments(), pc.min(payments()["time"]).as_py() + timedelta(days=150)
    late = {"payer": RING[0], "payee": COLLECTOR, "time": day, "amount": 9000.0, "currency": "EUR"}
    both = run_of(tmp_path / "run", pa.concat_tables([table, pa.Table.from_pylist([late], table.schema)]))
    told = case_with(both, RING[0])
    assert {member["id"] for member in told["members"]} == {*RING}
    assert all(row["amount"] < 9000.0 for row in told["rows"])


def test_case__of_a_collector_says_who_collects_and_who_pays_in(run):
    told = case_with(run, COLLECTOR)
    roles = {member["id"]: member["role"] for member in told["members"]}
    assert roles[COLLECTOR] == "collects"
    assert [roles[name] for name in PAYERS] == ["pays in"] * len(PAYERS)
    assert told["text"].count(COLLECTOR) >= 1


def test_case__of_a_collector_has_where_the_money_went(run):
    told = case_with(run, COLLECTOR)
    roles = {member["id"]: member["role"] for member in told["members"]}
    assert roles == {COLLECTOR: "collects", TAKER: "is paid"} | dict.fromkeys(PAYERS, "pays in")
    sent = [row["amount"] for row in told["rows"] if row["payee"] == TAKER]
    came = sum(row["amount"] for row in told["rows"] if row["payee"] == COLLECTOR)
    assert sum(sent) == pytest.approx(0.95 * came, abs=0.02)


def test_times__of_steps_are_told_as_the_table_has_them(run):
    kept = replace(run.evidence.rows, steps=DAY)
    evidence, at = replace(run.evidence, rows=kept), int(run.cases.of_node(run.graph.node_of(RING[0]))[0])
    times = kept.rows.time[run.cases[at].rows] / DAY
    page = case_page(describe(evidence, run.cases, at))
    assert f"step {times.min():,.0f} " in page
    assert [line.split()[1] for line in page.splitlines() if line.startswith("  step ")] == [f"{t:,.0f}" for t in times]
    about = case_table(run.cases, evidence).slice(at, 1).to_pylist()[0]
    assert (about["first"], about["last"]) == pytest.approx((times.min(), times.max()))
    rows = row_table(evidence, run.cases)
    own = rows.filter(pc.equal(rows["case"], at + 1))["time"].to_pylist()
    assert own == pytest.approx(times.tolist())


def test_money__into_and_out_of_a_case_is_that_of_the_table(run, tmp_path):
    told = case_with(run, COLLECTOR)
    table = pq.read_table(run.folder.with_suffix(".parquet"))
    members = {member["id"] for member in told["members"]}
    seconds = [time.timestamp() for time in table["time"].to_pylist()]
    rows = zip(*(table[name].to_pylist() for name in ("payer", "payee", "amount")), seconds, strict=True)
    sums = {"into": 0.0, "out": 0.0}
    for payer, payee, amount, second in rows:
        if told["first"] <= second <= told["last"]:
            sums["into"] += amount * (payee in members and payer not in members)
            sums["out"] += amount * (payer in members and payee not in members)
    assert {name: told["money"][0][name] for name in sums} == pytest.approx(sums, abs=0.01)


def test_drawing__has_an_arrow_for_every_pair_that_pays_and_stays_in_its_box(run):
    told = case_with(run, RING[0])
    drawing = draw(told, [])
    assert len(drawing["nodes"]) == len(RING)
    assert len(drawing["arrows"]) == len({(row["payer"], row["payee"]) for row in told["rows"]})
    assert len(drawing["ticks"]) == told["num_rows"]
    sides = {node["y"] > drawing["height"] / 2: node["side"] for node in drawing["nodes"] if 112 < node["x"] < 208}
    assert sides == {False: "above", True: "below"}  # outside the circle, where no arrow is
    assert all(0 <= n["x"] <= drawing["width"] and 0 <= n["y"] <= drawing["height"] for n in drawing["nodes"])
    assert len({(n["x"], n["y"]) for n in drawing["nodes"]}) == len(RING)
    steps = {*zip(RING, [*RING[1:], RING[0]], strict=True)}
    alone = told | {
        "rows": [row for row in told["rows"] if (row["payer"], row["payee"]) in steps and row["amount"] > 200]
    }
    assert [n["id"] for n in draw(alone, [])["nodes"]] == RING  # in the order of their payments, round the circle


def test_case__of_very_many_members_names_some_and_counts_all(run, monkeypatch):
    whole = case_with(run, RING[0])
    monkeypatch.setattr("hcm_scale.cases.describe.MOST_MEMBERS", 2)
    told = case_with(run, RING[0])
    assert told["members"] == whole["members"][:2]
    assert (told["num_members"], told["roles"]) == (len(RING), {"passes on": len(RING)})
    assert f"Passes on: {', '.join(RING[:2])} and {len(RING) - 2} more." in told["text"]


def test_drawing__of_many_who_pass_on_has_labels_that_cover_no_member_and_no_other_label():
    roles = ["pays in"] + ["passes on"] * 11 + ["is paid"] * 2
    ids = [f"a{100 + at}" for at in range(len(roles))]
    members = [{"id": name, "role": role, "core": True} for name, role in zip(ids, roles, strict=True)]
    rows = [{"payer": a, "payee": b, "amount": 1.0, "time": 0.0} for a, b in pairwise(ids)]
    boxes = []
    for node in draw({"members": members, "num_members": len(members), "rows": rows}, [])["nodes"]:
        x, y, width = node["x"], node["y"], 5.5 * len(node["label"])
        left, low = {
            "left": (x - 9 - width, y - 4),
            "right": (x + 9, y - 4),
            "above": (x - width / 2, y - 17),
            "below": (x - width / 2, y + 8),
        }[node["side"]]
        boxes += [(left, low, left + width, low + 8), (x - 5, y - 5, x + 5, y + 5)]
    over = [
        (a, b)
        for at, a in enumerate(boxes)
        for b in boxes[:at]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert over == []


def test_report__begins_with_cases_drawn_without_a_script(run):
    page = (run.folder / "report" / "report.html").read_text()
    assert page.index('id="cases"') < page.index('id="ranking"')
    assert '<svg class="case-drawing"' in page
    shown = json.loads((run.folder / "report" / "report.json").read_text())["cases"]
    assert [case["id"] for case in shown["shown"]] == [run.cases.id_of(at) for at in range(len(shown["shown"]))]


def test_commands__list_and_tell_cases(hcm_scale: Command, run):
    listed = hcm_scale("cases", str(run.folder), "3")
    assert listed.returncode == 0
    assert listed.stdout.count("\n") >= 5
    told = hcm_scale("explain", str(run.folder), "case=1").stdout
    assert told == hcm_scale("case", str(run.folder), "1").stdout
    assert told.startswith("Case 1 (")
    assert hcm_scale("case", str(run.folder), run.cases.id_of(0)).stdout == told
    clue = " ".join(hcm_scale("case", str(run.folder), "--from", RING[2]).stdout.split())
    assert f"asses on: {', '.join(RING)}" in clue


@pytest.mark.parametrize("text", ["{0}\n{1}\nnobody\n", "account;since\n{0};2020\n{1};2021\nnobody;2022\n"])
def test_case__from_a_file_of_ids_has_their_cases(hcm_scale: Command, run, tmp_path, text):
    (tmp_path / "known.csv").write_text(text.format(RING[0], COLLECTOR))
    told = " ".join(hcm_scale("case", str(run.folder), "--from", str(tmp_path / "known.csv")).stdout.split())
    for name in (RING[0], COLLECTOR):
        assert case_with(run, name)["id"] in told
    assert told.startswith("not in this graph: nobody ")


def test_case__of_a_clue_that_is_one_by_itself_is_also_what_is_around(hcm_scale: Command, run, monkeypatch):
    name, held_by = RING[0], case_with(run, RING[0])["held_by"]
    monkeypatch.setattr(cases_of_cli, "ALONE", held_by)  # as if it were one
    monkeypatch.setattr(cases_of_cli, "grow_from", lambda *_: [Taken(0, 4.0, "so it is")])
    told = hcm_scale("case", str(run.folder), "--from", str(name)).stdout
    assert told.startswith("Case ")
    assert f"{name}: in no case of several nodes; the most surprising set around" in told
    assert ": so it is" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cases", "RUN", "0"], "0 cases are not legal"),
        (["case", "RUN", "999999"], "case '999999' is not there; cases have numbers from 1 to"),
        (["explain", "RUN", "case=nine"], "case 'nine' is not there"),
        (["case", "RUN"], "--from ID"),
        (["case", "RUN", "1", "--from", "c"], "--from ID"),
        (["case", "RUN", "--from", "nobody"], "nobody"),
        (["export", "RUN", "x.graphml", "--case", "77777"], "case '77777' is not there"),
        (["export", "RUN", "x.csv", "--case", "1"], "--cases writes tables"),
        (["export", "RUN", "x.csv", "--cases", "--taught"], "--cases goes with"),
        (["diff", "RUN", "nowhere"], "nowhere"),
    ],
)
def test_commands__say_what_is_wrong(hcm_scale: Command, run, words, said):
    done = hcm_scale(*(str(run.folder) if word == "RUN" else word for word in words))
    assert done.returncode == 2
    assert said in done.stderr


def test_export__of_cases_has_a_row_a_member_and_sheets(hcm_scale: Command, run, tmp_path):
    assert hcm_scale("export", str(run.folder), str(tmp_path / "c.parquet"), "--cases").returncode == 0
    table = pq.read_table(tmp_path / "c.parquet")
    assert table.num_rows == len(run.cases.members)
    assert table["case"].to_pylist() == (run.cases.number_of_member + 1).tolist()
    for row in table.to_pylist():
        told = run.case(row["case_id"])
        money = told["money"][0] if told["money"] else dict.fromkeys(("inside", "into", "out", "currency"))
        own = [row[name] for name in ("money_inside", "money_in", "money_out", "currency")]
        assert own == [money[name] for name in ("inside", "into", "out", "currency")]
        if told["money"]:
            seconds = [row[name].replace(tzinfo=UTC).timestamp() for name in ("first", "last")]
            assert seconds == pytest.approx([told["first"], told["last"]], abs=1e-3)
    ranks = dict(zip(run.ranked["id"].to_pylist(), run.ranked["rank"].to_pylist(), strict=True))
    assert all(ranks[row["id"]] == row["rank"] for row in table.to_pylist())
    assert hcm_scale("export", str(run.folder), str(tmp_path / "c.xlsx"), "--cases", "--top", "2").returncode == 0
    book = openpyxl.load_workbook(tmp_path / "c.xlsx")
    assert book.sheetnames == ["members", "cases", "rows"]
    assert book["cases"].max_row == 3
    assert book["members"].max_row == 1 + pc.sum(pc.less_equal(table["case"], 2)).as_py()
    assert hcm_scale("export", str(run.folder), str(tmp_path / "c.graphml"), "--case", "1").returncode == 0
    drawn = nx.read_graphml(tmp_path / "c.graphml")
    assert sorted(label for _, label in drawn.nodes(data="label")) == sorted(
        member["id"] for member in run.case("1")["members"]
    )


def test_diff__of_a_run_with_itself_has_nothing_new(hcm_scale: Command, run):
    told = json.loads(hcm_scale("diff", str(run.folder), str(run.folder), "--json").stdout)
    assert all(told["cases"][name] == [] for name in ("new", "grown", "shrunk", "changed", "gone"))
    assert told["cases"]["num_same"] == run.cases.num_flagged
    assert (told["nodes"]["num_entered"], told["nodes"]["num_left"]) == (0, 0)
    assert told["nodes"]["moved"] == []


def check_moved(old: FinishedRun, new: FinishedRun, nodes: dict) -> None:
    """The nodes that moved most have the ranks of both runs, and the kind by which they moved most."""
    before, after = ({row["id"]: row for row in run.table.to_pylist()} for run in (old, new))
    entered = [
        row for name, row in after.items() if row["flagged"] and not (name in before and before[name]["flagged"])
    ]
    assert [row["id"] for row in entered] == [row["id"] for row in nodes["entered"]]  # all of them
    left = [row for name, row in before.items() if row["flagged"] and not (name in after and after[name]["flagged"])]
    assert [row["id"] for row in left] == [row["id"] for row in nodes["left"]]
    for one in (*nodes["entered"], *nodes["left"]):
        ranks = [table[one["id"]]["rank"] if one["id"] in table else None for table in (before, after)]
        assert [one["before"], one["after"]] == ranks
    pairs = [(before[name], after[name]) for name in before.keys() & after.keys()]
    far = [
        abs(math.log(was["rank"] / now["rank"]))
        for was, now in pairs
        if was["flagged"] == now["flagged"]
        and was["rank"] != now["rank"]
        and min(was["rank"], now["rank"]) <= max(len(before), len(after)) / 10
    ]
    assert far
    assert [abs(math.log(one["before"] / one["after"])) for one in nodes["moved"]] == sorted(far, reverse=True)[:20]
    for one in nodes["moved"]:
        was, now, kind = before[one["id"]], after[one["id"]], one["kind"]
        assert was["flagged"] == now["flagged"]
        assert (one["before"], one["after"]) == (was["rank"], now["rank"])
        assert (one["kind_before"], one["kind_after"]) == (was[f"{kind}_rank"], now[f"{kind}_rank"])
        ratios = {k: was[f"{k}_rank"] / now[f"{k}_rank"] for k in new.evidence.kinds}
        assert ratios[kind] == (max if was["rank"] > now["rank"] else min)(ratios.values())


def test_verdict__on_a_case_lasts_and_the_case_is_open_again_when_it_grows(hcm_scale: Command, run, tmp_path):
    copied = tmp_path / "first"
    shutil.copytree(run.folder, copied)
    first, ring = FinishedRun(copied), case_with(run, RING[0])
    name = ring["id"]
    said = hcm_scale("case", str(copied), name, "--verdict", "bad", "--note", "known ring", "--by", "anna").stdout
    assert f"({name}): bad, {len(RING)} nodes" in said
    given = first.verdicts()
    assert sorted(given.table["id"].to_pylist()) == sorted(RING)
    assert {*given.table["case"].to_pylist()} == {name}
    assert first.case(name)["judged"] == "Judged bad by anna: known ring."
    assert next(line for line in hcm_scale("cases", str(copied)).stdout.splitlines() if name in line).endswith("  bad")
    nodes, is_bad = teach.LabelledNodes.of(first).lessons(first.column("rank"))
    assert (len(nodes), is_bad.tolist()) == (1, [True])  # one verdict, of the best ranked

    verdicts.append(copied, [(one, "bad") for one in RING[:3]])
    first.judge_case(name, "bad", note="known ring", by="anna")
    assert (
        len(teach.LabelledNodes.of(first).lessons(first.column("rank"))[0]) == 3
    )  # said of each, and of all once more

    verdicts.append(copied, [(RING[1], "good")], "ben")
    assert first.case(name)["judged"] == "Judged bad by anna: known ring."  # one has a verdict of its own: none is new

    later = run_of(tmp_path / "later", payments(more=2), since=str(copied))
    told = case_with(later, RING[0])
    assert told["id"] == name
    assert "Open again: 2 of its nodes have come since" in told["judged"]
    listed = hcm_scale("cases", str(later.folder)).stdout.splitlines()
    assert next(line for line in listed if name in line).endswith("  bad, open again")
    grown = [one for one in later.cases.changes["grown"] if one["id"] == name]
    assert [one["entered"] for one in grown] == [["s0", "s1"]]
    assert "grown" in hcm_scale("cases", str(later.folder)).stdout
    check_moved(first, later, json.loads(hcm_scale("diff", str(copied), str(later.folder), "--json").stdout)["nodes"])

    assert hcm_scale("case", str(copied), name, "--verdict", "none").returncode == 0
    assert first.case(name)["judged"] == ""


def test_teach__estimates_the_share_of_bad_cases(run, tmp_path):
    own = FinishedRun(shutil.copytree(run.folder, tmp_path / "own"))
    verdicts.append(own.folder, [("a1", "good"), ("a2", "bad")])
    assert "cases" not in teach.taught_text(teach.teach(own))
    for number in range(1, 1 + len(own.cases)):
        own.judge_case(str(number), "bad" if number < 3 else "good")
    (first, *_) = shares = teach.case_shares(own, teach.LabelledNodes.of(own))
    count = len(own.cases)
    assert [share.first for share in shares] == ([n for n in (10, 20, 50, 100, 200, 500) if n <= count] or [count])
    told = [own.case(str(number))["judged"] for number in range(1, 1 + first.first)]  # a node may be of two cases
    assert first.low <= sum(said.startswith("Judged bad") for said in told) / first.first <= first.high
    text = teach.taught_text(teach.teach(own))
    assert f"of the first {first.first}" in text.split("estimated share of bad cases: ")[1]


def test_python__has_cases_as_a_table_and_each_as_text_and_drawing(run, tmp_path):
    found = small_detector(run_dir=tmp_path / "run").fit(
        run.folder.with_suffix(".parquet"), source="payer", target="payee"
    )
    assert found.cases_["case"].to_pylist() == list(range(1, 1 + len(found.cases_)))
    case = found.case(found.cases_["case_id"][0].as_py())
    assert repr(case).startswith("Case 1 (")
    assert case.data["members"][0]["id"] in case._repr_html_()
    with pytest.raises(ValueError, match="is not there"):
        found.case(10**6)
