"""The score stage: a graph, its encoder's structure and features, and parameter samples in; a folder of scores out.

    out/  scores.parquet  edges_mean.npy  edges_var.npy  scale.safetensors  manifest.json

For each sample the whole graph is embedded layer by layer on `structure` (the purified or the original graph), and
every edge of the original graph is predicted. The two edge files hold mean and variance of each edge's hop, in edge
order; with `state="disk"` they are also where the running moments live, as memory maps. The manifest comes last.
scale.safetensors and the table are what another graph's scores are measured by (`Reference`), so that its ranks are
those that its nodes would have here: tomorrow's graph, scored with the samples of today.
Several ranks share the edges (`shared_edges.py`) and end in the same bytes; rank 0 writes the folder.

Memory: two layers of embeddings (2 x n x width x 4 bytes), 8 bytes an edge unless on disk, a chunk; after them 4 bytes
an edge, eleven numbers a node and five of 4 bytes. 10 million nodes and 80 million edges at width 128 take
10.2 GB + 0.64 GB, then 1.4; by the measure of another graph, as many numbers of each of its nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base import files
from hcm_scale.base.names import PLACES, RANKINGS
from hcm_scale.base.progress import bar
from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.posterior.samples import Samples
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.score import metrics, nodes, table
from hcm_scale.score.calibration import Scale, context_scale, from_bytes, to_bytes
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE, EdgeHops, Hop, check_options
from hcm_scale.score.head import Head
from hcm_scale.score.numbering import edge_index
from hcm_scale.score.threshold import check_rate
from hcm_scale.stages.shared_edges import Sharing, chunk_of, predict_shared, save_hops

KIND = "hcm_scale scores"
FORMAT = 4
SCALE_FILE = "scale.safetensors"


_IN_MANIFEST = ("num_samples", "rank_by", "metrics", "fdr", "num_flagged", "stability")


@dataclass(frozen=True)
class ScoreResult:
    """A finished folder of scores. `metrics` maps every ranking to numbers, or is None without labels."""

    folder: Path
    num_samples: int
    rank_by: str
    metrics: dict[str, Any] | None
    fdr: float | None
    num_flagged: int | None  # nodes that stand out at this false-discovery rate
    stability: float | None  # share of the first nodes that two encoders agree on; None where there is one

    def table(self) -> pa.Table:
        """The ranked table, most anomalous node first."""
        return table.read_scores(self.folder / table.FILE)

    def edges(self) -> EdgeHops:
        """Mean and variance of every edge's predicted hop, as memory maps; NaN where an edge was not scored."""
        mean, var = (np.load(self.folder / name, mmap_mode="r", allow_pickle=False) for name in (MEAN_FILE, VAR_FILE))
        return EdgeHops(mean, var)


