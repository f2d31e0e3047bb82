"""Cases that people have put together, or taken members out of: told so everywhere, undone, carried on, never lost."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.cases.find import GROUP, Case
from hcm_scale.cases.store import Cases, as_cases
from hcm_scale.graph import Graph
from hcm_scale.review import teach, verdicts
from hcm_scale.review.cases import change_lines, changed_cases
from hcm_scale.run.finished import FinishedRun
from tests.cases.conftest import COLLECTOR, PAYERS, RING, payments, run_of

GRAPH = Graph(np.zeros(41, np.int64), np.zeros(0, np.int32), ids=pa.array([f"n{i}" for i in range(40)]))
P = np.linspace(1e-6, 0.9, 40)
NONE = np.zeros(0, np.int64)


@pytest.fixture
def own(run, tmp_path) -> FinishedRun:
    return FinishedRun(shutil.copytree(run.folder, tmp_path / "own"))


def number_of(run: FinishedRun, name: str) -> str:
    return str(run.cases.numbers[run.cases.of_node(run.graph.node_of(name))[0]])


def members(run: FinishedRun, name: str) -> set[str]:
    return {member["id"] for member in run.case(name)["members"]}


def test_merge__is_one_case_with_the_members_of_both_and_one_verdict(own):
    ring, other = number_of(own, RING[0]), number_of(own, COLLECTOR)
    both, ids = members(own, ring) | members(own, other), [own.case(name)["id"] for name in (ring, other)]
    numbers, first = own.cases.numbers.tolist(), min(int(ring), int(other))
    own.change_case("merge", other, [ring])
    assert members(own, ring) == members(own, other) == members(own, ids[0]) == members(own, ids[1]) == both
    assert own.case(ring)["case"] == first
    assert own.cases.numbers.tolist() == [n for n in numbers if n == first or n not in (int(ring), int(other))]
    assert all(f"{name} (" in own.case(ring)["text"] for name in ids)

    own.judge_case(ring, "bad", "anna")
    core = {own.graph.external_id(node) for node in own.cases[own.cases.position(ring)].core.tolist()}
    assert own.verdicts().by_id() == dict.fromkeys(core, "bad")
    nodes, _ = teach.LabelledNodes.of(own).lessons(own.column("rank"))
    assert len(nodes) == 1

    own.change_case("apart", ring)
    assert members(own, ring) | members(own, other) == both
    assert own.cases.numbers.tolist() == numbers
    assert own.case(ring)["judged"] == own.case(other)["judged"] == "Judged bad by anna."
    assert len(teach.LabelledNodes.of(own).lessons(own.column("rank"))[0]) == 2


def test_out__takes_a_member_its_rows_and_its_verdict_away_until_it_is_in_again(own):
    name = number_of(own, COLLECTOR)
    own.judge_case(name, "bad", "anna")
    before, given, payer = own.case(name), own.verdicts().by_id(), PAYERS[3]
    verdicts.append(own.folder, [(payer, "good")], "ben")
    own.change_case("out", name, [payer, COLLECTOR] if len(own.cases[own.cases.position(name)].core) > 1 else [payer])
    told = own.case(name)
    assert payer not in members(own, name)
    assert told["taken_out"][-1] == payer or payer in told["taken_out"]
    assert f"Taken out by hand: {', '.join(told['taken_out'])}." in told["text"]
    assert all(payer not in (row["payer"], row["payee"]) for row in told["rows"])
    assert told["num_rows"] < before["num_rows"]
    assert own.verdicts().by_id()[payer] == "good"  # its own
    own.change_case("in", name, told["taken_out"])
    assert own.case(name) == before
    verdicts.append(own.folder, [(payer, "none")])
    assert {**own.verdicts().by_id()} == {key: value for key, value in given.items() if key != payer}


def test_verdict__on_a_case_does_not_count_for_who_was_taken_out(own):
    name = number_of(own, RING[0])
    own.judge_case(name, "bad", "anna")
    own.change_case("out", name, [RING[2]])
    assert sorted(own.verdicts().by_id()) == sorted({*RING} - {RING[2]})
    assert "Open again" not in own.case(name)["judged"]
    own.change_case("in", name, [RING[2]])
    assert sorted(own.verdicts().by_id()) == sorted(RING)
    own.change_case("out", name, [RING[2]])
    own.judge_case(name, "none")
    own.change_case("in", name, [RING[2]])
    assert own.verdicts().by_id() == {}


def test_out__of_the_last_that_stands_out_is_refused(own):
    name = number_of(own, RING[0])
    core = [own.graph.external_id(node) for node in own.cases[own.cases.position(name)].core.tolist()]
    with pytest.raises(ValueError, match="no node left that stands out: the verdict good"):
        own.change_case("out", name, core)
    own.change_case("out", name, core[1:])
    assert own.case(name)["held_by"] == "alone"
    assert own.case(name)["title"] == "by itself"
    with pytest.raises(ValueError, match="no node left that stands out"):
        own.change_case("out", name, core[:1])


def test_commands__change_cases_and_say_what_is_wrong(hcm_scale: Callable[..., Any], own, tmp_path):
    folder, ring, other = str(own.folder), number_of(own, RING[0]), number_of(own, COLLECTOR)
    for words, said in (
        (["--merge", ring], f"is told as one with case {ring} already"),
        (["--merge", "99999"], "case '99999' is not there"),
        (["--apart"], "is not put together with others"),
        (["--out", "nobody"], "nobody"),
        (["--out", PAYERS[0]], f"{PAYERS[0]} is not a member of case {ring}"),
        (["--in", RING[0]], f"{RING[0]} is not taken out of case {ring}"),
        (["--merge", other, "--out", RING[0]], "not allowed with argument"),
    ):
        done = hcm_scale("case", folder, ring, *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (own.folder / verdicts.FILE).exists()
    told = hcm_scale("case", folder, ring, "--merge", other, "--by", "anna").stdout
    assert told == hcm_scale("case", folder, other).stdout == hcm_scale("explain", folder, f"case={ring}").stdout
    assert own.verdicts().changes.lines[(next(iter(own.verdicts().changes.part_of)),)]["by"] == "anna"
    listed = hcm_scale("cases", folder, "50").stdout
    assert sum(own.found_cases.id_of(int(name) - 1) in listed for name in (ring, other)) == 1
    assert hcm_scale("export", folder, str(tmp_path / "c.parquet"), "--cases").returncode == 0
    table = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert {row["id"] for row in table if row["case"] == min(int(ring), int(other))} >= {*RING, COLLECTOR}
    assert hcm_scale("export", folder, str(tmp_path / "c.graphml"), "--case", other).returncode == 0
    same = json.loads(hcm_scale("diff", folder, folder, "--json").stdout)["cases"]
    assert same["num_same"] == own.found_cases.num_flagged  # as they are found
    assert "put together" not in hcm_scale("case", folder, ring, "--apart").stdout


def test_changes__go_on_to_the_next_run_by_the_ids_of_cases(own, tmp_path):
    ring, other = own.case(number_of(own, RING[0]))["id"], own.case(number_of(own, COLLECTOR))["id"]
    own.change_case("merge", ring, [other], "anna")
    own.change_case("out", ring, [PAYERS[0]])
    own.judge_case(ring, "bad", "anna")
    later = run_of(tmp_path / "later", payments(more=2), since=str(own.folder))
    assert later.cases.position(ring) == later.cases.position(other)
    assert {*RING, "s0", "s1", COLLECTOR, *PAYERS[1:]} <= members(later, ring)
    assert PAYERS[0] not in members(later, ring)
    assert "Open again: 2 of its nodes" in later.case(ring)["judged"]
    later.change_case("apart", ring)
    again = run_of(tmp_path / "later", payments(more=2), since=str(own.folder))
    assert again.cases.position(ring) != again.cases.position(other)  # what was said there counts


def cases_of(*groups: list[int]) -> Cases:
    return as_cases(GRAPH, [Case(np.array(sorted(group)), NONE, NONE, GROUP, 9.0) for group in groups], 2)


def told(cases: Cases) -> list[set[int]]:
    return [{*case.members.tolist()} for case in cases]


def test_changed_cases__equal_sets_that_are_joined_one_after_another(tmp_path):
    rng = random.Random(0)
    groups = [rng.sample(range(40), rng.randint(1, 6)) for _ in range(12)]
    found, one_of, out = cases_of(*groups), list(range(12)), set[tuple[int, int]]()
    for step in range(120):
        cases = changed_cases(GRAPH, found, verdicts.latest(tmp_path).changes, lambda: P)
        a, b = rng.sample(range(12), 2)
        how = rng.choice(["merge", "apart", "out", "in"])
        node = rng.choice(groups[a])
        values = {"merge": [found.id_of(b)], "apart": []}.get(how, [f"n{node}"])
        name = str(a + 1) if rng.random() < 0.5 else found.id_of(a)
        try:
            lines = change_lines(GRAPH, cases, verdicts.latest(tmp_path).changes, how, name, values)
        except ValueError:
            continue
        verdicts.append(tmp_path, lines, "anna")
        with_a = [other for other in range(12) if one_of[other] == one_of[a]]
        if how == "merge":
            one_of = [one_of[a] if label == one_of[b] else label for label in one_of]
        elif how == "apart":
            one_of[a] = 100 + step
        else:
            pairs = {(other, node) for other in with_a if node in groups[other]}
            out = out | pairs if how == "out" else out - pairs
    changes = verdicts.latest(tmp_path).changes
    cases, want = changed_cases(GRAPH, found, changes, lambda: P), []
    for label in dict.fromkeys(one_of):
        parts = [at for at in range(12) if one_of[at] == label]
        left = {node for at in parts for node in groups[at] if (at, node) not in out}
        want.append(left or {node for at in parts for node in groups[at]})
        assert {cases.position(str(at + 1)) for at in parts} == {cases.position(found.id_of(at)) for at in parts}
        assert cases.numbers[cases.position(str(parts[0] + 1))] == parts[0] + 1
    assert told(cases) == want
    assert len(want) < 12
    assert out
    surprise = [np.logaddexp.reduce(-np.log(P[sorted(group)])) for group in want]
    changed = [at for at, case in enumerate(cases) if case.surprise != 9.0]
    assert [cases[at].surprise for at in changed] == pytest.approx([surprise[at] for at in changed])


@pytest.mark.parametrize(
    "lines",
    [
        [("A", "part", "B"), ("B", "part", "A")],  # a circle
        [("A", "part", "A"), ("nobody", "part", "A"), ("B", "part", "nowhere")],
        [("n99", "out", "A"), ("n1", "out", "nowhere"), ("n7", "in", "B")],
        [(f"n{node}", "out", "A") for node in (1, 2, 3)],  # all of it
    ],
)
def test_lines__that_cannot_be_meant_change_nothing(tmp_path, lines):
    found = cases_of([1, 2, 3], [10, 11])
    ids = {"A": found.id_of(0), "B": found.id_of(1)}
    verdicts.append(tmp_path, [(ids.get(name, name), word, ids.get(case, case)) for name, word, case in lines])
    cases = changed_cases(GRAPH, found, verdicts.latest(tmp_path).changes, lambda: P)
    assert told(cases) == [{1, 2, 3}, {10, 11}]


def test_lines__that_are_damaged_are_named_and_torn_ones_left_out(tmp_path):
    verdicts.append(tmp_path, [("X", "part", "Y")])
    path: Path = tmp_path / verdicts.FILE
    with path.open("a") as stream:
        stream.write('{"id":"Z","verdict":"part","ca')
    assert verdicts.latest(tmp_path).changes.part_of == {"X": "Y"}
    verdicts.append(tmp_path, [("n1", "out", "Y")])
    assert verdicts.latest(tmp_path).changes.taken_out == [("Y", "n1")]
    with path.open("a") as stream:
        stream.write('{"id":"Z","verdict":"part"}\n')
    with pytest.raises(FolderError, match="line 4 is damaged"):
        verdicts.latest(tmp_path)
    with pytest.raises(ValueError, match="verdict 'out' on 'n1' is not legal"):
        verdicts.append(tmp_path, [("n1", "out")])
