"""A rank that is stopped, and so neither ends nor answers, holds the others no longer than `world.timeout_seconds`.

They wait for it in two ways, in a sum of gradients and at a meeting, and must give it up in both. torch's agent then
waits 30 seconds for it to end before it kills it.
"""

import os
import signal

import pytest

LIMIT = "world.timeout_seconds=8"


@pytest.mark.slow
def test_stopped_in_training__is_replaced(start):
    running = start("world.processes=2", LIMIT)
    running.wait_until(lambda: running.step() > 20)
    os.kill(running.pids(1)[-1], signal.SIGSTOP)
    assert running.finish() == 0, running.output()
    assert "goes on where it was stopped" in running.output()
    assert len(running.pids(0)) == len(running.pids(1)) == 2


@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.gate), pytest.param(1, marks=pytest.mark.slow)])
def test_stopped_before_a_meeting__is_named(start, stopped):
    many = ("graph.num_nodes=50000", "hops.num_sources=4000")  # so that there is work to be stopped in
    options = ("world.processes=2", "world.max_restarts=0", LIMIT)
    running = start(*many, *options)
    running.wait_until(lambda: len(running.pids(stopped)) == len(running.pids(1 - stopped)) == 1)
    os.kill(running.pids(stopped)[0], signal.SIGSTOP)
    assert running.finish() == 1
    assert (
        f"rank {1 - stopped}: SilentRankError: rank {stopped} gave no sign of life for {LIMIT}" in running.output()
    ), running.output()
