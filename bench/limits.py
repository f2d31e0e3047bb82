"""Whether runs keep world.memory_gib: limits of half to four times what a free run takes, at several sizes.

A limit is kept, or refused before any stage but the graph is made; never exceeded, and never refused where it is twice
what a run at some other limit took. Measured is resident memory without pages of files (RssAnon), polled every 10 ms
from outside, of a run in a process of its own whose kernels are compiled.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.apart import run_apart
from bench.harness import Table, at_most
from hcm_scale.config import Config, SyntheticGraph, with_options
from hcm_scale.run import pipeline

NODES = {"smoke": [300], "quick": [1_000, 30_000], "full": [1_000, 10_000, 100_000, 300_000]}
LIMITS = {"smoke": 1, "quick": 6, "full": 30}
LIMIT_SECONDS = 900


def cases(size: str) -> Iterator[Table]:
    """One table: a row a size and limit."""
    rows: list[dict[str, Any]] = []
    for nodes in NODES[size]:
        rows += measure(nodes, LIMITS[size], apart=size != "smoke")
    exceeded = sum(row["state"] == "done" and row["peak_gib"] > row["limit_gib"] for row in rows)
    needless = sum(row["state"] == "refused" and row["limit_gib"] > 2 * row["least_gib"] for row in rows)
    late = sum(row["state"] not in ("done", "refused") for row in rows)
    claims = [
        ("limits exceeded", exceeded),
        ("refused though twice enough", needless),
        ("failed or refused late", late),
    ]
    yield Table("limits of memory", rows, [at_most(name, count, 0, "runs") for name, count in claims])


def measure(nodes: int, num_limits: int, *, apart: bool) -> list[dict[str, Any]]:
    """The runs of one size; `least_gib` is the smallest peak of those that were done."""
    free = one_run(nodes, None, apart=apart)
    limits = free["peak_gib"] * np.geomspace(0.5, 4.0, num_limits)
    rows = [free | {"limit_gib": float("inf")}]
    rows += [one_run(nodes, round(float(limit), 3), apart=apart) for limit in limits]
    least = min(row["peak_gib"] for row in rows if row["state"] == "done")
    return [row | {"least_gib": least} for row in rows]


def one_run(nodes: int, limit: float | None, *, apart: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as root:
        arguments = {"root": root, "nodes": nodes, "limit": limit}
        outcome = run_apart(job, arguments, limit_seconds=LIMIT_SECONDS, apart=apart)
    peak = outcome.peak_anonymous_bytes if apart else 2**28
    state = outcome.facts["state"] if outcome.done else outcome.state
    return {"nodes": nodes, "limit_gib": limit, "state": state, "peak_gib": peak / 2**30}


def job(root: str, nodes: int, limit: float | None) -> Callable[[], dict[str, Any]]:
    """A default run of communities; its state is "done", "refused", or the stages that were made for nothing."""
    config = with_options(
        Config(graph=SyntheticGraph(num_nodes=nodes)),
        {"run_dir": f"{root}/run", "world.memory_gib": limit, "world.device": "cpu"},
    )

    def run() -> dict[str, Any]:
        try:
            pipeline.run(config)
        except ValueError as error:
            made = {path.stem for path in Path(root).glob("run/records/*.json")} - {"graph"}
            return {"state": f"refused after {sorted(made)}: {error}" if made else "refused"}
        return {"state": "done"}

    return run
