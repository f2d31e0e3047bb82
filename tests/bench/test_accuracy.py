"""The accuracy harness: equal problems for all, one process a method, limits as outcomes, rows keep their place."""

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from bench.accuracy import lof, worker
from bench.accuracy.__main__ import is_done, main
from bench.accuracy.many import Task, run_all
from bench.accuracy.methods import METHODS, all_rows, printed
from bench.accuracy.problem import DATA, known_kinds, open_problem, parse_seeds, prepare
from bench.accuracy.runner import Limits, run_method, start, watch
from bench.accuracy.table import latest, markdown, read_lines

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_bytes=4 << 30, seconds=120, threads=1, device="cpu")

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("problem")
    prepare("Planted", 0, Path("nowhere"), out)
    return out


@pytest.fixture(scope="module")
def planted(folder):
    return open_problem(folder)


# ---- the problems


def test_prepare__is_a_function_of_data_and_seed(folder, planted, tmp_path):
    for seed, same in ((0, True), (1, False)):
        out = tmp_path / str(seed)
        out.mkdir()
        prepare("Planted", seed, Path("nowhere"), out)
        assert (open_problem(out).graph.fingerprint == planted.graph.fingerprint) == same


def test_prepare__standardises_and_plants(planted):
    assert planted.x.dtype == np.float32
    np.testing.assert_allclose(planted.x.std(axis=0), 1, rtol=1e-5)
    assert np.bincount(planted.graph.kind).tolist() == [540, 30, 30]
    assert planted.one_way is None


@pytest.mark.parametrize(("name", "error"), [("Cora", "data='Cora' is unknown; .*BlogCatalog"), ("Enron", "HCM_DATA")])
def test_prepare__names_what_is_missing(name, error, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=error):
        prepare(name, 0, tmp_path, tmp_path)


def test_prepare__keeps_the_one_way_arcs_of_a_file_with_labels(real_data, tmp_path):
    prepare("Amazon", 0, real_data("Amazon.mat").parent, tmp_path)
    problem = open_problem(tmp_path)
    assert problem.one_way.directed
    assert problem.one_way.num_arcs < problem.graph.num_arcs
    assert problem.graph.y.sum() == 28


@pytest.mark.parametrize(
    "arrays", [{"y_raw": [0, 1, 2, 3]}, {"y_str": [0, 0, 1, 1], "y_attr": [0, 1, 0, 1]}], ids=["pygod", "two"]
)
def test_known_kinds__reads_both_ways_of_saying_them(arrays, tmp_path):
    np.savez(tmp_path / "g.npz", **{name: np.array(values, np.uint8) for name, values in arrays.items()})
    assert known_kinds(tmp_path / "g.npz").tolist() == [0, 2, 1, 1]


def test_known_kinds__a_file_may_not_say(tmp_path):
    np.savez(tmp_path / "g.npz", y=np.zeros(3, np.uint8))
    assert known_kinds(tmp_path / "g.npz") is None
    assert known_kinds(tmp_path / "g.mat") is None


@pytest.mark.parametrize(("name", "counts"), [("inj_cora", [2570, 70, 68]), ("dblp", [5184, 150, 150])])
def test_prepare__carries_the_kinds_of_graphs_that_others_planted(name, counts, real_data, tmp_path):
    prepare(name, 0, real_data(DATA[name].file).parents[1], tmp_path)
    problem = open_problem(tmp_path)
    assert np.bincount(problem.graph.kind).tolist() == counts
    np.testing.assert_array_equal(problem.graph.y, problem.graph.kind > 0)


# ---- one method in one process


def test_attempt__fills_every_row(planted):
    outcomes = worker.attempt("trivial", planted, "cpu")
    assert tuple(outcome["row"] for outcome in outcomes) == METHODS["trivial"].rows
    assert all(outcome["status"] == "ok" and 0 < outcome["structural"] < 1 for outcome in outcomes)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModuleNotFoundError("No module named 'pygod'"), "absent"),
        (MemoryError("no room"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 7 TiB"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (RuntimeError("singular matrix"), "failed"),
    ],
)
def test_attempt__what_goes_wrong_is_an_outcome(planted, monkeypatch, error, status):
    def fail(problem, device):
        raise error

    monkeypatch.setattr(lof, "run", fail)
    (outcome,) = worker.attempt("lof", planted, "cpu")
    assert outcome["status"] == status
    assert outcome["reason"] in str(error)


def test_attempt__scores_that_are_not_finite_fail(planted, monkeypatch):
    monkeypatch.setattr(lof, "run", lambda problem, device: {"LOF": np.full(600, np.nan)})
    (outcome,) = worker.attempt("lof", planted, "cpu")
    assert (outcome["status"], outcome["reason"]) == ("failed", "600 scores are not finite")


def test_run_method__in_a_process_gives_the_same_numbers(folder, planted):
    outcomes = run_method("lof", folder, LIMITS)
    here = worker.attempt("lof", planted, "cpu")
    assert [outcome["auc"] for outcome in outcomes] == [outcome["auc"] for outcome in here]
    assert all(outcome["peak_rss_bytes"] > 1 << 20 for outcome in outcomes)


@pytest.mark.parametrize(
    ("limits", "status"),
    [(replace(LIMITS, memory_bytes=64 << 20), "memory"), (replace(LIMITS, seconds=1e-6), "time")],
)
def test_run_method__a_limit_is_an_outcome(folder, limits, status):
    outcomes = run_method("trivial", folder, limits)
    assert [outcome["status"] for outcome in outcomes] == [status] * len(METHODS["trivial"].rows)


