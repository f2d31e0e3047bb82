"""From one command to one run, whatever the number of processes.

    started alone, one process wanted        runs here
    started alone, several wanted            starts the ranks of this machine and supervises them
    started by torchrun, or as a SLURM task  joins the other ranks, of one machine or of several

Ranks that start here are torch's subprocesses with `run_dir/ranks/job.json`, the composed configuration. When one is
lost the others are ended and all start again, up to `world.max_restarts` times, from their last checkpoint. torch's own
agent is left to torchrun: its rendezvous is a pickle on a port that everybody can reach (`docs/security.md`).

All ranks must be given the same options and see the same run directory, which they check first. Each logs to
`ranks/rank-N.log`, and writes why it failed to `ranks/failed-N.json` before the others can notice. An error that a
restart would only repeat (a wrong option, a missing file, a diverged chain) is not tried again.
"""

import json
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hcm_scale.base import console, files, signals
from hcm_scale.base.threads import num_cores
from hcm_scale.config import SOURCES, Config, WorldConfig, with_options
from hcm_scale.ranks.wire import SilentRankError
from hcm_scale.ranks.world import LOOPBACK, LostRankError, RankInfo, World, join
from hcm_scale.run import pipeline

log = logging.getLogger("hcm_scale")
FINAL = (ValueError, FileNotFoundError, FloatingPointError, MemoryError)  # errors that a restart would repeat
RANKS, JOB, FAILED = "ranks", "job.json", "failed-{}.json"
LOG_FORMAT = "%(asctime)s %(message)s"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below the ports that systems assign themselves


class RankError(ChildProcessError):
    """A rank failed and restarts did not help; the message is that of the rank that failed first."""


def run(config: Config, until: str = "report", *, swept: bool = False) -> str:
    """Text left to print after running the stages up to `until` with as many processes as asked for."""
    info, world = find_rank_info(), config.world
    if info is None:
        if num_processes(world) == 1:
            return pipeline.run(config, until)
        start_ranks(config, until)
        return ""  # rank 0 has printed it
    if swept and "SUBMITIT_EXECUTOR" not in os.environ:
        raise ValueError("a sweep (-m) starts the ranks of its jobs itself: leave torchrun out, set world.processes")
    if world.processes not in (None, 1, info.local_size):
        log.warning("world.processes=%s is ignored: %s ranks were started here", world.processes, info.local_size)
    return run_rank(config, until, info)


def num_processes(world: WorldConfig) -> int:
    if world.processes is not None:
        return world.processes
    return torch.cuda.device_count() if pipeline.device_of(world) == "cuda" else 1


# The parent: starts the ranks of this machine and reports why they failed.


def start_ranks(config: Config, until: str) -> None:
    """Starts this machine's ranks and returns when the run is finished; RankError, or the ValueError of a rank."""
    ranks = files.path_inside(Path(config.run_dir).resolve(), RANKS)
    config.run_dir = str(ranks.parent)
    ranks.mkdir(parents=True, exist_ok=True)
    files.write_json(ranks / JOB, {"config": asdict(config), "until": until})
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it repeats our messages
    for attempt in range(config.world.max_restarts + 1):
        for old in ranks.glob(FAILED.format("*")):
            old.unlink()
        failures = _run_once(config.world, ranks, attempt)
        reports = {rank: json.loads(path.read_text()) for rank in failures if (path := _failed(ranks, rank)).exists()}
        if final := [report["message"] for report in reports.values() if report["final"]]:
            raise ValueError(final[0])
        if not failures:
            return
    end = f"restarts tried: {config.world.max_restarts}; every rank's log is in {ranks}"
    raise RankError(f"{first_failure(failures, reports)} ({end})")


def _run_once(world: WorldConfig, ranks: Path, attempt: int) -> Mapping[int, Any]:
    """Torch's `ProcessFailure` of every rank that failed, by rank, when all have ended."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes

    size = num_processes(world)
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS") or str(world.threads or max(1, num_cores() // size))
    every = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    every |= {"OMP_NUM_THREADS": threads, "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", ",".join(signals.handled_signals()))
    with tempfile.TemporaryDirectory(prefix="hcm-scale-ranks-") as log_dir, signals.handlers_restored():
        started = start_processes(
            "rank",
            sys.executable,
            args={rank: ("-m", "hcm_scale.run.launch", str(ranks / JOB)) for rank in range(size)},
            envs={rank: every | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)},
            logs_specs=DefaultLogsSpecs(log_dir=log_dir),
        )
        try:
            return started.wait(period=0.1).failures  # type: ignore[union-attr]  # it waits without end
        except SignalException as error:
            started.close(error.sigval)
            raise signals.Stopped(error.sigval) from None


def first_failure(failures: Mapping[int, Any], reports: Mapping[int, Any]) -> str:
    """Message about the failure that caused the others: the first that is no loss of another rank."""

    def is_effect(rank: int) -> bool:
        return failures[rank].exitcode > 0 and reports.get(rank, {"lost": False})["lost"]

    rank = min(failures, key=lambda rank: (is_effect(rank), failures[rank].timestamp))
    status = failures[rank].exitcode
    if status < 0:
        hint = ", as the system does when memory runs out" if status == -9 else ""
        return f"rank {rank}: killed by {failures[rank].signal_name()}{hint}"
    return f"rank {rank}: {reports[rank]['message'] if rank in reports else f'ended with status {status}'}"


def _failed(ranks: Path, rank: int) -> Path:
    return ranks / FAILED.format(rank)


# A rank: finds its number, joins the others, checks that all do the same work, and runs the pipeline with them.


def find_rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The rank that torchrun or SLURM gave this process; None if it was started alone."""
    if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun_info(environ)
    if "SUBMITIT_EXECUTOR" in environ or int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _submitit_info()
    return None


