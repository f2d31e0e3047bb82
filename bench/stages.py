"""The stages of a run as jobs for a process of their own: each reads what the stages before it left in a folder.

    folder/  graph/  purify/  propagate/  label/  train/  score/  report/

Before a stage is measured it runs once on a tiny folder, into a place that is thrown away: that is compilation, imports
and first touches. `walk` makes all stages of a folder, each measured apart.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.apart import Outcome, run_apart
from bench.defaults import LABEL, PLAN, PURIFY, RECIPE, SCORE, TRAIN
from hcm_scale.features.propagate import open_propagated, propagate_features
from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import open_samples
from hcm_scale.shards import open_labels
from hcm_scale.stages.edges import View
from hcm_scale.stages.label import label as label_stage
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.purify import purify as purify_stage
from hcm_scale.stages.report import report as report_stage
from hcm_scale.stages.score import score as score_stage
from hcm_scale.stages.train import Training
from hcm_scale.stages.train import train as train_stage
from hcm_scale.synthetic import families as synthetic

_TINY_NODES = 2048


@dataclass(frozen=True)
class Work:
    """How much each stage does; only the number of nodes grows along a growth curve."""

    num_nodes: int
    family: str = "community"  # or rmat, whose nodes are rounded down to a power of two
    num_sources: int = 1024
    pairs_per_class: int = 256
    num_steps: int = 12
    labels: str = "label"  # the folder that the label stage makes and the train stage reads


def make_graph(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """8 edges a node, 20 attributes."""
    if work.family == "rmat":
        graph = synthetic.rmat(work.num_nodes.bit_length() - 1)
    else:
        graph = synthetic.community(work.num_nodes)
    graph.save(out)
    return {"num_edges": graph.num_edges}


def purify(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """Attributes by rule (they are normal, and so standardised), Euclidean, a fifth of the edges dropped."""
    made = purify_stage(Graph.open(folder / "graph", verify=False), out, **PURIFY)
    return {"num_edges": made.graph.num_edges}


def propagate(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """The first propagation, exact."""
    made = open_purified(folder / "purify", Graph.open(folder / "graph", verify=False))
    return {"shape": propagate_features(made.graph, made.features, out).shape}


def label(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """A fixed number of sources: its work grows with the edges."""
    options = LABEL | {"num_sources": work.num_sources, "pairs_per_class": work.pairs_per_class}
    labels = label_stage(
        open_purified(folder / "purify", Graph.open(folder / "graph", verify=False)).graph, out, **options
    )
    return {"num_pairs": labels.num_pairs}


def train(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """A fixed number of steps of the default recipe: its work does not grow, except for reading what it is given."""
    made = open_purified(folder / "purify", Graph.open(folder / "graph", verify=False))
    recipe = replace(RECIPE, plan=replace(PLAN, burn_in_steps=work.num_steps - 1, num_samples=1, thin_steps=1))
    labels, x = open_labels(folder / work.labels), open_propagated(folder / "propagate")
    train_stage(Training(made.graph, x, labels, recipe, seed=0), out, device="cpu", **TRAIN)
    return {"num_pairs": labels.num_pairs}


def score(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """One parameter sample over all edges of the original graph."""
    graph = Graph.open(folder / "graph", verify=False)
    made = open_purified(folder / "purify", graph)
    x, samples = open_propagated(folder / "propagate"), open_samples(folder / "train" / "samples")
    views = [View(made.graph, x, samples)]
    score_stage(graph, views, out, features=made.features, propagated=True, device="cpu", **SCORE)
    return {"num_edges": graph.num_edges}


def report(folder: Path, out: Path, work: Work) -> dict[str, Any]:
    """The page and the ranked table."""
    graph = Graph.open(folder / "graph", verify=False)
    made = open_purified(folder / "purify", graph)
    labels = folder / work.labels
    report_stage(graph, made.graph, folder / "score", out, run={"name": "bench"}, labels=labels)
    return {}


STAGES: dict[str, Callable[[Path, Path, Work], dict[str, Any]]] = {
    "graph": make_graph,
    "purify": purify,
    "propagate": propagate,
    "label": label,
    "train": train,
    "score": score,
    "report": report,
}


def job(stage: str, folder: str, out: str, tiny: str | None, work: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """One stage of `folder` into folder/out; `tiny` is a folder with all stages made, to warm up on."""
    make, own = STAGES[stage], Work(**work)
    if tiny is not None:
        brief = replace(tiny_work(own), labels="label")
        works = [brief, replace(brief, num_sources=own.num_sources)] if stage == "label" else [brief]
        for work_ahead in works:  # few sources and many are labelled by different kernels
            with tempfile.TemporaryDirectory(dir=Path(tiny).parent) as spare:  # goes with its parent if this is killed
                make(Path(tiny), Path(spare) / "out", work_ahead)
    return lambda: make(Path(folder), Path(folder) / out, own)


def tiny_work(work: Work) -> Work:
    """The same stages on next to nothing."""
    return replace(work, num_nodes=_TINY_NODES, num_sources=64, pairs_per_class=64, num_steps=2)


def make_tiny(folder: Path, work: Work) -> None:
    """All stages of a tiny folder, in this process, for others to warm up on."""
    for name, make in STAGES.items():
        make(folder, folder / name, tiny_work(work))


def walk(
    folder: Path, tiny: Path | None, work: Work, *, limit_seconds: float, stages: Sequence[str] = tuple(STAGES)
) -> Iterator[tuple[str, Outcome]]:
    """(stage, how it went), one after the other; after one that failed none follows. Without `tiny` in this process."""
    for stage in stages:
        out = work.labels if stage == "label" else stage
        outcome = run_stage(stage, folder, out, tiny, work, limit_seconds=limit_seconds)
        yield stage, outcome
        if not outcome.done:
            return


def run_stage(stage: str, folder: Path, out: str, tiny: Path | None, work: Work, *, limit_seconds: float) -> Outcome:
    """One stage in a process of its own."""
    arguments = {
        "stage": stage,
        "folder": str(folder),
        "out": out,
        "tiny": None if tiny is None else str(tiny),
        "work": asdict(work),
    }
    return run_apart(job, arguments, limit_seconds=limit_seconds, apart=tiny is not None)
