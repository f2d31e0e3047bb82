"""The one file that knows the configuration and every stage: unpacks the first into arguments of the second.

Each `_stage` function names the options that decide its result (they make its key, together with the keys of the stages
it reads), and how to make it. `run` walks them in order up to the one asked for. A stage whose key has not changed is
not run again. Where several ranks make a run, each walks here, and all share the labelling, training and scoring.
"""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import torch

from hcm_scale import config as schema
from hcm_scale import sources
from hcm_scale.base import files
from hcm_scale.config import Config, parse_fan_out
from hcm_scale.graph import Graph
from hcm_scale.ingest import readers
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.report import wording
from hcm_scale.stages import ingest as ingest_stage
from hcm_scale.stages.label import label
from hcm_scale.stages.purify import open_purified, purify
from hcm_scale.stages.recipe import Batching, ChainPlan, Langevin, Network, Recipe
from hcm_scale.stages.report import explain as explain_node
from hcm_scale.stages.report import report
from hcm_scale.stages.score import combine_scores, open_scores, score
from hcm_scale.stages.summary import summary
from hcm_scale.stages.train import Ranks, Record, train
from hcm_scale.stages.trend import Trend, auc_trend
from hcm_scale.workspace import Workspace, finished_stages, forget_stages

log = logging.getLogger(__name__)
STAGES = ("ingest", "purify", "label", "train", "score", "report")


@dataclass
class Run:
    """One walk through the stages: the configuration, the folders, and the keys of what is made so far."""

    config: Config
    workspace: Workspace
    world: World = ALONE
    given: Graph | None = None
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    folders: dict[str, Path] = dataclasses.field(default_factory=dict)

    def stage(
        self,
        name: str,
        options: Any,
        reads: tuple[str, ...],
        make: Callable[[Path], dict[str, Any]],
        *,
        together: bool = False,
    ) -> Path:
        """Makes or finds a stage that depends on `options` and on the stages that it `reads`."""
        inputs = [options, [self.keys[other] for other in reads]]
        self.folders[name], self.keys[name] = self.workspace.stage(name, inputs, make, together=together)
        return self.folders[name]

    def share(self) -> dict[str, Any]:
        """The part of this rank in a stage that all make together."""
        return {"rank": self.world.rank, "world": self.world.size, "barrier": self.world.barrier}


def run(config: Config, until: str = "report", graph: Graph | None = None, world: World = ALONE) -> str:
    """Runs the stages up to `until` in `config.run_dir` and returns a summary to print, empty on all ranks but 0.

    `graph` takes the place of the source that the configuration names.
    """
    schema.check(config)
    parse_fan_out(config.sampling.fan_out, _num_blocks(config))
    _check_world(config.world, world)
    device = world.device or device_of(config.world)
    if config.score.precision != "float32" and device == "cpu":
        raise ValueError(f"score.precision={config.score.precision} needs a GPU; on a CPU it must be float32")
    if not config.run_dir:
        raise ValueError("run_dir is empty; it names the folder of the run")
    run_dir = Path(config.run_dir)
    sources.check_apart(config.graph, run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    share = Path(config.share_dir) if config.share_dir else None
    with files.locked(run_dir / ".lock") if world.leads else contextlib.nullcontext():
        if world.leads:
            forget_stages(run_dir)  # what is asked now has found nothing yet
            files.write_json(run_dir / "config.json", asdict(config))
        _set_threads(config.world.threads, world)
        walk = Run(config, Workspace(run_dir, share, world), world, graph)
        for name in STAGES[: STAGES.index(until) + 1]:
            _MAKERS[name](walk)
        return summary(run_dir, walk.folders, walk.workspace.records) if world.leads else ""


def explain(config: Config) -> str:
    """Why `config.node` of the finished run in `config.run_dir` is where it is, as text."""
    run_dir = Path(config.run_dir)
    if config.node is None:
        raise ValueError("node is missing: hcm-scale explain node=ID, with an id of the graph")
    missing = {"graph", "purified", "scores"} - finished_stages(run_dir)
    if missing:
        raise ValueError(f"run_dir={run_dir} has no {min(missing)}: finish the run first with hcm-scale run")
    purified = open_purified(run_dir / "purified").graph
    return wording.text(explain_node(Graph.open(run_dir / "graph"), purified, run_dir / "scores", config.node))


def read_scores(run_dir: Path) -> Any:
    """The ranked table of a finished run."""
    return open_scores(run_dir / "scores").table()


def _ingest(walk: Run) -> None:
    config = walk.config
    injects = config.inject.num_cliques > 0 or bool(config.inject.num_attribute_anomalies)
    injection = asdict(config.inject) if injects else None
    if walk.given is not None:
        given = walk.given
        options: Any = given.fingerprint
        read: ingest_stage.Reader = lambda out: given.save(out)  # noqa: E731
    else:
        options, read = [asdict(config.graph), sources.stamp(config.graph)], sources.reader(config.graph)

    def make(out: Path) -> dict[str, Any]:
        graph = ingest_stage.ingest(out, read, injection)
        if "ingest" in graph.info:
            log.info("%s", readers.summary(graph).table())
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "attributes": graph.num_attributes}
        return facts | ({"anomalies": int(graph.y.sum())} if graph.y is not None else {})

    walk.stage("graph", [options, injection], (), make)


