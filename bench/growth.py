"""How time and memory grow: every stage at 10^4, 10^5, 10^6 (and 10^7) nodes, each in a process of its own.

Synthetic communities, 8 edges a node, 20 attributes. The label stage walks a fixed number of sources and the train
stage makes a fixed number of steps, so the first should grow with the edges and the second hardly at all. An exponent
is the slope of a line through the logarithms of seconds (or bytes) and of edges; 1.1 is the most it may be. Small
graphs fit into the cache and pay fixed costs, so the last step, to the largest size, is shown beside it.
"""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Table, Verdict, at_most
from bench.stages import STAGES, Work, make_tiny, tiny_work, walk

NODES = {"smoke": (500, 2000), "quick": (10_000, 100_000, 1_000_000), "full": (10_000, 100_000, 1_000_000, 10_000_000)}
LIMIT_SECONDS = {"smoke": 60, "quick": 300, "full": 3600}
MOST_EXPONENT = 1.1
Rows = list[dict[str, Any]]


def cases(size: str) -> Iterator[Table]:
    """The measurements with their figure, then the exponents."""
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as root:
        tiny = Path(root) / "tiny"
        if size != "smoke":
            make_tiny(tiny, Work(num_nodes=0))
        for num_nodes in NODES[size]:
            work = Work(num_nodes) if size != "smoke" else replace(tiny_work(Work(0)), num_nodes=num_nodes)
            with tempfile.TemporaryDirectory(dir=root) as folder:
                rows += measure(Path(folder), None if size == "smoke" else tiny, work, LIMIT_SECONDS[size])
    done = [row for row in rows if row["state"] == "done"]
    yield Table("seconds and peak memory of each stage", rows, figure=draw(done))
    fits = exponents(done)
    yield Table("fitted exponents in the number of edges", fits, list(claims(fits)))


def measure(folder: Path, tiny: Path | None, work: Work, limit_seconds: float) -> Rows:
    """All stages at one size."""
    rows, num_edges = [], 0
    for stage, outcome in walk(folder, tiny, work, limit_seconds=limit_seconds):
        num_edges = outcome.facts.get("num_edges", num_edges) if stage == "graph" else num_edges
        rows.append(
            {
                "stage": stage,
                "nodes": work.num_nodes,
                "edges": num_edges,
                "state": outcome.state,
                "seconds": outcome.seconds,
                "peak_rss_gib": outcome.peak_rss_bytes / 2**30,
                "peak_anonymous_gib": outcome.peak_anonymous_bytes / 2**30,
            }
        )
    return rows


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent k of y = a x^k through the points, by least squares of the logarithms.

    >>> round(slope([1, 10, 100], [3, 300, 30000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else math.nan


def exponents(rows: Rows) -> Rows:
    """Per stage: exponents of seconds and of anonymous bytes over all sizes, and of seconds over the last step."""
    fits = []
    for stage in STAGES:
        own = [row for row in rows if row["stage"] == stage]
        edges, seconds = [row["edges"] for row in own], [row["seconds"] for row in own]
        memory = [row["peak_anonymous_gib"] for row in own]
        known = all(value > 0 for value in memory)  # not where a smoke run measured nothing
        fits.append(
            {
                "stage": stage,
                "sizes": len(own),
                "seconds_exponent": slope(edges, seconds),
                "last_step_exponent": slope(edges[-2:], seconds[-2:]),
                "memory_exponent": slope(edges, memory) if known else math.nan,
            }
        )
    return fits


def claims(fits: Rows) -> Iterator[Verdict]:
    """No stage grows faster than the graph."""
    for fit in fits:
        yield at_most(f"{fit['stage']}, seconds", fit["seconds_exponent"], MOST_EXPONENT, "in edges")


def draw(rows: Rows) -> Any:
    """Seconds and peak memory over edges, both logarithmic, one line a stage."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = zip(figure.subplots(1, 2), ("seconds", "peak_rss_gib"), ("seconds", "peak RSS, GiB"), strict=True)
    for axes, key, name in panels:
        for stage, marker in zip(STAGES, itertools.cycle("osD^vPX"), strict=False):
            own = [row for row in rows if row["stage"] == stage]
            axes.plot([row["edges"] for row in own], [row[key] for row in own], marker=marker, label=stage)
        axes.set(xscale="log", yscale="log", xlabel="edges", ylabel=name)
        axes.grid(alpha=0.3)
    figure.axes[1].legend(fontsize="small", frameon=False)
    return figure
