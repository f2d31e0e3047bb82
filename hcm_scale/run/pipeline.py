"""A run from beginning to end: checks, the folder and its lock, every stage in turn, and the summary.

`run` has the workspace make the stages that `run/stages.py` lists, up to the one asked for; a stage whose key has not
changed is not made again. With several ranks each calls `run`, and all share the work of most stages. What is read from
a run afterwards stands in `run/finished.py`.

`plan_text`, for `hcm-scale plan`, says what a run would do, a line a stage: whether it is kept, goes on or would be
made, the seconds that it took here before, and its memory, once the folders that it reads are there. Nothing is made,
and nothing but the input's hash is read.
"""

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numba
import torch

from hcm_scale import __version__
from hcm_scale import config as schema
from hcm_scale.base import console, files, remote
from hcm_scale.base.ahead import compiling_ahead
from hcm_scale.base.kernel_cache import is_compiled
from hcm_scale.base.memory import Budget, release_unused
from hcm_scale.base.order import sorting_on
from hcm_scale.base.text import bytes_text
from hcm_scale.base.threads import kernel_threads, num_cores, torch_threads
from hcm_scale.config import Config, flatten, parse_fan_out, store_options
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.review import teach, verdicts
from hcm_scale.run import sources
from hcm_scale.run.finished import FinishedRun, check_earlier, open_earlier, open_trained, with_trained_options
from hcm_scale.run.stages import RunContext, num_blocks, stages
from hcm_scale.run.workspace import Workspace
from hcm_scale.stages import report
from hcm_scale.stages.train import check_backend

_THREADS_OF: dict[str, int] = {}  # the process that was the first to use several
log = logging.getLogger(__name__)
_COMPILER_BYTES = 200 << 20  # of a first run, whose kernels are not compiled yet


def run(config: Config, until: str = "report", graph: Graph | None = None, world: World = ALONE) -> str:
    """Summary to print, empty on all ranks but 0; runs the stages up to `until` in `config.run_dir`.

    `graph` takes the place of the source that the configuration names.
    """
    started = time.perf_counter()
    schema.check(config)
    config = with_trained_options(config)
    device = _check(config, until, world, reads_source=graph is None)
    run_dir, share = Path(config.run_dir), Path(config.share_dir) if config.share_dir else None
    trained = open_trained(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(run_dir, share, world)
    with contextlib.ExitStack() as stack:
        warned = stack.enter_context(console.keeping_warnings("hcm_scale.ingest", "hcm_scale.stages.score"))
        if world.leads:
            stack.enter_context(files.file_lock(run_dir / ".lock"))
            stack.enter_context(workspace.begin(lambda: store_options(run_dir, config)))
            fields = {"version": __version__, "run_dir": str(run_dir), "until": until, "device": device}
            extra = console.event("run_started", **fields, ranks=world.size, trained=config.trained)
            log.info("hcm-scale %s, %s, run_dir=%s", __version__, device, run_dir, extra=extra)
        stack.enter_context(run_threads(config.world.threads, world))
        stack.enter_context(sorting_on(device))
        if device != "cpu":
            threading.Thread(target=_wake_gpu, args=(device,), daemon=True).start()
        allowed = None if config.world.memory_gib is None else int(config.world.memory_gib * 2**30)
        spare_bytes = 0 if is_compiled() else _COMPILER_BYTES
        workspace.budget = Budget(allowed, world.local_size, torch.get_num_threads(), spare_bytes)
        context = RunContext(config, workspace, device, graph, trained, until, open_earlier(config))
        listed = list(stages(context))
        most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        own_cores = min(most, numba.get_num_threads() * (1 if config.world.threads else world.local_size))
        if world.leads and workspace.look(listed[0])[0] != "kept":  # a graph that is there is checked first
            workspace.check_all_fit(context.least_needs(listed))
        for _, group in itertools.groupby(listed, lambda stage: stage.group or stage.name):
            for part in workspace.fitting(list(group)):
                # rank 0 takes the cores of those that wait; of stages made at the same time each has one of torch's
                cores = numba.get_num_threads() if part[0].together else own_cores
                with kernel_threads(cores), torch_threads(None if len(part) == 1 else 1):
                    workspace.make(*part)
                release_unused()
                if world.leads and part[0].name == "graph":  # its size is known now
                    workspace.check_all_fit(context.least_needs(listed))
                    check_earlier(config, context.graph())
                    if allowed is None:
                        stack.enter_context(compiling_ahead(has_rows=context.graph().rows is not None))
                torch.cuda.empty_cache()  # blocks that a stage held on a GPU do not have the sizes that the next needs
        if not world.leads:
            return ""
        workspace.write_list(whole=True)
        seconds = time.perf_counter() - started
        records = [asdict(record) for record in workspace.records]
        run = FinishedRun(run_dir)
        text = report.summary(run, records, seconds, _carry_over(config, run), warned)
        log.info("finished in %.1f s", seconds, extra=_finished_event(run_dir, records, seconds))
        run.failed_checks(config.fail_on, logs=True)
        return text


def _check(config: Config, until: str, world: World, *, reads_source: bool) -> str:
    """The device to compute on; ValueError for whatever is known to be wrong before any work."""
    parse_fan_out(config.sampling.fan_out, num_blocks(config))
    if config.trained is None and until in ("train", "score", "report"):
        check_backend(config.sampling.backend)
    wanted = config.world
    if world.size == 1 and (wanted.processes or 1) > 1:
        start = "start them with `hcm-scale run`, torchrun or srun"
        raise ValueError(f"world.processes={wanted.processes} asks for several ranks, and this is one process: {start}")
    device = world.device or device_of(wanted)
    if config.score.precision == "bfloat16" and device == "cpu":
        raise ValueError(f"score.precision={config.score.precision} needs a GPU; on a CPU it must be auto or float32")
    if not config.run_dir:
        raise ValueError("run_dir is empty; it names the folder of the run")
    for option in ("run_dir", "share_dir"):
        remote.refuse_url(option, getattr(config, option))
    sources.check_outside_run_dir(config.graph, Path(config.run_dir))
    if reads_source:
        sources.check_exists(config.graph)
    return device


@contextlib.contextmanager
def run_threads(wanted: int | None, world: World) -> Iterator[None]:
    """Sets the threads of numba and torch, inside the block, to those asked for, or to this rank's share of the cores.

    numba has at most as many as it was started with. A process forked after several were used would wait for ever for
    threads that only its parent has.
    """
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if wanted and wanted > most:
        log.warning("world.threads=%d: numba has %d threads here, and its kernels use those", wanted, most)
    num_threads, usable = wanted or world.num_threads, num_cores()
    kernels, products = (num_threads or min(had, usable) for had in (numba.get_num_threads(), torch.get_num_threads()))
    with kernel_threads(min(kernels, most)), torch_threads(products):
        is_parallel = torch.get_num_threads() > 1
        if is_parallel and (owner := _THREADS_OF.setdefault("process", os.getpid())) != os.getpid():
            raise RuntimeError(
                f"this process was forked from process {owner}, which had used its threads before, and a fork has none "
                "of them: start it by spawn, multiprocessing.get_context('spawn'), or by joblib, fork before the first "
                "fit, or use one thread: world.threads=1, HCM(threads=1)"
            )
        yield


def _wake_gpu(device: str) -> None:
    """Loads the driver and its libraries while the first stages work; an error here comes again where they are used."""
    with contextlib.suppress(RuntimeError):
        torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device)).sum().item()


