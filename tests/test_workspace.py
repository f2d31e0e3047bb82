"""Stages run once, go on where they stopped, and are shared by content."""

import contextlib
import json
import multiprocessing
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from dying import die_at_change

from hcm_scale.base.files import FolderError
from hcm_scale.run.workspace import Stage, Workspace, open_stages, stage_keys


def write(text: str, calls: list[str]):
    def make(folder: Path) -> dict:
        calls.append(text)
        (folder / "data").write_text(text)
        return {"length": len(text)}

    return make


def make(workspace: Workspace, name: str, options, function, version: int = 1) -> Path:
    workspace.make(Stage(name, version, options, (), function))
    return workspace.folders[name]


def test_stage__is_made_once_for_equal_inputs(tmp_path):
    calls: list[str] = []
    for _ in range(2):
        folder = make(Workspace(tmp_path), "graph", {"seed": 0}, write("a", calls))
    assert calls == ["a"]
    assert (folder / "data").read_text() == "a"


def test_group__is_made_at_the_same_time_and_listed_in_order(tmp_path):
    meet, workspace = threading.Barrier(2, timeout=30), Workspace(tmp_path)

    def make(folder: Path) -> dict:
        meet.wait()
        return {}

    workspace.make(*(Stage(name, 1, 0, (), make, group="both") for name in ("b", "a")))
    assert [record.name for record in workspace.records] == ["b", "a"]
    assert open_stages(tmp_path, "a", "b") == [tmp_path / "a", tmp_path / "b"]


def test_group__of_which_one_fails_keeps_the_other_and_goes_on(tmp_path):
    calls: list[str] = []

    def fail(folder: Path) -> dict:
        raise ValueError("no")

    good, bad = Stage("a", 1, 0, (), write("a", calls)), Stage("b", 1, 0, (), fail)
    with pytest.raises(ValueError, match="no"):
        Workspace(tmp_path).make(good, bad)
    Workspace(tmp_path).make(good, replace(bad, make=write("b", calls)))
    assert calls == ["a", "b"]


def test_stage__is_made_again_when_an_input_changes(tmp_path):
    calls: list[str] = []
    make(Workspace(tmp_path), "graph", {"seed": 0}, write("a", calls))
    (tmp_path / "graph" / "left over").write_text("x")
    folder = make(Workspace(tmp_path), "graph", {"seed": 1}, write("b", calls))
    assert calls == ["a", "b"]
    assert not (folder / "left over").exists()


def test_stopped_stage__finds_its_unfinished_work(tmp_path):
    def stopped(folder: Path) -> dict:
        (folder / "half").write_text("done")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(Workspace(tmp_path), "labels", 1, stopped)
    seen = []
    make(Workspace(tmp_path), "labels", 1, lambda folder: {"half": seen.append((folder / "half").read_text())})
    assert seen == ["done"]


def test_stopped_stage__knows_what_was_spent_on_it(tmp_path):
    def stopped(folder: Path) -> dict:
        time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(Workspace(tmp_path), "labels", 1, stopped)
    workspace = Workspace(tmp_path)
    make(workspace, "labels", 1, lambda folder: {})
    assert workspace.records[0].seconds >= 0.05


def test_folder_being_removed__is_not_taken_for_finished_after_a_kill(tmp_path, monkeypatch):
    calls: list[str] = []
    folder = make(Workspace(tmp_path), "scores", 1, write("a", calls))

    def killed(path: Path, **_) -> None:
        if Path(path).exists():
            (Path(path) / "data").unlink()
            raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(SystemExit):
            make(Workspace(tmp_path), "scores", 2, write("b", calls))
    make(Workspace(tmp_path), "scores", 1, write("a", calls))
    assert calls == ["a", "b", "a"]
    assert (folder / "data").read_text() == "a"


def test_slip_in_an_option__costs_nothing(tmp_path):
    calls: list[str] = []

    def refused(folder: Path) -> dict:
        raise ValueError("no such file")

    folder = make(Workspace(tmp_path), "graph", 1, write("a", calls))
    with pytest.raises(ValueError):
        make(Workspace(tmp_path), "graph", 2, refused)
    assert make(Workspace(tmp_path), "graph", 1, write("a", calls)) == folder
    assert calls == ["a"]
    assert (folder / "data").read_text() == "a"
    make(Workspace(tmp_path), "graph", 3, write("c", calls))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["graph", "records"]
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["graph.json", "graph.lock"]


