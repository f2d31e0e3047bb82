"""The score stage: a graph and, of each view, the encoder's structure, features and parameter samples in; a folder of
scores out.

    out/  scores.parquet  edges_mean.npy  edges_var.npy  scale.safetensors  manifest.json

For each sample of each view the whole graph is embedded layer by layer on the view's structure (the purified or the
original graph), and every edge of the original graph is predicted. The two edge files hold mean and variance of each
edge's hop, averaged over the views, in edge order; with `state="disk"` they are also where the running moments live, as
memory maps. The manifest comes last. scale.safetensors and the table are what another graph's scores are measured by
(`Reference`), so that its ranks are those that its nodes would have here: tomorrow's graph, scored with the samples of
today. Several ranks share the edges (`shared_edges.py`) and end in the same bytes; rank 0 writes the folder.

Memory: two layers of embeddings (2 x n x width x 4 bytes), 8 bytes an edge unless on disk, twice where there are
several views, and a chunk; after them 4 bytes an edge, eleven numbers a node and five of 4 bytes. By the measure
of another graph, as many numbers of each of its nodes.
"""

import shutil
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
from hcm_scale.base.beside import side_by_side
from hcm_scale.base.names import PLACES, RANKINGS
from hcm_scale.base.progress import bar
from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, embed_graph
from hcm_scale.posterior.samples import Samples
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.sampling.device.graph import graph_to
from hcm_scale.score import metrics, nodes, table
from hcm_scale.score.calibration import Scale, context_scale, from_bytes, to_bytes
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE, EdgeHops, Hop, check_options
from hcm_scale.score.head import Head
from hcm_scale.score.numbering import EdgeIndex, edge_index
from hcm_scale.score.threshold import check_rate
from hcm_scale.stages.embed_device import columns_for, embed_all
from hcm_scale.stages.shared_edges import Sharing, chunk_of, predict_shared, save_hops

KIND = "hcm_scale scores"
FORMAT = 5
SCALE_FILE = "scale.safetensors"


_IN_MANIFEST = ("num_samples", "rank_by", "metrics", "fdr", "num_flagged", "stability")


@dataclass(frozen=True)
class ScoreResult:
    """A finished folder of scores. `metrics` maps every ranking to numbers, or is None without labels."""

    folder: Path
    num_samples: int
    rank_by: str
    metrics: dict[str, Any] | None
    fdr: float
    num_flagged: int  # nodes that stand out at this false-discovery rate
    stability: float | None  # share of the first nodes that stay first by either encoder; None where there is one

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
    fdr: float  # the false-discovery rate at which nodes are flagged
    precision: str

    def __post_init__(self) -> None:
        nodes.check_trim(self.trim)
        nodes.check_rank_by(self.rank_by)
        check_rate(self.fdr)


class View(NamedTuple):
    """One encoder: the graph it runs on, its (n, q) input, Â X or X, and the samples of its parameters."""

    structure: Graph
    x: NDArray[np.float32]
    samples: Samples


