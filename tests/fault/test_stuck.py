"""A run that is killed before any change of its folder is finished by the same command, in the same bytes.

This file is both the test and the child that goes through the cases. Each case forks a run that dies before one of its
changes, and then one that must come to its end. Cases below 1,000 are the changes one by one; any other is the number
from which a change is drawn.
"""

import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from dying import die_at_change
from helpers import report_case, small_graph, small_run
from same_bytes import artifacts

from hcm_scale.posterior import samples

ALL = range(1_000)  # more than there are changes
OPTIONS = {"hops.num_sources": 40, "hops.classes": 3, "sampling.batch_pairs": 64}
OPTIONS |= {"posterior.burn_in_steps": 38, "posterior.num_samples": 3, "world.threads": 1}
OPTIONS |= {"posterior.checkpoint_every": 20}  # as often as metrics, which then average over the same steps if resumed
_LEFT_OVER = (".tmp", ".new", ".old")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_cases", [1, pytest.param(20, marks=pytest.mark.audit)])
def test_kill__at_random_changes_leaves_a_run_that_ends_in_the_same_bytes(tmp_path, go_through, num_cases):
    first = random.SystemRandom().randrange(len(ALL), 10**9)
    print(f"cases from {first}")
    assert go_through(__file__, tmp_path, range(first, first + num_cases)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill__at_every_change_leaves_a_run_that_ends_in_the_same_bytes(tmp_path, go_through):
    assert go_through(__file__, tmp_path, ALL) == []
    assert "beyond" in (tmp_path / "output").read_text()


def test_sample_damaged_while_its_training_is_stopped__is_made_again(tmp_path):
    run(tmp_path / "whole")
    folder = tmp_path / "run" / "train-purified"
    assert apart(lambda: die_before(folder / "samples" / "manifest.json", tmp_path / "run")) == -signal.SIGKILL
    samples.sample_path(folder / "samples", 1).write_bytes(samples.sample_path(folder / "samples", 0).read_bytes())
    with pytest.warns(UserWarning, match=r"train-purified/samples/sample-00001\.safetensors is damaged"):
        run(tmp_path / "run")
    assert artifacts(tmp_path / "run") == artifacts(tmp_path / "whole")


def run(run_dir: Path) -> None:
    small_run(run_dir, small_graph(60, 4), **OPTIONS)


def die_before(path: Path, run_dir: Path) -> None:
    """A run that is killed before a file is written."""

    def hook(event: str, args: tuple) -> None:
        if event == "os.rename" and args[1] == str(path):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run(run_dir)


def apart(work: Callable[[], object]) -> int:
    """Does the work in a fork of this process; its exit status, negative where a signal ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(run_dir: Path, moment: int) -> None:
    die_at_change(moment, run_dir)
    run(run_dir)


def outcome(run_dir: Path, moment: int, expected: dict) -> str:
    shutil.rmtree(run_dir, ignore_errors=True)
    if apart(lambda: killed(run_dir, moment)) != -signal.SIGKILL:
        return "silent\tnobody was killed"
    if apart(lambda: run(run_dir)) != 0:
        return "traceback\tstuck"
    left = [path.name for path in run_dir.rglob(".*") if path.suffix in _LEFT_OVER]
    return "same" if artifacts(run_dir) == expected and not left else f"silent\tother bytes {left}"


def main() -> None:
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("error")
    whole = folder / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    changes = die_at_change(0, whole)
    run(whole)  # here, so that the forks find all kernels loaded
    expected, num_changes = artifacts(whole), next(changes) - 1
    for case in range(first, last):
        moment = case + 1 if case in ALL else random.Random(case).randint(1, num_changes)
        if moment > num_changes:
            print("beyond", last - 1, "", sep="\t", flush=True)
            break
        what = f"change {moment} of {num_changes}"
        report_case(case, what, lambda: outcome(folder / "run", moment, expected))  # noqa: B023


if __name__ == "__main__":
    main()
