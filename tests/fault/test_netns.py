"""Two machines, as far as the network can tell: two namespaces with an address each and a cable between them.

torchrun on both; then one side is killed, or the cable is cut, and the promise must hold: the run goes on from its last
checkpoint, or every side that is left ends with an error. Needs root and iproute2.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOSTS = ("10.213.7.1", "10.213.7.2")
PORT = 29_417
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """The names of two namespaces, joined by a pair of virtual interfaces, one for each host."""
    if shutil.which("ip") is None:
        pytest.skip("ip is missing: install iproute2")
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    names = [f"hcm{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "hcm0", "netns", names[0], "type", "veth", "peer", "name", "hcm0", "netns", names[1])
        for name, host in zip(names, HOSTS, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "hcm0")
            for device in ("lo", "hcm0"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture
def both(machines, start, tiny) -> Callable[..., list]:
    """Starts torchrun with one rank on both machines; they share a folder, as a network file system would."""

    def begin(*, max_restarts: int = 3, sides: tuple[int, ...] = (0, 1)) -> list:
        agent = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test"]
        agent += [f"--rdzv-endpoint={HOSTS[0]}:{PORT}", f"--max-restarts={max_restarts}"]
        running = []
        for side in sides:
            inside = ["ip", "netns", "exec", machines[side], sys.executable, "-m", "torch.distributed.run"]
            own = [f"--local-addr={HOSTS[side]}", f"--rdzv-conf=join_timeout=60,is_host={side == 0}"]
            command = (*inside, *agent, *own, "-m", "hcm_scale", "run", *tiny)
            running.append(start(command=command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
        return running

    return begin


def test_two_machines__make_one_run(both):
    running = both()
    assert [side.finish() for side in running] == [0, 0], running[0].output()
    assert len(running[0].samples()) == 4


def test_killed_rank__restarts_on_both_machines(both):
    running = both()
    running[0].wait_until(lambda: running[0].step() > 20)
    os.kill(running[0].pids(1)[-1], signal.SIGKILL)
    assert [side.finish() for side in running] == [0, 0], running[0].output() + running[1].output()
    assert len(running[0].pids(0)) == len(running[0].pids(1)) == 2


def kill_machine(name: str) -> None:
    """SIGKILL to everything on it at once, as a power cut would."""
    for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("killed", [0, 1], ids=["with-the-rendezvous", "without"])
def test_killed_machine__ends_the_other_with_an_error(both, machines, killed):
    running = both(max_restarts=1)
    running[0].wait_until(lambda: running[0].step() > 20)
    kill_machine(machines[killed])
    assert running[1 - killed].finish() != 0


def test_killed_machine__is_missed_by_name_in_the_log_of_the_other(both, machines):
    running = both(max_restarts=0)
    running[0].wait_until(lambda: running[0].step() > 20)
    kill_machine(machines[1])
    assert running[0].finish() != 0
    logs = [path.read_text() for path in (running[0].run_dir / "ranks").glob("*.log")]
    assert re.search(r"rank \d is gone|a rank stopped answering", running[0].output() + "".join(logs))


def test_killed_machine__may_come_back(both, machines):
    running = both()
    running[0].wait_until(lambda: running[0].step() > 20)
    kill_machine(machines[1])
    (back,) = both(sides=(1,))
    assert [running[0].finish(), back.finish()] == [0, 0], running[0].output() + back.output()
    assert "goes on where it was stopped" in running[0].output() + back.output()


def test_cut_cable__ends_the_ranks_of_both_sides(both, machines):
    running = both(max_restarts=0)
    running[0].wait_until(lambda: running[0].step() > 20)
    ranks = [running[0].pids(rank)[-1] for rank in (0, 1)]
    ip("-n", machines[0], "link", "set", "hcm0", "down")
    running[0].wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))
    logs = [path.read_text() for path in (running[0].run_dir / "ranks").glob("*.log")]
    assert re.search(r"rank \d is gone|a rank stopped answering|gave no sign of life", "".join(logs))
