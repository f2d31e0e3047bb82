"""From one command to one run, whatever the number of processes.

    started alone, one process wanted        runs here
    started alone, several wanted            starts the ranks of this machine and supervises them
    started by torchrun, or as a SLURM task  joins the other ranks

The parent composes the configuration once, writes it to `run_dir/ranks/job.json`, and starts the ranks with torch's
elastic agent: one run directory, under `-m` too. With several machines the same command runs on each, and their agents
meet at `world.rendezvous`. When a rank is lost the agents end the others and start all of them again, up to
`world.max_restarts` times; the stages then continue from their last checkpoint. Whoever else starts ranks gives each
its place in the environment: torchrun by RANK and its siblings, SLURM by variables that submitit reads.

All ranks must be given the same options and see the same run directory, which they check first. Each logs to
`ranks/rank-N.log`. An error that a restart would only repeat (a wrong option, a missing file, a diverged chain) is
written to `ranks/refused.json` and the ranks end with status 0, so that nobody restarts them. Any other error is
written to `ranks/failed-N.json`, by rename: torch's own error files can be read half written.

A killed process costs less than a minute: the agent polls ten times a second, and a start takes as long as importing
torch and numba. A silent machine, or a stopped rank, costs `world.timeout_seconds` more, and the half minute that the
agent gives a process to end. A signal that asks to stop is forwarded to the ranks.
"""

import contextlib
import functools
import json
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from hcm_scale.base import console, files, signals
from hcm_scale.base.threads import num_cores
from hcm_scale.config import SOURCES, Config, WorldConfig, with_options
from hcm_scale.ranks.wire import SilentRankError, listen, watch_port
from hcm_scale.ranks.world import LOOPBACK, LostRankError, RankInfo, World, addresses_towards, join, own_address
from hcm_scale.run import pipeline

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.launcher.api import LaunchConfig

log = logging.getLogger("hcm_scale")

# errors that a restart would repeat
FINAL = (ValueError, FileNotFoundError, FloatingPointError, MemoryError)
RANKS, JOB, REFUSED, FAILED = "ranks", "job.json", "refused.json", "failed-{}.json"
LOG_FORMAT = "%(asctime)s %(message)s"
_BACKEND = "hcm_scale"  # the name under which torch knows our rendezvous
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below the ports that systems assign themselves


class RankError(ChildProcessError):
    """A rank failed and restarts did not help; the message is that of the rank that failed first."""


def run(config: Config, until: str = "report", *, swept: bool = False) -> str:
    """Text left to print after running the stages up to `until` with as many processes as asked for."""
    info, world = find_rank_info(), config.world
    if info is None:
        if num_processes(world) * world.nodes == 1:
            return pipeline.run(config, until)
        start_ranks(config, until)
        return ""  # rank 0 has printed it
    if swept and "SUBMITIT_EXECUTOR" not in os.environ:
        raise ValueError(
            "a sweep (-m) starts the ranks of its jobs itself: leave torchrun out, and set world.processes"
        )
    if world.processes not in (None, 1, info.local_size):
        log.warning("world.processes=%s is ignored: %s ranks were started here", world.processes, info.local_size)
    if world.nodes > 1 and world.nodes * info.local_size != info.size:
        log.warning("world.nodes=%s is ignored: %s ranks were started in all", world.nodes, info.size)
    return run_rank(config, until, info)


def num_processes(world: WorldConfig) -> int:
    """Number of ranks on this machine.

    >>> num_processes(WorldConfig(device="cpu", processes=None))
    1
    """
    if world.processes is not None:
        return world.processes
    return torch.cuda.device_count() if pipeline.device_of(world) == "cuda" else 1