def device_of(world: schema.WorldConfig) -> str:
    """What the configuration means on this machine: cpu or cuda."""
    if world.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "world.device=cuda but this machine has no CUDA device that torch can use; legal here: cpu, auto"
        )
    if world.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return world.device


def _finished_event(run_dir: Path, stages: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    facts = {name: value for stage in stages for name, value in stage["detail"].items()} | stages[0]["detail"]
    of_graph = ("nodes", "edges", "missing_columns", "new_columns", "new_values")
    names = (*of_graph, "num_flagged", "fdr", "stability", "roc_auc", "num_moved")
    peak = max(stage["peak_rss_bytes"] for stage in stages)
    made = sum(not stage["skipped"] for stage in stages)
    costs = {"seconds": seconds, "peak_bytes": peak, "num_made": made, "num_kept": len(stages) - made}
    return console.event("run_finished", run_dir=str(run_dir), **costs, **{name: facts.get(name) for name in names})


def _carry_over(config: Config, run: FinishedRun) -> list[str]:
    """What verdicts on earlier runs mean for this one, in words; the trained run's lesson is kept beside the scores."""
    lines, trained = [], run.trained
    earlier = [] if config.since is None else [FinishedRun(config.since)]
    earlier += [trained] if trained is not None and all(one.folder != trained.folder for one in earlier) else []
    for one in earlier if "scores" in run.keys else []:
        if (one.folder / verdicts.FILE).is_file():
            try:
                lines += teach.carry_over(one, run, applies_lesson=trained is not None and one.folder == trained.folder)
            except ValueError as error:  # the scores are made, and stay
                lines += [f"what was said about nodes of {one.folder} is left out: {error}"]
    lines += run.reopened_lines() if earlier else []
    for line in lines:
        log.info("%s", line)
    return lines


def check_folder(config: Config) -> None:
    """Refuses a run_dir that holds a finished run of another input, unless it is to be replaced."""
    if not config.overwrite:
        sources.check_same_input(config.graph, Path(config.run_dir))


# What a run would do.


def plan_text(config: Config) -> str:
    """What a run of this configuration would do, as text."""
    schema.check(config)
    with run_threads(config.world.threads, ALONE):
        return _plan(with_trained_options(config), device_of(config.world))


def _plan(config: Config, device: str) -> str:
    run_dir, share = Path(config.run_dir), Path(config.share_dir) if config.share_dir else None
    workspace = Workspace(run_dir, share)
    context = RunContext(config, workspace, device, trained=open_trained(config))
    before, lines = {stage["name"]: stage["seconds"] for stage in FinishedRun(run_dir).stages}, []
    for stage in stages(context):
        state, _ = workspace.look(stage)
        seconds, memory = before.get(stage.name), None  # what it took here before; bytes of the fastest way to make it
        with contextlib.suppress(KeyError, OSError, ValueError):  # a folder that it reads is not there
            memory = stage.needs()[0].held if stage.needs is not None else None
        costs = "?" if seconds is None else f"{seconds:.0f} s", "-" if memory is None else bytes_text(memory)
        cells = "" if state == "kept" else "".join(f"{cell:>12}" for cell in costs)
        lines.append(f"{stage.name:<22}{state:<10}{cells}".rstrip())
    if differing := changed(run_dir, config):
        lines.append(f"since the last run here: {', '.join(differing)}")
    head = f"{'stage':<22}{'':<10}{'before':>12}{'memory':>12}"
    return "\n".join([f"run_dir={run_dir}, {device}", head, *lines])


def changed(run_dir: Path, config: Config) -> list[str]:
    """Options that differ from those of the last run in this folder, as `key: before -> now`."""
    before = FinishedRun(run_dir).options
    now = dict(flatten(json.loads(json.dumps(asdict(config)))))
    places = ("run_dir", "share_dir", "overwrite", "fail_on")
    differing = [key for key in now if key not in places and before.get(key, now[key]) != now[key]]
    return [f"{key}: {before[key]} -> {now[key]}" for key in differing]
