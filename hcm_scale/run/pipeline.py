"""A run from beginning to end: checks, the folder and its lock, every stage in turn, and the summary.

`run` has the workspace make the stages that `run/stages.py` lists, up to the one asked for; a stage whose key has not
changed is not made again. With several ranks each calls `run`, and all share the work of most stages. The functions
after it read a finished run.

`plan_text`, for `hcm-scale plan`, says what a run would do, a line a stage: whether it is kept, goes on or would be
made, and its time, memory and disk. Costs follow from the size of the graph, which of files is known once they have
been ingested; before that the rows of Parquet files are known. Nothing is made, and nothing but the input's hash and
the ends of Parquet files is read.
"""

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale import __version__
from hcm_scale import config as schema
from hcm_scale.base import console, files, remote
from hcm_scale.base.kernel_cache import is_compiled, start_precompiling
from hcm_scale.base.memory import Budget, release_unused
from hcm_scale.base.order import sorting_on
from hcm_scale.base.text import bytes_text
from hcm_scale.base.threads import kernel_threads, torch_threads
from hcm_scale.config import Config, SyntheticGraph, flatten, parse_fan_out, store_options, stored_options
from hcm_scale.graph import Graph
from hcm_scale.ingest.edge_rows import EdgeRows
from hcm_scale.ingest.policy import InputError
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.report import wording
from hcm_scale.report.edges import StrangeEdges
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import Explanation
from hcm_scale.review import teach, verdicts
from hcm_scale.run import sources, tracking
from hcm_scale.run.memory import Size
from hcm_scale.run.sources import Trained, open_trained, with_trained_options
from hcm_scale.run.stages import RunContext, num_blocks, stages
from hcm_scale.run.workspace import (
    Stage,
    Workspace,
    facts_text,
    new_stage_list,
    open_stages,
    read_stages,
    record_path,
    stage_keys,
)
from hcm_scale.stages import purify, report, score
from hcm_scale.stages.convergence import Chains, drawn_edges
from hcm_scale.stages.edges import View
from hcm_scale.stages.train import check_backend

_THREADS_OF: dict[str, int] = {}  # the process that was the first to use several
log = logging.getLogger(__name__)
_SECONDS = {  # on two cores: of any graph, and for a million edges more; measured at 770,000 edges
    "graph": (0.1, 0.5),
    "purified": (0.1, 0.4),
    "labels": (0.5, 1.0),
    "propagated": (0.05, 0.1),
    "train": (2.0, 0.8),
    "scores": (0.3, 7.5),
    "report": (1.0, 1.0),
    "drift": (0.1, 0.2),
}
_SCORE_BYTES = 90  # of a row of scores.parquet, about
_COMPILER_BYTES = 200 << 20  # of a first run, whose kernels are not compiled yet
_CHECKED = {  # by name in `fail_on`: the stage that says it, the fact, and why there may be none
    "drift": ("drift", "num_moved", "a run without trained= has nothing to be compared with"),
    "missing-column": ("graph", "missing_columns", "only tables that are read for trained= can lack its columns"),
    "stability": ("scores", "stability", "this run has no scores of two encoders to compare"),
    "flagged": ("scores", "num_flagged", "this run has no scores"),
}
_REVIEWED = ("graph", "purified", "scores")  # stages behind a verdict


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
    with contextlib.ExitStack() as stack:
        if world.leads:
            stack.enter_context(files.file_lock(run_dir / ".lock"))
            stack.enter_context(new_stage_list(run_dir))
            store_options(run_dir, config)
            fields = {"version": __version__, "run_dir": str(run_dir), "until": until, "device": device}
            extra = console.event("run_started", **fields, ranks=world.size, trained=config.trained)
            log.info("hcm-scale %s, %s, run_dir=%s", __version__, device, run_dir, extra=extra)
        stack.enter_context(run_threads(config.world.threads, world))
        stack.enter_context(sorting_on(device))
        if device != "cpu":
            compiles = world.leads and config.world.memory_gib is None and find_spec("triton") is not None
            threading.Thread(target=_wake_gpu, args=(device, compiles), daemon=True).start()
        allowed = None if config.world.memory_gib is None else int(config.world.memory_gib * 2**30)
        spare_bytes = 0 if is_compiled() else _COMPILER_BYTES
        budget = Budget(allowed, world.local_size, torch.get_num_threads(), spare_bytes)
        workspace = Workspace(run_dir, share, world, budget)
        context = RunContext(config, workspace, device, graph, trained, until)
        listed = list(stages(context))
        if world.leads and workspace.look(listed[0])[0] != "kept":  # a graph that is there is checked first
            workspace.check_all_fit(context.least_needs(listed))
        for _, group in itertools.groupby(listed, lambda stage: stage.group or stage.name):
            for part in workspace.fitting(list(group)):
                with torch_threads(None if len(part) == 1 else 1):  # of stages made at the same time one each
                    workspace.make(*part)
                release_unused()
                if world.leads and part[0].name == "graph":  # its size is known now
                    workspace.check_all_fit(context.least_needs(listed))
                torch.cuda.empty_cache()  # blocks that a stage held on a GPU do not have the sizes that the next needs
        _warn_too_late(config, workspace)
        if not world.leads:
            return ""
        seconds = time.perf_counter() - started
        _send_results(config, workspace)
        records = [asdict(record) for record in workspace.records]
        tracking.publish(config, run_dir, records, seconds)
        text = report.summary(run_dir, workspace.folders, records, seconds, _carry_over(config, workspace, trained))
        log.info("finished in %.1f s", seconds, extra=_finished_event(run_dir, records, seconds))
        failed_checks(config, logs=True)
        return text