def test_folder_of_the_user__is_not_touched(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds files that no run made"):
        make(Workspace(tmp_path), "report", 1, write("a", []))
    with pytest.raises(ValueError, match="holds files that no run made"):
        make(Workspace(tmp_path, tmp_path / "stages"), "report", 1, write("a", []))
    assert (tmp_path / "report" / "thesis.tex").read_text() == "mine"


def test_link_of_a_sweep__gives_way_to_a_run_of_its_own(tmp_path):
    job, shared = tmp_path / "job", tmp_path / "stages"
    job.mkdir()
    there = make(Workspace(job, shared), "graph", 1, write("a", []))
    here = make(Workspace(job), "graph", 2, write("b", []))
    assert ((there / "data").read_text(), (here / "data").read_text()) == ("a", "b")
    assert here == job / "graph"
    assert not here.is_symlink()


def test_open_stages__gives_those_of_the_last_run_that_still_stand(tmp_path):
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))} holds no run"):
        open_stages(tmp_path, "graph")
    workspace = Workspace(tmp_path)
    for name in ("graph", "scores"):
        make(workspace, name, 1, write("a", []))
    assert open_stages(tmp_path, "graph", "scores") == [tmp_path / "graph", tmp_path / "scores"]
    make(Workspace(tmp_path, keys={}), "scores", 2, write("b", []))
    with pytest.raises(ValueError, match=r"lists no graph"):
        open_stages(tmp_path, "graph")
    assert (open_stages(tmp_path, "scores")[0] / "data").read_text() == "b"


def run_stages(run_dir: Path, options: dict[str, int], ends: BaseException | None = None, seen=lambda: None) -> None:
    """A run of these stages; `ends` is raised in the last, and `seen` called after every stage."""
    workspace = Workspace(run_dir)
    with workspace.begin(lambda: (run_dir / "config.json").write_text(json.dumps(options))):
        for name, value in options.items():

            def fill(folder: Path, name=name, value=value) -> dict:
                seen()
                (folder / "data").write_text(str(value))
                if ends is not None and name == list(options)[-1]:
                    raise ends
                return {}

            make(workspace, name, value, fill)
            seen()
        workspace.write_list(whole=True)


def read_all(run_dir: Path) -> tuple[list[str], dict[str, int]]:
    folders = open_stages(run_dir, "graph", "purified", "scores")
    return [(folder / "data").read_text() for folder in folders], json.loads((run_dir / "config.json").read_text())


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), MemoryError(), OSError(28, "disk full"), ValueError("no")])
def test_run__that_ends_before_its_last_stage_hides_nothing_of_the_finished_one(tmp_path, ends):
    finished = {"graph": 1, "purified": 1, "scores": 1}
    run_stages(tmp_path, finished)
    for other in (finished | {"scores": 2}, {"graph": 1, "purified": 3, "scores": 3}, {"graph": 4}):
        with pytest.raises(type(ends)):
            run_stages(tmp_path, other, ends)
        assert read_all(tmp_path) == (["1", "1", "1"], finished)
    run_stages(tmp_path, finished)
    assert read_all(tmp_path) == (["1", "1", "1"], finished)
    assert sorted(path.name for path in (tmp_path / "records").glob("*.before*")) == []
    run_stages(tmp_path, other := {"graph": 1, "purified": 1, "scores": 5})
    assert read_all(tmp_path) == (["1", "1", "5"], other)
    assert not list((tmp_path / "records").glob("*.before*"))


def test_reader__sees_the_finished_run_while_another_is_made_and_then_that(tmp_path):
    seen, finished, other = [], {"graph": 1, "purified": 1, "scores": 1}, {"graph": 1, "purified": 2, "scores": 2}
    run_stages(tmp_path, finished)
    run_stages(tmp_path, finished, seen=lambda: seen.append(read_all(tmp_path)))
    run_stages(tmp_path, other, seen=lambda: seen.append(read_all(tmp_path)))
    assert seen == [(["1", "1", "1"], finished)] * 8
    assert read_all(tmp_path) == (["1", "2", "2"], other)