def _purify(walk: Run) -> None:
    options = asdict(walk.config.attributes) | asdict(walk.config.purify)

    def make(out: Path) -> dict[str, Any]:
        graph = Graph.open(walk.folders["graph"])
        made = purify(graph, out, **options)
        dropped = graph.num_edges - made.graph.num_edges
        return {"features": made.features.shape[1], "edges": made.graph.num_edges, "dropped": dropped}

    walk.stage("purified", options, ("graph",), make)


def _label(walk: Run) -> None:
    hops = walk.config.hops
    is_drawn = hops.num_sources is not None or hops.pairs_per_class is not None
    seed = walk.config.seed if is_drawn else 0  # every pair is kept: runs that differ in their seed share the labels
    options = asdict(hops) | asdict(walk.config.shards) | {"seed": seed}

    def make(out: Path) -> dict[str, Any]:
        labels = label(open_purified(walk.folders["purified"]).graph, out, **options, **walk.share())
        return {"pairs": labels.num_pairs, "sources": labels.plan.num_sources}

    walk.stage("labels", options, ("purified",), make, together=True)


def _train(walk: Run) -> None:
    for view in walk.config.score.views:
        _train_view(walk, view)


def _train_view(walk: Run, view: str) -> None:
    config, recipe = walk.config, _recipe(walk.config)

    def make(out: Path) -> dict[str, Any]:
        structure, features = _encoder_input(walk, view)
        record = Record(
            checkpoint_every=config.posterior.checkpoint_every,
            log_every=config.posterior.log_every,
            tensorboard=config.posterior.tensorboard,
            trend=_trend(walk, recipe, structure, features) if config.posterior.trend_every else None,
            trend_every=config.posterior.trend_every or 1,
        )
        ranks = Ranks(**walk.share(), sum=walk.world.sum if walk.world.size > 1 else None)
        options: dict[str, Any] = {
            "seed": config.seed,
            "device": _device(walk),
            "workers": config.sampling.workers,
            "ranks": ranks,
        }
        samples = train(structure, features, walk.folders["labels"], out, recipe=recipe, record=record, **options)
        return {"view": view, "samples": len(samples)} | _last_metrics(out / "metrics.jsonl")

    inputs = [asdict(recipe), config.seed, view]
    walk.stage(f"train-{view}", inputs, ("graph", "purified", "labels"), make, together=True)


def _trend(walk: Run, recipe: Recipe, structure: Graph, features: Any) -> Trend | None:
    """Logs the AUC of every `posterior.trend_every`-th sample, where labels are known."""
    graph, options = Graph.open(walk.folders["graph"]), walk.config.score
    model = asdict(recipe.network) | {"num_attributes": features.shape[1], "num_classes": walk.config.hops.classes}
    model |= {"directed": structure.directed, "seed": walk.config.seed}
    how: dict[str, Any] = {"hop": options.hop, "trim": options.trim, "closure": options.far_share}
    trend = auc_trend(graph, structure, features, model, device=_device(walk), **how)
    if trend is None:
        log.warning("posterior.trend_every=%s has no effect: no labels", walk.config.posterior.trend_every)
    return trend


def _encoder_input(walk: Run, view: str) -> tuple[Graph, Any]:
    made = open_purified(walk.folders["purified"])
    return (made.graph if view == "purified" else Graph.open(walk.folders["graph"])), made.features


def _score(walk: Run) -> None:
    config = walk.config.score
    views = config.views
    options = {name: getattr(config, name) for name in ("hop", "trim", "rank_by", "max_neighbors", "precision")}
    options["closure"] = config.far_share
    for view in views:
        _score_view(walk, view, "scores" if len(views) == 1 else f"scores-{view}", options)
    if len(views) > 1:

        def make(out: Path) -> dict[str, Any]:
            folders = [walk.folders[f"scores-{view}"] for view in views]
            made = combine_scores(
                Graph.open(walk.folders["graph"]), folders, out, rank_by=config.rank_by, closure=config.far_share
            )
            return _score_facts(made.metrics, config.rank_by)

        walk.stage("scores", options, tuple(f"scores-{view}" for view in views), make)