def _check(config: Config, until: str, world: World, *, reads_source: bool) -> str:
    """The device to compute on; ValueError for whatever is known to be wrong before any work."""
    parse_fan_out(config.sampling.fan_out, num_blocks(config))
    if config.trained is None and until in ("train", "score", "report"):
        check_backend(config.sampling.backend)
    wanted = config.world
    if world.size == 1 and (wanted.nodes > 1 or (wanted.processes or 1) > 1):
        raise ValueError(
            f"world.processes={wanted.processes} and world.nodes={wanted.nodes} ask for several ranks, and this is one "
            "process: start them with `hcm-scale run`, torchrun or srun"
        )
    device = world.device or device_of(wanted)
    if config.score.precision == "bfloat16" and device == "cpu":
        raise ValueError(f"score.precision={config.score.precision} needs a GPU; on a CPU it must be auto or float32")
    if not config.run_dir:
        raise ValueError("run_dir is empty; it names the folder of the run")
    tracking.check(config.track)
    for option in ("run_dir", "share_dir", "data_dir"):
        remote.refuse_url(option, getattr(config, option))
    if config.score.copy_to:
        remote.check_target("score.copy_to", config.score.copy_to)
    sources.check_outside_run_dir(config.graph, Path(config.run_dir))
    if reads_source:
        sources.check_exists(config.graph, config.data_dir)
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
    num_threads = wanted or world.num_threads
    with kernel_threads(min(num_threads or numba.get_num_threads(), most)), torch_threads(num_threads):
        is_parallel = torch.get_num_threads() > 1
        if is_parallel and (owner := _THREADS_OF.setdefault("process", os.getpid())) != os.getpid():
            raise RuntimeError(
                f"this process was forked from process {owner}, which had used its threads before, and a fork has none "
                "of them: start it by spawn, multiprocessing.get_context('spawn'), or by joblib, fork before the first "
                "fit, or use one thread: world.threads=1, HCM(threads=1)"
            )
        yield


def _wake_gpu(device: str, compiles: bool) -> None:
    """Loads the driver and its libraries while the first stages work; an error here comes again where they are used.

    Then another process compiles kernels, if that is to be: this one has the GPU already, if only one can.
    """
    with contextlib.suppress(RuntimeError):
        torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device)).sum().item()
        if compiles and (process := start_precompiling("gpu")):
            process.wait()  # it would end with this thread


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
    """The fields of the last line of a run; null for what its stages do not say."""
    facts = {name: value for stage in stages for name, value in stage["detail"].items()} | stages[0]["detail"]
    told = ("nodes", "edges", "num_flagged", "fdr", "stability", "roc_auc", "num_moved", "missing_columns")
    peak = max(stage["peak_rss_bytes"] for stage in stages)
    made = sum(not stage["skipped"] for stage in stages)
    costs = {"seconds": seconds, "peak_bytes": peak, "num_made": made, "num_kept": len(stages) - made}
    return console.event("run_finished", run_dir=str(run_dir), **costs, **{name: facts.get(name) for name in told})


