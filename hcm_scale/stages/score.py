"""The score stage: a graph and, of each view, the encoder's structure, input and parameter samples in; scores out.

    out/  scores.parquet  edges_mean.npy  edges_var.npy  scale.safetensors  manifest.json

The samples of the views predict the edges (`edges.py`); edges and attributes give each node its numbers
(`score.nodes`). The two edge files hold mean and variance of each edge's hop, averaged over the views, in edge order,
rounded to 2 bytes each; with `state="disk"` running moments and embeddings are memory maps. The manifest comes last.
scale.safetensors and the table are the `Reference` by which another graph is scored with the same samples: its nodes
get the ranks that they would have here. Several ranks share nodes and edges and end in the same bytes; rank 0 writes
the folder.

Memory: two layers of embeddings (2 x n x width x 4 bytes) and 8 bytes an edge, three times if there are several views,
unless they are on disk, and a chunk; then 4 bytes an edge, thirteen numbers a node and seven of 4 bytes. With a
`Reference`, as many numbers of each of its nodes.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from hcm_scale import plugins
from hcm_scale.base import files
from hcm_scale.base.files import hash_files
from hcm_scale.base.names import RANKINGS
from hcm_scale.base.threads import run_concurrently
from hcm_scale.features.auto import sample
from hcm_scale.graph import Graph
from hcm_scale.graph.check import NO_TYPE
from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.size import Size
from hcm_scale.graph.store import NodeTypes
from hcm_scale.model import CHUNK_ROWS
from hcm_scale.ranks.world import ALONE, World
from hcm_scale.rows.evidence import FILES as ROW_FILES
from hcm_scale.score import metrics, nodes, table
from hcm_scale.score.calibration import scale_to_bytes
from hcm_scale.score.edge_index import EdgeIndex, edge_index
from hcm_scale.score.edges import MEAN_FILE, VAR_FILE, EdgeHops, Hop, save_hops
from hcm_scale.score.evidence import FEW, type_groups
from hcm_scale.score.kinds import attributes
from hcm_scale.score.kinds.all import KINDS, ROW_KINDS
from hcm_scale.score.kinds.inputs import KindInputs, NodeHops
from hcm_scale.score.kinds.kind import Kind, Values
from hcm_scale.score.kinds.plugin import kind_of_plugin
from hcm_scale.score.result import FORMAT, KIND, SCALE_FILE, ScoreResult, open_scale, open_scores
from hcm_scale.score.threshold import expected_precision
from hcm_scale.stages.drift import drift
from hcm_scale.stages.edges import Predicted, View, chunk_of, has_room, predict_views, sharings_of

log = logging.getLogger(__name__)
_MIN_CYCLES = 100  # chance makes all even in one graph of 2^100
_MANY_FLAGGED = 1_000  # of these the first hundred are a draw, whichever encoder predicts
_MOST_FLAGGED = 0.25  # of the nodes, by a trained run that still says something of them
_FIRSTS = (50, 100, 200, 500, 1_000)  # rows


class Reference(NamedTuple):
    """The scores of another graph, and what they were measured by."""

    nodes: nodes.NodeScores
    scale: Mapping[str, Values]
    graph: Graph | None = None


class _Scale(dict[str, Values]):
    """What a folder's scores were measured by; a name that it lacks, which this graph needs, is told with its file."""

    path: Path

    def __missing__(self, name: str) -> Values:
        raise files.FolderError(f"{self.path} is damaged: {name!r} is missing")


def open_reference(folder: Path, graph: Graph | None = None) -> Reference:
    """A finished folder of scores, of this graph, to measure those of another graph by."""
    path, ranked = folder / table.FILE, open_scores(folder).table()
    scale = _Scale(open_scale(folder, ranked))
    scale.path = folder / SCALE_FILE
    with files.naming_damage(path):  # of flags and ranks by kind
        trust, learnt = (float(scale[name][0]) for name in ("trust", "learnt"))
        return Reference(replace(table.node_scores(ranked), trust=trust, learnt=learnt), scale, graph)