def _score_view(walk: Run, view: str, name: str, options: dict[str, Any]) -> None:
    config = walk.config

    def make(out: Path) -> dict[str, Any]:
        structure, features = _encoder_input(walk, view)
        made = score(
            Graph.open(walk.folders["graph"]),
            structure,
            features,
            walk.folders[f"train-{view}"] / "samples",
            out,
            chunk_edges=config.score.chunk_edges,
            state=config.score.state,
            device=_device(walk),
            seed=config.seed,
            **options,
            **walk.share(),
        )
        return _score_facts(made.metrics, config.score.rank_by)

    walk.stage(name, [options, config.seed], (f"train-{view}",), make, together=True)


def _report(walk: Run) -> None:
    config = walk.config

    def make(out: Path) -> dict[str, Any]:
        view = config.score.views[0]
        made = report(
            Graph.open(walk.folders["graph"]),
            open_purified(walk.folders["purified"]).graph,
            walk.folders["scores"],
            out,
            run={"name": config.graph.name, "seed": config.seed, "num_samples": config.posterior.num_samples},
            metrics=walk.folders[f"train-{view}"] / "metrics.jsonl",
            labels=walk.folders["labels"],
            stages=[asdict(record) for record in walk.workspace.records],
            top=config.score.explained,
            table_rows=config.score.table_rows,
        )
        return {"rows": len(made["table"])}

    walk.stage(
        "report", [config.score.explained, config.score.table_rows, config.graph.name], ("scores", "labels"), make
    )


_MAKERS: dict[str, Callable[[Run], None]] = {
    "ingest": _ingest,
    "purify": _purify,
    "label": _label,
    "train": _train,
    "score": _score,
    "report": _report,
}


def _num_blocks(config: Config) -> int:
    """Layers whose neighbourhoods are sampled."""
    return config.model.num_layers - (config.sampling.first_hop == "exact")


def _recipe(config: Config) -> Recipe:
    sampling, posterior = config.sampling, config.posterior
    if sampling.hub_cap and "all" not in sampling.fan_out:
        log.warning("sampling.hub_cap=%s has no effect: no fan-out is `all`", sampling.hub_cap)
    plan_fields = {field.name for field in dataclasses.fields(ChainPlan)}
    return Recipe(
        network=Network(**asdict(config.model)),
        batching=Batching(
            batch_pairs=None if sampling.full_batch else sampling.batch_pairs,
            sampling_ratio=sampling.ratio,
            fan_outs=tuple(parse_fan_out(sampling.fan_out, _num_blocks(config))),
            hub_cap=sampling.hub_cap,
            exact_first_hop=sampling.first_hop == "exact",
            backend=sampling.backend,
        ),
        langevin=Langevin(kernel=posterior.kernel, prior=posterior.prior, temperature=posterior.temperature),
        plan=ChainPlan(**{name: value for name, value in asdict(posterior).items() if name in plan_fields}),
    )


def _check_world(wanted: schema.WorldConfig, world: World) -> None:
    """Refuses to be the only one where several were asked for."""
    if world.size == 1 and (wanted.nodes > 1 or (wanted.processes or 1) > 1):
        raise ValueError(
            f"world.processes={wanted.processes} and world.nodes={wanted.nodes} ask for several ranks, and this is one "
            "process: start them with `hcm-scale run`, torchrun or srun"
        )


def _set_threads(wanted: int | None, world: World) -> None:
    """Uses as many threads as are asked for, or as fall to this rank, and at most as many as numba was started with."""
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if wanted and wanted > most:
        log.warning("world.threads=%d: numba has %d threads here, and its kernels use those", wanted, most)
    num_threads = wanted or world.num_threads
    if num_threads:
        numba.set_num_threads(min(num_threads, most))
        torch.set_num_threads(num_threads)


def _device(walk: Run) -> str:
    """Where this process computes."""
    return walk.world.device or device_of(walk.config.world)


def device_of(world: schema.WorldConfig) -> str:
    """What the configuration means on this machine: cpu or cuda."""
    if world.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "world.device=cuda but this machine has no CUDA device that torch can use; legal here: cpu, auto"
        )
    if world.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return world.device


def _last_metrics(path: Path) -> dict[str, Any]:
    """Loss and speed from the last line of a metrics file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    last: dict[str, Any] = next((record for line in reversed(lines) if "loss" in (record := json.loads(line))), {})
    return {name: last[name] for name in ("loss", "pairs_per_second") if name in last}


def _score_facts(metrics: dict[str, Any] | None, rank_by: str) -> dict[str, Any]:
    return {} if metrics is None else {"roc_auc": metrics[rank_by]["roc_auc"]}
