"""From one command to one run, whatever the number of processes.

    started alone, one process wanted       runs here
    started alone, several wanted           starts the ranks of this machine and watches over them
    started by torchrun, or as a SLURM task takes its seat among the others (`rank.py`)

The parent composes the configuration once, writes it to `run_dir/ranks/job.json`, and starts the ranks with torch's
elastic agent: one run directory, under `-m` too. With several machines the same command runs on each, and their agents
meet at `world.rendezvous`. When a rank is lost the agents end the others and start all of them again, up to
`world.max_restarts` times; the stages then go on from their last checkpoint.

How long that takes: the agent looks ten times a second and a start takes as long as importing torch and numba, so a
killed process costs less than a minute; a machine that falls silent, or a rank that is stopped, costs
`world.timeout_seconds` more, and the half minute that the agent gives a process to end. A signal that asks to stop is
handed on to the ranks; one that has not ended half a minute later is killed.
"""

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from hcm_scale import pipeline
from hcm_scale.base import stopping
from hcm_scale.base.cores import num_cores
from hcm_scale.config import Config, WorldConfig
from hcm_scale.ranks.rank import FAILED, JOB, RANKS, REFUSED, find_seat, take_part, write_job
from hcm_scale.ranks.wire import SilentRankError
from hcm_scale.ranks.world import LOOPBACK, Seat, addresses_towards

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.launcher.api import LaunchConfig

log = logging.getLogger("hcm_scale")


class RankError(ChildProcessError):
    """A rank failed and restarts did not help; the message is that of the rank that failed first."""


def run(config: Config, until: str = "report", *, swept: bool = False) -> str:
    """Runs the stages up to `until` with as many processes as asked for; returns what is left to print."""
    seat = find_seat()
    if seat is not None:
        if swept and "SUBMITIT_EXECUTOR" not in os.environ:
            raise ValueError(
                "a sweep (-m) starts the ranks of its jobs itself: leave torchrun out, and set world.processes"
            )
        _warn_ignored(config.world, seat)
        return take_part(config, until, seat)
    if num_processes(config.world) * config.world.nodes == 1:
        return pipeline.run(config, until)
    start_ranks(config, until)
    return ""  # rank 0 has printed it


def num_processes(world: WorldConfig) -> int:
    """Ranks on this machine.

    >>> num_processes(WorldConfig(device="cpu", processes=None))
    1
    """
    if world.processes is not None:
        return world.processes
    return torch.cuda.device_count() if pipeline.device_of(world) == "cuda" else 1


def start_ranks(config: Config, until: str) -> None:
    """Starts this machine's ranks and returns when the run is finished; RankError, or the ValueError of a rank."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    ranks = Path(config.run_dir).resolve() / RANKS
    config.run_dir = str(ranks.parent)
    meeting = rendezvous(config.world)
    run_id = write_job(ranks / JOB, config, until)
    for old in (*ranks.glob(FAILED.format("*")), ranks / REFUSED):
        old.unlink(missing_ok=True)
    processes = num_processes(config.world)
    cores = max(1, num_cores() // processes)
    environment = {
        # torch's agent lends the ranks a store that outlives them; after a restart they would trip over its old keys
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": str(config.world.threads or cores),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(stopping.heard()),
    }
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # what it warns of is said here
    scratched = tempfile.TemporaryDirectory(prefix="hcm-scale-ranks-")
    with scratched as scratch, _environment(environment), stopping.handlers_kept():
        agent = elastic_launch(_agent_config(config.world, processes, run_id, meeting, scratch), sys.executable)
        try:
            agent("-m", "hcm_scale.ranks.rank", str(ranks / JOB))
        except SignalException as error:
            raise stopping.Stopped(error.sigval) from None
        except ChildFailedError as error:
            _raise_refusal(ranks)
            raise RankError(_first_failure(error.failures, config.world.max_restarts, ranks)) from error
        except RendezvousError as error:
            raise RankError(
                f"the {config.world.nodes} machines did not meet at {meeting.endpoint} within "
                f"{config.world.timeout_seconds:g} s ({error}): is one missing, or gone?"
            ) from error
    _raise_refusal(ranks)


def _raise_refusal(ranks: Path) -> None:
    """Where a rank refused the work, its reason as this process's own error."""
    if (ranks / REFUSED).exists():
        raise ValueError(json.loads((ranks / REFUSED).read_text())["message"])