def failed_checks(config: Config, *, logs: bool = False) -> list[str]:
    """What `fail_on` names and holds, by what the finished run in `config.run_dir` recorded; `logs` what is found."""
    checks, failed = schema.parse_fail_on(config.fail_on), []
    facts = {stage["name"]: stage["detail"] for stage in read_stages(Path(config.run_dir))} if checks else {}
    for check, (name, sign, bound) in checks.items():
        stage, key, lacks = _CHECKED[name]
        value = facts.get(stage, {}).get(key)
        if value is None and logs:
            log.warning("fail_on=%s has no effect: %s", check, lacks, extra=console.event("check_skipped", check=check))
        if value is None or not (value < bound if sign == "<" else value > bound if sign else value):
            continue
        failed.append(check)
        if logs:
            extra = console.event("check_failed", check=check, value=value, status=3)
            log.error("error: fail_on=%s: %s", check, facts[stage].get("line") or f"{key} is {value}", extra=extra)
    return failed


def _send_results(config: Config, workspace: Workspace) -> None:
    """Copies the ranked list and the report to `score.copy_to`, as far as this run has made them."""
    made = {"scores": ("scores.parquet",), "report": ("report.html", "report.json")}
    paths = [workspace.folders[stage] / name for stage in made if stage in workspace.folders for name in made[stage]]
    if config.score.copy_to and paths:
        after = f"; the run in run_dir={config.run_dir} is finished, and the same command copies it again"
        remote.copy_files_to("score.copy_to", config.score.copy_to, paths, after)
        names, target = [path.name for path in paths], config.score.copy_to
        log.info("copied %s to %s", ", ".join(names), target, extra=console.event("copied", files=names, to=target))


def _carry_over(config: Config, workspace: Workspace, trained: Trained | None) -> list[str]:
    """What the verdicts of the trained run mean for this one, in words; its lesson is written beside the scores."""
    where = Path(config.trained or "")
    if trained is None or "scores" not in workspace.folders or not (where / verdicts.FILE).is_file():
        return []
    run = teach.Run.open(workspace.run_dir, *(workspace.folders[name] for name in _REVIEWED))
    try:
        told = teach.carry_over(where, trained.folders["scores"], run)
    except ValueError as error:  # the scores are made, and stay
        told = [f"what was said about nodes of {where} is left out: {error}"]
    for line in told:
        log.info("%s", line)
    return told


def _warn_too_late(config: Config, workspace: Workspace) -> None:
    """Warns where logs were asked of a training that an earlier run finished without them."""
    for record in workspace.records:
        if not (record.name.startswith("train-") and record.skipped):
            continue
        folder = Path(record.folder)
        has_board = (folder / "tensorboard").exists()
        late = ["track.to=tensorboard"] if "tensorboard" in config.track.to and not has_board else []
        if config.posterior.trend_every is not None:
            lines = report.read_records(folder / "metrics.jsonl")
            has_trend = any("strange_auc" in line for line in lines)
            late += [] if has_trend else [f"posterior.trend_every={config.posterior.trend_every}"]
        for option in late:
            log.warning("%s has no effect: this training is finished; remove %s to train again", option, folder)


def check_folder(config: Config) -> None:
    """Refuses a run_dir that holds a finished run of another input, unless it is to be replaced."""
    if not config.overwrite:
        sources.check_same_input(config.graph, Path(config.run_dir))


def explain(config: Config, nodes: Sequence[str], edges: Sequence[str] = ()) -> str:
    """Why these nodes and edges, `A,B`, of the finished run in `config.run_dir` are where they are, as text."""
    if not nodes and not edges:
        raise ValueError("node is missing: hcm-scale explain RUN ID, or node=ID, with an id of the graph; or edge=A,B")
    run_dir, texts = Path(config.run_dir), []
    if nodes:
        found, (scores,) = explanations(run_dir, nodes), open_stages(run_dir, "scores")
        taught = teach.open_taught(run_dir, scores)
        ends = ["" if taught is None else f"\n\n{taught.place_text(each.node)}" for each in found]
        texts += [wording.explanation_text(each) + end for each, end in zip(found, ends, strict=True)]
    if edges:
        ranked = open_edges(run_dir)
        texts += [wording.edge_text(ranked.explain(*ranked.ends_of(edge))) for edge in edges]
    return "\n\n\n".join(texts)


def explanations(run_dir: Path, nodes: Sequence[str]) -> list[Explanation]:
    """Why the nodes of these ids in the finished run in `run_dir` are where they are, in numbers."""
    folder, purified, scores = open_stages(run_dir, "graph", "purified", "scores")
    graph = Graph.open(folder, verify=False)
    made = purify.open_purified(purified, graph)
    return report.explain(graph, made.graph, scores, nodes, made.features)