def test_first_run__lists_its_stages_as_they_are_made(tmp_path):
    listed = []
    stages = {"graph": 1, "purified": 1, "scores": 1}
    for ends in (KeyboardInterrupt(), None):
        with contextlib.suppress(KeyboardInterrupt):
            run_stages(tmp_path, stages, ends, lambda: listed.append(len(stage_keys(tmp_path))))
    assert listed == [0, 1, 1, 2, 2, 2, 2, 2, 3]


def damaged(path: Path) -> None:
    """Turns a bit of a file, in a new file of its name."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    path.write_bytes(data)


def test_damaged_file__is_refused_by_name_until_its_folder_is_removed(tmp_path):
    calls: list[str] = []
    folder = make(Workspace(tmp_path), "graph", 1, write("a", calls))
    for hurt in (damaged, Path.unlink):
        hurt(folder / "data")
        for use in (
            lambda: make(Workspace(tmp_path), "graph", 1, write("a", calls)),
            lambda: open_stages(tmp_path, "graph"),
        ):
            with pytest.raises(
                FolderError, match=rf"graph/data is (damaged|missing).*; remove {folder} to have it made"
            ):
                use()
        shutil.rmtree(folder)
        make(Workspace(tmp_path), "graph", 1, write("a", calls))
    assert calls == ["a", "a", "a"]


def test_damaged_file__of_a_folder_set_aside_is_refused_too(tmp_path):
    folder = make(Workspace(tmp_path), "graph", 1, write("a", []))
    with pytest.raises(ZeroDivisionError):
        make(Workspace(tmp_path), "graph", 2, lambda folder: 1 / 0)
    damaged(tmp_path / "records" / "graph.before" / "data")
    with pytest.raises(FolderError, match=f"{folder}/data is damaged"):
        make(Workspace(tmp_path), "graph", 1, write("a", []))


@pytest.mark.parametrize(("old", "new"), [("[", "[1"), ("", "{}"), ('"skipped": false', '"skipped": true')])
def test_damaged_list__is_refused_by_name(tmp_path, old, new):
    make(Workspace(tmp_path), "graph", 1, write("a", []))
    listed = tmp_path / "stages.json"
    listed.write_text(listed.read_text().replace(old, new, 1) if old else new)
    with pytest.raises(FolderError, match=r"stages\.json is damaged: .*; hcm-scale run writes it again"):
        open_stages(tmp_path, "graph")


def test_missing_list__is_named_where_stages_are(tmp_path):
    make(Workspace(tmp_path), "graph", 1, write("a", []))
    (tmp_path / "stages.json").unlink()
    with pytest.raises(FolderError, match=r"stages\.json is missing; hcm-scale run writes it again"):
        open_stages(tmp_path, "graph")


def test_what_a_stage_leaves__may_go(tmp_path):
    def fill(folder: Path) -> dict:
        (folder / "checkpoints").mkdir()
        for name in ("data", "checkpoints/last"):
            (folder / name).write_text("a")
        return {}

    stage = Stage("train", 1, 1, (), fill, leaves=("checkpoints",))
    Workspace(tmp_path).make(stage)
    folder = tmp_path / "train"
    shutil.rmtree(folder / "checkpoints")
    (folder / "note").write_text("mine")
    Workspace(tmp_path).make(stage)
    assert (folder / "note").read_text() == "mine"


def test_unfinished_work_of_other_inputs__is_removed(tmp_path):
    def stopped(folder: Path) -> dict:
        (folder / "half").write_text("done")
        raise ValueError

    with pytest.raises(ValueError):
        make(Workspace(tmp_path), "labels", 1, stopped)
    folder = make(Workspace(tmp_path), "labels", 2, write("b", []))
    assert not (folder / "half").exists()


@pytest.mark.parametrize("hurt", [damaged, lambda path: path.write_text("{"), lambda path: path.write_text("[]")])
def test_damaged_record__is_refused_by_name_until_its_folder_is_removed(tmp_path, hurt):
    calls: list[str] = []
    folder = make(Workspace(tmp_path), "graph", 0, write("a", calls))
    hurt(tmp_path / "records" / "graph.json")
    with pytest.raises(FolderError, match=rf"records/graph\.json is damaged.*; remove {folder} to have it made again"):
        make(Workspace(tmp_path), "graph", 0, write("a", calls))
    shutil.rmtree(folder)
    make(Workspace(tmp_path), "graph", 0, write("a", calls))
    assert calls == ["a", "a"]


def test_shared_stages__are_made_once_and_linked(tmp_path):
    calls: list[str] = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        make(Workspace(tmp_path / run, tmp_path / "shared"), "graph", 0, write("a", calls))
    assert calls == ["a"]
    assert (tmp_path / "two" / "graph" / "data").read_text() == "a"
    assert json.loads((tmp_path / "two" / "stages.json").read_text())["stages"][0]["skipped"]


def _race(root: Path) -> None:
    run = root / multiprocessing.current_process().name
    run.mkdir()

    def begin(folder: Path) -> dict:
        (folder / "begun").touch(exist_ok=False)  # a second maker would fail here
        time.sleep(0.2)
        return {}

    make(Workspace(run, root / "shared"), "graph", 0, begin)


def test_racing_jobs__make_a_shared_stage_once(tmp_path):
    spawn = multiprocessing.get_context("fork")
    jobs = [spawn.Process(target=_race, args=(tmp_path,), name=f"job-{i}") for i in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 4


def test_key__holds_name_version_options_and_the_keys_of_what_is_read():
    def key(name="labels", version=1, options=0, graph="a"):
        return Stage(name, version, options, ("graph",), lambda folder: {}).key({"graph": graph, "other": "b"})

    others = [key(name="train"), key(version=2), key(options=1), key(graph="b")]
    assert len({key(), *others}) == 5


def test_results_of_another_version__are_made_again(tmp_path):
    calls: list[str] = []
    make(Workspace(tmp_path), "graph", 0, write("a", calls))
    make(Workspace(tmp_path), "graph", 0, write("b", calls), version=2)
    assert calls == ["a", "b"]


def test_temporary_files_of_killed_runs__go_when_the_next_begins(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / ".graph.123.new").mkdir()
    (tmp_path / ".graph.123.new" / "x.npy").write_text("half")
    for name in (".config.json.123.tmp", "records/.graph.json.123.tmp", "notes.tmp", ".hidden"):
        (tmp_path / name).write_text("half")
    with Workspace(tmp_path).begin(lambda: None):
        pass
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [".hidden", "notes.tmp", "records", "stages.json"]


def run_options(run_dir: Path, options: str, moment: int) -> None:
    """A run of one stage, in the run's own folder or a shared one."""
    die_at_change(moment, run_dir)

    def fill(folder: Path) -> dict:
        for name in ("one", "two"):
            (folder / name).write_text(options)
        return {}

    workspace = Workspace(run_dir, run_dir / "stages" if "shared" in options else None)
    with workspace.begin(lambda: None):
        make(workspace, "graph", options, fill)
        workspace.write_list(whole=True)