class Meeting(NamedTuple):
    """Where the agents meet, HOST:PORT; this machine's own address as the others see it; whether it is that host.

    torch guesses the last two by the machine's name, which often resolves to something that nobody can reach.
    """

    endpoint: str
    own_address: str
    hosts: bool


def rendezvous(world: WorldConfig) -> Meeting:
    """Where the agents of this run meet; ValueError where that is not said."""
    if world.nodes == 1:
        if world.rendezvous is not None:
            log.warning("world.rendezvous=%s is ignored: there is one machine", world.rendezvous)
        return Meeting(f"{LOOPBACK}:0", LOOPBACK, hosts=True)
    if world.rendezvous is None:
        raise ValueError(
            f"world.nodes={world.nodes} needs world.rendezvous=HOST:PORT, an address of one of the machines, and the "
            "same command on each; or start the ranks with torchrun, or with srun"
        )
    host, _, port = world.rendezvous.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"world.rendezvous={world.rendezvous} is not HOST:PORT with a port of 1 to 65535")
    try:
        own, remote = addresses_towards(host.strip("[]"), int(port))
    except OSError as error:
        raise ValueError(f"world.rendezvous={world.rendezvous}: this machine knows no way to it ({error})") from error
    return Meeting(world.rendezvous, own, hosts=own == remote)


def _agent_config(world: WorldConfig, processes: int, run_id: str, meeting: Meeting, scratch: str) -> "LaunchConfig":
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig

    from hcm_scale.ranks import meeting as agents

    seconds = int(world.timeout_seconds)
    rendezvous_handler_registry.register(agents.NAME, agents.meet)
    return LaunchConfig(
        min_nodes=world.nodes,
        max_nodes=world.nodes,
        nproc_per_node=processes,
        run_id=run_id,
        rdzv_backend=agents.NAME,
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs={
            "timeout": seconds,
            "join_timeout": seconds,
            "read_timeout": seconds,
            "is_host": meeting.hosts,
        },
        max_restarts=world.max_restarts,
        local_addr=meeting.own_address,
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
    )


def _first_failure(failures: Mapping[int, "ProcessFailure"], num_restarts: int, ranks: Path) -> str:
    """The failure that caused the others, in words: a signal comes from outside, so first; a lost peer comes last.

    A silent peer comes before all: the signal is then the agent's own, to that peer.
    """

    def describe(rank: int) -> tuple[int, str]:
        failure, path = failures[rank], ranks / FAILED.format(rank)
        if failure.exitcode < 0:
            hint = ", as the system does when memory runs out" if failure.exitcode == -9 else ""
            return 1, f"killed by {failure.signal_name()}{hint}"
        if not path.is_file():
            return 2, f"ended with status {failure.exitcode}"
        error = json.loads(path.read_text())
        place = 0 if error["kind"] == SilentRankError.__name__ else 3 if error["lost"] else 2
        return place, f"{error['kind']}: {error['message']}"

    rank = min(failures, key=lambda rank: (describe(rank)[0], failures[rank].timestamp))
    return f"rank {rank}: {describe(rank)[1]} (restarts tried: {num_restarts}; every rank's log is in {ranks})"


def _warn_ignored(world: WorldConfig, seat: Seat) -> None:
    """Whoever started the ranks decided their number: says so where the configuration wanted another."""
    if world.processes not in (None, 1, seat.local_size):
        log.warning("world.processes=%s is ignored: %s ranks were started here", world.processes, seat.local_size)
    if world.nodes > 1 and world.nodes * seat.local_size != seat.size:
        log.warning("world.nodes=%s is ignored: %s ranks were started in all", world.nodes, seat.size)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the processes started inside; one that the user has set already stays."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
