"""Sweeps as people run them: real jobs on a tiny graph, by each launcher, with failures and resumption."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hcm_scale import HCM
from hcm_scale.cli.overrides import compose_config, composing
from hcm_scale.config import with_options
from hcm_scale.sweep.collect import collect
from hcm_scale.sweep.words import finish_sweep_options

CONF = Path(__file__).resolve().parents[2] / "conf" / "sweep"
SWEEPS = {path.stem: OmegaConf.load(path).hydra.sweeper.params or {} for path in sorted(CONF.glob("*.yaml"))}


def apart(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "hcm_scale", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "HYDRA_FULL_ERROR": "0"})


def made_stages(sweep: Path) -> dict[str, int]:
    """How many folders of each stage the jobs share."""
    counts: dict[str, int] = {}
    for path in (sweep / "stages" / "records").glob("*.json"):
        assert json.loads(path.read_text())["finished"]
        name = path.stem.rpartition("-")[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param([], id="serial", marks=pytest.mark.gate),
        pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], id="joblib", marks=pytest.mark.slow),
        pytest.param(["hydra/launcher=submitit_local"], id="submitit", marks=pytest.mark.gate),
    ],
)
def test_multirun__shares_equal_stages_and_outlives_a_failed_job(tmp_path, tiny, launcher):
    swept = ["seed=0,1,-1", "inject.seed=0", "hydra.sweep.dir=sweep", *launcher]  # -1 is not a legal seed
    done = apart("run", "-m", *tiny, *swept, cwd=tmp_path)
    sweep = tmp_path / "sweep"
    assert done.returncode != 0, "a failed job must show in the exit status"
    shared = {"graph": 1, "purified": 1, "labels": 1, "propagated-purified": 1, "propagated-original": 1}
    own = ("train-purified", "train-original", "scores", "cases", "report")
    assert made_stages(sweep) == shared | dict.fromkeys(own, 2)
    said = collect(sweep)
    status = pq.read_table(sweep / "collected.parquet")["status"].to_pylist()
    assert sorted(status) == ["failed", "finished", "finished"]
    assert "seed=-1 is out of range" in said


@pytest.mark.gate
def test_multirun__run_again_makes_only_what_is_missing(hcm_scale, tmp_path, tiny):
    again = ("run", "-m", *tiny, "seed=0,1", "hydra.sweep.dir=sweep")
    done = hcm_scale(*again)
    assert done.returncode == 0
    lines = done.stdout.splitlines()  # one a job
    assert len(lines) == 2
    assert all("num_flagged=" in line and "roc_auc=" in line and str(tmp_path / "sweep") in line for line in lines)
    stages = tmp_path / "sweep" / "stages"
    records = {path: path.stat().st_mtime_ns for path in (stages / "records").glob("*.json")}
    lost = next(stages.glob("scores-*"))
    shutil.rmtree(lost)
    assert hcm_scale(*again).returncode == 0
    changed = {path.stem for path, before in records.items() if path.stat().st_mtime_ns != before}
    assert changed == {lost.name}


@pytest.mark.gate
def test_named_sweep__runs_every_listed_point_for_the_seeds_the_user_gives(hcm_scale, tmp_path, tiny):
    done = hcm_scale("run", "-m", "sweep=classes", "seed=3", "hops.classes=2,3", *tiny)
    assert done.returncode == 0, done.stderr
    sweep = tmp_path / "multirun" / "community-300" / "classes"
    jobs = [json.loads(path.read_text()) for path in sweep.glob("*/config.json")]
    assert sorted((job["hops"]["classes"], job["seed"]) for job in jobs) == [(2, 3), (3, 3)]
    assert made_stages(sweep.parent)["purified"] == 1
    assert "2 jobs, 2 finished and different\n" in collect(sweep)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_point_of_a_sweep__is_legal(name):
    words, parser, fan_outs = ["experiment=best/flickr", f"sweep={name}"], OverridesParser.create(), set()
    with composing():
        base = compose_config(words)
        for key, values in SWEEPS[name].items():
            points = list(parser.parse_override(f"{key}={values}").sweep_string_iterator())
            for point in (f"{key}={value}" for value in (points if key != "seed" else points[-1:])):
                if "." in key:
                    changed = with_options(base, {key: parser.parse_override(point).value()})
                else:  # names an option file
                    changed = compose_config([*words, point])
                fan_outs.add(tuple(changed.sampling.fan_out))
    for fan_out in fan_outs:
        HCM({"sampling.fan_out": [*fan_out]})  # checks it against the layers


def test_paper_ranges__are_covered():
    assert SWEEPS["drop_ratio"]["purify.ratio"] == "0,0.1,0.2,0.3,0.4,0.5"
    assert SWEEPS["classes"]["hops.classes"] == "range(2,8)"
    assert SWEEPS["sampling_ratio"]["sampling.ratio"].split(",")[0::9] == ["0.1", "1.0"]


def test_settle__leaves_alone_what_does_not_clash():
    for words in (["-m", "sweep=classes"], ["seed=0,1"], ["-m", "sweep=classes", "purify.ratio=0"]):
        assert finish_sweep_options(words) == words


def test_settle__the_user_wins_and_the_rest_stays():
    words = ["-m", "sweep=classes", "seed=0,1"]
    assert finish_sweep_options(words) == [*words, "hydra.sweeper.params=null", "hops.classes=range(2,8)"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["sweep=classes"], "sweep=classes is a list of runs: add -m"), (["-m", "sweep=clases"], "legal are classes, ")],
)
def test_settle__refuses_at_the_door(words, said):
    with pytest.raises(ValueError, match=said):
        finish_sweep_options(words)


def test_settle__a_sweep_can_be_looked_at_without_running_it():
    assert finish_sweep_options(["sweep=classes", "--cfg", "job"]) == ["sweep=classes", "--cfg", "job"]


def test_settle__a_sweep_that_is_null_is_none():
    assert finish_sweep_options(["sweep=null"]) == ["sweep=null"]


def test_own_folder__is_named_by_what_varies_and_keeps_other_options_apart():
    def folder(*words: str) -> str:
        return next((word for word in finish_sweep_options(["-m", *words]) if word.startswith("hydra.sweep.dir='")), "")

    plain = folder("seed=0,1", "purify.ratio=range(2)")
    assert plain == "hydra.sweep.dir='multirun/${graph.name}/seed+purify.ratio'"
    assert folder("seed=0,1", "purify.ratio=range(2)", "share_dir=/data") == plain
    first, second = (folder("seed=0,1", f"purify.ratio={ratio}") for ratio in (0.1, 0.2))
    assert first != second
    assert first.startswith("hydra.sweep.dir='multirun/${graph.name}/seed-")
    assert folder("seed=0,1", "hydra.sweep.dir=mine") == ""
    assert "share_dir=multirun/${graph.name}/stages" not in finish_sweep_options(["-m", "seed=0,1", "share_dir=here"])


@pytest.mark.gate
def test_sweep_without_a_name__has_a_folder_of_its_own_and_short_names(hcm_scale, tmp_path, tiny):
    for ratio in ("0.1", "0.2"):
        done = hcm_scale("run", "until=label", "-m", *tiny, f"purify.ratio={ratio}", "seed=0,1")
        assert done.returncode == 0, done.stderr
    folders = sorted(path for path in (tmp_path / "multirun" / "community-300").iterdir() if path.name != "stages")
    assert len(folders) == 2
    for folder in folders:
        assert sorted(path.parent.name for path in folder.glob("*/config.json")) == ["seed=0", "seed=1"]
    with pytest.raises(ValueError, match="2 sweeps; collect one of them"):
        collect(tmp_path / "multirun" / "community-300")