def run_apart(run_dir: Path, options: str, moment: int = 0) -> int:
    child = multiprocessing.get_context("fork").Process(target=run_options, args=(run_dir, options, moment))
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("killed", ["b", "b shared"])
@pytest.mark.parametrize("later", ["a", "b", "b shared"])
def test_kill__at_any_change_leaves_nothing_that_the_next_run_refuses_or_mixes(tmp_path, killed, later):
    """A finished run of options `a`, then one that is killed, then one that must come whole."""
    (tmp_path / "finished").mkdir()
    assert run_apart(tmp_path / "finished", "a") == 0
    for moment in range(1, 100):
        run_dir = shutil.copytree(tmp_path / "finished", tmp_path / str(moment))
        code = run_apart(run_dir, killed, moment)
        assert code in (0, -signal.SIGKILL)
        if "shared" not in killed:  # the run of before is whole, or the new one
            (folder,) = open_stages(run_dir, "graph")
            assert {path.read_text() for path in folder.iterdir()} in ({"a"}, {"b"})
        assert run_apart(run_dir, later) == 0
        assert {path.name: path.read_text() for path in (run_dir / "graph").iterdir()} == {"one": later, "two": later}
        assert open_stages(run_dir, "graph") == [(run_dir / "graph").resolve()]
        if "shared" not in killed or killed == later:  # what nobody asks for again is not looked at
            assert not [path for path in run_dir.rglob(".*") if path.suffix in (".tmp", ".old", ".new")]
        if code == 0:
            assert moment > 10
            return
    raise AssertionError("there is no end of changes")
