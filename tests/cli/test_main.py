"""The command line as a user meets it: from another folder, and once of each kind in a process of its own."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hcm_scale.cli import help, main
from hcm_scale.run.finished import FinishedRun

TINY = [
    "graph=community",
    "graph.num_nodes=300",
    "graph.num_attributes=4",
    "hops.num_sources=80",
    "hops.pairs_per_class=20",
    "sampling.batch_pairs=256",
    "model.width=8",
    "model.head_width=8",
    "posterior.burn_in_steps=4",
    "posterior.num_samples=2",
    "posterior.thin_steps=1",
    "world.device=cpu",
]


def apart(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "hcm_scale", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **env})


def test_help__is_for_people(tmp_path):
    done = apart("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "usage: hcm-scale COMMAND" in done.stdout
    assert all(f"\n  {group} " in done.stdout for group in ("graph", "experiment", "posterior", "sweep", "world"))


def said(capsys, *words: str) -> tuple[int, str, str]:
    """Status, output and errors of a command in this process."""
    status = main.main([*words])
    return status, *capsys.readouterr()


def test_no_words__are_answered_with_a_screenful_that_names_what_to_type_first(capsys):
    status, out, _ = said(capsys)
    assert status == 0
    assert len(out.splitlines()) <= 24
    assert all(word in out for word in ("hcm-scale demo ", "hcm-scale run ", "hcm-scale explain", "--help"))


@pytest.mark.parametrize("command", sorted(help.STAGES | help.COMMANDS))
def test_every_command__has_a_page_of_its_own(capsys, command):
    status, out, err = said(capsys, command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: hcm-scale {command} ")
    assert command in help.full_page()


@pytest.mark.parametrize("command", ["doctor", "export", "clean", "collect", "warm"])
def test_wrong_words_of_a_command__are_one_line(capsys, command):
    status, out, err = said(capsys, command, "nowhere", "too", "many")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert f"usage: hcm-scale {command}" in err
    assert err.count("\n") == 1


def test_demo__has_its_own_data_and_says_how_to_bring_others(capsys):
    status, _, err = said(capsys, "demo", "edges.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "'edges.csv'" in err
    assert "hcm-scale run edges.csv nodes.csv" in err


def test_unknown_command__suggests_the_nearest(tmp_path):
    done = apart("expalin", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'explain'?" in done.stderr


def test_until__of_no_stage_says_which_are_legal(capsys):
    status, _, err = said(capsys, "run", "until=scored")
    assert (status, "until=scored is not known; legal are ingest" in err) == (2, True)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hcm-scale run purify.r", "purify.ratio="),
        ("hcm-scale plan world.device=cpu graph=rm", "graph=rmat"),
    ],
)
def test_hydra_completion__is_asked_of_the_words_after_the_command(tmp_path, line, found):
    done = apart("-sc", "query=bash", cwd=tmp_path, COMP_LINE=line)
    assert (done.returncode, done.stdout.strip()) == (0, found)


def test_run__from_any_folder_ends_with_a_summary(hcm_scale, tmp_path):
    done = apart("run", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank  id" in done.stdout
    report = tmp_path / "runs" / "community-300" / "report" / "report.html"
    assert report.is_file()
    assert "report.html" in done.stdout
    steps = [shlex.split(line, comments=True) for line in done.stdout.splitlines() if line.startswith("  hcm-scale ")]
    assert [step[1] for step in steps if step[-1] != "case=1"] == ["explain", "serve", "export", "review"]
    strangest = hcm_scale(*next(step for step in steps if step[-1].startswith("node="))[1:])
    assert strangest.returncode == 0, strangest.stderr
    assert "1 of 300" in strangest.stdout
    looked = hcm_scale("doctor", "runs/community-300")
    assert "as it was written" in looked.stdout
    ids = re.findall(r"^ +\d+  (\d+) ", done.stdout, re.MULTILINE)[:2]
    both = hcm_scale("explain", "runs/community-300", *ids)
    assert re.findall(r"^(\d+)   rank (\d) of 300", both.stdout, re.MULTILINE) == [(ids[0], "1"), (ids[1], "2")]
    missing = hcm_scale("explain", "runs/comunity", ids[0])
    assert missing.stderr == "error: runs/comunity is not there; runs that are: runs/community-300\n"
    exported = hcm_scale(*next(step for step in steps if step[1] == "export")[1:])
    assert exported.returncode == 0, exported.stderr
    assert len((tmp_path / "list.csv").read_text().splitlines()) == 301
    reviewed = hcm_scale(*next(step for step in steps if step[1] == "review")[1:])
    assert reviewed.returncode == 0, reviewed.stderr
    assert "hcm-scale teach runs/community-300 review.csv" in reviewed.stdout


def test_stage_command__stops_at_its_stage(hcm_scale, tmp_path):
    done = hcm_scale("run", "until=purify", *TINY)
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (tmp_path / "runs" / "community-300").iterdir() if path.is_dir()}
    assert made == {"graph", "purified", "records"}
    planned = hcm_scale("plan", *TINY)
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^purified +kept", planned.stdout, re.MULTILINE)
    assert re.search(r"^labels +made", planned.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("override", "status", "said"),
    [
        ("score.fdr=0", 2, "error: score.fdr=0.0 is out of range"),
        ("posterior.temperature=1e38", 1, "error: step"),  # a chain that diverges
    ],
)
def test_mistake__is_one_readable_line_and_a_failure(hcm_scale, override, status, said):
    done = hcm_scale("run", *TINY, override)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "node",
    [
        *("5", "two words, [a=b] {c: 1} (", "null", "-1", "~ü", "???", "", "it's", "'quoted'"),
        *('"', "C:\\tmp\\", "\\'", "\\\\'\\", "${seed}", "\\${seed}", "${"),
    ],
)
def test_explain__takes_an_id_as_it_is(tmp_path, monkeypatch, capsys, node):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FinishedRun, "explained_text", lambda run, nodes, edges, cases: f"{run.folder} {nodes[0]}")
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    status, out, _ = said(capsys, "explain", f"node={node}", "run_dir=here", *quiet)
    assert (status, out) == (0, f"{tmp_path / 'here'} {node}\n")


def test_missing_file__is_named(hcm_scale):
    done = hcm_scale("run", "until=ingest", "graph=tables", "graph.path=nowhere.parquet")
    assert done.returncode == 2
    assert "nowhere.parquet" in done.stderr


def test_run_dir__that_is_a_url_is_refused_before_a_folder_is_made(hcm_scale, tmp_path):
    done = hcm_scale("run", "run_dir=s3://bucket/run")
    assert done.returncode == 2
    assert "error: run_dir=s3://bucket/run is a URL, and a run works in a folder of this machine" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_log__as_json_is_one_object_a_line_on_stderr_and_in_the_file(hcm_scale, tmp_path):
    done = hcm_scale("run", "until=purify", *TINY, "log=json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"time", "level", "message"} <= lines[0].keys()
    assert {line["stage"] for line in lines if "stage" in line} == {"graph", "purified"}
    written = (tmp_path / "runs" / "community-300" / "log").read_text().splitlines()
    assert [json.loads(line)["message"] for line in written] == [line["message"] for line in lines]


def test_log__as_json_has_fields_and_fail_on_ends_a_finished_run_with_status_3(hcm_scale, tmp_path):
    done = hcm_scale("run", *TINY, "log=json", "fail_on=flagged<100000,flagged>100000,drift")
    assert done.returncode == 3, done.stderr
    run_dir = tmp_path / "runs" / "community-300"
    assert (run_dir / "report" / "report.html").is_file()
    assert "rank  id" in done.stdout  # the summary comes all the same
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines)
    assert (lines[0]["event"], lines[0]["run_dir"]) == ("run_started", "runs/community-300")
    listed = json.loads((run_dir / "stages.json").read_text())["stages"]
    told = [line for line in lines if line["event"] == "stage"]
    assert [(line["stage"], line["kept"], line["facts"]) for line in told] == [
        (stage["name"], False, stage["detail"]) for stage in listed
    ]
    assert all(line["seconds"] >= 0 and line["peak_bytes"] > 2**20 for line in told)
    (end,) = (line for line in lines if line["event"] == "run_finished")
    scores = next(stage["detail"] for stage in listed if stage["name"] == "scores")
    assert (end["nodes"], end["num_flagged"], end["stability"]) == (300, scores["num_flagged"], scores["stability"])
    assert (end["num_made"], end["num_kept"], end["num_moved"]) == (len(listed), 0, None)
    assert [(line["event"], line["check"], line["level"]) for line in lines if "check" in line] == [
        ("check_failed", "flagged<100000", "error"),
        ("check_skipped", "drift", "warning"),
    ]
    again = hcm_scale("run", *TINY, "fail_on=flagged>100000")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("unchanged, kept") == len(listed)


def test_fail_on__of_other_words_is_refused_before_any_work(hcm_scale, tmp_path):
    done = hcm_scale("run", *TINY, "fail_on=drift,stabilty<.5")
    assert done.returncode == 2
    assert "fail_on=stabilty<.5 is not known; legal are drift, missing-column, new-cases," in done.stderr
    assert "did you mean 'stability<N'?" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_log__that_an_option_file_makes_json_tells_errors_as_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "night.yaml").write_text("# @package _global_\nlog: json\n")
    for words in (["graph=tables", "graph.path=nowhere.csv"], ["purify.ratoi=1"]):  # found while running, before that
        status, _, err = said(capsys, "run", "until=ingest", "experiment=night", *words)
        last = json.loads(err.splitlines()[-1])
        assert (status, last["event"], last["status"]) == (2, "error", 2)


def test_wrong_word_of_a_command__is_told_in_one_line(capsys):
    status, _, err = said(capsys, "export", "run", "out.csv", "--nonsense", "log=json")
    assert status == 2
    assert "usage: hcm-scale export" in err
    assert "\\n" not in err


@pytest.mark.parametrize("words", [["purify.ratoi=1"], ["graph=tables", "graph.path=nowhere.csv"], ["-m", "seed=x"]])
def test_log__as_json_tells_errors_too(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    status, _, err = said(capsys, "run", "until=ingest", "log=json", *words)
    assert status == 2
    last = json.loads(err.splitlines()[-1])
    assert last["level"] == "error"
    assert last["message"].startswith("error: ")
    assert (last["event"], last["status"]) == ("error", 2)


def test_experiment_without_its_file__says_where_it_comes_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HCM_DATA", raising=False)
    status, _, err = said(capsys, "run", "until=ingest", "experiment=best/enron")
    assert status == 2
    assert "graph.path=data/Enron.mat is not there" in err
    assert "HCM_DATA in the environment names the folder of data sets, and docs/results.md says which file it is" in err


ENDING = """
import atexit, sys
from hcm_scale import __main__

class Kept:
    def __del__(self):
        print("taken apart")

kept, whole = Kept(), __main__.main

def main():
    atexit.register(print, "at exit")
    return whole()

__main__.main, sys.argv = main, ["hcm-scale", *sys.argv[1:]]
__main__.script()
"""


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("rum", 2)])
def test_script__ends_at_once_with_the_status_of_the_command(word, status):
    done = subprocess.run([sys.executable, "-c", ENDING, word], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stdout.endswith("at exit\n")
    assert bool(done.stderr) == bool(status)


def test_sweep__ends_with_the_command_that_gathers_it(tmp_path):
    words = "run", "-m", "until=ingest", *TINY, "seed=1,2", f"hydra.sweep.dir={tmp_path}/a b"
    done = apart(*words, cwd=tmp_path)
    assert done.stderr.splitlines()[-1].endswith(f"hcm-scale collect '{tmp_path}/a b'")
