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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from hcm_scale.base import console as json_log
from hcm_scale.base import console as progress
from hcm_scale.base import files, signals
from hcm_scale.base.console import Printable
from hcm_scale.base.signals import end_with_parent
from hcm_scale.base.threads import num_cores
from hcm_scale.config import SOURCES, Config, WorldConfig, with_options
from hcm_scale.ranks.wire import SilentRankError, listen, watch_port
from hcm_scale.ranks.world import LOOPBACK, LostRankError, RankInfo, World, addresses_towards, join, own_address
from hcm_scale.run import pipeline

# ----------------------------------------------------------------------------
# How the agents that watch over the ranks meet, one on each machine: a rendezvous of torch's under our own name.
#
# One machine has one agent, which meets nobody: no port is opened and nothing is read from outside. Agents of several
# machines meet in torch's `c10d`, over a store on the machine of `world.rendezvous`. It listens on that address
# alone, and the kernel watches the agents' connections to it. torch puts a pickle into that store: who can reach its
# port can run code here (`docs/security.md`).


NAME = "hcm_scale"  # under which torch knows `meet`


def meet(parameters: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous of this machine's agent; `is_host` of the parameters says whether the store is here."""
    if parameters.max_nodes == 1:
        return OneMachine(parameters.run_id)
    host, _, port = parameters.endpoint.rpartition(":")
    store = open_store(host.strip("[]"), int(port), bool(parameters.get("is_host")), parameters.get("read_timeout"))
    watch_port(int(port), float(parameters.get("read_timeout")))
    backend = C10dRendezvousBackend(store, parameters.run_id)
    parameters.backend = backend.name  # torch looks whether it got what it asked for
    return create_handler(store, backend, parameters)


def open_store(host: str, port: int, is_host: bool, timeout_seconds: float) -> TCPStore:
    """The store of the agents; RendezvousConnectionError where it cannot be opened or reached."""
    timeout = timedelta(seconds=timeout_seconds)
    try:
        door = listen(own_address(host, port), port).detach() if is_host else None
        return TCPStore(host, port, is_master=is_host, multi_tenant=True, timeout=timeout, master_listen_fd=door)
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no connection to the store at {host}, port {port}: {error}") from error


class OneMachine(RendezvousHandler):
    """The meeting of one agent with itself: what torch wants to keep stays in this process."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False

    def get_backend(self) -> str:
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store for every start of the ranks, and a port that is free for theirs."""
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


# ----------------------------------------------------------------------------
# One rank of a run: it finds its seat, joins the others, walks the pipeline with them, and keeps a log of its own.
#
# Whoever starts several processes gives each a seat: `launch.py` and torchrun by RANK and its siblings in the
# environment, SLURM by variables that submitit reads. All ranks must be given the same options and see the same run
# directory, and say so where they do not. `run_dir/ranks/rank-N.log` is the log of rank N.
#
# An error that a second try would only repeat (a wrong option, a missing file, a diverged chain) is put down in
# `ranks/refused.json` and the ranks end quietly, so that nobody starts them again. Every other end is worth a restart
# and is told in `ranks/failed-N.json`, whole or not at all: torch's own error files are read half written when the
# agent ends a rank that is just then telling of another's death.


log = logging.getLogger("hcm_scale")
FINAL = (ValueError, FileNotFoundError, FloatingPointError, MemoryError)
RANKS, JOB, REFUSED, FAILED = "ranks", "job.json", "refused.json", "failed-{}.json"
LOG_FORMAT = "%(asctime)s %(message)s"
_TOGETHER = "world.json"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below what systems hand out themselves


def find_rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The seat that torchrun or SLURM gave this process; None where it was started alone."""
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
    # torchrun's own store outlives a restart, with the keys of the ranks that died in it: each attempt needs its own
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
        address="127.0.0.1" if job.num_nodes == 1 else job.hostnames[0],
        port=_FIRST_PORT + int(digits or "0") % _NUM_PORTS,
    )


def run_rank(config: Config, until: str, seat: RankInfo, refuse: Callable[[Exception], None] | None = None) -> str:
    """Joins the other ranks and runs the stages with them; the summary on rank 0, empty on the others.

    `refuse` is told of an error that no restart mends, before the others can notice that this rank is gone.
    """
    end_with_parent()
    if seat.hosted and not seat.one_machine:
        log.warning(
            "torchrun without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in front of it may fail to restart lost ranks"
        )
    if seat.rank > 0:
        progress.disable_progress()
    device = pipeline.device_of(config.world)
    with join(seat, device=device, timeout_seconds=config.world.timeout_seconds) as world:
        agree(world, config, until)
        log_to_rank_file(Path(config.run_dir), world.rank)
        if config.log == "json":
            json_log.use_json_lines(logging.getLogger().handlers)
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
            signals.check_stop_requested()  # the others heard the same signal, and were faster
            raise


def agree(world: World, config: Config, until: str) -> None:
    """Gives all ranks the run directory of rank 0; ValueError where options differ, or the directory is another."""
    options = hash_options(config, until)
    meeting, token = Path(config.run_dir).resolve() / RANKS / _TOGETHER, secrets.token_hex(8)
    if world.leads:
        meeting.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(meeting, {"size": world.size, "token": token})
    leader_options, path, token, config.share_dir = world.broadcast([options, str(meeting), token, config.share_dir])
    if leader_options != options:
        raise ValueError(f"rank {world.rank} was given other options than rank 0: use the same command on all machines")
    meeting = Path(path)
    config.run_dir = str(meeting.parents[1])
    if not meeting.is_file() or json.loads(meeting.read_text())["token"] != token:
        raise ValueError(
            f"run_dir={config.run_dir} of rank {world.rank} is not that of rank 0: all machines must share it "
            "(a network file system)"
        )


def hash_options(config: Config, until: str) -> str:
    """The hash of what ranks must agree on."""
    apart = ("world", "run_dir", "share_dir")  # machines may differ in the first, rank 0 decides the others
    return files.hash_value([{key: value for key, value in asdict(config).items() if key not in apart}, until])


def log_to_rank_file(run_dir: Path, rank: int) -> None:
    """Every rank logs into its own file; rank 0 goes on logging where it did, the others nowhere else."""
    root = logging.getLogger()
    if rank > 0:
        for handler in list(root.handlers):
            root.removeHandler(handler)
    handler = logging.FileHandler(run_dir / RANKS / f"rank-{rank}.log")
    handler.setFormatter(Printable(LOG_FORMAT))
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def write_job(path: Path, config: Config, until: str) -> str:
    """Puts down what ranks are to do; returns its hash."""
    source = next(name for name, kind in SOURCES.items() if type(config.graph) is kind)
    job = {"source": source, "config": asdict(config), "until": until}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, job)
    return files.hash_value(job)


def read_job(path: Path) -> tuple[Config, str]:
    """The configuration and the last stage, as `write_job` put them down."""
    job: dict[str, Any] = json.loads(path.read_text())
    return with_options(Config(graph=SOURCES[job["source"]]()), job["config"]), job["until"]


def rank_main() -> int:
    """What `launch.py` starts: `python -m hcm_scale.run.launch RUN_DIR/ranks/job.json`."""
    signals.install_handlers()
    job = Path(sys.argv[1])
    config, until = read_job(job)
    seat = find_rank_info()
    assert seat is not None, "launch.py starts every rank with a seat"
    _redirect(job.parent, seat.rank)
    refuse = functools.partial(_refuse, job.with_name(REFUSED), seat.rank)
    try:
        print(run_rank(config, until, seat, refuse), end="\n" if seat.rank == 0 else "")
    except signals.Stopped as stopped:
        return 128 + stopped.signum
    except FINAL as error:
        refuse(error)
    except Exception as error:
        lost = isinstance(error, LostRankError)
        if lost and job.with_name(REFUSED).exists():
            return 0
        log.error("rank %d: %s", seat.rank, error, exc_info=not lost)
        failure = {"kind": type(error).__name__, "message": str(error), "lost": lost}
        files.write_json(job.with_name(FAILED.format(seat.rank)), failure)
        return 1
    return 0


def _refuse(path: Path, rank: int, error: Exception) -> None:
    """The first rank to refuse says why; the others usually stumble over its absence."""
    draft = path.with_name(f".{path.name}.{rank}")
    files.write_json(draft, {"rank": rank, "kind": type(error).__name__, "message": str(error)})
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)  # whole or not at all, and never over another's
    draft.unlink()


def _redirect(folder: Path, rank: int) -> None:
    """Rank 0 keeps the terminal and the run's log; of the others even what libraries print goes to their own log."""
    if rank == 0:
        file = logging.FileHandler(folder.parent / "log")
        file.setFormatter(Printable(LOG_FORMAT))
        console = logging.StreamHandler()
        console.setFormatter(Printable())
        logging.basicConfig(level=logging.INFO, handlers=[console, file])
        return
    with open(folder / f"rank-{rank}.log", "a") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)


