"""Stages run once, go on where they stopped, and are shared by content."""

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from hcm_scale.workspace import Workspace, finished_stages, forget_stages


def write(text: str, calls: list[str]):
    def make(folder: Path) -> dict:
        calls.append(text)
        (folder / "data").write_text(text)
        return {"length": len(text)}

    return make


def test_stage__is_made_once_for_equal_inputs(tmp_path):
    calls: list[str] = []
    for _ in range(2):
        folder, _ = Workspace(tmp_path).stage("graph", {"seed": 0}, write("a", calls))
    assert calls == ["a"]
    assert (folder / "data").read_text() == "a"


def test_stage__is_made_again_when_an_input_changes(tmp_path):
    calls: list[str] = []
    Workspace(tmp_path).stage("graph", {"seed": 0}, write("a", calls))
    (tmp_path / "graph" / "left over").write_text("x")
    folder, _ = Workspace(tmp_path).stage("graph", {"seed": 1}, write("b", calls))
    assert calls == ["a", "b"]
    assert not (folder / "left over").exists()


def test_stopped_stage__finds_its_unfinished_work(tmp_path):
    def stopped(folder: Path) -> dict:
        (folder / "half").write_text("done")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workspace(tmp_path).stage("labels", 1, stopped)
    seen = []
    Workspace(tmp_path).stage("labels", 1, lambda folder: {"half": seen.append((folder / "half").read_text())})
    assert seen == ["done"]


def test_stopped_stage__knows_what_was_spent_on_it(tmp_path):
    def stopped(folder: Path) -> dict:
        time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workspace(tmp_path).stage("labels", 1, stopped)
    workspace = Workspace(tmp_path)
    workspace.stage("labels", 1, lambda folder: {})
    assert workspace.records[0].seconds >= 0.05


def test_folder_being_removed__is_not_taken_for_finished_after_a_kill(tmp_path, monkeypatch):
    calls: list[str] = []
    folder, _ = Workspace(tmp_path).stage("scores", 1, write("a", calls))

    def killed(path: Path, **_) -> None:
        if Path(path).exists():
            (Path(path) / "data").unlink()
            raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr("hcm_scale.workspace.shutil.rmtree", killed)
        with pytest.raises(SystemExit):
            Workspace(tmp_path).stage("scores", 2, write("b", calls))
    Workspace(tmp_path).stage("scores", 1, write("a", calls))
    assert calls == ["a", "b", "a"]
    assert (folder / "data").read_text() == "a"


def test_slip_in_an_option__costs_nothing(tmp_path):
    calls: list[str] = []

    def refused(folder: Path) -> dict:
        raise ValueError("no such file")

    folder, _ = Workspace(tmp_path).stage("graph", 1, write("a", calls))
    with pytest.raises(ValueError):
        Workspace(tmp_path).stage("graph", 2, refused)
    assert Workspace(tmp_path).stage("graph", 1, write("a", calls))[0] == folder
    assert calls == ["a"]
    assert (folder / "data").read_text() == "a"
    Workspace(tmp_path).stage("graph", 3, write("c", calls))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["graph"]


def test_folder_of_the_user__is_not_touched(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds files that no run made"):
        Workspace(tmp_path).stage("report", 1, write("a", []))
    with pytest.raises(ValueError, match="holds files that no run made"):
        Workspace(tmp_path, tmp_path / "stages").stage("report", 1, write("a", []))
    assert (tmp_path / "report" / "thesis.tex").read_text() == "mine"


def test_link_of_a_sweep__gives_way_to_a_run_of_its_own(tmp_path):
    job, shared = tmp_path / "job", tmp_path / "stages"
    job.mkdir()
    there, _ = Workspace(job, shared).stage("graph", 1, write("a", []))
    here, _ = Workspace(job).stage("graph", 2, write("b", []))
    assert ((there / "data").read_text(), (here / "data").read_text()) == ("a", "b")
    assert here == job / "graph"
    assert not here.is_symlink()


def test_finished_stages__are_those_of_the_last_run_that_still_stand(tmp_path):
    assert finished_stages(tmp_path) == set()
    workspace = Workspace(tmp_path)
    for name in ("graph", "scores"):
        workspace.stage(name, 1, write("a", []))
    assert finished_stages(tmp_path) == {"graph", "scores"}
    Workspace(tmp_path).stage("graph", 2, write("b", []))
    assert finished_stages(tmp_path) == {"graph"}
    forget_stages(tmp_path)
    assert finished_stages(tmp_path) == set()
    assert (tmp_path / "graph" / "data").read_text() == "b"


def test_unfinished_work_of_other_inputs__is_removed(tmp_path):
    def stopped(folder: Path) -> dict:
        (folder / "half").write_text("done")
        raise ValueError

    with pytest.raises(ValueError):
        Workspace(tmp_path).stage("labels", 1, stopped)
    folder, _ = Workspace(tmp_path).stage("labels", 2, write("b", []))
    assert not (folder / "half").exists()


def test_damaged_record__means_unfinished(tmp_path):
    calls: list[str] = []
    folder, _ = Workspace(tmp_path).stage("graph", 0, write("a", calls))
    (folder / "stage.json").write_text("{")
    Workspace(tmp_path).stage("graph", 0, write("a", calls))
    assert calls == ["a", "a"]


def test_shared_stages__are_made_once_and_linked(tmp_path):
    calls: list[str] = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        Workspace(tmp_path / run, tmp_path / "shared").stage("graph", 0, write("a", calls))
    assert calls == ["a"]
    assert (tmp_path / "two" / "graph" / "data").read_text() == "a"
    assert json.loads((tmp_path / "two" / "stages.json").read_text())[0]["skipped"]


def _race(root: Path) -> None:
    run = root / multiprocessing.current_process().name
    run.mkdir()

    def make(folder: Path) -> dict:
        (folder / "begun").touch(exist_ok=False)  # a second maker would fail here
        time.sleep(0.2)
        return {}

    Workspace(run, root / "shared").stage("graph", 0, make)


def test_racing_jobs__make_a_shared_stage_once(tmp_path):
    spawn = multiprocessing.get_context("fork")
    jobs = [spawn.Process(target=_race, args=(tmp_path,), name=f"job-{i}") for i in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 4