def _torchrun_info(environ: Mapping[str, str]) -> RankInfo:
    if missing := [name for name in _TORCHRUN if name not in environ]:
        raise ValueError(
            f"RANK is set in the environment but {', '.join(missing)} is not: start ranks with torchrun, which sets "
            "all of them, or unset RANK"
        )
    hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # torchrun's own store outlives a restart, with the keys of the ranks that died in it: each attempt needs a prefix
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "") if hosted else ""
    rank, size, local_rank, local_size, port = (int(environ[name]) for name in (*_TORCHRUN[:4], "MASTER_PORT"))
    return RankInfo(rank, size, local_rank, local_size, environ["MASTER_ADDR"], port, hosted, attempt)


def _submitit_info() -> RankInfo | None:
    try:
        from submitit import JobEnvironment
    except ImportError as error:
        install = "pip install 'hcm-scale[sweeps]', or start the ranks with torchrun"
        raise ValueError(f"SLURM started several tasks, and reading their ranks needs submitit: {install}") from error
    job = JobEnvironment()
    if job.num_tasks == 1:
        return None
    digits = "".join(filter(str.isdigit, job.job_id))
    address, port = LOOPBACK if job.num_nodes == 1 else job.hostnames[0], _FIRST_PORT + int(digits or "0") % _NUM_PORTS
    return RankInfo(job.global_rank, job.num_tasks, job.local_rank, job.num_tasks // job.num_nodes, address, port)


def run_rank(config: Config, until: str, info: RankInfo, on_error: Callable[[Exception], None] | None = None) -> str:
    """Summary of the run on rank 0, empty on the others; joins the other ranks and runs the stages with them.

    `on_error` is called with an error before the others can notice that this rank is gone.
    """
    signals.end_with_parent()
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
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        about = world.rank, world.size, world.device, os.getpid(), restarts
        log.info("rank %d of %d on %s, process %d, restarts before it: %s", *about)
        try:
            return pipeline.run(config, until, world=world)
        except Exception as error:
            if isinstance(error, LostRankError):
                signals.check_stop_requested()  # the lost rank may have received the same signal, and ended sooner
            if on_error is not None:
                on_error(error)
            raise


def agree(world: World, config: Config, until: str) -> None:
    """Gives all ranks the run directory of rank 0; ValueError if their options differ or they do not share it."""
    decided = ("world", "run_dir", "share_dir")  # machines may differ in the first, rank 0 decides the others
    options = files.hash_value([{key: value for key, value in asdict(config).items() if key not in decided}, until])
    path, token = files.path_inside(Path(config.run_dir).resolve(), f"{RANKS}/world.json"), secrets.token_hex(8)
    if world.leads:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"size": world.size, "token": token})
    leader_options, path_text, token, config.share_dir = world.broadcast([options, str(path), token, config.share_dir])
    if leader_options != options:
        raise ValueError(f"rank {world.rank} was given other options than rank 0: use the same command on all machines")
    path = Path(path_text)
    config.run_dir = str(path.parents[1])
    if not path.is_file() or json.loads(path.read_text())["token"] != token:
        why = "all machines must share it (a network file system)"
        raise ValueError(f"run_dir={config.run_dir} of rank {world.rank} is not that of rank 0: {why}")


def _log_handler(path: Path) -> logging.Handler:
    files.open_regular(path, "a").close()  # or it is refused
    handler = logging.FileHandler(path)
    handler.setFormatter(console.Printable(LOG_FORMAT))
    return handler


# What the parent starts: `python -m hcm_scale.run.launch RUN_DIR/ranks/job.json`.


def read_job(path: Path) -> tuple[Config, str]:
    job = json.loads(path.read_text())
    graph = job["config"].pop("graph")  # whose source is no option that can be set
    return with_options(Config(graph=SOURCES[graph["source"]](**graph)), job["config"]), job["until"]


def rank_main() -> int:
    """Exit status of a rank started by `start_ranks`."""
    signals.install_handlers()
    job = Path(sys.argv[1])
    (config, until), info = read_job(job), find_rank_info()
    assert info is not None, "the parent gives every rank its number"
    _redirect(job.parent, info.rank)
    path = _failed(job.parent, info.rank)

    def report(error: Exception) -> None:
        """Writes why this rank failed, once."""
        lost = isinstance(error, LostRankError) and not isinstance(error, SilentRankError)
        is_final, kind = isinstance(error, FINAL), type(error).__name__
        if not path.exists():
            message = str(error) if is_final else f"{kind}: {error}"
            files.write_json(path, {"message": message, "lost": lost, "final": is_final})
            if not is_final:
                log.error("rank %d: %s", info.rank, error, exc_info=not lost)

    try:
        print(run_rank(config, until, info, report), end="\n" if info.rank == 0 else "")
    except signals.Stopped as stopped:
        return 128 + stopped.signum
    except Exception as error:
        report(error)
        return 1
    return 0


def _redirect(folder: Path, rank: int) -> None:
    """Rank 0 keeps the terminal and the run's log; all output of another rank goes to its own log."""
    if rank == 0:
        terminal = logging.StreamHandler()
        terminal.setFormatter(console.Printable())
        logging.basicConfig(level=logging.INFO, handlers=[terminal, _log_handler(folder.parent / "log")])
        return
    with files.open_regular(folder / f"rank-{rank}.log", "a") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)


if __name__ == "__main__":
    raise SystemExit(rank_main())