@dataclass(frozen=True)
class Scoring:
    """What decides the scores of a run besides its samples."""

    hop: Hop
    trim: float
    far_share: float  # of the edges: those count as far where triangles of far edges are counted
    rank_by: str
    fdr: float  # the false-discovery rate at which nodes are flagged
    precision: str
    evidence: tuple[str, ...] = ()  # identities of plug-ins


def score(
    graph: Graph,
    views: Sequence[View],
    out: Path,
    *,
    options: Scoring,
    features: NDArray[np.float32],
    propagated: bool,
    state: str,
    chunk_edges: int | None = None,
    device: str,
    world: World = ALONE,
    chunk_rows: int = CHUNK_ROWS,
    reference: Reference | None = None,
) -> ScoreResult:
    """Scores every node of `graph`, the original one, into the folder `out`.

    `features` are X, (n, q); the inputs of the views are Â X where `propagated`. Where there are
    several ranks each calls this. `reference` are the scores of the graph that the samples are of, if it is another.
    """
    for view in views:
        _check_view(graph, view)
    if not has_room(views, device, propagated, world):
        nodes_text = f"{graph.num_nodes:,}"
        log.warning("scores: no GPU memory for x and an embedding of %s nodes: scoring on the CPU", nodes_text)
        device, options = "cpu", replace(options, precision="auto")
    if graph.directed and world.leads:
        log.warning("scores: graph.directed=true counts no triangles of far edges, nor of unlike nodes")
    edges = edge_index(graph.indptr, graph.indices, directed=graph.directed)
    sharings = sharings_of(views, out, chunk_of(chunk_edges, device), state == "disk", device, world)
    predict = partial(
        predict_views,
        edges,
        views,
        sharings,
        hop=options.hop,
        trim=options.trim,
        precision=options.precision,
        propagated=propagated,
        chunk_rows=chunk_rows,
    )
    inputs = KindInputs(
        graph,
        edges,
        features,
        options.far_share,
        device,
        None if reference is None else reference.scale,
        first_without_attributes=_first_without_attributes(graph),
        earlier=None if reference is None else reference.graph,
    )
    kinds = kinds_for(inputs, options.evidence, reference)
    compute = partial(_numbers_without_hops, kinds, inputs) if world.leads else None
    predicted, numbers = _predict_and_compute(device, predict, compute)
    if predicted is not None and numbers is not None:
        of_nodes = predicted.ahp, predicted.iv, predicted.view_ahp
        inputs.hops = NodeHops(predicted.hops.mean, *of_nodes, views[0].samples.model["num_classes"])
        types = graph.node_types or _sides(graph, features)
        num_samples = sum(len(view.samples) for view in views)
        typed = replace(graph, node_types=types)
        rank = partial(_rank, kinds, numbers, inputs, edges, types, reference)
        _write(out, typed, inputs, predicted.hops, rank, options, num_samples=num_samples, reference=reference)
        del rank
    del predicted, inputs, numbers, compute  # before files that they map are removed
    for sharing in sharings:
        sharing.clear()
        if world.leads and sharing.folder != out:
            shutil.rmtree(sharing.folder)
    world.barrier()
    return open_scores(out)


def kinds_for(
    inputs: KindInputs, identities: Sequence[str] = (), reference: Reference | None = None
) -> tuple[Kind, ...]:
    """The kinds of evidence that a graph has anything for, and those of plug-ins."""
    own = [kind_of_plugin(identity, plugins.load("evidence", identity)) for identity in identities]
    for kind in own:
        table.check_kind(kind)
    kinds = tuple(kind for kind in (*KINDS.values(), *own) if kind.applies(inputs))
    if reference is not None:
        had, has = ({kind.identity or kind.name for kind in some} for some in (reference.nodes.kinds, kinds))
        if had != has:
            before, now = (", ".join(sorted(some)) for some in (had - has, has - had))
            raise ValueError(f"score.evidence={now or 'none'} differs from that of the trained run, {before or 'none'}")
    return kinds