def open_edges(run_dir: Path) -> StrangeEdges:
    """The edges of the finished run in `run_dir`, by how strange they are; computed as they are asked for."""
    folder, purified, scores = open_stages(run_dir, "graph", "purified", "scores")
    graph = Graph.open(folder, verify=False)
    made = purify.open_purified(purified, graph)
    ranked = report.read_ranked(scores, graph)
    return StrangeEdges(Evidence.of(graph, made.graph, ranked, *report.edge_hops(scores, graph), made.features))


def open_views(run_dir: Path) -> tuple[RunContext, dict[str, View]]:
    """The encoders of the finished run in `run_dir` by name, with their samples, and what they are read by."""
    stored = {name: value for name, value in stored_options(run_dir).items() if not name.startswith("graph.")}
    with files.naming_damage(run_dir / "config.json"):
        config = schema.with_options(Config(), stored)
    context = RunContext(config, Workspace(run_dir), "cpu", trained=open_trained(config))
    views, listed = config.score.views, stage_keys(run_dir)
    names = ["graph", "purified", *(name for view in views if (name := f"propagated-{view}") in listed)]
    names += [f"train-{view}" for view in views if context.trained is None]
    context.workspace.folders.update(zip(names, open_stages(run_dir, *names), strict=True))
    return context, {name: context.view(name) for name in views}


def convergence(run_dir: Path) -> tuple[dict[str, Chains], NDArray[np.int64], NDArray[np.int64]]:
    """Predicted hops of some edges under each sample of each encoder of the finished run, and the ends of the edges."""
    context, views = open_views(run_dir)
    return context.chains(views), *drawn_edges(context.graph())


@contextlib.contextmanager
def edge_table(
    run_dir: Path, found: StrangeEdges, chosen: NDArray[np.int64] | None, *, pairs: bool = False
) -> Iterator[EdgeRows | None]:
    """The edge table that the run was made from, to read the rows of some edges; None where there is none, or `pairs`.

    InputError where the table is no longer what it was.
    """
    stored = schema.stored_options(run_dir)
    kinds = {"tables": schema.TablesGraph, "sql": schema.SqlGraph, "reader": schema.ReaderGraph}
    source = str(stored.pop("graph.source", ""))
    if pairs or source not in kinds or not stored.get("graph.path"):
        yield None
        return
    with files.naming_damage(run_dir / "config.json"):
        config = schema.with_options(Config(graph=kinds[source]()), stored)
    graph: Any = config.graph
    context = RunContext(config, Workspace(run_dir), "cpu", trained=open_trained(config))
    key = stage_keys(run_dir)["graph"]
    if next(stages(replace(context, given=found.evidence.graph))).key({}) == key:  # from Python, with labels beside
        yield None
        return
    sources.check_exists(graph, config.data_dir)
    if next(stages(context)).key({}) != key:
        options = ("edges" if source == "sql" else "path"), "nodes"
        named = " or ".join(f"graph.{name}={value}" for name in options if (value := getattr(graph, name)))
        advice = "run it again, or export without the rows of the table: --pairs"
        raise InputError(f"{named} has changed since the run in {run_dir}, or is not there; {advice}")
    with sources.edge_rows(graph, run_dir / "graph", found, chosen) as rows:
        yield rows


def open_run(run_dir: Path) -> teach.Run:
    """The finished run in `run_dir`, to be reviewed and taught."""
    return teach.Run.open(run_dir, *open_stages(run_dir, *_REVIEWED))


def take_verdicts(run: teach.Run, source: Any, by: str | None = None) -> list[str]:
    """Adds the verdicts of a table, whose ids may stand in a column named as in the run's own tables."""
    stored = stored_options(run.folder)
    names = [str(stored[key]) for key in ("graph.id_column", "graph.source_column") if stored.get(key)]
    return teach.take_in(run, source, by, names)


def show(run_dir: Path, count: int = 10) -> str:
    """The finished run in `run_dir` as a piece of HTML, with the first `count` nodes."""
    graph, scores = open_stages(run_dir, "graph", "scores")
    return report.show(Graph.open(graph, verify=False), scores, count)


def read_scores(run_dir: Path) -> Any:
    (scores,) = open_stages(run_dir, "scores")
    return score.open_scores(scores).table()


