"""The stages of a run: from the configuration to a list of values that the workspace makes.

    ingest   graph
    purify   purified
    label    labels
    train    propagated-VIEW (where the first hop is exact, on a CPU), train-VIEW
    score    scores, drift (of a run with `trained`)
    report   cases, report

`stages` lists them in this order, by command. Each `workspace.Stage` names the options that decide its result, the
stages that it reads, how to make it and what memory that needs. This is the one place where the configuration meets
the stages: `label_options`, `recipe_of` and `scoring_of` turn its sections into the arguments of stages, and a
`RunContext` opens the folders made so far. A run with `trained` has neither labels nor training: its stages read the
folders of the trained run, whose keys are among their options.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from hcm_scale import plugins
from hcm_scale.base.memory import Need
from hcm_scale.base.npy import new_array
from hcm_scale.base.spmm import ModelInput, Propagated
from hcm_scale.base.threads import kernel_threads
from hcm_scale.cases.changes import changes_line
from hcm_scale.config import Config, SyntheticGraph, parse_fan_out
from hcm_scale.edges.payments import edge_lines
from hcm_scale.features import propagate
from hcm_scale.features.auto import expected_width
from hcm_scale.graph import Graph, store
from hcm_scale.graph.size import Size
from hcm_scale.ingest import readers
from hcm_scale.posterior.loop import METRICS, read_records
from hcm_scale.posterior.samples import open_samples
from hcm_scale.ranks.world import ALONE
from hcm_scale.run import memory, sources
from hcm_scale.run.sources import Trained
from hcm_scale.run.workspace import Facts, Stage, Workspace, repair_hint
from hcm_scale.score import result
from hcm_scale.score.edge_index import PairHead
from hcm_scale.shards import open_labels
from hcm_scale.stages import cases, drift, ingest, label, purify, report, score, train
from hcm_scale.stages.convergence import Chains, drawn_edges, hops_by_sample
from hcm_scale.stages.edges import View, has_room
from hcm_scale.stages.embedding import embed_samples
from hcm_scale.stages.score import Scoring
from hcm_scale.stages.train import Batching, ChainPlan, Langevin, Network, Recipe, Training

_CLASSES = 4  # the paper's C
_ROW_GROUP_ROWS = 65_536  # pairs of a row group, the piece in which labels are read

log = logging.getLogger(__name__)


def label_options(config: Config) -> dict[str, Any]:
    """What decides the labels, from the section `hops`."""
    is_drawn = config.hops.num_sources is not None or config.hops.pairs_per_class is not None
    seed = config.seed if is_drawn else 0  # nothing is drawn: runs that differ in their seed share the labels
    shard_pairs = 1_000_000 if config.hops.pairs_per_class else 4_000_000
    sizes = {"classes": config.hops.classes or _CLASSES, "shard_pairs": shard_pairs, "row_group_rows": _ROW_GROUP_ROWS}
    return asdict(config.hops) | sizes | {"seed": seed}


def recipe_of(config: Config) -> Recipe:
    """What decides the samples, from the sections `model`, `sampling` and `posterior`."""
    sampling, posterior = config.sampling, config.posterior
    if sampling.hub_cap and "all" not in sampling.fan_out:
        log.warning("sampling.hub_cap=%s has no effect: no fan-out is `all`", sampling.hub_cap)
    plan_fields = {field.name for field in dataclasses.fields(ChainPlan)}
    plan = {name: value for name, value in asdict(posterior).items() if name in plan_fields}
    if posterior.num_samples is None:
        plan |= {"num_samples": 10, "stop_correlation": 0.995}  # docs/lab/detector.md
    return Recipe(
        network=Network(**asdict(config.model) | {"encoder": plugins.identity("encoders", config.model.encoder)}),
        batching=Batching(
            batch_pairs=sampling.batch_pairs,
            sampling_ratio=sampling.ratio,
            fan_outs=tuple(parse_fan_out(sampling.fan_out, num_blocks(config))),
            hub_cap=sampling.hub_cap,
            exact_first_hop=has_exact_first_hop(config),
            whole_graph=sampling.hub_cap is not None,
            backend=sampling.backend,
        ),
        langevin=Langevin(kernel=posterior.kernel, prior=posterior.prior, temperature=posterior.temperature),
        plan=ChainPlan(**plan),
    )


def scoring_of(config: Config) -> Scoring:
    """What decides the scores, from the section `score`."""
    named = {field.name: getattr(config.score, field.name) for field in dataclasses.fields(Scoring)}
    return Scoring(**named | {"evidence": tuple(plugins.identity("evidence", name) for name in config.score.evidence)})


def has_exact_first_hop(config: Config) -> bool:
    """Whether the encoder begins at Â X, which only a GCN can; others begin at X, and draw in every layer."""
    return config.model.encoder == "gcn"


def num_blocks(config: Config) -> int:
    """Number of layers whose neighbourhoods are sampled."""
    return config.model.num_layers - has_exact_first_hop(config)


@dataclass(frozen=True)
class RunContext:
    """What the stages of one run read: the configuration, the folders made so far, and a graph given by the caller."""

    config: Config
    workspace: Workspace
    device: str  # where this process computes
    given: Graph | None = None
    trained: Trained | None = None  # a finished run whose samples are used
    until: str = "report"  # the command whose stages are the last
    since: cases.Earlier | None = None  # a finished run whose cases keep their ids
    opened: dict[Path, purify.Purified] = dataclasses.field(default_factory=dict)  # with the arrays that were made

    @property
    def exact_first_hop(self) -> bool:
        return has_exact_first_hop(self.config)

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.config)

    def graph(self) -> Graph:
        folder = self.workspace.folders["graph"]
        return Graph.open(folder, verify=False, remedy=repair_hint(folder))

    def purified(self) -> purify.Purified:
        """The purified graph and its features; made once a run, where memory is short beside the run's largest stage
        in files without names.
        """
        folder, budget = self.workspace.folders["purified"], self.workspace.budget
        if folder not in self.opened:
            allocate = partial(new_array, near=folder.parent, budget=budget, beside=self._largest_need)
            self.opened[folder] = purify.open_purified(folder, self.graph(), allocate)
        return self.opened[folder]

    @cached_property
    def _largest_need(self) -> int:
        """Bytes that the most demanding stage takes at least."""
        return max(need.held for need in self.foresight(self.graph()).least_needs().values())

    def foresight(self, graph: Graph | None = None) -> memory.Foresight:
        """What the memory of stages depends on: of this graph, or of the one that will be generated."""
        config, ranks = self.config, self.workspace.world.size
        if graph is None:
            size, indptr = memory.size_of_source(config.graph), None
            num_features = max(1, config.attributes.pca or size.num_attributes)
        else:
            size, indptr = Size.of(graph), graph.indptr
            opened = self.opened.get(self.workspace.folders.get("purified", Path()))
            num_features = self._expected_features if opened is None else len(opened.columns)
        return memory.Foresight(config, label_options(config), self.recipe, size, num_features, indptr, ranks)

    @cached_property
    def _expected_features(self) -> int:
        """About how many features attributes will become."""
        options, graph = self.config.attributes, self.given or self.graph()
        return 1 if graph.x is None else expected_width(graph.x, options.scale, options.pca, graph.columns)

    def structure(self, view: str) -> Graph:
        """The graph that the encoder of a view runs on; weights of its edges are strengths."""
        purified, graph = self.purified(), self.graph()
        if view == "purified":
            return purified.graph
        return graph if graph.weights is None else replace(graph, weights=purified.strengths(graph.num_arcs))

    def encoder_input(self, view: str) -> ModelInput:
        """Â X where the first hop is exact, else X."""
        features, folder = self.purified().features, self.workspace.folders.get(f"propagated-{view}")
        if not self.exact_first_hop:
            return features
        if folder is not None:
            return propagate.open_propagated(folder, features.shape)
        structure = self.structure(view)
        return Propagated(structure.indptr, structure.indices, features, structure.weights)

    def training(self, view: str) -> Training:
        labels = open_labels(self.workspace.folders["labels"], self.purified().fingerprint)
        return Training(self.structure(view), self.encoder_input(view), labels, self.recipe, self.config.seed)

    def view(self, name: str) -> View:
        folders = self.workspace.folders if self.trained is None else self.trained.folders
        samples = open_samples(folders[f"train-{name}"] / "samples")
        return View(self.structure(name), self.encoder_input(name), samples)

    def embedded(self, view: View) -> Iterator[tuple[torch.Tensor, PairHead]]:
        """The embedding of all nodes under each sample of an encoder, and its pair head, computed by the cores."""
        structure, x, samples = view
        options: Any = {"propagated": self.exact_first_hop, "device": "cpu"}
        return embed_samples(samples.model, samples, structure, x, **options)

    def chains(self, views: Mapping[str, View]) -> dict[str, Chains]:
        """Predicted hops of some edges of the graph under each sample of each encoder, (samples, edges)."""
        ends = drawn_edges(self.graph())
        return {name: hops_by_sample(view, *ends, propagated=self.exact_first_hop) for name, view in views.items()}

    def trained_keys(self, *names: str) -> list[str]:
        """The keys of stages of the trained run, for the options of what reads them; empty if there is none."""
        return [] if self.trained is None else [self.trained.keys[name] for name in names]

    def choose(self, stage: str, ways: memory.Ways[memory.Choice]) -> memory.Choice:
        """The first way to make a stage that fits into memory."""
        return memory.choose(stage, ways, self.workspace.budget, logs=self.workspace.world.leads)

    def least_needs(self, listed: list[Stage]) -> dict[str, Need]:
        """What the stages of these that are not made yet take at least, as far as the size of the graph is known."""
        missing = [stage.name for stage in listed if self.workspace.look(stage)[0] != "kept"]
        foresight = self.foresight(self.given if "graph" in missing else self.graph())
        of_graph = {} if listed[0].needs is None else {"graph": listed[0].needs()[0]}
        needs = foresight.least_needs() | of_graph
        if self.device != "cpu":  # what a GPU needs of the host is not estimated
            needs = {name: need for name, need in needs.items() if name not in ("train", "scores")}
        kinds = {name: name.partition("-")[0] for name in missing}
        return {name: needs[kind] for name, kind in kinds.items() if kind in needs}


def stages(run: RunContext) -> Iterator[Stage]:
    """The stages of a run in the order in which they are made, up to those of the command `run.until`."""
    for command, stages_of in _STAGES_OF.items():
        yield from stages_of(run)
        if command == run.until:
            return


_OTHER_ORDER = (
    "the rows of the node table stand in another order than in trained=%s: sums are rounded in another way, and scores "
    "of nodes that have not changed may differ; in the order of that run, or of ids in both, they do not"
)


def _ingest(run: RunContext) -> Iterator[Stage]:
    config, given = run.config, run.given
    injects = config.inject.num_cliques > 0 or bool(config.inject.num_attribute_anomalies)
    injection = asdict(config.inject) if injects else None
    options: Any
    if given is not None:
        given.check()
        given = ingest.with_attributes(given, getattr(config.graph, "featureless", "error"))
        options, read = given.fingerprint, ingest.copy_graph(given)
    else:
        stamps = sources.stamp(config.graph) if run.workspace.world.leads else []
        options = [asdict(config.graph), stamps]
        encodings = before = None
        if run.trained is not None and config.graph.source in ("tables", "sql"):
            before = Graph.open(run.trained.folders["graph"], verify=False)
            encodings = readers.column_encodings(before)
            options = [options, run.trained_keys("graph")]
        read = sources.reader(config.graph, encodings)

    def make(out: Path) -> Facts:
        graph = ingest.ingest(out, read, injection)
        if given is None and before is not None and not ingest.is_ordered_like(graph, before):
            log.warning(_OTHER_ORDER, config.trained)
        if "ingest" in graph.info:
            log.info("%s", readers.ingest_summary(graph).table())
        if columns := readers.column_report(graph):
            log.info("%s", columns)
        facts: Facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "attributes": graph.num_attributes}
        if given is None:
            facts["source"] = {"content": sources.content_hash(stamps)}
        if given is None and encodings is not None:
            facts["missing_columns"] = readers.missing_columns(graph, encodings)
            assert before is not None
            facts["new_columns"], facts["new_values"] = readers.new_columns(graph, before), readers.new_values(graph)
        return facts | ({"anomalies": int(graph.y.sum())} if graph.y is not None else {})

    generates = given is None and isinstance(config.graph, SyntheticGraph)
    plants = injects and (given is not None or generates)
    needs = lambda: [run.foresight(given).graph(generates=generates, injects=plants)]  # noqa: E731
    yield Stage("graph", store.FORMAT, [options, injection, ingest.FORMAT], (), make, needs=needs)


def _purify(run: RunContext) -> Iterator[Stage]:
    options = asdict(run.config.attributes) | asdict(run.config.purify)
    options["similarity"] = plugins.identity("similarities", options["similarity"])
    trained = run.trained

    def make(out: Path) -> Facts:
        graph = run.graph()
        if trained is None:
            made = purify.purify(graph, out, **options)
        else:
            reference = purify.open_purified(trained.folders["purified"])  # what it decided; its graph is not asked for
            made = purify.purify_like(graph, out, reference, attributes=options["attributes"])
        if not run.workspace.budget.lacks(Need(run._largest_need)):
            run.opened[out] = made
        dropped = graph.num_edges - made.num_edges
        return {"features": len(made.columns), "edges": made.num_edges, "dropped": dropped}

    decided_by = options if trained is None else [options, run.trained_keys("purified")]
    needs = lambda: [run.foresight(run.graph()).purified()]  # noqa: E731
    yield Stage("purified", purify.FORMAT, decided_by, ("graph",), make, needs=needs)


def _label(run: RunContext) -> Iterator[Stage]:
    if run.trained is not None:
        return
    options, adapts = label_options(run.config), run.config.hops.classes is None

    def ways() -> memory.Ways[label.Searches]:
        return run.foresight(run.graph()).labels(run.purified().graph)

    def make(out: Path) -> Facts:
        searches, graph, world = run.choose("labels", ways()), run.purified().graph, run.workspace.world
        with kernel_threads(searches.threads):
            labels = label.label(
                graph, out, state_bytes=searches.state_bytes, device=run.device, world=world, adapts=adapts, **options
            )
        return {"pairs": labels.num_pairs, "sources": labels.plan.num_sources}

    needs = lambda: [need for _, need in ways()]  # noqa: E731
    yield Stage("labels", label.FORMAT, options | {"adapts": adapts}, ("purified",), make, together=True, needs=needs)


def _train(run: RunContext) -> Iterator[Stage]:
    if run.exact_first_hop and run.device == "cpu":  # a GPU makes it in less time than it would be read
        yield from (_propagate_view(run, view) for view in run.config.score.views)
    if run.trained is None:
        yield from (_train_view(run, view) for view in run.config.score.views)


def _propagate_view(run: RunContext, view: str) -> Stage:
    def make(out: Path) -> Facts:
        made = propagate.propagate_features(run.structure(view), run.purified().features, out)
        return {"view": view, "columns": made.shape[1]}

    needs = lambda: [run.foresight(run.graph()).propagated()]  # noqa: E731
    reads = ("purified",) if view == "purified" else ("graph", "purified")
    return Stage(f"propagated-{view}", propagate.FORMAT, view, reads, make, needs=needs)


def _train_view(run: RunContext, view: str) -> Stage:
    config, world, on_cpu = run.config, run.workspace.world, run.device == "cpu"
    is_small = run.recipe.step_threads == 1
    shares = world.size > 1 and not (on_cpu and is_small)

    def ways() -> memory.Ways[int]:
        return run.foresight(run.structure(view)).train()

    def make(out: Path) -> Facts:
        training = run.training(view)
        record = train.Record(config.posterior.checkpoint_every)
        workers = run.choose(f"train-{view}", ways()) if on_cpu else memory.MOST_WORKERS
        team = world if shares else ALONE
        samples = train.train(training, out, device=run.device, workers=workers, record=record, world=team)
        readings = [line for line in read_records(out / METRICS) if "loss" in line]
        last = {name: readings[-1][name] for name in ("loss", "pairs_per_second") if readings and name in readings[-1]}
        return {"view": view, "samples": len(samples)} | last

    return Stage(
        f"train-{view}",
        train.FORMAT,
        [asdict(run.recipe), config.seed, view, propagate.FORMAT],  # whether Â X is in a folder changes no result
        ("graph", "purified", "labels"),
        make,
        together=shares,
        group="train" if on_cpu and is_small else None,  # one core for each view
        leaves=("checkpoints",),
        needs=(lambda: [need for _, need in ways()]) if on_cpu else None,
    )


def _score(run: RunContext) -> Iterator[Stage]:
    config, views, options, trained = run.config, run.config.score.views, scoring_of(run.config), run.trained

    def make(out: Path) -> Facts:
        encoders, world, reference = list(map(run.view, views)), run.workspace.world, None
        if trained is not None:  # its scores, and its graph, whose rows are known history
            before = Graph.open(trained.folders["graph"], verify=False)
            reference = score.open_reference(trained.folders["scores"], before)
        on_gpu = run.device != "cpu" and has_room(encoders, run.device, run.exact_first_hop, world)
        made = score.score(
            run.graph(),
            encoders,
            out,
            options=options,
            features=run.purified().features,
            propagated=run.exact_first_hop,
            state=run.choose("scores", run.foresight(run.graph()).scores(on_gpu=on_gpu)),
            device=run.device,
            world=world,
            reference=reference,
        )
        facts = {"num_flagged": made.num_flagged, "fdr": made.fdr}
        facts |= {} if made.stability is None else {"stability": made.stability}
        return facts | ({} if made.metrics is None else {"roc_auc": made.metrics[made.rank_by]["roc_auc"]})

    needs = lambda: [need for _, need in run.foresight(run.graph()).scores()]  # noqa: E731
    trains = [f"train-{view}" for view in views]
    decides = [asdict(options), config.seed, propagate.FORMAT, *run.trained_keys(*trains, "scores")]
    reads = "graph", "purified", *(trains if trained is None else [])
    host_needs = needs if run.device == "cpu" else None
    yield Stage("scores", result.FORMAT, decides, reads, make, together=True, needs=host_needs)
    if trained is None:
        return

    def compare(out: Path) -> Facts:
        before = purify.open_purified(trained.folders["purified"], Graph.open(trained.folders["graph"], verify=False))
        scores = trained.folders["scores"], run.workspace.folders["scores"]
        found = drift.compare(before, run.purified(), *scores, out)
        return {"num_moved": len(found.moved), "line": found.line()}

    yield Stage("drift", drift.FORMAT, run.trained_keys("purified", "scores"), ("purified", "scores"), compare)


def _report(run: RunContext) -> Iterator[Stage]:
    config, folders, trains, since = run.config, run.workspace.folders, run.trained is None, run.since

    def make_cases(out: Path) -> Facts:
        made = cases.make(run.graph(), folders["scores"], out, since)
        facts: Facts = {"cases": len(made), "num_flagged": made.num_flagged}
        if made.changes is not None:
            facts |= {"num_new": len(made.changes["new"]), "line": changes_line(made.changes)}
        return facts

    yield Stage("cases", cases.FORMAT, None if since is None else since[::2], ("graph", "scores"), make_cases)
    ways = lambda: run.foresight(run.graph()).report()  # noqa: E731

    def make(out: Path) -> Facts:
        purified, graph = run.purified(), run.graph()
        made = report.report(
            graph,
            purified.graph,
            folders["scores"],
            out,
            x=purified.features,
            run={"name": config.graph.name, "seed": config.seed},
            labels=folders["labels"] if trains else None,
            features=purified.record,
            drift=folders.get("drift"),
            cases=folders["cases"],
            stages=[asdict(record) for record in run.workspace.records],
            ranks_edges=report.ranks_edges_fast(graph) and run.choose("report", ways()) == ways()[0][0],
            count_rows=None if run.given is not None else partial(sources.count_rows, config.graph, folders["graph"]),
        )
        edges = edge_lines(made["strange_edges"])
        return {"rows": len(made["table"]["rank"]), "notes": made["notes"], "strange_edges": edges}

    needs = lambda: [need for _, need in ways()]  # noqa: E731
    options = [report.NUM_EXPLAINED, config.graph.name]
    yield Stage("report", report.FORMAT, options, ("cases", "labels" if trains else "drift"), make, needs=needs)


_STAGES_OF: dict[str, Callable[[RunContext], Iterator[Stage]]] = {  # by command
    "ingest": _ingest,
    "purify": _purify,
    "label": _label,
    "train": _train,
    "score": _score,
    "report": _report,
}