Numbers = dict[str, Values]


def _predict_and_compute(
    device: str, predict: Callable[[], Predicted | None], compute: Callable[[], Numbers] | None
) -> tuple[Predicted | None, Numbers | None]:
    """Both results; while a GPU predicts, the cores compute what needs no prediction, all but very many triangles."""
    if compute is None:
        return predict(), None
    if torch.device(device).type == "cpu":
        numbers = compute()  # first, as the time left is told of what predicts
        return predict(), numbers
    predicted, computed = run_concurrently([predict, compute])
    return cast(Predicted, predicted), cast(Numbers, computed)


def _numbers_without_hops(kinds: Sequence[Kind], inputs: KindInputs) -> Numbers:
    numbers = nodes.make_numbers((kind for kind in kinds if not kind.needs_hops), inputs)
    assert 0.0 <= inputs.trust <= 1.0  # made here, while a GPU predicts
    inputs.release()
    return numbers


def _first_without_attributes(graph: Graph) -> int | None:
    """The first of the nodes, the last ones, that edges alone name and no attribute is known of; None if none is so."""
    ingest = graph.info.get("ingest", {})
    has_others = any(column["method"] in ("of edges", "degree") for column in ingest.get("columns", []))
    num_added = 0 if has_others else ingest.get("counts", {}).get("added_nodes", 0)
    return graph.num_nodes - num_added if num_added else None


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


def _rank(
    kinds: tuple[Kind, ...],
    numbers: Numbers,
    inputs: KindInputs,
    edges: EdgeIndex,
    types: NodeTypes | None,
    reference: Reference | None,
) -> nodes.NodeScores:
    """All numbers of the nodes, added up; `numbers` are those of kinds that need no hops."""
    every = numbers | nodes.make_numbers((kind for kind in kinds if kind.needs_hops), inputs)
    columns = {column: every[column] for kind in kinds for column in kind.columns}
    usual = None if reference is None else reference.nodes
    groups = None if types is None else type_groups(types) if usual is None else usual.groups
    of_nodes = nodes.degrees_and_flags(edges)
    scores = nodes.NodeScores(kinds, columns, *of_nodes, inputs.trust, float(inputs.scale["learnt"][0]), types, groups)
    return nodes.with_score(scores, usual)


def _check_view(graph: Graph, view: View) -> None:
    structure, x, samples = view
    assert graph.num_nodes == structure.num_nodes == len(x)
    if samples.model["directed"] != graph.directed:
        names = {True: "directed", False: "undirected"}
        raise ValueError(
            f"the samples are of a model of {names[not graph.directed]} graphs; this graph is {names[graph.directed]}: "
            f"graph.directed={str(not graph.directed).lower()} reads it as the model's was"
        )