def test_run_method__a_death_is_an_outcome(tmp_path):
    (outcome,) = run_method("lof", tmp_path, LIMITS)
    assert outcome["status"] == "failed"
    assert "problem.json" in outcome["reason"]


def test_watch__kills_children_too(tmp_path):
    process = start(tmp_path / "log", LIMITS, subprocess.run, ["sh", "-c", "sleep 99 & sleep 99"])
    verdict, _ = watch(process, replace(LIMITS, seconds=1.0))
    assert verdict == ("time", "over 1 s")
    gone = subprocess.run(["ps", "-o", "stat=", "-g", str(process.pid)], capture_output=True, text=True, check=False)
    assert all(state.startswith("Z") for state in gone.stdout.split())


def test_watch__stops_when_told(tmp_path):
    stop = threading.Event()
    stop.set()
    assert watch(start(tmp_path / "log", LIMITS, time.sleep, 99), LIMITS, stop)[0] == ("stopped", "the run was ended")


def test_main__ended_from_outside_takes_its_method_along(tmp_path):
    out = tmp_path / "accuracy.jsonl"
    command = ["--data", "Planted", "--methods", "hcm-paper", "--out", str(out), "--threads", "1", "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "bench.accuracy", *command], cwd=ROOT)
    while not (methods := leaders_below(process.pid)):
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.wait() == 143
    assert not methods[0].is_running()
    assert not out.is_file() or not read_lines(out)


def leaders_below(pid: int) -> list[psutil.Process]:
    """The processes under `pid` that lead a session of their own, as a method's does."""
    return [child for child in psutil.Process(pid).children(recursive=True) if os.getsid(child.pid) == child.pid]


@pytest.mark.parametrize("wrong", [{"memory_bytes": 0}, {"seconds": -1.0}, {"threads": 0}, {"device": "tpu"}])
def test_limits__name_what_is_wrong(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(LIMITS, **wrong)


def test_run_method__names_an_unknown_method(folder):
    with pytest.raises(ValueError, match=r"method='oddball' is unknown; .*dominant"):
        run_method("oddball", folder, LIMITS)


# ---- many


def test_run_all__several_at_a_time_give_the_same_lines(tmp_path):
    tasks = [Task("Planted", seed, method) for seed in (0, 1) for method in ("trivial", "lof")]
    found = []
    for jobs in (1, 3):
        out = tmp_path / f"{jobs}.jsonl"
        run_all(tasks, LIMITS, Path("nowhere"), out, jobs)
        found.append({(line["seed"], line["row"]): line["auc"] for line in read_lines(out)})
    assert found[0] == found[1]
    assert len(found[0]) == 2 * (len(METHODS["trivial"].rows) + 1)


def test_run_all__what_ran_out_of_memory_beside_others_runs_again_alone(tmp_path):
    out = tmp_path / "accuracy.jsonl"
    run_all([Task("Planted", 0, "lof")], replace(LIMITS, memory_bytes=64 << 20), Path("nowhere"), out, 2)
    assert [line["status"] for line in read_lines(out)] == ["memory", "memory"]
    assert len(latest(read_lines(out))) == 1


# ---- the table and the command


def line(row: str, seed: int, **more) -> dict:
    return {"data": "Enron", "row": row, "seed": seed, "status": "ok", "seconds": 1.0, "peak_rss_bytes": 2**30, **more}


def test_markdown__keeps_every_row_and_the_later_line_counts():
    lines = [line("LOF", 0, auc=0.1), line("LOF", 0, auc=0.5), line("LOF", 1, auc=0.7)]
    lines.append({**line("Radar", 0), "status": "memory", "reason": "over 1 GiB"})
    page = markdown(lines, ["a machine"])
    assert "| LOF | .600 ± .141 | - | - | .440 | 2 of 2 | 1 | 1.00 GiB |" in page
    assert "| Radar | out of memory | - | - | .650 | 0 of 1 |" in page
    assert "- Radar: out of memory, over 1 GiB" in page
    assert all(f"| {row} |" in page for row in all_rows())
    assert "| HCM best | not run |" in page


def test_printed__knows_the_papers_rows_and_no_others():
    assert printed("MADAN", "Flickr") is None
    assert printed("HCM paper, HAV", "Enron") == 0.715
    assert printed("LOF", "Planted") is None


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2"])
def test_parse_seeds__names_what_is_wrong(text):
    with pytest.raises(argparse.ArgumentTypeError, match="seeds="):
        parse_seeds(text)


def test_main__runs_writes_and_goes_on_where_it_was(tmp_path, capsys):
    out = tmp_path / "accuracy.jsonl"
    command = ["--data", "Planted", "--seeds", "0", "--methods", "trivial", "--out", str(out), "--threads", "1"]
    assert main(command) == 0
    lines = read_lines(out)
    assert [found["row"] for found in lines] == list(METHODS["trivial"].rows)
    assert {"commit", "device", "threads", "date"} <= set(lines[0])
    assert "## Planted" in out.with_suffix(".md").read_text()
    out.write_text(out.read_text() + '{"cut off')
    assert main(command) == 0
    assert read_lines(out) == lines
    assert "degree" in capsys.readouterr().out


def test_is_done__what_was_absent_is_tried_again():
    rows = [{"data": "Enron", "seed": 0, "row": "LOF", "status": status} for status in ("absent", "time")]
    assert not is_done("lof", "Enron", 0, rows[:1])
    assert is_done("lof", "Enron", 0, rows)
    assert not is_done("lof", "Enron", 1, rows)
