"""One command, any number of processes: the same run, one directory, and clear words when something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from hcm_scale.cli import main
from hcm_scale.config import SOURCES, Config, SyntheticGraph, WorldConfig
from hcm_scale.ranks.world import RankInfo
from hcm_scale.run import launch, pipeline
from hcm_scale.run.finished import FinishedRun

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}
OPTIONS = [
    *("graph=community", "graph.num_nodes=400", "hops.num_sources=60"),
    *("model.width=8", "model.head_width=8", "sampling.batch_pairs=130"),
    *("posterior.burn_in_steps=15", "posterior.num_samples=3", "posterior.thin_steps=3"),
    *("world.device=cpu", "world.threads=1"),
]


def command(*arguments: str, tool: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    environ = {name: value for name, value in os.environ.items() if "RANK" not in name} | {"OMP_NUM_THREADS": "1"}
    whole = [sys.executable, *tool, "-m", "hcm_scale", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=240, env=environ)


def run_with(folder: Path, num_ranks: int, *more: str) -> Path:
    """The folder of a run by so many ranks; one alone is this process."""
    words = ("run", *OPTIONS, *more, f"world.processes={num_ranks}", f"run_dir={folder}")
    if num_ranks == 1:
        assert main.main([*words]) == 0
    else:
        done = command(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return run_with(tmp_path_factory.mktemp("runs") / "alone", 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    return run_with(tmp_path_factory.mktemp("runs") / "two", 2)


def losses(run_dir: Path) -> list[tuple[int, int, float]]:
    lines = [json.loads(line) for line in (run_dir / "train-purified" / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["num_pairs"], line["loss"]) for line in lines]


def check_same_run(one: Path, other: Path) -> None:
    """Labels to the byte; losses, parameters and scores to rounding."""
    for path in (one / "labels").glob("shard-*"):
        assert path.read_bytes() == (other / "labels" / path.name).read_bytes()
    assert [line[:2] for line in losses(one)] == [line[:2] for line in losses(other)]
    np.testing.assert_allclose([line[2] for line in losses(one)], [line[2] for line in losses(other)], rtol=1e-5)
    for path in (one / "train-purified" / "samples").glob("*.safetensors"):
        ours, theirs = load_file(path), load_file(other / "train-purified" / "samples" / path.name)
        for name, value in ours.items():
            np.testing.assert_allclose(theirs[name], value, rtol=1e-3, atol=1e-4)
    ahp = [FinishedRun(run_dir).table.sort_by("node")["ahp"].to_numpy() for run_dir in (one, other)]
    np.testing.assert_allclose(*ahp, rtol=1e-3)


def check_same_bytes(one: Path, other: Path) -> None:
    check_same_run(one, other)
    for path in [*one.glob("train-*/samples/*"), *one.glob("scores/*.npy"), *one.glob("scores/*.parquet")]:
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path


def test_two_ranks__make_the_run_of_one(alone, two):
    check_same_bytes(alone, two)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [3, 4, 8])
def test_more_ranks__make_the_run_of_one(alone, tmp_path, num_ranks):
    check_same_bytes(alone, run_with(tmp_path / "run", num_ranks))


LARGE = [  # few steps, each worth several threads
    *("model.head_width=256", "model.width=256", "sampling.batch_pairs=520"),
    *("posterior.burn_in_steps=4", "posterior.num_samples=2", "score.views=[purified]"),
]


@pytest.mark.slow
def test_large_steps__are_those_of_one_to_rounding(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for num_ranks, folder in enumerate(folders, 1):
        done = command("run", *OPTIONS, *LARGE, f"world.processes={num_ranks}", f"run_dir={folder}")
        assert done.returncode == 0, done.stdout + done.stderr
    check_same_run(*folders)


def test_every_rank__keeps_a_log_and_only_rank_0_tells_the_story(two):
    first, second = ((two / "ranks" / f"rank-{rank}.log").read_text() for rank in (0, 1))
    assert "rank 0 of 2 on cpu" in first
    assert "scores" in first
    assert "rank 1 of 2 on cpu" in second
    assert "scores" not in second
    assert "train-purified" in (two / "log").read_text()


@pytest.mark.slow
def test_finished_stages__are_kept_by_any_number_of_ranks(alone):
    before = (alone / "records" / "labels.json").stat().st_mtime_ns
    done = command("run", *OPTIONS, "world.processes=2", f"run_dir={alone}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("unchanged, kept") == 9
    assert (alone / "records" / "labels.json").stat().st_mtime_ns == before


@pytest.mark.gate
def test_error_of_a_rank__is_told_once_and_not_tried_again(tmp_path):
    done = command(
        "run", "until=label", *OPTIONS, "world.processes=2", "hops.classes=16", f"run_dir={tmp_path / 'run'}"
    )
    assert done.returncode == 2
    assert done.stderr.count("error: hops.classes=16: no pair has hop") == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "run" / "ranks" / "rank-1.log").read_text().count("rank 1 of 2") == 1


@pytest.mark.gpu
def test_two_ranks_on_one_gpu__make_the_run_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # TF32 rounds a batch and its two halves too differently to compare
    folders = [tmp_path / "one", tmp_path / "two"]
    for num_ranks, folder in enumerate(folders, 1):
        done = command("run", *OPTIONS, "world.device=cuda", f"world.processes={num_ranks}", f"run_dir={folder}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1 of 2 on cuda:" in (folders[1] / "ranks" / "rank-1.log").read_text()
    check_same_run(*folders)


STANDALONE = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")  # what torchrun runs


@pytest.mark.gate
def test_torchrun__makes_the_same_run(two, tmp_path):
    done = command("run", *OPTIONS, f"run_dir={tmp_path / 'run'}", tool=STANDALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    check_same_run(two, tmp_path / "run")
    assert (tmp_path / "run" / "ranks" / "rank-1.log").is_file()


@pytest.mark.slow
def test_torchrun__starts_no_sweep(tmp_path):
    swept = command("run", "-m", *OPTIONS, "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}", tool=STANDALONE)
    assert swept.returncode != 0
    assert "leave torchrun out" in swept.stdout + swept.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [["world.processes=2"], ["hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2"]],
    ids=["own-ranks", "submitit"],
)
def test_sweep__gives_every_job_its_ranks(tmp_path, how):
    if len(how) > 1:
        pytest.importorskip("submitit")
    done = command("run", "-m", *OPTIONS, *how, "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [path.parent for path in (tmp_path / "sweep").glob("*/ranks")]
    assert len(jobs) == 2
    for job in jobs:
        assert (job / "report" / "report.html").is_file()
        assert "rank 1 of 2" in (job / "ranks" / "rank-1.log").read_text()
    assert len(list((tmp_path / "sweep" / "stages").glob("graph-*"))) == 1


def test_find_seat__reads_what_torchrun_says():
    assert launch.find_rank_info({}) is None
    assert launch.find_rank_info(TORCHRUN) == RankInfo(3, 4, 1, 2, "host", 29500)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert launch.find_rank_info(TORCHRUN | agent) == RankInfo(3, 4, 1, 2, "host", 29500, hosted=True, attempt="2")


@pytest.mark.parametrize("missing", sorted(set(TORCHRUN) - {"RANK"}))
def test_find_seat__names_the_variable_that_is_missing(missing):
    with pytest.raises(ValueError, match=f"RANK is set in the environment but {missing} is not"):
        launch.find_rank_info({name: value for name, value in TORCHRUN.items() if name != missing})


def test_find_seat__reads_slurm_through_submitit(monkeypatch):
    pytest.importorskip("submitit")
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "70042", "SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[07-08]"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert launch.find_rank_info() == RankInfo(5, 8, 1, 4, "gpu07", 20042)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert launch.find_rank_info() is None


def test_slurm_without_submitit__is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"needs submitit: pip install 'hcm-scale\[sweeps\]'"):
        launch.find_rank_info({"SLURM_STEP_NUM_TASKS": "4"})


def test_numbers_that_the_starter_decides__are_said_to_be_ignored(monkeypatch, caplog):
    monkeypatch.setattr(launch, "run_rank", lambda config, until, info: f"rank {info.rank}")
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert launch.run(Config(world=WorldConfig(processes=2))) == "rank 3"
    assert caplog.text == ""
    launch.run(Config(world=WorldConfig(processes=3)))
    assert "world.processes=3 is ignored: 2 ranks" in caplog.text


def test_pipeline__refuses_to_be_alone_where_ranks_are_wanted(tmp_path):
    config = Config(world=WorldConfig(processes=2), run_dir=str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"world\.processes=2 asks for several ranks, and this is one process"):
        pipeline.run(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_job__travels_whole(tmp_path, source, monkeypatch):
    config = Config(graph=SOURCES[source](name="mine"), seed=7, run_dir=str(tmp_path))
    config.sampling.fan_out = ["10", "all"]
    monkeypatch.setattr(launch, "_run_once", lambda *_: {})
    launch.start_ranks(config, "train")
    back, until = launch.read_job(tmp_path / "ranks" / "job.json")
    assert (back, until, type(back.graph)) == (config, "train", SOURCES[source])


def test_first_failure__is_the_cause_whatever_the_clock_says():
    def failure(exitcode: int, timestamp: int) -> SimpleNamespace:
        return SimpleNamespace(exitcode=exitcode, timestamp=timestamp, signal_name=lambda: "SIGKILL")

    lost, broken, killed = failure(1, 1), failure(1, 2), failure(-9, 3)
    reports = {0: {"message": "LostRankError: rank 1 is gone", "lost": True}}
    reports[2] = {"message": "OSError: no space left on device", "lost": False}
    hint = "as the system does when memory runs out"
    assert launch.first_failure({0: lost, 1: killed}, reports) == f"rank 1: killed by SIGKILL, {hint}"
    assert launch.first_failure({0: lost, 2: broken}, reports) == "rank 2: OSError: no space left on device"
    assert launch.first_failure({0: lost}, reports) == "rank 0: LostRankError: rank 1 is gone"
    assert launch.first_failure({0: lost, 3: broken}, reports) == "rank 3: ended with status 1"


def test_agree__refuses_other_options_and_another_folder(tmp_path):
    config = Config(graph=SyntheticGraph(), run_dir=str(tmp_path / "run"))
    said = []
    leader = SimpleNamespace(rank=0, size=2, leads=True, broadcast=lambda value: said.extend(value) or value)
    launch.agree(leader, config, "report")
    said[3] = "stages"
    follower = SimpleNamespace(rank=1, leads=False, broadcast=lambda value: said)
    launch.agree(follower, config, "report")
    assert (config.run_dir, config.share_dir) == (str(tmp_path / "run"), "stages")
    said[2] = "another"
    with pytest.raises(ValueError, match="all machines must share it"):
        launch.agree(follower, config, "report")
    said[0] = "another"
    with pytest.raises(ValueError, match="rank 1 was given other options than rank 0"):
        launch.agree(follower, config, "report")