# The parent: starts the ranks of this machine with torch's elastic agent and reports why they failed.


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
    environment = {
        # torch's agent shares its store with the ranks; after a restart they would find the keys of those that died
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": str(config.world.threads or max(1, num_cores() // processes)),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signals.handled_signals()),
    }
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # its warnings repeat our messages
    temporary = tempfile.TemporaryDirectory(prefix="hcm-scale-ranks-")
    with temporary as log_dir, _environment(environment), signals.handlers_restored():
        agent = elastic_launch(_agent_config(config.world, processes, run_id, meeting, log_dir), sys.executable)
        try:
            agent("-m", "hcm_scale.run.launch", str(ranks / JOB))
        except SignalException as error:
            raise signals.Stopped(error.sigval) from None
        except ChildFailedError as error:
            if not (ranks / REFUSED).exists():
                raise RankError(_first_failure(error.failures, config.world.max_restarts, ranks)) from error
        except RendezvousError as error:
            raise RankError(
                f"the {config.world.nodes} machines did not meet at {meeting.endpoint} within "
                f"{config.world.timeout_seconds:g} s ({error}): is one missing, or gone?"
            ) from error
    if (ranks / REFUSED).exists():  # a rank refused the work
        raise ValueError(json.loads((ranks / REFUSED).read_text())["message"])


def _first_failure(failures: Mapping[int, "ProcessFailure"], num_restarts: int, ranks: Path) -> str:
    """Message about the failure that caused the others.

    In order of precedence: a report of a silent rank (the agent itself then killed that rank), a rank killed by a
    signal, any other error, and last the loss of another rank.
    """

    def describe(rank: int) -> tuple[int, str]:
        failure, path = failures[rank], ranks / FAILED.format(rank)
        if failure.exitcode < 0:
            hint = ", as the system does when memory runs out" if failure.exitcode == -9 else ""
            return 1, f"killed by {failure.signal_name()}{hint}"
        if not path.is_file():
            return 2, f"ended with status {failure.exitcode}"
        error = json.loads(path.read_text())
        precedence = 0 if error["kind"] == SilentRankError.__name__ else 3 if error["lost"] else 2
        return precedence, f"{error['kind']}: {error['message']}"

    rank = min(failures, key=lambda rank: (describe(rank)[0], failures[rank].timestamp))
    return f"rank {rank}: {describe(rank)[1]} (restarts tried: {num_restarts}; every rank's log is in {ranks})"


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the processes started inside, except those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# The rendezvous of the agents, one on each machine. A single machine's agent opens no port. Agents of several machines
# meet in torch's `c10d`, over a store on the machine of `world.rendezvous`, which listens on that address alone; the
# kernel watches the agents' connections to it. torch puts a pickle into that store: whoever can reach its port can run
# code here (`docs/security.md`).


class Meeting(NamedTuple):
    """Where the agents meet, HOST:PORT; this machine's own address as the others see it; whether it is that host.

    torch guesses the last two by the machine's name, which often resolves to an address that nobody can reach.
    """

    endpoint: str
    own_address: str
    hosts: bool


def rendezvous(world: WorldConfig) -> Meeting:
    """Where the agents of this run meet; ValueError if `world.rendezvous` is missing or unusable."""
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


def _agent_config(world: WorldConfig, processes: int, run_id: str, meeting: Meeting, log_dir: str) -> "LaunchConfig":
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig

    rendezvous_handler_registry.register(_BACKEND, functools.partial(_rendezvous_handler, meeting))
    return LaunchConfig(
        min_nodes=world.nodes,
        max_nodes=world.nodes,
        nproc_per_node=processes,
        run_id=run_id,
        rdzv_backend=_BACKEND,
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs=dict.fromkeys(("timeout", "join_timeout", "read_timeout"), int(world.timeout_seconds)),
        max_restarts=world.max_restarts,
        local_addr=meeting.own_address,
        logs_specs=DefaultLogsSpecs(log_dir=log_dir),
    )