def job_line(config: Config) -> str:
    """The finished run in `config.run_dir` on one line, for a sweep: its folder, its seconds and what it found."""
    listed = read_stages(Path(config.run_dir))
    facts = next((stage for stage in listed if stage["name"] == "scores"), listed[-1])["detail"]
    seconds = sum(stage["seconds"] for stage in listed if not stage["skipped"])
    return f"{config.run_dir}   {seconds:.1f} s   {facts_text(facts)}"


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
    before = {stage["name"]: stage for stage in read_stages(run_dir)}
    (size, note), lines, total = _made_size(config), [], 0.0
    for stage in stages(context):
        state, record = workspace.look(stage)
        if stage.name == "graph" and state == "kept":
            with files.naming_damage(record_path(workspace.folders["graph"])):
                facts = (record["detail"][name] for name in ("nodes", "edges", "attributes"))
                nodes, edges, attributes = (files.typed(fact, int) for fact in facts)
            size = Size(nodes, edges, 2 * edges, attributes, nodes * attributes)
        seconds = 0.0 if state == "kept" else _seconds(stage.name, before, size)
        total += seconds or 0.0
        lines.append(_line(stage, state, seconds, size, config))
    if size is not None:
        lines.append(f"{'in all':<32}{total:>7.0f} s")
    if differing := changed(run_dir, config):
        lines.append(f"since the last run here: {', '.join(differing)}")
    if note and not lines[0].endswith("kept"):
        lines.append(note)
    head = f"{'stage':<22}{'':<10}{'about':>9}{'memory':>12}{'disk':>12}"
    return "\n".join([f"run_dir={run_dir}, {device}", head, *lines])


def _line(stage: Stage, state: str, seconds: float | None, size: Size | None, config: Config) -> str:
    if state == "kept":
        return f"{stage.name:<22}kept"
    memory: int | None = None  # bytes that the fastest way to make it holds
    with contextlib.suppress(KeyError, OSError, ValueError):  # a folder that it reads is not there
        memory = stage.needs()[0].held if stage.needs is not None else None
    disk = None if size is None else disk_bytes(stage.name, size, config)
    sizes = ("-" if size is None else bytes_text(size) for size in (memory, disk))
    cells = "".join(f"{cell:>12}" for cell in sizes)
    return f"{stage.name:<22}{state:<10}{'?' if seconds is None else f'{seconds:.0f} s':>9}{cells}"


def _seconds(name: str, before: Mapping[str, Any], size: Size | None) -> float | None:
    """Seconds that the stage took here before, else by the size of the graph; None if that is unknown."""
    if name in before:
        return float(before[name]["seconds"])
    if size is None:
        return None
    fixed, more = next(costs for start, costs in _SECONDS.items() if name.startswith(start))
    return fixed + more * size.num_edges / 1e6


def disk_bytes(name: str, size: Size, config: Config) -> int | None:
    """Bytes that a stage leaves on disk, about; None for those that leave little."""
    n, m, features = size.num_nodes, size.num_edges, 4 * size.num_nodes * size.num_attributes
    if name == "graph":
        return 8 * n + 8 * m + size.value_bytes * n * size.num_attributes
    if name == "purified":
        return m // 4 + 4 * n * (config.attributes.pca or 0)  # other features are made again when they are needed
    if name.startswith("propagated"):
        return features
    if name.startswith("scores"):
        return 4 * m + _SCORE_BYTES * n
    if name == "labels":
        sources = min(n, config.hops.num_sources or n)
        return 4 * sources * min(n, config.hops.classes * (config.hops.pairs_per_class or n))
    return None


def _made_size(config: Config) -> tuple[Size | None, str]:
    """The size of a graph that is not read yet, None where nothing tells it; and what is to be said of it."""
    graph = config.graph
    if isinstance(graph, SyntheticGraph):
        return Size.of_source(graph), ""
    if graph.source == "default":
        return Size.made(20_000, 8, 20), ""
    if type(graph) is schema.TablesGraph and (edges := sources.parquet_size("graph.path", graph.path)):
        nodes = sources.parquet_size("graph.nodes", graph.nodes)
        num_nodes, num_columns = nodes or (edges[0], 2)
        size = Size.made(num_nodes, 1, max(1, num_columns - 1))._replace(num_edges=edges[0])
        known = "" if nodes else "; nodes are not known, and taken to be as many"
        return size, f"sizes by {edges[0]:,} rows of edges{f', {num_nodes:,} of nodes' if nodes else known}"
    return None, "sizes are not known before the graph is read: hcm-scale ingest, with the same words"


def changed(run_dir: Path, config: Config) -> list[str]:
    """Options that differ from those of the last run in this folder, as `key: before -> now`."""
    before = stored_options(run_dir)
    now = dict(flatten(json.loads(json.dumps(asdict(config)))))
    places = ("run_dir", "share_dir", "data_dir", "overwrite", "fail_on")
    differing = [key for key in now if key not in places and before.get(key, now[key]) != now[key]]
    return [f"{key}: {before[key]} -> {now[key]}" for key in differing]
