"""Cases on the served page: shown, expanded, judged as one, with a note, and taken back."""

import json
import shutil

import pytest

from hcm_scale.review import verdicts
from hcm_scale.run.finished import FinishedRun
from tests.cases.conftest import COLLECTOR, RING
from tests.helpers import serving
from tests.serve.test_verdicts import request


@pytest.fixture
def served(run, tmp_path):
    with serving(shutil.copytree(run.folder, tmp_path / "run"), "anna") as made:
        yield made


def post(server, **body: str) -> tuple[int, str]:
    words = {"of": server.views.identity} | body
    return request(server, f"/{server.token}/verdicts", json.dumps(words).encode())


def test_page__of_cases_has_each_once_with_its_drawing(served):
    status, text = request(served, f"/{served.token}/cases")
    cases = FinishedRun(served.views.run_dir).cases
    assert status == 200
    assert [text.count(f'data-case="{cases.id_of(at)}"') for at in range(min(10, len(cases)))] == [1] * min(
        10, len(cases)
    )
    assert '<svg class="case-drawing"' in text
    assert request(served, f"/{served.token}/cases?page=99")[0] == 400
    assert request(served, f"/{served.token}/around?case={cases.id_of(0)}")[0] == 200
    assert request(served, f"/{served.token}/around?case=none")[0] == 400


def test_verdict__on_a_case_is_stored_on_its_nodes_with_its_note(served):
    run = FinishedRun(served.views.run_dir)
    name = run.cases.id_of(int(run.cases.of_node(run.graph.node_of(RING[0]))[0]))
    status, text = post(served, case=name, verdict="bad", note="<b>known</b>")
    assert status == 200
    assert json.loads(text)["judged"] == "Judged bad by anna: <b>known</b>."
    assert sorted(verdicts.latest(run.folder).table["id"].to_pylist()) == sorted(RING)
    page = request(served, f"/{served.token}/cases")[1]
    assert "<b>known" not in page
    assert "&lt;b&gt;known" in page
    assert post(served, case=name, verdict="none")[0] == 200
    assert not verdicts.latest(run.folder).table.num_rows
    for body in (
        {"case": "7" * 9, "verdict": "bad"},
        {"case": name, "verdict": "evil"},
        {"case": name, "of": "old", "verdict": "bad"},
    ):
        assert post(served, **body)[0] in (400, 409)
    assert not verdicts.latest(run.folder).table.num_rows


def test_change__of_a_case_is_kept_and_wrong_ones_are_refused(served):
    run, token = FinishedRun(served.views.run_dir), served.token
    first, second = (run.cases.id_of(at) for at in (0, 1))

    def change(**body: object) -> tuple[int, str]:
        return request(served, f"/{token}/cases", json.dumps({"of": served.views.identity} | body).encode())

    for body in (
        {"case": first, "how": "merge", "values": [first]},
        {"case": first, "how": "merge", "values": ["12345678"]},
        {"case": first, "how": "burn", "values": []},
        {"case": first, "how": "out", "values": "r1"},
        {"case": first, "how": "out", "values": [["r1"]]},
        {"case": None, "how": "apart", "values": []},
        {"how": "apart", "values": []},
        {"case": first, "how": "merge", "values": [second], "of": "old"},
    ):
        assert change(**body)[0] in (400, 409), body
    assert not (run.folder / verdicts.FILE).exists()
    status, text = change(case=second, how="merge", values=["1"])
    assert (status, json.loads(text)) == (200, {"moved": [first], "case": first, "page": 0})
    page = request(served, f"/{token}/cases?page={(len(run.found_cases) - 1) // 10}")[1]  # which may be gone
    assert 'class="pages"' in page
    assert f'data-value="{second}"' in request(served, f"/{token}/cases")[1]
    assert f'class="case-verdict" data-case="{second}"' not in request(served, f"/{token}/cases")[1]
    assert json.loads(change(case=first, how="apart", values=[second])[1])["moved"] == [second, first]
    assert len(run.cases) == len(run.found_cases)


