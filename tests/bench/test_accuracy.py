"""The accuracy harness: equal problems for all, one process a method, limits as outcomes, rows keep their place."""

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from bench.accuracy import lof, worker
from bench.accuracy.__main__ import is_done, main, parse_seeds, read_lines
from bench.accuracy.methods import METHODS, all_rows, printed
from bench.accuracy.problem import open_problem, prepare
from bench.accuracy.runner import ROOT, Limits, run_method, watch
from bench.accuracy.table import markdown

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
    assert [outcome["status"] for outcome in outcomes] == [status] * 4


def test_run_method__a_death_is_an_outcome(tmp_path):
    (outcome,) = run_method("lof", tmp_path, LIMITS)
    assert outcome["status"] == "failed"
    assert "problem.json" in outcome["reason"]


def test_watch__kills_children_too():
    code = "import subprocess, time; subprocess.Popen(['sleep', '99']); time.sleep(99)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    verdict, _ = watch(process, replace(LIMITS, seconds=1.0))
    assert verdict == ("time", "over 1 s")
    gone = subprocess.run(["ps", "-o", "stat=", "-g", str(process.pid)], capture_output=True, text=True, check=False)
    assert all(state.startswith("Z") for state in gone.stdout.split())


def test_main__ended_from_outside_takes_its_method_along(tmp_path):
    out = tmp_path / "accuracy.jsonl"
    command = ["--data", "Planted", "--methods", "hcm-paper", "--out", str(out), "--threads", "1", "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "bench.accuracy", *command], cwd=ROOT)
    parent = psutil.Process(process.pid)
    while not (children := [c for c in parent.children() if "bench.accuracy.worker" in c.cmdline()]):
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.wait() == 143
    assert not children[0].is_running()


@pytest.mark.parametrize("wrong", [{"memory_bytes": 0}, {"seconds": -1.0}, {"threads": 0}, {"device": "tpu"}])
def test_limits__name_what_is_wrong(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(LIMITS, **wrong)


def test_run_method__names_an_unknown_method(folder):
    with pytest.raises(ValueError, match=r"method='oddball' is unknown; .*dominant"):
        run_method("oddball", folder, LIMITS)


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