if __name__ == "__main__":
    raise SystemExit(rank_main())

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.launcher.api import LaunchConfig


class RankError(ChildProcessError):
    """A rank failed and restarts did not help; the message is that of the rank that failed first."""


def run(config: Config, until: str = "report", *, swept: bool = False) -> str:
    """Runs the stages up to `until` with as many processes as asked for; returns what is left to print."""
    seat = find_rank_info()
    if seat is not None:
        if swept and "SUBMITIT_EXECUTOR" not in os.environ:
            raise ValueError(
                "a sweep (-m) starts the ranks of its jobs itself: leave torchrun out, and set world.processes"
            )
        _warn_ignored(config.world, seat)
        return run_rank(config, until, seat)
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
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signals.handled_signals()),
    }
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # what it warns of is said here
    scratched = tempfile.TemporaryDirectory(prefix="hcm-scale-ranks-")
    with scratched as scratch, _environment(environment), signals.handlers_restored():
        agent = elastic_launch(_agent_config(config.world, processes, run_id, meeting, scratch), sys.executable)
        try:
            agent("-m", "hcm_scale.run.launch", str(ranks / JOB))
        except SignalException as error:
            raise signals.Stopped(error.sigval) from None
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

    seconds = int(world.timeout_seconds)
    rendezvous_handler_registry.register(NAME, meet)
    return LaunchConfig(
        min_nodes=world.nodes,
        max_nodes=world.nodes,
        nproc_per_node=processes,
        run_id=run_id,
        rdzv_backend=NAME,
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


def _warn_ignored(world: WorldConfig, seat: RankInfo) -> None:
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
