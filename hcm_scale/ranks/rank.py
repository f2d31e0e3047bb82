"""One rank of a run: it finds its seat, joins the others, walks the pipeline with them, and keeps a log of its own.

Whoever starts several processes gives each a seat: `launch.py` and torchrun by RANK and its siblings in the
environment, SLURM by variables that submitit reads. All ranks must be given the same options and see the same run
directory, and say so where they do not. `run_dir/ranks/rank-N.log` is the log of rank N.

An error that a second try would only repeat (a wrong option, a missing file, a diverged chain) is put down in
`ranks/refused.json` and the ranks end quietly, so that nobody starts them again. Every other end is worth a restart and
is told in `ranks/failed-N.json`, whole or not at all: torch's own error files are read half written when the agent ends
a rank that is just then telling of another's death.
"""

import contextlib
import functools
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hcm_scale import pipeline
from hcm_scale.base import files, json_log, progress, stopping
from hcm_scale.base.parent import end_with_parent
from hcm_scale.base.printable import Printable
from hcm_scale.config import SOURCES, Config
from hcm_scale.options import with_options
from hcm_scale.ranks.world import LostRankError, Seat, World, join

log = logging.getLogger("hcm_scale")
FINAL = (ValueError, FileNotFoundError, FloatingPointError, MemoryError)
RANKS, JOB, REFUSED, FAILED = "ranks", "job.json", "refused.json", "failed-{}.json"
LOG_FORMAT = "%(asctime)s %(message)s"
_TOGETHER = "world.json"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below what systems hand out themselves


def find_seat(environ: Mapping[str, str] = os.environ) -> Seat | None:
    """The seat that torchrun or SLURM gave this process; None where it was started alone."""
    if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun_seat(environ)
    if "SUBMITIT_EXECUTOR" in environ or int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _submitit_seat()
    return None


def _torchrun_seat(environ: Mapping[str, str]) -> Seat:
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
    return Seat(rank, size, local_rank, local_size, address, port, hosted, attempt)


def _submitit_seat() -> Seat | None:
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
    return Seat(
        rank=job.global_rank,
        size=job.num_tasks,
        local_rank=job.local_rank,
        local_size=job.num_tasks // job.num_nodes,
        address="127.0.0.1" if job.num_nodes == 1 else job.hostnames[0],
        port=_FIRST_PORT + int(digits or "0") % _NUM_PORTS,
    )


def take_part(config: Config, until: str, seat: Seat, refuse: Callable[[Exception], None] | None = None) -> str:
    """Joins the other ranks and runs the stages with them; the summary on rank 0, empty on the others.

    `refuse` is told of an error that no restart mends, before the others can notice that this rank is gone.
    """
    end_with_parent()
    if seat.hosted and not seat.one_machine:
        log.warning(
            "torchrun without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in front of it may fail to restart lost ranks"
        )
    if seat.rank > 0:
        progress.be_quiet()
    device = pipeline.device_of(config.world)
    with join(seat, device=device, timeout_seconds=config.world.timeout_seconds) as world:
        agree(world, config, until)
        keep_log(Path(config.run_dir), world.rank)
        if config.log == "json":
            json_log.use(logging.getLogger().handlers)
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
            stopping.check_asked()  # the others heard the same signal, and were faster
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


def keep_log(run_dir: Path, rank: int) -> None:
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


def main() -> int:
    """What `launch.py` starts: `python -m hcm_scale.ranks.rank RUN_DIR/ranks/job.json`."""
    stopping.listen()
    job = Path(sys.argv[1])
    config, until = read_job(job)
    seat = find_seat()
    assert seat is not None, "launch.py starts every rank with a seat"
    _redirect(job.parent, seat.rank)
    refuse = functools.partial(_refuse, job.with_name(REFUSED), seat.rank)
    try:
        print(take_part(config, until, seat, refuse), end="\n" if seat.rank == 0 else "")
    except stopping.Stopped as stopped:
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
    raise SystemExit(main())
