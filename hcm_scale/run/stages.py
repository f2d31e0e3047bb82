"""The stages of a run: its configuration, as a list of values that the workspace makes.

Each `workspace.Stage` names the options that decide its result, the stages that it reads, and how to make it. This is
the one place where the configuration meets the stages. A run with `trained` has neither labels nor training: its
stages read the folders of the trained run, and are known by their keys.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.memory import Need, gib
from hcm_scale.base.threads import kernel_threads
from hcm_scale.config import Config, parse_fan_out
from hcm_scale.features import propagate
from hcm_scale.graph import Graph, store
from hcm_scale.ingest import readers
from hcm_scale.posterior.samples import Samples, open_samples
from hcm_scale.run import memory, sources
from hcm_scale.run.memory import Searches
from hcm_scale.run.trained import Trained
from hcm_scale.run.workspace import Stage, Workspace
from hcm_scale.shards import open_labels
from hcm_scale.stages import drift, ingest, label, purify, report, score, train
from hcm_scale.stages.edges import View
from hcm_scale.stages.purify import propagate_shared
from hcm_scale.stages.score import Scoring, Trend, auc_trend
from hcm_scale.stages.train import MOST_BURN_IN, Batching, ChainPlan, Langevin, Network, Recipe

# ----------------------------------------------------------------------------
# From the configuration to the arguments of stages: what decides labels, samples and scores, in frozen values.


_ROW_GROUP_ROWS = 65_536  # pairs of a row group, the piece in which labels are read
_DECAY = {"decay_offset": 100.0, "decay_power": 0.55, "cycle_steps": 200}  # of the schedules, in `ChainPlan`

log = logging.getLogger(__name__)


def label_options(config: Config) -> dict[str, Any]:
    """What decides the labels, from the sections `hops` and `shards`."""
    is_drawn = config.hops.num_sources is not None or config.hops.pairs_per_class is not None
    seed = config.seed if is_drawn else 0  # every pair is kept: runs that differ in their seed share the labels
    return asdict(config.hops) | asdict(config.shards) | {"row_group_rows": _ROW_GROUP_ROWS, "seed": seed}


def recipe_of(config: Config) -> Recipe:
    """What decides the samples, from the sections `model`, `sampling` and `posterior`."""
    sampling, posterior = config.sampling, config.posterior
    if sampling.hub_cap and "all" not in sampling.fan_out:
        log.warning("sampling.hub_cap=%s has no effect: no fan-out is `all`", sampling.hub_cap)
    plan_fields = {field.name for field in dataclasses.fields(ChainPlan)}
    plan = _DECAY | {name: value for name, value in asdict(posterior).items() if name in plan_fields}
    if posterior.burn_in_steps is None:
        plan |= {"burn_in_steps": MOST_BURN_IN, "burn_in_epochs": 5.0}
    if posterior.num_samples is None:
        plan |= {"num_samples": 10, "settled": 0.995}  # docs/detector.md
    return Recipe(
        network=Network(**asdict(config.model)),
        batching=Batching(
            batch_pairs=sampling.batch_pairs,
            sampling_ratio=sampling.ratio,
            fan_outs=tuple(parse_fan_out(sampling.fan_out, num_blocks(config))),
            hub_cap=sampling.hub_cap,
            exact_first_hop=sampling.first_hop == "exact",
            backend=sampling.backend,
            whole_graph=sampling.whole_graph,
        ),
        langevin=Langevin(kernel=posterior.kernel, prior=posterior.prior, temperature=posterior.temperature),
        plan=ChainPlan(**plan),
    )


def scoring_of(config: Config) -> Scoring:
    """What decides the scores, from the section `score`."""
    options = config.score
    return Scoring(
        hop=options.hop,  # type: ignore[arg-type]  # one of the names that the schema allows
        trim=options.trim,
        far_share=options.far_share,
        max_neighbors=options.max_neighbors,
        rank_by=options.rank_by,
        fdr=options.fdr,
        precision=options.precision,
    )


def num_blocks(config: Config) -> int:
    """Layers whose neighbourhoods are sampled."""
    return config.model.num_layers - (config.sampling.first_hop == "exact")


# ----------------------------------------------------------------------------
# One walk through the stages of a run: what each of them reads of the configuration and of the folders before it.
#
# `run/stages.py` lists the stages. A run with `trained` reads samples and scores from the folders of another one.

Choice = TypeVar("Choice")


@dataclass
class RunContext:
    """One walk through the stages: the configuration, the folders, and a graph where the caller brings one."""

    config: Config
    workspace: Workspace
    device: str  # where this process computes
    given: Graph | None = None
    trained: Trained | None = None  # a finished run whose samples are used
    until: str = "report"  # the command whose stages are the last

    def graph(self) -> Graph:
        return Graph.open(self.workspace.folders["graph"], verify=False)

    def purified(self) -> purify.Purified:
        return purify.open_purified(self.workspace.folders["purified"])

    def structure(self, view: str) -> Graph:
        """The graph that the encoder of a view runs on; weights of its edges are strengths."""
        purified, graph = self.purified(), self.graph()
        if view == "purified":
            return purified.graph
        return graph if graph.weights is None else replace(graph, weights=purified.strengths())

    def encoder_input(self, view: str) -> NDArray[np.float32]:
        """Â X where the first hop is exact, else X."""
        if self.exact_first_hop:
            return propagate.open_propagated(self.workspace.folders[f"propagated-{view}"])
        return self.purified().features

    def choose(self, stage: str, ways: list[tuple[Choice, Need]]) -> Choice:
        """The first way to make a stage that fits into memory; what is not the fastest is said."""
        chosen, need = self.workspace.budget.choose(ways)
        if chosen != ways[0][0] and self.workspace.world.leads:
            free = self.workspace.budget.free()
            told = stage, chosen, gib(ways[0][1].held), gib(need.held), gib(free.held), free.bound
            log.info("%s: %s to save memory: %s would be needed, this takes %s, and %s are %s", *told)
        return chosen

    def on_host(self, needs: Callable[[], list[Need]]) -> Callable[[], list[Need]] | None:
        """What a stage that computes on a GPU needs of the host is not foreseen."""
        return needs if self.device == "cpu" else None

    def check_scores(self) -> None:
        """Refuses before labels and samples are made what would be refused when they are to be scored."""
        if self.device == "cpu" and self.until in ("score", "report"):
            where: dict[str, Any] = {"num_ranks": self.workspace.world.size}
            *_, (_, least) = memory.score(self.config, self.graph(), self.purified().features, **where)
            self.workspace.check_fits("scores, later", least)

    def samples(self, view: str) -> Samples:
        folders = self.workspace.folders if self.trained is None else self.trained.folders
        return open_samples(folders[f"train-{view}"] / "samples")

    def reference(self) -> score.Reference | None:
        """The scores of the trained run, by which those of this one are measured."""
        return None if self.trained is None else score.open_reference(self.trained.folders["scores"])

    def trained_keys(self, *names: str) -> list[str]:
        """The keys of stages of the trained run, for the options of what reads them; empty where there is none."""
        return [] if self.trained is None else [self.trained.keys[name] for name in names]

    @property
    def exact_first_hop(self) -> bool:
        return self.config.sampling.first_hop == "exact"


def stages(walk: RunContext, until: str = "report") -> Iterator[Stage]:
    """The stages of a run in the order in which they are made, up to those of the command `until`."""
    walk.until = until
    for command, stages_of in _STAGES_OF.items():
        yield from stages_of(walk)
        if command == until:
            return


def _ingest(walk: RunContext) -> Iterator[Stage]:
    config, given = walk.config, walk.given
    injects = config.inject.num_cliques > 0 or bool(config.inject.num_attribute_anomalies)
    injection = asdict(config.inject) if injects else None
    if given is not None:
        given.check()
    stamp = sources.stamp(config.graph) if given is None and walk.workspace.world.leads else []
    options: Any = given.fingerprint if given is not None else [asdict(config.graph), stamp]
    known = None
    if given is None and walk.trained is not None and "graph" in walk.trained.folders:
        known = readers.column_encodings(Graph.open(walk.trained.folders["graph"], verify=False))
        options = [options, walk.trained_keys("graph")]
    read: ingest.Reader = ingest.copy_graph(given) if given is not None else sources.reader(config.graph, known)

    def make(out: Path) -> dict[str, Any]:
        graph = ingest.ingest(out, read, injection)
        if "ingest" in graph.info:
            log.info("%s", readers.ingest_summary(graph).table())
        if told := readers.column_report(graph):
            log.info("%s", told)
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "attributes": graph.num_attributes}
        return facts | ({"anomalies": int(graph.y.sum())} if graph.y is not None else {})

    def needs() -> list[Need]:
        return [memory.ingest(config.graph, given, injects=injects)]

    yield Stage("graph", store.FORMAT, [options, injection, ingest.FORMAT], (), make, needs=needs)


def _purify(walk: RunContext) -> Iterator[Stage]:
    options = asdict(walk.config.attributes) | asdict(walk.config.purify)
    trained = walk.trained

    def make(out: Path) -> dict[str, Any]:
        graph = walk.graph()
        if trained is None:
            made = purify.purify(graph, out, **options, world=walk.workspace.world)
        else:
            before = purify.open_purified(trained.folders["purified"])
            how: dict[str, Any] = {"attributes": options["attributes"], "world": walk.workspace.world}
            made = purify.purify_like(graph, out, before, **how)
        dropped = graph.num_edges - made.graph.num_edges
        return {"features": made.features.shape[1], "edges": made.graph.num_edges, "dropped": dropped}

    def needs() -> list[Need]:
        return [memory.purify(walk.config, walk.graph())]

    known_by = options if trained is None else [options, walk.trained_keys("purified")]
    yield Stage("purified", purify.FORMAT, known_by, ("graph",), make, together=True, needs=needs)


def _label(walk: RunContext) -> Iterator[Stage]:
    if walk.trained is not None:
        return
    options = label_options(walk.config)

    def ways() -> list[tuple[Searches, Need]]:
        return memory.label(options, walk.purified().graph)

    def needs() -> list[Need]:
        walk.check_scores()
        return [need for _, need in ways()]

    def make(out: Path) -> dict[str, Any]:
        how = walk.choose("labels", ways())
        made: dict[str, Any] = {"state_bytes": how.state_bytes, "world": walk.workspace.world}
        with kernel_threads(how.threads):
            labels = label.label(walk.purified().graph, out, **made, **options)
        return {"pairs": labels.num_pairs, "sources": labels.plan.num_sources}

    yield Stage("labels", label.FORMAT, options, ("purified",), make, together=True, needs=needs)


def _train(walk: RunContext) -> Iterator[Stage]:
    if walk.exact_first_hop:
        yield from (_propagate_view(walk, view) for view in walk.config.score.views)
    if walk.trained is None:
        yield from (_train_view(walk, view) for view in walk.config.score.views)


def _propagate_view(walk: RunContext, view: str) -> Stage:
    def make(out: Path) -> dict[str, Any]:
        where = walk.workspace.world, walk.device
        made = propagate_shared(walk.structure(view), walk.purified().features, out, *where)
        return {"view": view, "columns": made.shape[1]}

    reads = ("purified",) if view == "purified" else ("graph", "purified")

    def needs() -> list[Need]:
        return [memory.propagate(walk.structure(view), walk.purified().features)]

    return Stage(f"propagated-{view}", propagate.FORMAT, view, reads, make, together=True, needs=needs)


def _train_view(walk: RunContext, view: str) -> Stage:
    config, recipe, world = walk.config, recipe_of(walk.config), walk.workspace.world

    def ways() -> list[tuple[int, Need]]:
        labels = open_labels(walk.workspace.folders["labels"])
        return memory.train(config, recipe, walk.structure(view), walk.encoder_input(view), labels)

    def needs() -> list[Need]:
        walk.check_scores()
        return [need for _, need in ways()]

    def make(out: Path) -> dict[str, Any]:
        structure, x = walk.structure(view), walk.encoder_input(view)
        workers = walk.choose(f"train-{view}", ways()) if walk.device == "cpu" else config.sampling.workers
        record = train.Record(
            checkpoint_every=config.posterior.checkpoint_every,
            log_every=config.posterior.log_every,
            tensorboard=config.posterior.tensorboard,
            trend=_trend(walk, recipe, structure, x) if config.posterior.trend_every else None,
            trend_every=config.posterior.trend_every or 1,
        )
        where: dict[str, Any] = {"device": walk.device, "workers": workers, "world": world}
        labels = open_labels(walk.workspace.folders["labels"])
        samples = train.train(structure, x, labels, out, recipe=recipe, seed=config.seed, record=record, **where)
        return {"view": view, "samples": len(samples)} | _last_metrics(out / "metrics.jsonl")

    reads = ("graph", "purified", "labels", *([f"propagated-{view}"] if walk.exact_first_hop else []))
    options = [asdict(recipe), config.seed, view]
    is_small = walk.device == "cpu" and world.size == 1 and train.step_threads(recipe) == 1
    group = "train" if is_small else None  # a core each
    leaves = ("checkpoints", "tensorboard")
    made: dict[str, Any] = {"together": True, "group": group, "leaves": leaves}
    return Stage(f"train-{view}", train.FORMAT, options, reads, make, needs=walk.on_host(needs), **made)


def _trend(walk: RunContext, recipe: Recipe, structure: Graph, x: NDArray[np.float32]) -> Trend | None:
    """Logs the AUC of every `posterior.trend_every`-th sample, where labels are known."""
    model = asdict(recipe.network) | {"num_attributes": x.shape[1], "num_classes": walk.config.hops.classes}
    model |= {"directed": structure.directed, "seed": walk.config.seed}
    where: dict[str, Any] = {"propagated": walk.exact_first_hop, "device": walk.device}
    trend = auc_trend(walk.graph(), structure, x, model, how=scoring_of(walk.config), **where)
    if trend is None:
        log.warning("posterior.trend_every=%s has no effect: no labels", walk.config.posterior.trend_every)
    return trend


def _score(walk: RunContext) -> Iterator[Stage]:
    yield _scores(walk)
    if walk.trained is not None:
        yield _drift(walk, walk.trained)


def _scores(walk: RunContext) -> Stage:
    config, views, how = walk.config, walk.config.score.views, scoring_of(walk.config)

    def ways() -> list[tuple[str, Need]]:
        num_ranks = walk.workspace.world.size
        return memory.score(config, walk.graph(), walk.purified().features, num_ranks=num_ranks)

    def needs() -> list[Need]:
        return [need for _, need in ways()]

    def make(out: Path) -> dict[str, Any]:
        state = walk.choose("scores", ways())
        made = score.score(
            walk.graph(),
            [View(walk.structure(view), walk.encoder_input(view), walk.samples(view)) for view in views],
            out,
            how=how,
            features=walk.purified().features,
            propagated=walk.exact_first_hop,
            seed=config.seed,
            state=state,
            chunk_edges=config.score.chunk_edges,
            device=walk.device,
            world=walk.workspace.world,
            like=walk.reference(),
        )
        facts = {"num_flagged": made.num_flagged, "fdr": made.fdr}
        facts |= {} if made.stability is None else {"stability": made.stability}
        return facts | ({} if made.metrics is None else {"roc_auc": made.metrics[made.rank_by]["roc_auc"]})

    trains = [f"train-{view}" for view in views]
    options = [asdict(how), config.seed, *walk.trained_keys(*trains, "scores")]
    inputs = [f"propagated-{view}" for view in views] if walk.exact_first_hop else []
    reads = "graph", "purified", *(trains if walk.trained is None else inputs)
    return Stage("scores", score.FORMAT, options, reads, make, together=True, needs=walk.on_host(needs))


def _drift(walk: RunContext, trained: Trained) -> Stage:
    def make(out: Path) -> dict[str, Any]:
        before, folders = purify.open_purified(trained.folders["purified"]), walk.workspace.folders
        found = drift.compare(before, walk.purified(), trained.folders["scores"], folders["scores"], out)
        return {"num_moved": len(found.moved), "line": found.line()}

    return Stage("drift", drift.FORMAT, walk.trained_keys("purified", "scores"), ("purified", "scores"), make)


def _report(walk: RunContext) -> Iterator[Stage]:
    config, folders, trains = walk.config, walk.workspace.folders, walk.trained is None

    def make(out: Path) -> dict[str, Any]:
        purified = walk.purified()
        made = report.report(
            walk.graph(),
            purified.graph,
            folders["scores"],
            out,
            x=purified.features,
            run={"name": config.graph.name, "seed": config.seed},
            metrics=folders[f"train-{config.score.views[0]}"] / "metrics.jsonl" if trains else None,
            labels=folders["labels"] if trains else None,
            features=purified.record,
            drift=folders.get("drift"),
            stages=[asdict(record) for record in walk.workspace.records],
            top=config.score.explained,
            csv=config.score.csv,
        )
        return {"rows": len(made["table"]["rank"]), "notes": made["notes"]}

    def needs() -> list[Need]:
        return [memory.report(walk.graph())]

    options = [config.score.explained, config.score.csv, config.graph.name]
    yield Stage("report", report.FORMAT, options, ("scores", "labels" if trains else "drift"), make, needs=needs)


_STAGES_OF: dict[str, Callable[[RunContext], Iterator[Stage]]] = {  # by command
    "ingest": _ingest,
    "purify": _purify,
    "label": _label,
    "train": _train,
    "score": _score,
    "report": _report,
}


def _last_metrics(path: Path) -> dict[str, Any]:
    """Loss and speed from the last line of a metrics file."""
    last: dict[str, Any] = next((line for line in reversed(report.read_records(path)) if "loss" in line), {})
    return {name: last[name] for name in ("loss", "pairs_per_second") if name in last}
