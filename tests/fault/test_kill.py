"""A rank that is killed or stopped costs the steps since the last checkpoint: the run goes on, or names the rank.

It never hangs: the end comes within the deadline of `Running.finish`. A rank that is stopped, and so neither ends nor
answers, holds the others no longer than `world.timeout_seconds`, both in a sum of gradients and at a meeting; torch's
agent then waits 30 seconds for it to end before it kills it.
"""

import os
import random
import signal
import sys

import pytest

LIMIT = "world.timeout_seconds=8"


def kill(running, rank: int, at_step: int, signum: signal.Signals = signal.SIGKILL) -> None:
    running.wait_until(lambda: running.step() >= at_step)
    os.kill(running.pids(rank)[-1], signum)


@pytest.mark.gate
def test_killed_rank__is_restarted_from_the_last_checkpoint(start):
    long = ("posterior.burn_in_steps=2000", "score.views=[purified]")  # enough for the agent to notice
    running = start("world.processes=2", *long)
    kill(running, rank=1, at_step=random.Random(0).randrange(10, 100))
    assert running.finish() == 0, running.output()
    assert "killed by" not in running.output()
    assert "goes on where it was stopped" in running.output()
    assert len(running.pids(0)) == len(running.pids(1)) == 2
    assert len(running.samples()) == 4
    assert "report.html" in running.output()


@pytest.mark.gate
def test_killed_rank__without_restarts_left_is_named_before_all_others(start):
    running = start("world.processes=2", "world.max_restarts=0")
    kill(running, rank=1, at_step=5)
    assert running.finish() == 1
    (line,) = [line for line in running.output().splitlines() if line.startswith("error:")]
    assert line.startswith("error: rank 1: killed by SIGKILL")
    assert f"every rank's log is in {running.run_dir / 'ranks'}" in line


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_killed_ranks__again_and_again_end_in_the_same_samples(start, num_ranks):
    whole = start(f"world.processes={num_ranks}", name="whole")
    assert whole.finish() == 0, whole.output()
    draw = random.Random(num_ranks)
    for attempt in range(4):
        running = start(f"world.processes={num_ranks}", name=f"hurt-{attempt}")
        first, second = sorted(draw.sample(range(2, 240), 2))
        kill(running, draw.randrange(num_ranks), first)
        running.wait_until(lambda running=running: len(running.pids(0)) == 2)
        kill(running, draw.randrange(num_ranks), second)
        assert running.finish() == 0, running.output()
        assert running.samples() == whole.samples()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["labels", "scores"])
def test_rank_killed_in_another_stage__is_restarted_too(start, stage):
    running = start("world.processes=2", "graph.num_nodes=20000", "hops.num_sources=2000", "posterior.num_samples=60")
    running.wait_until(lambda: (running.run_dir / "records" / f"{stage}.json").is_file())
    os.kill(running.pids(1)[-1], signal.SIGKILL)
    assert running.finish() == 0, running.output()
    assert len(running.pids(0)) == 2


@pytest.mark.slow
def test_killed_parent__takes_its_ranks_with_it(start):
    running = start("world.processes=2", "posterior.burn_in_steps=100000")
    running.wait_until(lambda: running.step() > 5)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    ranks = [running.pids(0)[-1], running.pids(1)[-1]]
    again = start("world.processes=2")  # waits for the lock of the ranks that are left, if any are
    assert again.finish() == 0, again.output()
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_torchrun__restarts_a_killed_rank(start, tiny):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")
    running = start(command=(*torchrun, "-m", "hcm_scale", "run", *tiny))
    kill(running, rank=1, at_step=20)
    assert running.finish() == 0, running.output()
    assert len(running.pids(0)) == 2


@pytest.mark.slow
def test_stopped_in_training__is_replaced(start):
    running = start("world.processes=2", LIMIT)
    kill(running, 0, 21, signal.SIGSTOP)  # rank 0 trains, and the other waits for it
    assert running.finish() == 0, running.output()
    assert "goes on where it was stopped" in running.output()
    assert len(running.pids(0)) == len(running.pids(1)) == 2


@pytest.mark.slow  # `ranks/test_wire.py` has ranks that fall silent
@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_before_a_meeting__is_named(start, stopped):
    many = ("graph.num_nodes=50000", "hops.num_sources=4000")  # so that there is work to be stopped in
    running = start(*many, "world.processes=2", "world.max_restarts=0", LIMIT)
    running.wait_until(lambda: len(running.pids(stopped)) == len(running.pids(1 - stopped)) == 1)
    os.kill(running.pids(stopped)[0], signal.SIGSTOP)
    assert running.finish() == 1
    line = f"rank {1 - stopped}: SilentRankError: rank {stopped} gave no sign of life for {LIMIT}"
    assert line in running.output(), running.output()