def _rendezvous_handler(meeting: Meeting, parameters: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous of this machine's agent; RendezvousConnectionError if the store cannot be opened or reached."""
    if parameters.max_nodes == 1:
        return OneMachine(parameters.run_id)
    host, _, port_text = meeting.endpoint.rpartition(":")
    host, port, seconds = host.strip("[]"), int(port_text), float(parameters.get("read_timeout"))
    try:
        socket_fd = listen(own_address(host, port), port).detach() if meeting.hosts else None
        timeout = timedelta(seconds=seconds)
        store = TCPStore(
            host, port, is_master=meeting.hosts, multi_tenant=True, timeout=timeout, master_listen_fd=socket_fd
        )
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no connection to the store at {host}, port {port}: {error}") from error
    watch_port(port, seconds)
    backend = C10dRendezvousBackend(store, parameters.run_id)
    parameters.backend = backend.name  # torch checks that it got the backend that it asked for
    return create_handler(store, backend, parameters)


class OneMachine(RendezvousHandler):
    """The rendezvous of a single agent: its store stays in this process."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False

    def get_backend(self) -> str:
        return _BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store for every start of the ranks, and a free port for theirs."""
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


# A rank: finds its place, joins the others, checks that all do the same work, and runs the pipeline with them.


def find_rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The place that torchrun or SLURM gave this process; None if it was started alone."""
    if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun_info(environ)
    if "SUBMITIT_EXECUTOR" in environ or int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _submitit_info()
    return None


def _torchrun_info(environ: Mapping[str, str]) -> RankInfo:
    missing = [name for name in _TORCHRUN if name not in environ]
    if missing:
        raise ValueError(
            f"RANK is set in the environment but {', '.join(missing)} is not: start ranks with torchrun, which sets "
            "all of them, or unset RANK"
        )
    rank, size, local_rank, local_size = (int(environ[name]) for name in _TORCHRUN[:4])
    hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # torchrun's own store outlives a restart, with the keys of the ranks that died in it: each attempt needs a prefix
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "") if hosted else ""
    address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    return RankInfo(rank, size, local_rank, local_size, address, port, hosted, attempt)


def _submitit_info() -> RankInfo | None:
    try:
        from submitit import JobEnvironment
    except ImportError as error:
        raise ValueError(
            "SLURM started several tasks, and reading their places needs submitit: pip install 'hcm-scale[sweeps]', or "
            "start the ranks with torchrun"
        ) from error
    job = JobEnvironment()
    if job.num_tasks == 1:
        return None
    digits = "".join(filter(str.isdigit, job.job_id))
    return RankInfo(
        rank=job.global_rank,
        size=job.num_tasks,
        local_rank=job.local_rank,
        local_size=job.num_tasks // job.num_nodes,
        address=LOOPBACK if job.num_nodes == 1 else job.hostnames[0],
        port=_FIRST_PORT + int(digits or "0") % _NUM_PORTS,
    )


def run_rank(config: Config, until: str, info: RankInfo, refuse: Callable[[Exception], None] | None = None) -> str:
    """Summary of the run on rank 0, empty on the others; joins the other ranks and runs the stages with them.

    `refuse` is called with an error that no restart mends, before the others can notice that this rank is gone.
    """
    signals.end_with_parent()
    if info.hosted and not info.one_machine:
        log.warning(
            "torchrun without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in front of it may fail to restart lost ranks"
        )
    if info.rank > 0:
        console.disable_progress()
    device = pipeline.device_of(config.world)
    with join(info, device=device, timeout_seconds=config.world.timeout_seconds) as world:
        agree(world, config, until)
        root = logging.getLogger()
        if world.rank > 0:
            root.handlers.clear()
        root.addHandler(_log_handler(Path(config.run_dir) / RANKS / f"rank-{world.rank}.log"))
        root.setLevel(logging.INFO)
        if config.log == "json":
            console.use_json_lines(root.handlers)
        log.info("rank %d of %d on %s, process %d", world.rank, world.size, world.device, os.getpid())
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
            log.info("restart %(TORCHELASTIC_RESTART_COUNT)s of at most %(TORCHELASTIC_MAX_RESTARTS)s", os.environ)
        try:
            return pipeline.run(config, until, world=world)
        except FINAL as error:
            if refuse is not None:
                refuse(error)
            raise
        except LostRankError:
            signals.check_stop_requested()  # the lost rank may have received the same signal, and ended sooner
            raise


def agree(world: World, config: Config, until: str) -> None:
    """Gives all ranks the run directory of rank 0; ValueError if their options differ or they do not share it."""
    decided = ("world", "run_dir", "share_dir")  # machines may differ in the first, rank 0 decides the others
    options = files.hash_value([{key: value for key, value in asdict(config).items() if key not in decided}, until])
    path, token = Path(config.run_dir).resolve() / RANKS / "world.json", secrets.token_hex(8)
    if world.leads:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"size": world.size, "token": token})
    leader_options, path_text, token, config.share_dir = world.broadcast([options, str(path), token, config.share_dir])
    if leader_options != options:
        raise ValueError(f"rank {world.rank} was given other options than rank 0: use the same command on all machines")
    path = Path(path_text)
    config.run_dir = str(path.parents[1])
    if not path.is_file() or json.loads(path.read_text())["token"] != token:
        raise ValueError(
            f"run_dir={config.run_dir} of rank {world.rank} is not that of rank 0: all machines must share it "
            "(a network file system)"
        )


def _log_handler(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path)
    handler.setFormatter(console.Printable(LOG_FORMAT))
    return handler


# What the parent starts: `python -m hcm_scale.run.launch RUN_DIR/ranks/job.json`.


def write_job(path: Path, config: Config, until: str) -> str:
    job = {"config": asdict(config), "until": until}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, job)
    return files.hash_value(job)


def read_job(path: Path) -> tuple[Config, str]:
    job = json.loads(path.read_text())
    source = job["config"]["graph"].pop("source")  # decided by the kind of the section; not an option that can be set
    return with_options(Config(graph=SOURCES[source]()), job["config"]), job["until"]


def rank_main() -> int:
    """Exit status of a rank started by `start_ranks`."""
    signals.install_handlers()
    job = Path(sys.argv[1])
    config, until = read_job(job)
    info = find_rank_info()
    assert info is not None, "the agent gives every rank its place"
    _redirect(job.parent, info.rank)
    refuse = functools.partial(_refuse, job.with_name(REFUSED), info.rank)
    try:
        print(run_rank(config, until, info, refuse), end="\n" if info.rank == 0 else "")
    except signals.Stopped as stopped:
        return 128 + stopped.signum
    except FINAL as error:
        refuse(error)
    except Exception as error:
        lost = isinstance(error, LostRankError)
        if lost and job.with_name(REFUSED).exists():
            return 0
        log.error("rank %d: %s", info.rank, error, exc_info=not lost)
        failure = {"kind": type(error).__name__, "message": str(error), "lost": lost}
        files.write_json(job.with_name(FAILED.format(info.rank)), failure)
        return 1
    return 0


def _refuse(path: Path, rank: int, error: Exception) -> None:
    """Writes why the work is refused, if no other rank has: those usually fail because this one is gone."""
    draft = path.with_name(f".{path.name}.{rank}")
    files.write_json(draft, {"rank": rank, "kind": type(error).__name__, "message": str(error)})
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)  # atomic, and never overwrites
    draft.unlink()


def _redirect(folder: Path, rank: int) -> None:
    """Rank 0 keeps the terminal and the run's log; all output of another rank goes to its own log."""
    if rank == 0:
        terminal = logging.StreamHandler()
        terminal.setFormatter(console.Printable())
        logging.basicConfig(level=logging.INFO, handlers=[terminal, _log_handler(folder.parent / "log")])
        return
    with open(folder / f"rank-{rank}.log", "a") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)


if __name__ == "__main__":
    raise SystemExit(rank_main())
