"""A signal stops a command within seconds: one line that says how to go on, a status of 128 + its number.

In training a checkpoint is written first, so that nothing is lost; the run that goes on ends in the same samples.
"""

import json
import shlex
import signal
import sys
import time

import psutil
import pytest

ANSWERS_WITHIN_SECONDS = 60  # on an idle machine under two; the number is for busy ones
LONG = ("posterior.burn_in_steps=100000", "posterior.checkpoint_every=90000")


def stop(running, signum: signal.Signals) -> str:
    """Signals the command and waits for its end; the line that it leaves."""
    before = len(running.output())
    running.process.send_signal(signum)
    sent = time.monotonic()
    assert running.finish() == 128 + signum, running.output()
    assert time.monotonic() - sent < ANSWERS_WITHIN_SECONDS
    assert "Traceback" not in running.output()
    told = [line for line in running.output()[before:].splitlines() if "topped" in line or "error" in line]
    (line,) = told
    assert line.startswith(f"stopped by {signum.name}; to go on from here: hcm-scale run ")
    return line


def checkpoints(running) -> list[int]:
    notes = sorted((running.run_dir / "train-purified" / "checkpoints").glob("*.json"))
    return [json.loads(path.read_text())["num_done"] for path in notes]


def test_signal_in_training__leaves_a_checkpoint_and_the_command_to_go_on(start):
    running = start(*LONG, "score.views=[purified]")
    running.wait_until(lambda: running.step() >= 5)
    line = stop(running, signal.SIGTERM)
    assert shlex.split(line.partition("go on from here: ")[2])[1:] == running.process.args[3:]
    (step,) = checkpoints(running)
    assert step >= running.step() >= 5


@pytest.mark.parametrize(
    "signum",  # others have SIGTERM and SIGUSR1
    [pytest.param(signal.SIGINT, marks=pytest.mark.gate), pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
)
def test_any_signal__stops_both_trainings_at_once(start, signum):
    running = start(*LONG)
    running.wait_until(lambda: running.step() >= 5)
    stop(running, signum)
    assert checkpoints(running)
    assert list((running.run_dir / "train-original" / "checkpoints").glob("*.json"))


@pytest.mark.parametrize(
    "ranks", [pytest.param((2, 1, 1), marks=pytest.mark.gate), pytest.param((4, 2, 2), marks=pytest.mark.slow)]
)
def test_stopped_training__goes_on_with_other_ranks_to_the_same_samples(start, ranks):
    options = ("score.views=[purified]", "posterior.checkpoint_every=1000", "posterior.burn_in_steps=600")
    whole = start(*options, name="whole")
    assert whole.finish() == 0, whole.output()
    told = 0  # the step that the one before was stopped at
    for num_ranks, at_step, signum in zip(ranks, (20, 100), (signal.SIGUSR1, signal.SIGTERM), strict=False):
        running = start(*options, f"world.processes={num_ranks}")
        step = max(at_step, told + 1)
        running.wait_until(lambda running=running, step=step: running.step() >= step)
        processes = [running.pids(rank)[-1] for rank in range(num_ranks) if running.pids(rank)]
        stop(running, signum)
        told = running.step()
        assert checkpoints(running)
        assert not [pid for pid in processes if psutil.pid_exists(pid)]
    again = start(*options, f"world.processes={ranks[-1]}")
    assert again.finish() == 0, again.output()
    assert "goes on where it was stopped" in again.output()
    assert "unchanged, kept" in again.output()
    assert again.samples() == whole.samples()


@pytest.mark.gate
def test_signal_under_a_multirun__stops_the_sweep(start, tmp_path, tiny):
    command = (sys.executable, "-m", "hcm_scale", "run", "-m", *tiny, *LONG, "seed=0,1", "score.views=[purified]")
    running = start(f"hydra.sweep.dir={tmp_path / 'sweep'}", command=command)
    running.wait_until(lambda: any(tmp_path.glob("sweep/stages/train-*/metrics.jsonl")))
    running.wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("sweep/stages/train-*/metrics.jsonl")))
    stop(running, signal.SIGTERM)
    assert any(tmp_path.glob("sweep/stages/train-*/checkpoints/*.json"))
    assert len(list(tmp_path.glob("sweep/*/log"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["graph", "purified", "labels", "propagated-purified", "scores"])
def test_signal_in_any_other_stage__is_answered(start, stage):
    running = start("graph.num_nodes=300000", "hops.num_sources=4096", "posterior.burn_in_steps=5")
    running.wait_until(lambda: (running.run_dir / "records" / f"{stage}.json").is_file())
    stop(running, signal.SIGTERM)


@pytest.mark.gate
def test_nohup__keeps_its_meaning(start, tiny):
    command = ("nohup", sys.executable, "-m", "hcm_scale", "run", "until=ingest", *tiny)
    running = start(command=command)
    running.wait_until(lambda: (running.run_dir / "log").exists())
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGHUP)
    assert running.finish() == 0, running.output()
