"""One walk through the stages of a run: what each of them reads of the configuration and of the folders before it.

`blueprint.py` lists the stages. A run with `trained` reads samples and scores from the folders of another one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcm_scale import foresight
from hcm_scale.base.budget import Need
from hcm_scale.base.free_memory import gib
from hcm_scale.config import Config
from hcm_scale.features import propagate
from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import Samples, open_samples
from hcm_scale.stages import purify, scored
from hcm_scale.trained import Trained
from hcm_scale.workspace import Workspace

log = logging.getLogger(__name__)
Choice = TypeVar("Choice")


@dataclass
class Run:
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
            *_, (_, least) = foresight.score(self.config, self.graph(), self.purified().features, **where)
            self.workspace.check_fits("scores, later", least)

    def samples(self, view: str) -> Samples:
        folders = self.workspace.folders if self.trained is None else self.trained.folders
        return open_samples(folders[f"train-{view}"] / "samples")

    def reference(self) -> scored.Reference | None:
        """The scores of the trained run, by which those of this one are measured."""
        return None if self.trained is None else scored.open_reference(self.trained.folders["scores"])

    def trained_keys(self, *names: str) -> list[str]:
        """The keys of stages of the trained run, for the options of what reads them; empty where there is none."""
        return [] if self.trained is None else [self.trained.keys[name] for name in names]

    @property
    def exact_first_hop(self) -> bool:
        return self.config.sampling.first_hop == "exact"
