"""Peak memory of labelling and training on a million nodes and eight million edges, each stage in its own process.

Claims: the label stage (4,096 sources, 4 classes, 256 pairs) takes at most 20 s and 1 GiB; training takes at most 2 GiB
beside the pages of mapped files, which the system drops when it needs them, and no more when there are many more pairs.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.apart import Outcome
from bench.harness import Table, Verdict, at_most
from bench.stages import Work, make_tiny, run_stage

NODES = {"smoke": 512, "quick": 2**20, "full": 2**20}
# sources and pairs a class: the fewest that still fill a batch of training, about 2 * 10^5 pairs
FEW = {"smoke": (20, 8), "quick": (1024, 64), "full": (1024, 64)}
MANY = {"smoke": (60, 32), "quick": (4096, 256), "full": (4096, 6144)}  # 4 million; 10^8 in the full run
NUM_STEPS = {"smoke": 2, "quick": 12, "full": 200}
LIMIT_SECONDS = {"smoke": 60, "quick": 300, "full": 1800}
CLAIMED_PAIRS = 256  # a source and class
GIB = 2**30


def cases(size: str) -> Iterator[Table]:
    """One folder, labelled twice, trained twice, scored once."""
    few, many = (
        Work(NODES[size], "rmat", num_sources, pairs, NUM_STEPS[size], name)
        for name, (num_sources, pairs) in (("label", FEW[size]), ("label-many", MANY[size]))
    )
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as root:
        folder, tiny = Path(root) / "folder", Path(root) / "tiny"
        if size != "smoke":
            make_tiny(tiny, few)
        outcomes = measure(folder, None if size == "smoke" else tiny, few, many, LIMIT_SECONDS[size])
    rows = [describe(name, outcome) for name, outcome in outcomes.items()]
    title = f"R-MAT, {NODES[size]:,} nodes, 8 edges a node, 20 attributes"
    yield Table(title, rows, list(claims(outcomes)))


def measure(folder: Path, tiny: Path | None, few: Work, many: Work, limit_seconds: float) -> dict[str, Outcome]:
    """Every stage, named by what it was given."""
    claimed = replace(many, pairs_per_class=CLAIMED_PAIRS, labels="label-claimed")
    plan = [
        ("graph", "graph", few),
        ("purify", "purify", few),
        ("propagate", "propagate", few),
        ("label, few pairs", "label", few),
        ("label, many pairs", "label", many),
        *[("label, 256 pairs", "label", claimed)] * (many.pairs_per_class != CLAIMED_PAIRS),
        ("train, few pairs", "train", few),
        ("train, many pairs", "train-many", many),
        ("score, 1 sample", "score", few),
    ]
    outcomes = {}
    for name, out, work in plan:
        stage = name.split(",")[0]
        place = work.labels if stage == "label" else out
        outcomes[name] = run_stage(stage, folder, place, tiny, work, limit_seconds=limit_seconds)
        if not outcomes[name].done:
            break
    return outcomes


def describe(name: str, outcome: Outcome) -> dict[str, Any]:
    """One row."""
    return {
        "stage": name,
        "state": outcome.state,
        "pairs": outcome.facts.get("num_pairs"),
        "seconds": outcome.seconds,
        "peak_rss_gib": outcome.peak_rss_bytes / GIB,
        "peak_anonymous_gib": outcome.peak_anonymous_bytes / GIB,
    }


def claims(outcomes: dict[str, Outcome]) -> Iterator[Verdict]:
    """A stage that was not reached has no numbers and holds no claim."""
    missing = Outcome("not reached")
    labelled = outcomes.get("label, 256 pairs", outcomes.get("label, many pairs", missing))
    yield at_most("label stage, 4,096 sources, time", labelled.seconds, 20, "s")
    yield at_most("label stage, 4,096 sources, peak RSS", labelled.peak_rss_bytes / GIB, 1, "GiB")
    few, many = (outcomes.get(f"train, {amount} pairs", missing) for amount in ("few", "many"))
    yield at_most("training, peak anonymous memory", many.peak_anonymous_bytes / GIB, 2, "GiB")
    growth = many.peak_anonymous_bytes / few.peak_anonymous_bytes if few.peak_anonymous_bytes else float("nan")
    yield at_most("training on many pairs against few, peak anonymous memory", growth, 1.15, "x")
