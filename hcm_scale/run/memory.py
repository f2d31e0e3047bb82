"""The most memory that each stage of a run will hold at once, foreseen before the first is made.

`Foresight` holds the sizes and options of a run. Of each stage it gives the ways to make it, fastest first, with the
`Need` of each: fewer threads or narrower blocks, fewer workers, embeddings and moments of edges on disk. Ways differ in
memory and time, never in the result; `choose` picks the first that fits. What a stage takes is said beside its code, by
`needed_bytes` of plain sizes: the arrays that are alive at the same moment, and what any graph takes, such as compiled
code. Pages of mapped files, which the system drops when it needs them, do not count. `python -m bench foreseen`
compares with what is measured.

Only `least_needs`, of all stages, refuses a run: nobody trains for an hour to be refused at the report.
"""

import logging
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale.base.memory import Budget, Need, gib
from hcm_scale.graph import Graph
from hcm_scale.graph.size import Size
from hcm_scale.shards import LabelPlan
from hcm_scale.stages import ingest, label, purify, report, score, train
from hcm_scale.stages.label import Searches
from hcm_scale.stages.train import Recipe

MOST_WORKERS = 1  # threads that prepare batches beside the training; results do not depend on their number
_CHANGE = {  # options that make a stage smaller
    "graph": "lower graph.num_nodes, graph.edges_per_node or graph.num_attributes",
    "purified": "set or lower attributes.pca",
    "labels": "lower hops.num_sources, hops.pairs_per_class or world.threads",
    "train": "lower sampling.batch_pairs, sampling.fan_out, sampling.hub_cap or model.width",
    "scores": "lower model.width",
}

log = logging.getLogger(__name__)
Choice = TypeVar("Choice")
Ways = list[tuple[Choice, Need]]


def size_of_source(source: schema.GraphConfig) -> Size:
    """Of a graph that will be generated; of files, of which nothing is known, the smallest there is."""
    if not isinstance(source, schema.SyntheticGraph):
        return Size.made(1, 1, 1)
    made = Size.made(source.num_nodes, source.edges_per_node, source.num_attributes)
    return made._replace(value_bytes=np.dtype(source.attributes_dtype).itemsize)


def choose(stage: str, ways: Ways[Choice], budget: Budget, *, logs: bool = True) -> Choice:
    """The first way that fits into memory, the last if none does; logged where it is not the fastest."""
    chosen, need = budget.choose(ways)
    if logs and chosen != ways[0][0]:
        free, fastest = budget.free(), ways[0][1]
        sizes = gib(fastest.held), gib(need.held), gib(free.held), free.bound
        log.info("%s: %s to save memory: %s would be needed, this takes %s, and %s are %s", stage, chosen, *sizes)
    return chosen


@dataclass(frozen=True)
class Foresight:
    """What the memory of a run depends on; of a graph that is not there yet only its size, and no degrees."""

    config: schema.Config
    label_options: dict[str, Any]
    recipe: Recipe
    size: Size
    num_features: int
    indptr: NDArray[np.int64] | None = None
    num_ranks: int = 1

    def _need(self, stage: str, held: int, mapped: int = 0) -> Need:
        features = 8 * self.size.num_nodes * self.num_features
        return Need(held, self.size.mapped_bytes + features + mapped, _CHANGE.get(stage, ""))

    def graph(self, *, generates: bool, injects: bool) -> Need:
        """Of files nothing is known before they are read."""
        return Need(ingest.needed_bytes(self.size, generates=generates, injects=injects), 0, _CHANGE["graph"])

    def purified(self) -> Need:
        return self._need("purified", purify.needed_bytes(self.size, self.num_features, self.config.purify.ratio))

    def propagated(self) -> Need:
        return self._need("propagated", purify.propagating_bytes(self.size.num_nodes, self.num_features))

    def labels(self, graph: Graph) -> Ways[Searches]:
        """Of the graph itself."""
        return [(way, self._need("labels", held)) for way, held in label.ways_to_search(graph, self.label_options)]

    @property
    def _plan(self) -> LabelPlan:
        n = max(1, self.size.num_nodes)
        num_sources = min(n, self.label_options["num_sources"] or n)
        return LabelPlan("", n, False, **self.label_options | {"num_sources": num_sources})

    def _least_labels(self) -> Need:
        sizes = self._plan, self._plan.num_nodes, self.size.num_arcs
        return self._need("labels", label.needed_bytes(*sizes, Searches(1, 1)))

    def train(self) -> Ways[int]:
        """A worker that prepares batches, then none."""
        n, limits, plan = max(1, self.size.num_nodes), self.recipe.limits[::-1], self._plan
        drawn = [min(limit, self.size.num_arcs / n) for limit in limits]
        drawn = drawn if self.indptr is None else train.mean_drawn(self.indptr, limits)
        per_class = plan.num_sources * min(n, plan.pairs_per_class or n)
        most_pairs = int(self.recipe.batching.sampling_ratio * plan.classes * per_class)
        pairs: Any = {"most_pairs": most_pairs, "group_pairs": plan.classes * plan.row_group_rows}

        def held(workers: int) -> int:
            return train.needed_bytes(self.recipe, n, self.num_features, drawn, **pairs, workers=workers)

        return [(workers, self._need("train", held(workers))) for workers in range(MOST_WORKERS, -1, -1)]

    def scores(self, *, on_gpu: bool = False) -> Ways[str]:
        """Embeddings and moments of edges in memory, then on disk."""
        model, scored, size = self.config.model, self.config.score, self.size
        options: Any = {"num_views": len(scored.views), "num_own_kinds": len(scored.evidence), "on_gpu": on_gpu}
        stored = 8 * size.num_nodes * model.width + 24 * size.num_edges

        def need_of(on_disk: bool) -> Need:
            widths = model.width, model.head_width
            own = options | {"on_disk": on_disk, "num_ranks": self.num_ranks}
            held = score.needed_bytes(size, self.num_features, widths, **own)
            return self._need("scores", held, stored * (on_disk or self.num_ranks > 1))

        return [(state, need_of(state == "disk")) for state in ("memory", "disk")]

    def report(self) -> Ways[str]:
        """No option makes it smaller; strange edges are left out where they do not fit."""
        ways = {"with strange edges": True, "without strange edges": False}
        held = {name: report.needed_bytes(self.size, self.num_features, ranks_edges=on) for name, on in ways.items()}
        return [(name, self._need("report", most)) for name, most in held.items()]

    def least_needs(self) -> dict[str, Need]:
        """What the least demanding way to make each stage after the graph takes, by the first word of its name."""
        ways = {"train": self.train()[-1], "scores": self.scores()[-1], "report": self.report()[-1]}
        needs = {"purified": self.purified(), "labels": self._least_labels(), "propagated": self.propagated()}
        return needs | {name: need for name, (_, need) in ways.items()}
