"""What each stage was foreseen to take, against the most that it took: a grid of graphs and options.

A run is made whole first, so that everything is compiled. Then each stage is taken away and made again in a process of
its own: what is foreseen is what that process held before the stage and the stage's need (`run/memory.py`); what is
measured is the most anonymous memory seen from outside, every 10 ms. Pages of mapped files count in neither.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.apart import run_apart
from bench.harness import Table, at_most
from hcm_scale.base.memory import anonymous_bytes
from hcm_scale.config import Config, FolderGraph, SyntheticGraph, with_options
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.run import pipeline
from hcm_scale.run.stages import RunContext, stages
from hcm_scale.run.workspace import Workspace
from hcm_scale.synthetic import families as synthetic

STAGES = ("graph", "purified", "labels", "propagated-purified", "train-purified", "scores", "report")
LIMIT_SECONDS = 600
MOST_RATIO = 1.5


@dataclass(frozen=True)
class Point:
    """One run of the grid; attributes are sparse, ten values a row, where there are over 1,000."""

    nodes: int
    edges_per_node: int = 8
    attributes: int = 20
    batch: int = 512
    threads: int = 2
    fan_out: str = "all"
    width: int = 64
    family: str = "community"


GRID = {
    "smoke": [Point(500)],
    "quick": [
        Point(2_000),
        Point(2_000, attributes=1_500, threads=1),
        Point(20_000),
        Point(20_000, edges_per_node=40, batch=4_096),
        Point(20_000, attributes=3_000, fan_out="10", threads=1),
        Point(65_536, family="rmat", edges_per_node=16, width=128),
        Point(100_000, batch=2_048, threads=1),
        Point(100_000, attributes=1_500),
        Point(300_000),
        Point(300_000, edges_per_node=16, attributes=100, fan_out="10", batch=4_096),
        Point(300_000, attributes=3_000, width=16),
    ],
}
GRID["full"] = [*GRID["quick"], Point(1_000_000), Point(1_000_000, edges_per_node=16, width=128, batch=8_192)]


def cases(size: str) -> Iterator[Table]:
    """One table: a row a stage and point."""
    rows = []
    for point in GRID[size]:
        with tempfile.TemporaryDirectory(prefix="bench-foreseen-") as root:
            rows += measure(Path(root), point, apart=size != "smoke")
    worst = max((row["ratio"] for row in rows), default=float("nan"))
    yield Table("foreseen and measured peaks", rows, [at_most("foreseen against measured", worst, MOST_RATIO, "x")])


def measure(root: Path, point: Point, *, apart: bool) -> Iterator[dict[str, Any]]:
    """The stages of one point, each made twice."""
    arguments: dict[str, Any] = {"root": str(root), "point": asdict(point)}
    whole = run_apart(job, arguments | {"stage": None}, limit_seconds=LIMIT_SECONDS, apart=apart)
    if not whole.done:
        raise RuntimeError(f"{point}: {whole.state}")
    for stage in STAGES:
        outcome = run_apart(job, arguments | {"stage": stage}, limit_seconds=LIMIT_SECONDS, apart=apart)
        if not outcome.done:
            raise RuntimeError(f"{point}, {stage}: {outcome.state}")
        before, need = outcome.facts["before"], outcome.facts["need"]
        peak = outcome.peak_anonymous_bytes if apart else before + need
        ratio = max((before + need) / peak, peak / (before + need))
        yield asdict(point) | {
            "stage": stage,
            "before_mib": before / 2**20,
            "foreseen_mib": (before + need) / 2**20,
            "peak_mib": peak / 2**20,
            "ratio": ratio,
        }


def job(root: str, point: dict[str, Any], stage: str | None) -> Callable[[], dict[str, Any]]:
    """The whole run, or one stage of it anew."""
    config = configuration(Path(root), Point(**point))
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    if stage is not None:
        shutil.rmtree(run_dir / stage)

    @pipeline.run_threads(config.world.threads, pipeline.ALONE)
    def run() -> dict[str, Any]:
        workspace = Workspace(run_dir)
        for made in stages(RunContext(config, workspace, "cpu")):
            held = (
                {"before": anonymous_bytes(), "need": made.needs()[0].held if made.needs else 0}
                if made.name == stage
                else {}
            )
            workspace.make(made)
            if held:
                return held
        return {}

    return run


def configuration(root: Path, point: Point) -> Config:
    """A run with a short chain."""
    source: Any = SyntheticGraph(
        family=point.family,
        num_nodes=point.nodes,
        edges_per_node=point.edges_per_node,
        num_attributes=point.attributes,
    )
    if point.attributes > 1_000:
        source = FolderGraph(path=str(root / "given"))
        if not (root / "given").exists():
            make_sparse(point).save(root / "given")
    options = {
        "run_dir": str(root / "run"),
        "world.threads": point.threads,
        "world.device": "cpu",
        "sampling.batch_pairs": point.batch,
        "sampling.fan_out": [point.fan_out],
        "model.width": point.width,
        "model.head_width": point.width,
        "posterior.burn_in_steps": 10,
        "posterior.num_samples": 2,
    }
    return with_options(Config(graph=source), options)


def make_sparse(point: Point) -> Graph:
    """Communities with ten of the many attributes a node, at random."""
    graph = synthetic.community(point.nodes, edges_per_node=point.edges_per_node, num_attributes=1)
    rng = np.random.default_rng(0)
    steps = rng.integers(1, point.attributes // 10, (point.nodes, 10), dtype=np.int32)
    columns = (np.cumsum(steps, axis=1) - 1).astype(np.int32).ravel()
    indptr = np.arange(0, 10 * point.nodes + 1, 10)
    x = SparseRows(indptr, columns, np.ones(len(columns), np.float32), point.attributes)
    return Graph(graph.indptr, graph.indices, x)