def score(
    graph: Graph,
    views: Sequence[View],
    out: Path,
    *,
    how: Scoring,
    features: NDArray[np.float32],
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

    `features` are X, (n, q); the inputs of the views are Â X where `propagated`. `seed` decides which neighbours are
    scored where `how.max_neighbors` bounds them, nothing else. Where there are several ranks each calls this. `like`
    are the scores of the graph that the samples are of, if it is another.
    """
    check_options(how.hop, chunk_edges, torch.device(device), how.precision)
    for view in views:
        _check_view(graph, view, state)
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed, max_neighbors=how.max_neighbors, seed=seed)
    sharing = Sharing(world, out, chunk_of(chunk_edges, device), on_disk=state == "disk")
    embed: dict[str, Any] = {"propagated": propagated, "chunk_rows": chunk_rows, "device": device}
    found = _predict_views(edges, views, sharing, how, embed)
    if found is not None:
        hops, apart = found
        scores, scale = _score_nodes(graph, edges, hops, apart, features, how, like)
        stability = nodes.stability(scores, apart, how.rank_by)
        told: dict[str, Any] = {"num_samples": sum(len(view.samples) for view in views), "stability": stability}
        _write(out, graph, scores, hops, how, scale=scale, usual=None if like is None else like.nodes, **told)
    world.barrier()
    return open_scores(out)


def _predict_views(
    edges: EdgeIndex, views: Sequence[View], sharing: Sharing, how: Scoring, embed: dict[str, Any]
) -> tuple[EdgeHops, list[NDArray[np.float64]]] | None:
    """The hop of every edge, averaged over the views, and the AHP of each where there are several; None but on rank 0.

    The first view's hops are where the others are added.
    """
    total: EdgeHops | None = None
    apart = []
    work = sharing.num_own(edges.num_edges) * sum(len(view.samples) for view in views)
    with bar(work, "edge", "score", unit_scale=True) as shown:
        predict = {"hop": how.hop, "device": embed["device"], "precision": how.precision, "on_edges": shown.update}
        for number, view in enumerate(views):
            own = sharing if number == 0 else replace(sharing, folder=sharing.folder / f"view-{number}")
            embedded = embed_samples(view.samples.model, view.samples, view.structure, view.x, **embed)
            hops = predict_shared(edges, embedded, own, **predict)
            if hops is None:
                continue
            if len(views) > 1:
                apart.append(nodes.average_hops(edges, hops, how.trim)[0])
            if total is None:
                total = hops
            else:
                for whole, part in zip(total, hops, strict=True):
                    whole += part
                del hops, part
                shutil.rmtree(own.folder)
    if total is None:
        return None
    for whole in total:
        whole /= len(views)
    return total, apart


def _score_nodes(
    graph: Graph,
    edges: EdgeIndex,
    hops: EdgeHops,
    apart: Sequence[NDArray[np.float64]],
    features: NDArray[np.float32],
    how: Scoring,
    like: Reference | None,
) -> tuple[nodes.NodeScores, Scale]:
    """All numbers of the nodes, and what they are measured by; 4 bytes an edge while distances are there."""
    usual, scale = (None, None) if like is None else like
    far = far_cut(hops.mean, how.far_share) if scale is None else scale.far
    scores = nodes.score_nodes(edges, hops, trim=how.trim, like=usual)
    scores = nodes.with_closure(scores, edges, hops.mean, far)
    scores, strange = nodes.with_strange(scores, apart, None if scale is None else scale.strange)
    distance = edge_similarity(graph.indptr, graph.indices, features, "cosine", directed=graph.directed)
    np.subtract(1.0, distance, out=distance)
    every = replace(edges, limit=edges.limit[:0])
    context = context_scale(every, features, distance, how.far_share) if scale is None else scale.context
    return nodes.with_context(scores, every, features, distance, context, usual), Scale(far, strange, context)


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
    """(embedding of all nodes, pair head) of each sample, one at a time; all embeddings share one buffer."""
    net = HopModel(**model).to(device)
    if (columns := columns_for(net, torch.device(device), propagated=propagated)) is not None:
        held = graph_to(device, structure.indptr, structure.indices, x, columns)
        room = torch.empty(held.num_nodes, net.encoder[-1].weight.shape[1], device=device)
        for sample in samples:
            net.load_state_dict(dict(sample))
            yield embed_all(net, held, room), Head.of(sample)
        return
    width = net.encoder[-1].weight.shape[1]
    buffer = np.empty((structure.num_nodes, width), np.float32) if torch.device(device).type == "cpu" else None
    where: dict[str, Any] = {"propagated": propagated, "chunk_rows": chunk_rows, "device": device}
    for sample in samples:
        net.load_state_dict(dict(sample))
        yield embed_graph(net, structure.indptr, structure.indices, x, out=buffer, **where), Head.of(sample)


def _check_view(graph: Graph, view: View, state: str) -> None:
    structure, x, samples = view
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


def _measure(graph: Graph, scores: nodes.NodeScores) -> dict[str, Any] | None:
    """How good every ranking is, where labels tell two groups apart."""
    if graph.y is None or not 0 < np.count_nonzero(graph.y) < graph.num_nodes:
        return None
    return {by: metrics.evaluate(graph.y, scores.by(by), graph.kind) for by in RANKINGS}


def _write(
    out: Path,
    graph: Graph,
    scores: nodes.NodeScores,
    hops: EdgeHops,
    how: Scoring,
    *,
    scale: Scale,
    num_samples: int,
    stability: float | None,
    usual: nodes.NodeScores | None,
) -> None:
    """Table, edges, scale, metrics, and the manifest last."""
    verdict = nodes.verdict_of(scores, how.fdr, usual)

    def write_files() -> None:
        table.write_scores(out / table.FILE, table.row_groups(graph, scores, how.rank_by, verdict))
        save_hops(hops, out)
        files.write_bytes(out / SCALE_FILE, to_bytes(scale))

    _, numbers = side_by_side([write_files, lambda: _measure(graph, scores)])
    hashes = {name: files.hash_file(out / name) for name in (table.FILE, MEAN_FILE, VAR_FILE, SCALE_FILE)}
    body = {"num_samples": num_samples, "rank_by": how.rank_by, "metrics": numbers, "stability": stability}
    body |= {"fdr": how.fdr, "num_flagged": int(np.count_nonzero(verdict.flagged)), "files": hashes}
    files.write_manifest(out, KIND, FORMAT, body)
