"""A million new edges by a finished run: `hcm-scale score-edges`, from a CSV to a CSV with all columns.

The peer is the only other way to have them judged by the same model: the graph with these edges in it, scored anew with
`trained=`, which reads, purifies, propagates, embeds and scores all of it and trains nothing; its input is in memory
already, and no table of edges is written. Beside it stands what knows least: scikit-learn's cosine distance of both
ends' embeddings under one parameter sample, held in memory. Each has a process of its own, prepared by a small table;
embeddings are there before, but for the row that makes them. `core_seconds` are those of both cores together, which
other work on the machine changes less. Claims: a million edges in half a minute of one core, and less than the peer.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from scipy import sparse

from bench.apart import run_apart
from bench.harness import Table, at_least, at_most
from hcm_scale.cli import commands
from hcm_scale.config import Config, SyntheticGraph, with_options
from hcm_scale.edges import new as new_edges
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import as_trained

NUM_NODES = {"smoke": 500, "quick": 100_000, "full": 1_000_000}
NUM_EDGES = {"smoke": 2_000, "quick": 1_000_000, "full": 1_000_000}
FEW_STEPS = {
    "posterior.burn_in_steps": 20,
    "posterior.num_samples": 4,
    "posterior.thin_steps": 5,
    "world.device": "cpu",
}
LIMIT_SECONDS = 1_800


def make(root: Path, num_nodes: int, num_edges: int) -> None:
    """A run of communities, and tables of random pairs: of known accounts, and with a tenth of unknown ones."""
    config = with_options(Config(run_dir=str(root / "run")), FEW_STEPS)
    pipeline.run(replace(config, graph=SyntheticGraph(num_nodes=num_nodes)), until="score")
    tables = {
        "new": (1.0, num_edges),
        "unknown": (1.1, num_edges),
        "few-new": (1.0, 1_000),
        "few-unknown": (1.1, 1_000),
    }
    for name, (most, count) in tables.items():
        rng = np.random.default_rng(0)
        source, target = rng.integers(0, int(most * num_nodes), (2, count))
        amounts = rng.lognormal(3, 1, count).round(2)
        pyarrow.csv.write_csv(pa.table({"source": source, "target": target, "amount": amounts}), root / f"{name}.csv")


def ours(root: str, table: str, fresh: bool = False) -> Callable[[], dict[str, Any]]:
    """The command; with `fresh` the run has no embeddings yet."""
    folder = Path(root)
    commands.score_edges([str(folder / "run"), str(folder / f"few-{table}"), "-o", str(folder / "scored.csv")])
    if fresh:
        shutil.rmtree(folder / "run" / new_edges.FOLDER)
    words = [str(folder / "run"), str(folder / table), "-o", str(folder / "scored.csv")]
    return lambda: _timed(commands.score_edges, words)


def anew(root: str) -> Callable[[], dict[str, Any]]:
    """All edges, old and new, scored by the samples of the run."""
    folder = Path(root)
    graph = Graph.open(folder / "run" / "graph", verify=False)
    new = pyarrow.csv.read_csv(folder / "new.csv")
    ends = np.stack([new["source"].to_numpy(), new["target"].to_numpy()])
    ends = np.concatenate([ends, ends[::-1], [np.repeat(np.arange(graph.num_nodes), graph.degrees), graph.indices]], 1)
    csr = sparse.coo_array((np.ones(ends.shape[1], bool), tuple(ends)), shape=(graph.num_nodes,) * 2).tocsr()
    csr.setdiag(False)
    csr.eliminate_zeros()
    csr.sort_indices()
    whole = Graph(csr.indptr.astype(np.int64), csr.indices.astype(np.int32), x=np.asarray(graph.x))
    config = as_trained(Config(run_dir=str(folder / "anew"), trained=str(folder / "run")))
    config = with_options(config, {"world.device": "cpu"})
    return lambda: _timed(lambda: pipeline.run(config, until="score", graph=whole))


def cosine(root: str) -> Callable[[], dict[str, Any]]:
    """The cosine distance of two embeddings."""
    from sklearn.metrics.pairwise import paired_cosine_distances

    z = np.load(next((Path(root) / "run" / new_edges.FOLDER).glob("*-00000.npy")))
    new = pyarrow.csv.read_csv(Path(root) / "new.csv")
    left, right = (new[end].to_numpy() for end in ("source", "target"))
    return lambda: _timed(lambda: paired_cosine_distances(z[left], z[right]))


def _timed(work: Callable[..., Any], *given: Any) -> dict[str, float]:
    started = time.process_time()
    work(*given)
    return {"core_seconds": time.process_time() - started}


def cases(size: str) -> Iterator[Table]:
    """One table, a row a way."""
    nodes, count = NUM_NODES[size], NUM_EDGES[size]
    with tempfile.TemporaryDirectory(prefix="bench-score-edges-") as root:
        make(Path(root), nodes, count)
        jobs: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "score-edges, and embeddings made": (ours, {"table": "new.csv", "fresh": True}),
            "score-edges": (ours, {"table": "new.csv"}),
            "score-edges, a tenth of the accounts unknown": (ours, {"table": "unknown.csv"}),
            "the graph with them scored anew": (anew, {}),
            "cosine of one embedding": (cosine, {}),
        }
        found = {
            name: run_apart(job, {"root": root, **more}, limit_seconds=LIMIT_SECONDS, apart=size != "smoke")
            for name, (job, more) in jobs.items()
        }
        stored = sum(path.stat().st_size for path in (Path(root) / "run" / new_edges.FOLDER).iterdir())
    core = {name: each.facts.get("core_seconds", float("nan")) for name, each in found.items()}
    rows = [
        {
            "way": name,
            "state": each.state,
            "seconds": each.seconds,
            "core_seconds": core[name],
            "peak_anonymous_mib": each.peak_anonymous_bytes / 2**20,
        }
        for name, each in found.items()
    ]
    claims = [
        at_most("a million new edges", core["score-edges"] * 1e6 / count, 30, "core seconds"),
        at_least("against scoring anew", core["the graph with them scored anew"] / core["score-edges"], 1, "x"),
    ]
    title = f"{count:,} new edges of {nodes:,} accounts, 8 parameter samples"
    yield Table(title, rows, claims, notes=[f"embeddings take {stored / 2**20:,.0f} MiB on disk"])