def _write(
    out: Path,
    graph: Graph,
    inputs: KindInputs,
    hops: EdgeHops,
    rank: Callable[[], nodes.NodeScores],
    options: Scoring,
    *,
    num_samples: int,
    reference: Reference | None,
) -> None:
    """Writes edges, table, scale, and the manifest last."""
    scores, _ = cast(Any, run_concurrently([rank, partial(save_hops, hops, out)]))
    usual = None if reference is None else reference.nodes
    verdict = nodes.verdict_of(scores, options.fdr, usual)
    if usual is not None and (many := int(np.count_nonzero(verdict.flagged))) > _MOST_FLAGGED * len(verdict.p):
        told = f"{many:,} of {len(verdict.p):,} nodes would be flagged, measured by the trained run"
        log.warning("scores: %s: the graphs are too unlike, and this one is measured by itself", told)
        usual, scores = None, nodes.with_score(scores)
        verdict = nodes.verdict_of(scores, options.fdr)

    def write_files() -> None:
        table.write_scores(out / table.FILE, table.row_groups(graph, scores, options.rank_by, verdict))
        files.write_bytes(out / SCALE_FILE, scale_to_bytes(inputs.scale))

    def measure() -> dict[str, Any] | None:
        y = _labels(graph)
        return None if y is None else {by: metrics.evaluate(y, scores.by(by), graph.kind) for by in RANKINGS}

    num_flagged = int(np.count_nonzero(verdict.flagged))

    def stable() -> float | None:
        return None if num_flagged > _MANY_FLAGGED else nodes.stability(scores, inputs, options.rank_by, usual)

    tasks: list[Callable[[], Any]] = [write_files, measure, stable]
    _, numbers, stability = run_concurrently(tasks)
    if inputs.rows is not None:
        inputs.rows.save(out, ROW_KINDS)
    names = table.FILE, MEAN_FILE, VAR_FILE, SCALE_FILE, *(ROW_FILES if inputs.rows is not None else ())
    hashes = dict(zip(names, hash_files([out / name for name in names]), strict=True))
    body = {"num_samples": num_samples, "rank_by": options.rank_by, "metrics": numbers, "stability": stability}
    body |= {"fdr": options.fdr, "num_flagged": num_flagged, "files": hashes}
    body["shares"] = dict(scores.weighed.shares) if scores.weighed and options.rank_by == "score" else {}
    body["precision"] = _precision(scores.by(options.rank_by), verdict.p)
    files.write_manifest(out, KIND, FORMAT, body)


def _precision(score: Values, p: Values) -> list[list[float]]:
    """What is to be expected of the first rows, as far as they are a tenth of all."""
    firsts = [first for first in _FIRSTS if 10 * first <= len(p)]
    if not firsts:
        return []
    head = np.argpartition(-score, firsts[-1])[: firsts[-1]]
    head = head[metrics.ranking(score[head])]
    return [list(each) for each in expected_precision(np.append(p[head], np.delete(p, head)), firsts)]


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
    edges, five copies of a chunk of features a thread, most in float64, and sums, beside the moments; then marked
    edges, or 4 bytes a node and thread, while triangles or squares are counted. A GPU predicts at the same time. About
    nodes there are fourteen numbers, sorted by every kind, and pieces of their table, one a thread and one more, as
    rows (150 bytes each) and encoded, and as many that wait to be written; marks of far edges and distances; where
    nodes are of several types, their numbers, places and sums type by type (120). About a row of the table 240 bytes,
    as was measured.
    """
    n, m, (width, head_width), threads = size.num_nodes, size.num_edges, widths, numba.get_num_threads()
    layers = 0 if on_disk or on_gpu or num_ranks > 1 else 8 * n * width
    chunks = 4 * threads * min(chunk_of(None, "cpu"), m) * (width + head_width + 8)
    rows = min(n, CHUNK_ROWS) * (4 * width + 6 * num_features)
    moments = 0 if on_disk else 8 * m
    whole, again = moments if num_ranks == 1 else 0, num_views > 1
    embedding = layers + 52 * n + rows + chunks + moments // num_ranks + whole * again
    chunk, sums = attributes.CHUNK_ROWS, min(attributes.MOST_SUMS, n // attributes.CHUNK_ROWS + 1)
    residuals = (44 * threads * min(n, chunk) + 16 * (sums + threads) * num_features) * num_features
    about_attributes = 92 * n + residuals + 4 * m + max(5 * m, 4 * threads * n) + whole
    group = table.group_rows(n)
    pieces = 300 * min(n, (threads + 1) * group) + 100 * min(n, threads * group)
    about_nodes = (354 + 16 * again + 12 * num_own_kinds) * n + pieces + 7 * m + whole + 240 * size.num_rows
    first = embedding + about_attributes if on_gpu else max(embedding, about_attributes)
    return (80 << 20) + max(first, about_nodes, 3 * whole * again)