@pytest.mark.gate
def test_browser__opens_expands_judges_and_undoes(desktop, served):
    run = FinishedRun(served.views.run_dir)
    desktop.open(served.url)
    desktop.run("location.hash = '#cases'")
    desktop.wait("return document.querySelectorAll('#case-list .case-verdict button.bad').length > 1")
    desktop.run("document.querySelector('#case-list .around summary').click()")
    desktop.wait("return document.querySelector('#case-list .around > div').innerText.length > 3")
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
    stored = "return document.querySelectorAll('#case-list .judge.stored.given').length === "
    for key, count in (("b", 1), ("n", 1), ("g", 2), ("z", 1)):
        desktop.run(press, key)
        desktop.wait(stored + str(count))
    said = verdicts.latest(run.folder).by_id()
    core = {run.graph.external_id(int(node)) for node in run.cases[0].core}
    assert said == dict.fromkeys(core, "bad")
    note = "document.querySelector('#case-list .note-text').value = 'a note'"
    desktop.run(
        f"{note}; document.querySelector('#case-list .case-verdict .bad').click()"
    )  # the same verdict, another note
    desktop.wait("return document.querySelector('#case-list .judged').textContent.includes('a note')")
    desktop.run("document.querySelector('#case-list .change').open = true")
    desktop.run("document.querySelector('#case-list .one-member .good').click()")
    desktop.wait("return document.querySelector('#case-list .one-member output').textContent.includes(': good')")
    member = desktop.run("return document.querySelector('#case-list .one-member select').value")
    assert verdicts.latest(run.folder).by_id()[member] == "good"
    assert COLLECTOR in said or set(RING) <= set(said)
    assert desktop.console() == []


@pytest.mark.gate
def test_browser__merges_takes_apart_takes_out_and_undoes(desktop, served):
    run = FinishedRun(served.views.run_dir)
    first, second = (run.cases.id_of(at) for at in (0, 1))
    members = [{run.graph.external_id(int(node)) for node in run.cases[at].members} for at in (0, 1)]
    desktop.open(served.url)
    desktop.run("location.hash = '#cases'")
    there = f"return document.querySelector('.case-verdict[data-case=\"{second}\"]') "
    desktop.wait(f"{there} !== null")
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
    desktop.run(press, "n")
    desktop.run(press, "m")  # of the second
    assert desktop.run("return document.activeElement.closest('article').id") == "case-2"
    desktop.type("#case-2 .other", "1\ue007")  # and Enter
    desktop.wait(f"{there} === null")
    text = desktop.run("return document.querySelector('#case-1 .members').textContent")
    assert all(name in text for name in members[0] | members[1])
    assert members_of(run, first) == members[0] | members[1]
    desktop.run(press, "b")
    desktop.wait("return document.querySelectorAll('#case-list .judge.stored.given').length === 1")
    assert len({*run.verdicts().cases.to_pylist()}) == 1

    desktop.run("document.querySelector('#case-list .change').open = true")
    gone = desktop.run("return document.querySelector('#case-list .one-member select').value")
    desktop.run("document.querySelector('#case-list [data-how=out]').click()")
    desktop.wait("return document.querySelector('#case-list [data-how=in]') !== null")
    assert members_of(run, first) == (members[0] | members[1]) - {gone}
    desktop.run(press, "z")
    desktop.wait("return document.querySelector('#case-list [data-how=in]') === null")
    assert members_of(run, first) == members[0] | members[1]
    desktop.run(press, "z")  # the verdict
    desktop.wait("return document.querySelectorAll('#case-list .judge.stored.given').length === 0")
    desktop.run(press, "z")
    desktop.wait(f"{there} !== null")
    assert [members_of(run, name) for name in (first, second)] == members
    assert run.verdicts().by_id() == {}

    run.change_case("merge", first, [second])
    desktop.run("location.reload()")
    desktop.wait("return document.querySelectorAll('#case-1 [data-how=apart]').length === 2")
    desktop.run("document.querySelector('#case-1 [data-how=apart]').click()")
    desktop.wait(f"{there} !== null")
    desktop.run(press, "z")
    desktop.wait(f"{there} === null")
    assert members_of(run, first) == members[0] | members[1]
    assert desktop.console() == []


def members_of(run: FinishedRun, name: str) -> set[str]:
    return {member["id"] for member in run.case(name)["members"]}
