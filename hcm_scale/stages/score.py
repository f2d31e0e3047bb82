"""The score stage: a graph and, of each view, the encoder's structure, input and parameter samples in; scores out.

    out/  scores.parquet  edges_mean.npy  edges_var.npy  scale.safetensors  manifest.json

The samples of the views predict the edges (`edges.py`); edges and attributes give each node its numbers
(`score.nodes`). The two edge files hold mean and variance of each edge's hop, averaged over the views, in edge order,
rounded to 2 bytes each when all else is computed; with `state="disk"` running moments and embeddings are in files too,
as memory maps. The manifest comes last.
scale.safetensors and the table are the `Reference` by which another graph is scored with the same samples: its nodes
get the ranks that they would have here. Several ranks share nodes and edges and end in the same bytes; rank 0 writes
the folder.

Memory: two layers of embeddings (2 x n x width x 4 bytes) and 8 bytes an edge, three times if there are several views,
unless they are on disk, and a chunk; then 4 bytes an edge, thirteen numbers a node and seven of 4 bytes. With a
`Reference`, as many numbers of each of its nodes.
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from hcm_scale import plugins
from hcm_scale.base import files
from hcm_scale.base.files import hash_files, read_tensors
from hcm_scale.base.names import RANKINGS
from hcm_scale.base.npy import read_only
from hcm_scale.base.threads import run_concurrently, run_in_slices
from hcm_scale.features.auto import sample
from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph import Graph
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.size import Size
from hcm_scale.graph.store import NodeTypes
from hcm_scale.model import CHUNK_ROWS
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.score import metrics, nodes, table
from hcm_scale.score.calibration import ContextScale, Scale, scale_from_bytes, scale_to_bytes
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edge_index import EdgeIndex, edge_index
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE, EdgeHops, Hop, open_hops, save_hops
from hcm_scale.score.evidence import FEW, OwnKind, type_groups
from hcm_scale.score.residual import CHUNK_ROWS as RESIDUAL_ROWS
from hcm_scale.stages.drift import drift
from hcm_scale.stages.edges import Predicted, View, chunk_of, has_room, predict_views, sharings_of

KIND = "hcm_scale scores"
FORMAT = 11
SCALE_FILE = "scale.safetensors"
log = logging.getLogger(__name__)
_MIN_CYCLES = 100  # chance makes all even in one graph of 2^100
TYPES = {"num_samples": int, "rank_by": str, "metrics": dict[str, Any] | None, "fdr": float, "num_flagged": int}
TYPES |= {"stability": float | None, "files": dict[str, str]}
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
        """The ranked table; FolderError where it is none that this stage writes."""
        path = self.folder / table.FILE
        found = table.read_scores(path)
        table.check_ranked(path, found, found.num_rows, (*table.NUMBERS, "p", "flagged"))
        return found

    def edges(self) -> EdgeHops:
        """Mean and variance of every edge's predicted hop, as they are stored; NaN where an edge was not scored."""
        return EdgeHops(*map(np.asarray, open_hops(self.folder, None)))


