"""The one file that knows the configuration and every stage: unpacks the first into arguments of the second.

Each stage is a value (`workspace.Stage`): the options that decide its result, the stages that it reads, and how to make
it. `stages` lists those of a run in order; `run` has the workspace make them up to the one asked for. A stage whose key
has not changed is not made again. Where several ranks make a run, each walks here, and all share the labelling,
training and scoring.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale import sources
from hcm_scale.base import files
from hcm_scale.config import Config, parse_fan_out
from hcm_scale.features import propagate
from hcm_scale.graph import Graph, store
from hcm_scale.ingest import readers
from hcm_scale.posterior.samples import open_samples
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.report import wording
from hcm_scale.shards import open_labels
from hcm_scale.stages import ingest, label, purify, report, score, train
from hcm_scale.stages.recipe import Batching, ChainPlan, Langevin, Network, Recipe
from hcm_scale.stages.summary import summary
from hcm_scale.stages.trend import Trend, auc_trend
from hcm_scale.workspace import Stage, Workspace, begin_run, finished_stages

log = logging.getLogger(__name__)
STAGES = ("ingest", "purify", "label", "train", "score", "report")


@dataclass
class Run:
    """One walk through the stages: the configuration, the folders, and a graph where the caller brings one."""

    config: Config
    workspace: Workspace
    given: Graph | None = None

    def graph(self) -> Graph:
        return Graph.open(self.workspace.folders["graph"])

    def purified(self) -> purify.Purified:
        return purify.open_purified(self.workspace.folders["purified"])

    def structure(self, view: str) -> Graph:
        """The graph that the encoder of a view runs on."""
        return self.purified().graph if view == "purified" else self.graph()

    def encoder_input(self, view: str) -> NDArray[np.float32]:
        """Â X where the first hop is exact, else X."""
        if self.exact_first_hop:
            return propagate.open_propagated(self.workspace.folders[f"propagated-{view}"])
        return self.purified().features

    @property
    def exact_first_hop(self) -> bool:
        return self.config.sampling.first_hop == "exact"

    @property
    def device(self) -> str:
        """Where this process computes."""
        return self.workspace.world.device or device_of(self.config.world)


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
            begin_run(run_dir)  # what is asked now has found nothing yet
            files.write_json(run_dir / "config.json", asdict(config))
        _set_threads(config.world.threads, world)
        workspace = Workspace(run_dir, share, world)
        for stage in stages(Run(config, workspace, graph), until):
            workspace.make(stage)
        _warn_too_late(config.posterior, workspace)
        return summary(run_dir, workspace.folders, workspace.records) if world.leads else ""


def explain(config: Config) -> str:
    """Why `config.node` of the finished run in `config.run_dir` is where it is, as text."""
    run_dir = Path(config.run_dir)
    if config.node is None:
        raise ValueError("node is missing: hcm-scale explain node=ID, with an id of the graph")
    missing = {"graph", "purified", "scores"} - finished_stages(run_dir)
    if missing:
        raise ValueError(f"run_dir={run_dir} has no {min(missing)}: finish the run first with hcm-scale run")
    purified = purify.open_purified(run_dir / "purified").graph
    return wording.text(report.explain(Graph.open(run_dir / "graph"), purified, run_dir / "scores", config.node))


def read_scores(run_dir: Path) -> Any:
    """The ranked table of a finished run."""
    return score.open_scores(run_dir / "scores").table()


def stages(walk: Run, until: str = "report") -> Iterator[Stage]:
    """The stages of a run in the order in which they are made, up to those of the command `until`."""
    for command in STAGES[: STAGES.index(until) + 1]:
        yield from _STAGES_OF[command](walk)


def _ingest(walk: Run) -> Iterator[Stage]:
    config, given = walk.config, walk.given
    injects = config.inject.num_cliques > 0 or bool(config.inject.num_attribute_anomalies)
    injection = asdict(config.inject) if injects else None
    options: Any = given.fingerprint if given is not None else [asdict(config.graph), sources.stamp(config.graph)]
    read: ingest.Reader = given.save if given is not None else sources.reader(config.graph)

    def make(out: Path) -> dict[str, Any]:
        graph = ingest.ingest(out, read, injection)
        if "ingest" in graph.info:
            log.info("%s", readers.summary(graph).table())
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "attributes": graph.num_attributes}
        return facts | ({"anomalies": int(graph.y.sum())} if graph.y is not None else {})

    yield Stage("graph", store.FORMAT, [options, injection], (), make)


def _purify(walk: Run) -> Iterator[Stage]:
    options = asdict(walk.config.attributes) | asdict(walk.config.purify)

    def make(out: Path) -> dict[str, Any]:
        graph = walk.graph()
        made = purify.purify(graph, out, **options)
        dropped = graph.num_edges - made.graph.num_edges
        return {"features": made.features.shape[1], "edges": made.graph.num_edges, "dropped": dropped}

    yield Stage("purified", purify.FORMAT, options, ("graph",), make)


def _label(walk: Run) -> Iterator[Stage]:
    options = label_options(walk.config)

    def make(out: Path) -> dict[str, Any]:
        labels = label.label(walk.purified().graph, out, world=walk.workspace.world, **options)
        return {"pairs": labels.num_pairs, "sources": labels.plan.num_sources}

    yield Stage("labels", label.FORMAT, options, ("purified",), make, together=True)


def _train(walk: Run) -> Iterator[Stage]:
    for view in walk.config.score.views:
        if walk.exact_first_hop:
            yield _propagate_view(walk, view)
        yield _train_view(walk, view)


def _propagate_view(walk: Run, view: str) -> Stage:
    def make(out: Path) -> dict[str, Any]:
        made = propagate.propagate_features(walk.structure(view), walk.purified().features, out)
        return {"view": view, "columns": made.shape[1]}

    reads = ("purified",) if view == "purified" else ("graph", "purified")
    return Stage(f"propagated-{view}", propagate.FORMAT, view, reads, make)


def _train_view(walk: Run, view: str) -> Stage:
    config, recipe, world = walk.config, recipe_of(walk.config), walk.workspace.world

    def make(out: Path) -> dict[str, Any]:
        structure, x = walk.structure(view), walk.encoder_input(view)
        record = train.Record(
            checkpoint_every=config.posterior.checkpoint_every,
            log_every=config.posterior.log_every,
            tensorboard=config.posterior.tensorboard,
            trend=_trend(walk, recipe, structure, x) if config.posterior.trend_every else None,
            trend_every=config.posterior.trend_every or 1,
        )
        where: dict[str, Any] = {"device": walk.device, "workers": config.sampling.workers, "world": world}
        labels = open_labels(walk.workspace.folders["labels"])
        samples = train.train(structure, x, labels, out, recipe=recipe, seed=config.seed, record=record, **where)
        return {"view": view, "samples": len(samples)} | _last_metrics(out / "metrics.jsonl")

    reads = ("graph", "purified", "labels", *([f"propagated-{view}"] if walk.exact_first_hop else []))
    return Stage(f"train-{view}", train.FORMAT, [asdict(recipe), config.seed, view], reads, make, together=True)


def _trend(walk: Run, recipe: Recipe, structure: Graph, x: NDArray[np.float32]) -> Trend | None:
    """Logs the AUC of every `posterior.trend_every`-th sample, where labels are known."""
    model = asdict(recipe.network) | {"num_attributes": x.shape[1], "num_classes": walk.config.hops.classes}
    model |= {"directed": structure.directed, "seed": walk.config.seed}
    where: dict[str, Any] = {"propagated": walk.exact_first_hop, "device": walk.device}
    trend = auc_trend(walk.graph(), structure, x, model, how=scoring_of(walk.config), **where)
    if trend is None:
        log.warning("posterior.trend_every=%s has no effect: no labels", walk.config.posterior.trend_every)
    return trend


def _score(walk: Run) -> Iterator[Stage]:
    views, how = walk.config.score.views, scoring_of(walk.config)
    if len(views) == 1:
        yield _score_view(walk, views[0], "scores", how)
        return
    for view in views:
        yield _score_view(walk, view, f"scores-{view}", how)

    def make(out: Path) -> dict[str, Any]:
        folders = [walk.workspace.folders[f"scores-{view}"] for view in views]
        made = score.combine_scores(walk.graph(), folders, out, rank_by=how.rank_by, far_share=how.far_share)
        return _score_facts(made)

    yield Stage("scores", score.FORMAT, asdict(how), tuple(f"scores-{view}" for view in views), make)


def _score_view(walk: Run, view: str, name: str, how: score.Scoring) -> Stage:
    config = walk.config

    def make(out: Path) -> dict[str, Any]:
        made = score.score(
            walk.graph(),
            walk.structure(view),
            walk.encoder_input(view),
            open_samples(walk.workspace.folders[f"train-{view}"] / "samples"),
            out,
            how=how,
            propagated=walk.exact_first_hop,
            seed=config.seed,
            state=config.score.state,
            chunk_edges=config.score.chunk_edges,
            device=walk.device,
            world=walk.workspace.world,
        )
        return _score_facts(made)

    return Stage(name, score.FORMAT, [asdict(how), config.seed], (f"train-{view}",), make, together=True)


def _report(walk: Run) -> Iterator[Stage]:
    config, folders = walk.config, walk.workspace.folders

    def make(out: Path) -> dict[str, Any]:
        made = report.report(
            walk.graph(),
            walk.purified().graph,
            folders["scores"],
            out,
            run={"name": config.graph.name, "seed": config.seed, "num_samples": config.posterior.num_samples},
            metrics=folders[f"train-{config.score.views[0]}"] / "metrics.jsonl",
            labels=folders["labels"],
            stages=[asdict(record) for record in walk.workspace.records],
            top=config.score.explained,
            table_rows=config.score.table_rows,
        )
        return {"rows": len(made["table"])}

    options = [config.score.explained, config.score.table_rows, config.graph.name]
    yield Stage("report", report.FORMAT, options, ("scores", "labels"), make)


_STAGES_OF: dict[str, Callable[[Run], Iterator[Stage]]] = {
    "ingest": _ingest,
    "purify": _purify,
    "label": _label,
    "train": _train,
    "score": _score,
    "report": _report,
}


def scoring_of(config: Config) -> score.Scoring:
    """What decides the scores, from the section `score`."""
    options = config.score
    return score.Scoring(
        hop=options.hop,  # type: ignore[arg-type]  # one of the names that the schema allows
        trim=options.trim,
        far_share=options.far_share,
        max_neighbors=options.max_neighbors,
        rank_by=options.rank_by,
        precision=options.precision,
    )


def _warn_too_late(posterior: schema.PosteriorConfig, workspace: Workspace) -> None:
    """Says so where logs were asked of a training that an earlier run finished without them."""
    for record in workspace.records:
        if record.name.startswith("train-") and record.skipped:
            folder = Path(record.folder)
            asked = {"tensorboard": posterior.tensorboard and not (folder / "tensorboard").exists()}
            has_trend = any("strange_auc" in line for line in report.read_records(folder / "metrics.jsonl"))
            asked["trend_every"] = posterior.trend_every is not None and not has_trend
            for name in (name for name, is_missing in asked.items() if is_missing):
                log.warning(
                    "posterior.%s=%s has no effect: this training is finished; remove %s to train again",
                    name,
                    getattr(posterior, name),
                    folder,
                )


def label_options(config: Config) -> dict[str, Any]:
    """What decides the labels, from the sections `hops` and `shards`."""
    is_drawn = config.hops.num_sources is not None or config.hops.pairs_per_class is not None
    seed = config.seed if is_drawn else 0  # every pair is kept: runs that differ in their seed share the labels
    return asdict(config.hops) | asdict(config.shards) | {"seed": seed}


def _num_blocks(config: Config) -> int:
    """Layers whose neighbourhoods are sampled."""
    return config.model.num_layers - (config.sampling.first_hop == "exact")


def recipe_of(config: Config) -> Recipe:
    """What decides the samples, from the sections `model`, `sampling` and `posterior`."""
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
    last: dict[str, Any] = next((line for line in reversed(report.read_records(path)) if "loss" in line), {})
    return {name: last[name] for name in ("loss", "pairs_per_second") if name in last}


def _score_facts(made: score.ScoreResult) -> dict[str, Any]:
    return {} if made.metrics is None else {"roc_auc": made.metrics[made.rank_by]["roc_auc"]}