def open_scores(folder: Path | str) -> ScoreResult:
    """A finished folder; FolderError where it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT)
    return ScoreResult(folder, **{name: body[name] for name in _IN_MANIFEST})


class Reference(NamedTuple):
    """The scores of another graph, and what they were measured by."""

    nodes: nodes.NodeScores
    scale: Scale


def open_reference(folder: Path) -> Reference:
    """A finished folder of scores, to measure those of another graph by."""
    scale = from_bytes((folder / SCALE_FILE).read_bytes())
    return Reference(table.node_scores(open_scores(folder).table()), scale)


@dataclass(frozen=True)
class Scoring:
    """What decides the scores of a run besides its samples and its seed."""

    hop: Hop
    trim: float
    far_share: float  # of the edges: those count as far where triangles of far edges are counted
    max_neighbors: int | None
    rank_by: str
    fdr: float | None  # the false-discovery rate at which nodes are flagged; None: none is, as of one view of several
    precision: str

    def __post_init__(self) -> None:
        nodes.check_trim(self.trim)
        nodes.check_rank_by(self.rank_by)
        if self.fdr is not None:
            check_rate(self.fdr)


def score(
    graph: Graph,
    structure: Graph,
    x: NDArray[np.float32],
    samples: Samples,
    out: Path,
    *,
    how: Scoring,
    features: NDArray[np.float32] | None,
    propagated: bool,
    seed: int,
    state: str,
    chunk_edges: int | None,
    device: str,
    world: World = ALONE,
    chunk_rows: int = 65_536,
    like: Reference | None = None,
) -> ScoreResult:
    """Scores every node of `graph`, the original one, into the folder `out`.

    `structure` is the graph the encoder was trained on, `x` its (n, q) input: Â X where `propagated`, else X.
    `features` are X; None leaves out the evidence of attributes, which `combine_scores` adds once for several views.
    `seed` decides which neighbours are scored where `how.max_neighbors` bounds them, nothing else. Where there are
    several ranks each calls this. `like` are the scores of the graph that the samples are of, if it is another.
    """
    check_options(how.hop, chunk_edges, torch.device(device), how.precision)
    _check_parts(graph, structure, x, samples, state)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed, max_neighbors=how.max_neighbors, seed=seed)
    embedded = embed_samples(
        samples.model, samples, structure, x, propagated=propagated, chunk_rows=chunk_rows, device=device
    )
    sharing = Sharing(world, out, chunk_of(chunk_edges, device), on_disk=state == "disk")
    with bar(sharing.num_own(edges.num_edges) * len(samples), "edge", "score", unit_scale=True) as shown:
        predict = {"hop": how.hop, "device": device, "precision": how.precision, "on_edges": shown.update}
        hops = predict_shared(edges, embedded, sharing, **predict)
    if hops is not None:
        usual = None if like is None else like.nodes
        scale = Scale(far_cut(hops.mean, how.far_share)) if like is None else like.scale
        scores = nodes.score_nodes(edges, hops, trim=how.trim, like=usual)
        scores = nodes.with_closure(scores, edges, hops.mean, scale.far, usual)
        if features is None:
            scores = nodes.with_score(scores, usual)
        else:
            scores, scale = _with_context(scores, graph, features, how, scale, usual)
        _write(out, graph, scores, hops, how, scale=scale, num_samples=len(samples), usual=usual)
    world.barrier()
    return open_scores(out)


def combine_scores(
    graph: Graph,
    views: Iterable[Path],
    out: Path,
    *,
    how: Scoring,
    features: NDArray[np.float32],
    seed: int,
    like: Reference | None = None,
    like_views: Sequence[Reference] = (),
) -> ScoreResult:
    """One folder from the folders of several encoders: the scores of their averaged edges.

    `strange` alone adds up the z-scored AHP of each encoder. `like` and `like_views` are the scores of the graph that
    the samples were trained on, and those of its encoders, if it is another.
    """
    results = [open_scores(view) for view in views]
    parts = [table.node_scores(result.table()) for result in results]
    usual, usual_parts = None if like is None else like.nodes, [view.nodes for view in like_views]
    added = nodes.combine_views(parts, usual_parts)
    found = [result.edges() for result in results]
    hops = EdgeHops(_mean([view.mean for view in found]), _mean([view.var for view in found]))
    drawn: dict[str, Any] = {"directed": graph.directed, "max_neighbors": how.max_neighbors, "seed": seed}
    edges = edge_index(graph.indptr, graph.indices, **drawn)
    scale = Scale(far_cut(hops.mean, how.far_share)) if like is None else like.scale
    usual_added = None if usual is None else replace(nodes.combine_views(usual_parts), closure=usual.closure)
    closed = nodes.with_closure(added, edges, hops.mean, scale.far, usual_added)
    scores = nodes.score_nodes(edges, hops, trim=how.trim, like=usual)
    scores = replace(scores, closure=closed.closure, strange=closed.strange)
    scores, scale = _with_context(scores, graph, features, how, scale, usual)
    out.mkdir(parents=True, exist_ok=True)
    num_samples = sum(result.num_samples for result in results)
    stability = metrics.top_overlap([part.by(how.rank_by) for part in parts])
    told: dict[str, Any] = {"num_samples": num_samples, "stability": stability}
    _write(out, graph, scores, hops, how, scale=scale, usual=usual, **told)
    return open_scores(out)


def _with_context(
    scores: nodes.NodeScores,
    graph: Graph,
    features: NDArray[np.float32],
    how: Scoring,
    scale: Scale,
    usual: nodes.NodeScores | None,
) -> tuple[nodes.NodeScores, Scale]:
    """The scores with the evidence of attributes, the score of all evidence, and the whole scale.

    4 bytes an edge while it lasts.
    """
    distance = edge_similarity(graph.indptr, graph.indices, features, "cosine", directed=graph.directed)
    np.subtract(1.0, distance, out=distance)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    measure = scale.context or context_scale(edges, features, distance, how.far_share)
    return nodes.with_context(scores, edges, features, distance, measure, usual), Scale(scale.far, measure)


def embed_samples(
    model: Mapping[str, Any],
    samples: Iterable[Mapping[str, Tensor]],
    structure: Graph,
    x: NDArray[np.float32],
    *,
    propagated: bool,
    chunk_rows: int = 65_536,
    device: str,
) -> Iterator[tuple[Tensor, Head]]:
    """(embedding of all nodes, pair head) of each sample, one at a time; on a CPU the embeddings share one buffer."""
    net = HopModel(**model).to(device)
    width = net.encoder[-1].weight.shape[1]
    buffer = np.empty((structure.num_nodes, width), np.float32) if torch.device(device).type == "cpu" else None
    where: dict[str, Any] = {"propagated": propagated, "chunk_rows": chunk_rows, "device": device}
    where["weights"] = structure.weights
    for sample in samples:
        net.load_state_dict(dict(sample))
        yield embed_graph(net, structure.indptr, structure.indices, x, out=buffer, **where), Head.of(sample)


def _check_parts(graph: Graph, structure: Graph, x: NDArray[np.float32], samples: Samples, state: str) -> None:
    if state not in PLACES:
        raise ValueError(f"state={state!r} must be one of {', '.join(PLACES)}")
    if not graph.num_nodes == structure.num_nodes == len(x):
        raise ValueError(
            f"the graph has {graph.num_nodes} nodes, the encoder's graph {structure.num_nodes} and the features "
            f"{len(x)} rows: they must belong to one graph"
        )
    if samples.model["directed"] != graph.directed:
        names = {True: "directed", False: "undirected"}
        raise ValueError(
            f"the samples are of a model of {names[not graph.directed]} graphs; this graph is {names[graph.directed]}"
        )


def _write(
    out: Path,
    graph: Graph,
    scores: nodes.NodeScores,
    hops: EdgeHops,
    how: Scoring,
    *,
    scale: Scale,
    num_samples: int,
    stability: float | None = None,
    usual: nodes.NodeScores | None = None,
) -> None:
    """Table, edges, scale, metrics, and the manifest last."""
    verdict = None if how.fdr is None else nodes.verdict_of(scores, how.fdr, usual)
    table.write_scores(out / table.FILE, table.scores_table(graph, scores, how.rank_by, verdict))
    save_hops(hops, out)
    files.write_bytes(out / SCALE_FILE, to_bytes(scale))
    numbers = None
    if graph.y is not None and 0 < np.count_nonzero(graph.y) < graph.num_nodes:
        numbers = {by: metrics.evaluate(graph.y, scores.by(by), graph.kind) for by in RANKINGS}
    hashes = {name: files.hash_file(out / name) for name in (table.FILE, MEAN_FILE, VAR_FILE, SCALE_FILE)}
    body = {"num_samples": num_samples, "rank_by": how.rank_by, "metrics": numbers, "stability": stability}
    num_flagged = None if verdict is None else int(np.count_nonzero(verdict.flagged))
    body |= {"fdr": how.fdr, "num_flagged": num_flagged, "files": hashes}
    files.write_manifest(out, KIND, FORMAT, body)


def _mean(views: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The average of several arrays, without a copy of each in memory."""
    total = np.zeros(views[0].shape, np.float32)
    for view in views:
        total += view
    return np.divide(total, len(views), out=total)