def open_scores(folder: Path | str) -> ScoreResult:
    """A finished folder; FolderError where it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT, types=TYPES)
    return ScoreResult(folder, **{name: body[name] for name in _IN_MANIFEST})


class Reference(NamedTuple):
    """The scores of another graph, and what they were measured by."""

    nodes: nodes.NodeScores
    scale: Scale


def open_reference(folder: Path) -> Reference:
    """A finished folder of scores, to measure those of another graph by."""
    scale = read_tensors(folder / SCALE_FILE, scale_from_bytes)
    path, ranked = folder / table.FILE, open_scores(folder).table()
    with files.naming_damage(path):  # of flags and ranks by kind
        return Reference(replace(table.node_scores(ranked), trust=scale.context.trust), scale)


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
    evidence: tuple[str, ...] = ()  # identities of plug-ins


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
    chunk_edges: int | None = None,
    device: str,
    world: World = ALONE,
    chunk_rows: int = CHUNK_ROWS,
    like: Reference | None = None,
) -> ScoreResult:
    """Scores every node of `graph`, the original one, into the folder `out`.

    `features` are X, (n, q); the inputs of the views are Â X where `propagated`. `seed` decides which neighbours are
    scored where `how.max_neighbors` bounds them, nothing else. Where there are several ranks each calls this. `like`
    are the scores of the graph that the samples are of, if it is another.
    """
    for view in views:
        _check_view(graph, view)
    if not has_room(views, device, propagated, world):
        log.warning("scores: no GPU memory for x and an embedding of %s nodes: the cores score", f"{graph.num_nodes:,}")
        device, how = "cpu", replace(how, precision="auto")
    if graph.directed and world.leads:
        log.warning("scores: graph.directed=true counts no far triangles: closure and context_closure tell nothing")
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed, max_neighbors=how.max_neighbors, seed=seed)
    sharings = sharings_of(views, out, chunk_of(chunk_edges, device), state == "disk", device, world)
    predict = partial(
        predict_views,
        edges,
        views,
        sharings,
        hop=how.hop,
        trim=how.trim,
        precision=how.precision,
        propagated=propagated,
        chunk_rows=chunk_rows,
    )
    compute = partial(_score_attributes, graph, edges, features, how, like, device) if world.leads else None
    found, attributes = _predict_and_compute(device, predict, compute)
    if found is not None and attributes is not None:
        typed = replace(graph, node_types=graph.node_types or _sides(graph, features))
        num_samples = sum(len(view.samples) for view in views)
        _write(out, typed, edges, found, attributes, how, like=like, num_samples=num_samples, device=device)
    del found  # before its files are removed
    for sharing in sharings:
        sharing.clear()
        if world.leads and sharing.folder != out:
            shutil.rmtree(sharing.folder)
    world.barrier()
    return open_scores(out)


Attributes = tuple[nodes.AttributeScores, ContextScale]


def _predict_and_compute(
    device: str, predict: Callable[[], Predicted | None], compute: Callable[[], Attributes] | None
) -> tuple[Predicted | None, Attributes | None]:
    """Both results; while a GPU predicts, the cores compute what needs no prediction, all but very many triangles."""
    if compute is None:
        return predict(), None
    if torch.device(device).type == "cpu":
        attributes = compute()  # first, as the time left is told of what predicts
        return predict(), attributes
    predicted, computed = run_concurrently([predict, compute])
    return cast(Predicted, predicted), cast(Attributes, computed)


def _score_attributes(
    graph: Graph, edges: EdgeIndex, features: NDArray[np.float32], how: Scoring, like: Reference | None, device: str
) -> Attributes:
    """What attributes say about the nodes, and what it is measured by; 4 bytes an edge while distances are there."""
    distance = edge_similarity(graph.indptr, graph.indices, features, "cosine", directed=graph.directed)
    run_in_slices(len(distance), lambda part: np.subtract(1.0, distance[part], out=distance[part]))
    every, first = replace(edges, limit=edges.limit[:0]), _first_without_attributes(graph)
    if has_some := first < graph.num_nodes:
        starts = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        is_edge = graph.directed | (graph.indices > starts)
        is_told = np.maximum(starts, graph.indices)[is_edge] < first
        distance[~is_told] = np.median(distance[is_told]) if is_told.any() else 1.0
    found, scale = nodes.attribute_scores(
        every, features, distance, how.far_share, None if like is None else like.scale.context, device
    )
    if has_some and first:
        for values in (found.context, found.residual):
            values[first:] = np.median(values[:first])
    own = _own_evidence(how.evidence, graph, features)
    had = {} if like is None else {kind: before.identity for kind, before in like.nodes.own.items()}
    if like is not None and had != {kind: now.identity for kind, now in own.items()}:
        had_text = ", ".join(had.values()) or "none"
        raise ValueError(f"score.evidence={', '.join(how.evidence)} differs from that of the trained run, {had_text}")
    return found._replace(own=own), scale


def _own_evidence(identities: Sequence[str], graph: Graph, features: NDArray[np.float32]) -> dict[str, OwnKind]:
    """The kinds of evidence of plug-ins, by name; ValueError where one does not return a finite number a node."""
    found, given = {}, read_only(features)
    for identity in identities:
        name, compute = identity.partition("@")[0], plugins.load("evidence", identity)
        table.check_kind_name(name)
        values = np.array(compute(graph, given), np.float64)
        if values.shape != (graph.num_nodes,) or not np.isfinite(values).all():
            wanted = f"a finite number of each node, ({graph.num_nodes},), not {values.shape}"
            raise ValueError(
                f"score.evidence={name} must return {wanted}; the median is one that says nothing of a node"
            )
        found[name] = OwnKind(values, str(getattr(compute, "words", "")), identity)
    return found


def _first_without_attributes(graph: Graph) -> int:
    """The first of the nodes, the last ones, that edges alone name and no attribute is known of; n where none is so.

    They are given what is usual: nothing is said of their attributes, and nothing by them of their neighbours'.
    """
    ingest = graph.info.get("ingest", {})
    has_others = any(column["method"] in ("of edges", "degree") for column in ingest.get("columns", []))
    return graph.num_nodes - (0 if has_others else ingest.get("counts", {}).get("added_nodes", 0))


def _sides(graph: Graph, features: NDArray[np.float32]) -> NodeTypes | None:
    """The two sides of a graph such as that of users and shops, as types of nodes; None where there are none for sure.

    Chance colours small trees: sides count where one component has nine in ten of the nodes with edges, and many
    independent cycles, all of them even. Sides that are alike in size, as those of a grid of streets, or in features
    are no types: each by itself would only be fewer nodes to tell what is usual.
    """
    if (side := two_sides(graph)) is None:
        return None
    arcs = sparse.csr_array((np.ones(graph.num_arcs, np.int8), graph.indices, graph.indptr), shape=(len(side),) * 2)
    _, component = connected_components(arcs, connection="weak")
    in_largest = component == np.bincount(component[side >= 0], minlength=1).argmax()
    small, large = sorted(sizes := np.bincount(np.maximum(side[in_largest], 0), minlength=2))
    num_cycles = graph.degrees[in_largest].sum() / (1 if graph.directed else 2) - len(side[in_largest]) + 1
    is_sure = num_cycles >= max(_MIN_CYCLES, 0.05 * (small + large)) and small + large >= 0.9 * (side >= 0).sum()
    if not is_sure or small < FEW or large < 1.1 * small:
        return None
    first, second = (np.asarray(sample(features[in_largest & (side == number)])) for number in (0, 1))
    if not drift({str(k): (first[:, k], second[:, k]) for k in range(first.shape[1])}).moved:
        return None
    what = "the graph has two sides, of %s and %s nodes, and no edge within either: each is compared with its own side"
    log.info(what, f"{large:,}", f"{small:,}")
    return NodeTypes(np.where(in_largest, side == sizes.argmin(), NO_TYPE).astype(np.uint8), ("side 1", "side 2"))


def _score_nodes(
    types: NodeTypes | None,
    edges: EdgeIndex,
    found: Predicted,
    attributes: nodes.AttributeScores,
    context: ContextScale,
    how: Scoring,
    like: Reference | None,
    *,
    device: str,
) -> tuple[nodes.NodeScores, Scale]:
    """All numbers of the nodes, and what they are measured by."""
    usual, scale = (None, None) if like is None else like
    mean = found.hops.mean
    far = far_cut(mean, how.far_share) if scale is None else scale.far
    scores = nodes.score_nodes(edges, found.hops, trim=how.trim, like=usual, known=(found.ahp, found.iv))
    if types is not None:  # another graph's groups count, if it has any
        groups = type_groups(types) if usual is None else usual.groups
        scores = replace(scores, types=types, groups=groups)
    scores = nodes.with_closure(scores, edges, mean, far, attributes.expected, device)
    scores, strange = nodes.with_strange(scores, found.view_ahp, None if scale is None else scale.strange)
    return nodes.with_attributes(scores, attributes, usual), Scale(far, strange, context)


def _check_view(graph: Graph, view: View) -> None:
    structure, x, samples = view
    if not graph.num_nodes == structure.num_nodes == len(x):
        raise ValueError(
            f"the graph has {graph.num_nodes} nodes, the encoder's graph {structure.num_nodes} and the features "
            f"{len(x)} rows: they must belong to one graph"
        )
    if samples.model["directed"] != graph.directed:
        names = {True: "directed", False: "undirected"}
        raise ValueError(
            f"the samples are of a model of {names[not graph.directed]} graphs; this graph is {names[graph.directed]}: "
            f"graph.directed={str(not graph.directed).lower()} reads it as the model's was"
        )


def _write(
    out: Path,
    graph: Graph,
    edges: EdgeIndex,
    found: Predicted,
    attributes: Attributes,
    how: Scoring,
    *,
    like: Reference | None,
    num_samples: int,
    device: str,
) -> None:
    """Writes edges, table, scale, and the manifest last."""
    rank = partial(_score_nodes, graph.node_types, edges, found, *attributes, how, like, device=device)
    (scores, scale), _ = cast(Any, run_concurrently([rank, partial(save_hops, found.hops, out)]))
    verdict = nodes.verdict_of(scores, how.fdr, None if like is None else like.nodes)

    def write_files() -> None:
        table.write_scores(out / table.FILE, table.row_groups(graph, scores, how.rank_by, verdict))
        files.write_bytes(out / SCALE_FILE, scale_to_bytes(scale))

    def measure() -> dict[str, Any] | None:
        y = _labels(graph)
        return None if y is None else {by: metrics.evaluate(y, scores.by(by), graph.kind) for by in RANKINGS}

    stable = partial(nodes.stability, scores, found.view_ahp, how.rank_by)
    tasks: list[Callable[[], Any]] = [write_files, measure, stable]
    _, numbers, stability = run_concurrently(tasks)
    names = table.FILE, MEAN_FILE, VAR_FILE, SCALE_FILE
    hashes = dict(zip(names, hash_files([out / name for name in names]), strict=True))
    body = {"num_samples": num_samples, "rank_by": how.rank_by, "metrics": numbers, "stability": stability}
    body |= {"fdr": how.fdr, "num_flagged": int(np.count_nonzero(verdict.flagged)), "files": hashes}
    files.write_manifest(out, KIND, FORMAT, body)


def _labels(graph: Graph) -> NDArray[np.uint8] | None:
    """Labels that tell two groups of nodes apart; None if there are none."""
    return graph.y if graph.y is not None and 0 < np.count_nonzero(graph.y) < graph.num_nodes else None


def needed_bytes(
    size: Size,
    num_features: int,
    widths: tuple[int, int],
    *,
    num_views: int,
    num_own_kinds: int = 0,
    on_disk: bool,
    num_ranks: int = 1,
    on_gpu: bool = False,
) -> int:
    """First embeddings and the running moments of edges, then everything about nodes, which is rank 0's.

    Two layers of embeddings, unless a GPU has them, and moments of 8 bytes an edge, unless both are on disk, a chunk of
    rows as it passes through a layer, and a chunk of edges a thread; `widths` are those of layers and the head. Ranks
    have their layers on disk, share the moments, and map what rank 0 continues with. Moments are there a second time
    while a second view is predicted, and a third while views are averaged. About attributes there are distances over
    edges, and five copies of a chunk of features a thread, most in float64, beside the moments; then marked edges, or 4
    bytes a node and thread, while triangles or squares are counted. A GPU predicts at the same time. About nodes there
    are fourteen numbers, sorted by every kind, and pieces of their table, one a thread and one more, as rows (150 bytes
    each) and encoded, and as many that wait to be written; marks of far edges and distances; where nodes are of several
    types, their numbers, places and sums type by type (120).
    """
    n, m, (width, head_width), threads = size.num_nodes, size.num_edges, widths, numba.get_num_threads()
    layers = 0 if on_disk or on_gpu or num_ranks > 1 else 8 * n * width
    chunks = 4 * threads * min(chunk_of(None, "cpu"), m) * (width + head_width + 8)
    rows = min(n, CHUNK_ROWS) * (4 * width + 6 * num_features)
    moments = 0 if on_disk else 8 * m
    whole, again = moments if num_ranks == 1 else 0, num_views > 1
    embedding = layers + 52 * n + rows + chunks + moments // num_ranks + whole * again
    residuals = 44 * threads * min(n, RESIDUAL_ROWS) * num_features
    about_attributes = 92 * n + residuals + 4 * m + max(5 * m, 4 * threads * n) + whole
    group = table.group_rows(n)
    pieces = 300 * min(n, (threads + 1) * group) + 100 * min(n, threads * group)
    about_nodes = (354 + 16 * again + 12 * num_own_kinds) * n + pieces + 7 * m + whole
    first = embedding + about_attributes if on_gpu else max(embedding, about_attributes)
    return (80 << 20) + max(first, about_nodes, 3 * whole * again)
