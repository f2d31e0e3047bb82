"""The stages of a run: its configuration, as a list of values that the workspace makes.

Each `workspace.Stage` names the options that decide its result, the stages that it reads, and how to make it. This is
the one place where the configuration meets the stages. A run with `trained` has neither labels nor training: its
stages read the folders of the trained run, and are known by their keys.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale import foresight, sources
from hcm_scale.arguments import label_options, recipe_of, scoring_of
from hcm_scale.base.budget import Need
from hcm_scale.base.threads import kernel_threads
from hcm_scale.features import propagate
from hcm_scale.graph import Graph, store
from hcm_scale.ingest import readers
from hcm_scale.shards import open_labels
from hcm_scale.stages import drift, ingest, label, purify, report, score, scored, train
from hcm_scale.stages.memory import Searches
from hcm_scale.stages.predict import View
from hcm_scale.stages.propagate import propagate_shared
from hcm_scale.stages.recipe import Recipe
from hcm_scale.stages.trend import Trend, auc_trend
from hcm_scale.trained import Trained
from hcm_scale.walk import Run
from hcm_scale.workspace import Stage

log = logging.getLogger(__name__)


def stages(walk: Run, until: str = "report") -> Iterator[Stage]:
    """The stages of a run in the order in which they are made, up to those of the command `until`."""
    walk.until = until
    for command, stages_of in _STAGES_OF.items():
        yield from stages_of(walk)
        if command == until:
            return


def _ingest(walk: Run) -> Iterator[Stage]:
    config, given = walk.config, walk.given
    injects = config.inject.num_cliques > 0 or bool(config.inject.num_attribute_anomalies)
    injection = asdict(config.inject) if injects else None
    if given is not None:
        given.check()
    stamp = sources.stamp(config.graph) if given is None and walk.workspace.world.leads else []
    options: Any = given.fingerprint if given is not None else [asdict(config.graph), stamp]
    known = None
    if given is None and walk.trained is not None and "graph" in walk.trained.folders:
        known = readers.columns_of(Graph.open(walk.trained.folders["graph"], verify=False))
        options = [options, walk.trained_keys("graph")]
    read: ingest.Reader = ingest.copy_graph(given) if given is not None else sources.reader(config.graph, known)

    def make(out: Path) -> dict[str, Any]:
        graph = ingest.ingest(out, read, injection)
        if "ingest" in graph.info:
            log.info("%s", readers.summary(graph).table())
        if told := readers.columns_told(graph):
            log.info("%s", told)
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "attributes": graph.num_attributes}
        return facts | ({"anomalies": int(graph.y.sum())} if graph.y is not None else {})

    def needs() -> list[Need]:
        return [foresight.ingest(config.graph, given, injects=injects)]

    yield Stage("graph", store.FORMAT, [options, injection, ingest.FORMAT], (), make, needs=needs)


def _purify(walk: Run) -> Iterator[Stage]:
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
        return [foresight.purify(walk.config, walk.graph())]

    known_by = options if trained is None else [options, walk.trained_keys("purified")]
    yield Stage("purified", purify.FORMAT, known_by, ("graph",), make, together=True, needs=needs)


def _label(walk: Run) -> Iterator[Stage]:
    if walk.trained is not None:
        return
    options = label_options(walk.config)

    def ways() -> list[tuple[Searches, Need]]:
        return foresight.label(options, walk.purified().graph)

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


def _train(walk: Run) -> Iterator[Stage]:
    if walk.exact_first_hop:
        yield from (_propagate_view(walk, view) for view in walk.config.score.views)
    if walk.trained is None:
        yield from (_train_view(walk, view) for view in walk.config.score.views)


def _propagate_view(walk: Run, view: str) -> Stage:
    def make(out: Path) -> dict[str, Any]:
        where = walk.workspace.world, walk.device
        made = propagate_shared(walk.structure(view), walk.purified().features, out, *where)
        return {"view": view, "columns": made.shape[1]}

    reads = ("purified",) if view == "purified" else ("graph", "purified")

    def needs() -> list[Need]:
        return [foresight.propagate(walk.structure(view), walk.purified().features)]

    return Stage(f"propagated-{view}", propagate.FORMAT, view, reads, make, together=True, needs=needs)


def _train_view(walk: Run, view: str) -> Stage:
    config, recipe, world = walk.config, recipe_of(walk.config), walk.workspace.world

    def ways() -> list[tuple[int, Need]]:
        labels = open_labels(walk.workspace.folders["labels"])
        return foresight.train(config, recipe, walk.structure(view), walk.encoder_input(view), labels)

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
    yield _scores(walk)
    if walk.trained is not None:
        yield _drift(walk, walk.trained)


def _scores(walk: Run) -> Stage:
    config, views, how = walk.config, walk.config.score.views, scoring_of(walk.config)

    def ways() -> list[tuple[str, Need]]:
        num_ranks = walk.workspace.world.size
        return foresight.score(config, walk.graph(), walk.purified().features, num_ranks=num_ranks)

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
    return Stage("scores", scored.FORMAT, options, reads, make, together=True, needs=walk.on_host(needs))


def _drift(walk: Run, trained: Trained) -> Stage:
    def make(out: Path) -> dict[str, Any]:
        before, folders = purify.open_purified(trained.folders["purified"]), walk.workspace.folders
        found = drift.compare(before, walk.purified(), trained.folders["scores"], folders["scores"], out)
        return {"num_moved": len(found.moved), "line": found.line()}

    return Stage("drift", drift.FORMAT, walk.trained_keys("purified", "scores"), ("purified", "scores"), make)


def _report(walk: Run) -> Iterator[Stage]:
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
        return [foresight.report(walk.graph())]

    options = [config.score.explained, config.score.csv, config.graph.name]
    yield Stage("report", report.FORMAT, options, ("scores", "labels" if trains else "drift"), make, needs=needs)


_STAGES_OF: dict[str, Callable[[Run], Iterator[Stage]]] = {  # by command
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
