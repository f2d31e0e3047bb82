"""The most memory that each stage will hold at once, estimated before any of its work is done.

One function a stage reads sizes from the options and the folders made so far and returns a `Need`, or the ways to make
the stage with the need of each, fastest first: fewer threads or narrower blocks, fewer workers, embeddings and moments
of edges on disk. Ways differ in memory and time, never in the result; `choose` picks the first that fits.

`least_needs` asks the same of all stages before the first is made, from sizes alone, so that nobody trains for an hour
to be refused at the report.

The functions `..._bytes` turn plain sizes into bytes that the process itself holds; pages of mapped files, which the
system drops when it needs them, do not count. Each adds up the arrays that are alive at the same moment, and what any
graph takes: compiled code, and libraries that are touched first. `python -m bench foreseen` compares them with what is
measured.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale.base.memory import Budget, Need, gib
from hcm_scale.features.auto import expected_width, sampled_rows
from hcm_scale.features.parts import MOST_BLOCKS, block_rows
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.hops import choose_sources
from hcm_scale.hops.label import STATE_BYTES, WORDS, rows_in_flight, search_bytes, sharing_pays, wide_bytes
from hcm_scale.hops.layout import linked_nodes
from hcm_scale.model import CHUNK_ROWS
from hcm_scale.sampling.pairs import MAX_CACHED_PAIRS, WINDOW, pairs_per_epoch
from hcm_scale.score.kinds.attributes import CHUNK_ROWS as RESIDUAL_ROWS
from hcm_scale.score.table import group_rows
from hcm_scale.shards import LabelPlan
from hcm_scale.stages.edges import chunk_of
from hcm_scale.stages.label import num_writers
from hcm_scale.stages.train import AHEAD, Recipe, Training

MOST_WORKERS = 1  # threads that prepare batches beside the training; results do not depend on their number
_MIB = 1 << 20
_COVARIANCE_COLUMNS = {True: 2_048, False: 8_192}  # by whether storage is sparse: of more none is formed
_SAMPLED_DEGREES = 1 << 16
_CHANGE = {  # options that make a stage smaller
    "purified": "set or lower attributes.pca",
    "labels": "lower hops.num_sources, hops.pairs_per_class, shards.shard_pairs or world.threads",
    "train": "lower sampling.batch_pairs, sampling.fan_out, sampling.hub_cap or model.width",
    "scores": "lower model.width",
}

log = logging.getLogger(__name__)
Choice = TypeVar("Choice")
Ways = list[tuple[Choice, Need]]


class Size(NamedTuple):
    """The size of a graph; `num_values` are the attribute values that are stored, all of them if they are dense."""

    num_nodes: int
    num_edges: int
    num_arcs: int
    num_attributes: int
    num_values: int
    weighted: bool = False
    value_bytes: int = 4  # of a value on disk

    @staticmethod
    def of(graph: Graph) -> "Size":
        values = graph.x.data if isinstance(graph.x, SparseRows) else graph.x
        num_values = 0 if values is None else values.size
        arcs = graph.num_edges, graph.num_arcs
        value_bytes = 4 if values is None else values.itemsize
        return Size(graph.num_nodes, *arcs, graph.num_attributes, num_values, graph.weights is not None, value_bytes)

    @staticmethod
    def of_source(source: schema.GraphConfig) -> "Size":
        """Of a graph that will be generated; of files, of which nothing is known, the smallest there is."""
        if isinstance(source, schema.SyntheticGraph):
            made = Size.made(source.num_nodes, source.edges_per_node, source.num_attributes)
            return made._replace(value_bytes=np.dtype(source.attributes_dtype).itemsize)
        return Size.made(1, 1, 1)

    @staticmethod
    def made(num_nodes: int, edges_per_node: int, num_attributes: int) -> "Size":
        """Of an undirected graph with dense attributes."""
        num_edges = num_nodes * edges_per_node
        return Size(num_nodes, num_edges, 2 * num_edges, num_attributes, num_nodes * num_attributes)


def choose(stage: str, ways: Ways[Choice], budget: Budget, *, logs: bool = True) -> Choice:
    """The first way that fits into memory, the last if none does; logged where it is not the fastest."""
    chosen, need = budget.choose(ways)
    if logs and chosen != ways[0][0]:
        free, fastest = budget.free(), ways[0][1]
        sizes = gib(fastest.held), gib(need.held), gib(free.held), free.bound
        log.info("%s: %s to save memory: %s would be needed, this takes %s, and %s are %s", stage, chosen, *sizes)
    return chosen


def least_needs(
    config: schema.Config, labels: dict[str, Any], recipe: Recipe, size: Size, graph: Graph | None, *, num_ranks: int
) -> dict[str, Need]:
    """What the least demanding way to make each stage takes, by the first word of its name; `labels` are options.

    Before there is a graph, nodes count as of equal degree, attributes as features, and sparse ones as dense.
    """
    n, m, num_arcs, ratio = max(1, size.num_nodes), size.num_edges, size.num_arcs, recipe.batching.sampling_ratio
    limits = recipe.limits[::-1]
    num_features = max(1, config.attributes.pca or size.num_attributes)
    drawn = [min(limit, num_arcs / n) for limit in limits]
    if graph is not None:
        num_features, drawn = _num_features(config, graph), _neighbors_drawn(graph.indptr, limits)
    plan = LabelPlan("", n, False, **labels | {"num_sources": min(n, labels["num_sources"] or n)})
    most_pairs = int(ratio * plan.classes * plan.num_sources * min(n, plan.pairs_per_class or n))
    window = min(most_pairs, plan.classes * WINDOW * plan.row_group_rows)
    batch = BatchShape.expected(n, min(recipe.batching.batch_pairs or most_pairs, most_pairs), drawn)
    on_disk = config.score.state != "memory"
    scored = score_bytes(config, size, num_features, on_disk=on_disk, num_ranks=num_ranks)
    trained = train_bytes(config.model, n, batch, num_features, window=window, workers=0)
    held = {
        "purified": purify_bytes(size, num_features, config.purify.ratio),
        "labels": max(label_bytes(plan, n, num_arcs, shares=shares, how=Searches(1, 1)) for shares in (True, False)),
        "propagated": propagate_bytes(n, num_features),
        "train": trained + (scored if config.posterior.trend_every else 0),
        "scores": scored,
        "report": report_bytes(size),
    }
    mapped = 2 * (8 * n + 8 * num_arcs + 4 * size.num_values) + 8 * n * num_features
    mapped += (8 * n * config.model.width + 24 * m) * on_disk
    return {name: Need(most, mapped, _CHANGE.get(name, "")) for name, most in held.items()}


def ingest(source: schema.GraphConfig, given: Graph | None, *, injects: bool) -> Need:
    """Need of graphs that are generated, or given by the caller; of files nothing is known before they are read."""
    held = 0
    if given is not None and injects:
        held = inject_bytes(Size.of(given))
    if given is None and isinstance(source, schema.SyntheticGraph):
        size = Size.of_source(source)
        held = synthetic_bytes(size) + (inject_bytes(size) if injects else 0)
    return Need(held, change="lower graph.num_nodes, graph.edges_per_node or graph.num_attributes")


def synthetic_bytes(size: Size) -> int:
    """A generated graph: its pairs (8 bytes), their arcs twice (16 and 8); or the CSR beside the attributes."""
    attributes = size.value_bytes * size.num_values
    return 8 * _MIB + 8 * size.num_nodes + max(32 * size.num_edges, 8 * size.num_edges + attributes)


def inject_bytes(size: Size) -> int:
    """Anomalies planted into a graph on disk: a second CSR, with weights, and a second copy of all attribute values."""
    arcs = (16 if size.weighted else 12) * size.num_arcs
    return 8 * _MIB + 24 * size.num_nodes + arcs + size.value_bytes * size.num_values


def purify(config: schema.Config, graph: Graph) -> Need:
    """The number of features that the rules will make is guessed from a few rows."""
    held = purify_bytes(Size.of(graph), _num_features(config, graph), config.purify.ratio)
    return Need(held, graph.num_bytes, _CHANGE["purified"])


def _num_features(config: schema.Config, graph: Graph) -> int:
    options = config.attributes
    if graph.x is not None and options.scale == "auto":
        return expected_width(graph.x, options.pca, graph.columns)
    return max(1, options.pca or graph.num_attributes)


def purify_bytes(size: Size, num_features: int, ratio: float) -> int:
    """Features and purified graph.

    First the survey, which holds a sample of the rows twice, and the covariance where columns are reduced; then blocks
    of rows in float64 beside the features; then similarities (4 bytes an edge, twice, and two marks), then the bits of
    entries and the new CSR, beside the features. Weights of edges are read with the similarities and copied into the
    new CSR.
    """
    n, m, num_attributes = size.num_nodes, size.num_edges, size.num_attributes
    per_row = max(1, size.num_values // max(1, n))
    is_sparse = size.num_values < n * num_attributes
    sample = min(n, sampled_rows(per_row))
    survey = (8 if is_sparse else 4) * sample * per_row * (2 if sample < n else 1)
    if is_sparse:
        survey += 20 * sample * per_row
    if num_features < num_attributes <= _COVARIANCE_COLUMNS[is_sparse]:
        survey += (16 if is_sparse else 24) * num_attributes**2
    per_block_row = 36 * per_row + 16 * num_features if is_sparse else 20 * per_row + 8 * num_features
    in_flight = 1 if is_sparse or num_features == num_attributes else min(numba.get_num_threads(), MOST_BLOCKS)
    blocks = min(n, in_flight * block_rows(per_row)) * per_block_row
    edges = 32 * n + max(10 * m, m + m // 4 + int(8 * (1 - ratio) * m))
    edges += int((12 + 8 * (1 - ratio)) * m) if size.weighted else 0
    return 18 * _MIB + max(survey, 4 * n * num_features + max(blocks, edges))


def propagate(graph: Graph, features: NDArray[np.float32]) -> Need:
    """The output is mapped."""
    return Need(propagate_bytes(*features.shape), graph.num_bytes + 2 * features.nbytes)


def propagate_bytes(num_nodes: int, num_features: int) -> int:
    """One weight per node, and a block that is checked for values that are not finite.

    >>> propagate_bytes(1000, 20)
    2209152
    """
    return 2 * _MIB + 12 * num_nodes + 5 * min(num_nodes, 1 << 17) * num_features


class Searches(NamedTuple):
    """How the label stage searches: threads, and the most bytes of state that each may have."""

    threads: int
    state_bytes: int


def label(options: dict[str, Any], graph: Graph) -> Ways[Searches]:
    """All threads with blocks as wide as is fast, shared or their own, then narrower ones; plain: fewer threads."""
    sources = choose_sources(graph.indptr, num_sources=options["num_sources"], seed=options["seed"])
    threads = numba.get_num_threads()
    if len(sources) == 0:
        return [(Searches(threads, STATE_BYTES), Need(0))]
    plan = LabelPlan("", graph.num_nodes, graph.directed, **options | {"num_sources": len(sources)})
    shares = sharing_pays(graph.indptr, graph.indices, sources, classes=plan.classes)
    sizes = [wide_bytes(graph.num_nodes, words, plan.pairs_per_class or 0) for words in WORDS] if shares else []
    widest = max(STATE_BYTES, -(-max(sizes, default=0) // threads))
    narrow = sorted({STATE_BYTES, *sizes, *(-(-size // threads) for size in sizes)}, reverse=True)
    ways = [Searches(threads, widest), *(Searches(threads, most) for most in narrow if most < widest)]
    while ways[-1].threads > 1 and not shares:
        ways.append(Searches(ways[-1].threads // 2, 1))
    num_linked, num_arcs = len(linked_nodes(graph.indptr)), graph.num_arcs * (1 + graph.directed)
    held = [label_bytes(plan, num_linked, num_arcs, shares=shares, how=how) for how in ways]
    return [(how, Need(most, graph.num_bytes, _CHANGE["labels"])) for how, most in zip(ways, held, strict=True)]


def label_bytes(plan: LabelPlan, num_linked: int, num_arcs: int, *, shares: bool, how: Searches) -> int:
    """The searches' state, the rows of the sources in flight, and the shards being made and written.

    Where sources share blocks (`shares`) the CSR is copied in another order and the state is 24 bytes and more a node
    and word; else a thread holds six bytes a node. A shard is held as it came (9 bytes a pair), in order (8) and
    encoded, in buffers that double as they grow and once more when it is written (22).
    """
    n, most = plan.num_nodes, plan.num_nodes if plan.pairs_per_class is None else plan.pairs_per_class
    sample = most if most < n else 0
    if shares:
        state = 40 * n + 4 * num_arcs
        state += search_bytes(num_linked, plan.num_sources, sample, how.threads, how.state_bytes)
    else:
        state = 16 * n + how.threads * 6 * n
    per_source = min(n - 1, min(most, num_arcs // max(1, num_linked)) + (plan.classes - 1) * most)
    width = plan.index_type.itemsize
    row_bytes = min(n, most * plan.classes) * width
    in_flight = min(plan.num_sources, rows_in_flight(row_bytes, plan.sources_per_shard, how.threads))
    shard, written = plan.sources_per_shard * per_source, min(plan.num_shards, num_writers())
    shards = 9 * shard * min(plan.num_shards, num_writers() + 1) + 30 * shard * written
    return 50 * _MIB + state + in_flight * (per_source * width + 16 * plan.classes) + shards


def train(config: schema.Config, training: Training) -> Ways[int]:
    """A worker that prepares batches, then none; a trend scores while training, which adds up."""
    graph, x, labels, recipe = training.structure, training.x, training.labels, training.recipe
    batch = BatchShape.expected(
        graph.num_nodes,
        training.batch_pairs,
        _neighbors_drawn(graph.indptr, recipe.limits[::-1]),
        whole_graph=training.takes_whole_graph,
    )
    num_drawn = pairs_per_epoch(labels, sampling_ratio=recipe.batching.sampling_ratio)
    window = min(num_drawn, labels.classes * WINDOW * labels.plan.row_group_rows)
    held = score_bytes(config, Size.of(graph), x.shape[1], on_disk=False) if config.posterior.trend_every else 0

    def need(workers: int) -> Need:
        most = held + train_bytes(config.model, graph.num_nodes, batch, x.shape[1], window=window, workers=workers)
        return Need(most, graph.num_bytes + 4 * math.prod(x.shape), _CHANGE["train"])

    return [(workers, need(workers)) for workers in range(MOST_WORKERS, -1, -1)]


class BatchShape(NamedTuple):
    """The expected sizes of a training batch: pairs, nodes reached layer by layer from the seeds outwards, entries."""

    pairs: int
    layers: tuple[int, ...]
    entries: int

    @staticmethod
    def expected(num_nodes: int, pairs: int, drawn: Sequence[float], *, whole_graph: bool = False) -> "BatchShape":
        """Of a graph whose nodes draw so many neighbours on average, one number per sampled layer, seeds outwards.

        >>> BatchShape.expected(1000, 10, [4.0])
        BatchShape(pairs=10, layers=(20, 95), entries=100)
        """
        layers, entries = [num_nodes if whole_graph else min(num_nodes, 2 * pairs)], 0
        for neighbors in drawn:
            reached = layers[-1] * (1 + neighbors)
            entries += int(reached)
            layers.append(int(num_nodes * -math.expm1(-reached / num_nodes)))  # some more than once
        return BatchShape(pairs, tuple(layers), entries)


def _neighbors_drawn(indptr: NDArray[np.int64], limits: Sequence[int]) -> list[float]:
    """Mean number of neighbours that a node draws, at most `limits`, one per sampled layer, seeds outwards.

    Three seeds in four are drawn uniformly; the fourth, and all nodes further out, in proportion to their degree.
    """
    step = max(1, (len(indptr) - 1) // _SAMPLED_DEGREES)
    degrees = (indptr[1::step] - indptr[:-1:step]).astype(np.float64)
    total = max(1.0, degrees.sum())
    drawn = []
    for depth, limit in enumerate(limits):
        taken = np.minimum(degrees, limit)
        by_degree = float((taken * degrees).sum() / total)
        drawn.append(0.75 * float(taken.mean()) + 0.25 * by_degree if depth == 0 else by_degree)
    return drawn


def train_bytes(
    model: schema.ModelConfig, num_nodes: int, batch: BatchShape, num_features: int, *, window: int, workers: int
) -> int:
    """Batches prepared ahead and the current one, its step, four bytes a node and worker, a `window` of pairs.

    A batch holds a row of features per node, both directions of every entry and three numbers per pair; its step
    makes values and gradients of each layer, of both ends and of the head of each pair.
    """
    outer = batch.layers[-1]
    batch_bytes = outer * (8 + 4 * num_features) + 16 * batch.entries + 24 * batch.pairs
    hidden = sum(batch.layers) + outer * (len(batch.layers) > 1)
    messages = 16 * model.width * batch.entries if model.encoder != "gcn" else 0  # of every entry, and their gradients
    step_bytes = messages + 12 * model.width * hidden + 4 * batch.pairs * (6 * model.width + 3 * model.head_width)
    ahead = AHEAD * workers + 2 if workers else 2
    num_batches = 1 if batch.layers[0] == num_nodes else ahead
    scratch = 4 * num_nodes * (max(1, workers) + 3) + 16 * window + 8 * MAX_CACHED_PAIRS
    return 60 * _MIB + scratch + num_batches * batch_bytes + step_bytes


def score(
    config: schema.Config, graph: Graph, x: NDArray[np.float32], *, num_ranks: int = 1, on_gpu: bool = False
) -> Ways[str]:
    """Embeddings and moments of edges where score.state says; with auto in memory, then on disk."""
    places = ("memory", "disk") if config.score.state == "auto" else (config.score.state,)
    change = f"{'' if 'disk' in places else 'set score.state=disk, or '}{_CHANGE['scores']}"
    files = 8 * graph.num_nodes * config.model.width + 24 * graph.num_edges

    def need(on_disk: bool) -> Need:
        how: Any = {"on_disk": on_disk, "num_ranks": num_ranks, "on_gpu": on_gpu}
        held = score_bytes(config, Size.of(graph), x.shape[1], **how)
        return Need(held, 2 * graph.num_bytes + 2 * x.nbytes + files * (on_disk or num_ranks > 1), change)

    return [(place, need(place == "disk")) for place in places]


def score_bytes(
    config: schema.Config, size: Size, num_features: int, *, on_disk: bool, num_ranks: int = 1, on_gpu: bool = False
) -> int:
    """First embeddings and the running moments of edges, then everything about nodes, which is rank 0's.

    Two layers of embeddings, unless a GPU has them, and moments of 8 bytes an edge, unless both are on disk, a chunk of
    rows as it passes through a layer, and a chunk of edges a thread; ranks have their layers on disk, share the
    moments, and map what rank 0 continues with. Moments are there a second time while a second view is predicted, and a
    third while views are averaged. About attributes there are distances over edges, and five copies of a chunk of
    features a thread, most in float64, beside the moments; then marked edges, or 4 bytes a node and thread, while
    triangles or squares are counted; five numbers a node stay. A GPU predicts at the same time. About nodes there are
    fourteen numbers, sorted by every kind, and pieces of their table, one a thread and one more, as rows (150 bytes
    each) and encoded, in buffers that double, and as many that wait to be written; marks of far edges and distances.
    Where nodes are of several types, or of two sides, their numbers, places and sums are there again type by type
    (120).
    """
    n, m, width, threads = size.num_nodes, size.num_edges, config.model.width, numba.get_num_threads()
    several = len(config.score.views) > 1
    layers = 0 if on_disk or on_gpu or num_ranks > 1 else 8 * n * width
    chunk_edges = min(chunk_of(None, "cpu"), m)
    chunks = 4 * threads * chunk_edges * (width + config.model.head_width + 8)
    rows = min(n, CHUNK_ROWS) * (4 * width + 6 * num_features)
    moments = 0 if on_disk else 8 * m
    whole = moments if num_ranks == 1 else 0
    embedding = layers + 52 * n + rows + chunks + (moments // num_ranks) + whole * several
    residuals = 44 * threads * min(n, RESIDUAL_ROWS) * num_features
    about_attributes = 92 * n + residuals + 4 * m + max(5 * m, 4 * threads * n) + whole
    pieces = 300 * min(n, (threads + 1) * group_rows(n)) + 100 * min(n, threads * group_rows(n))
    about_nodes = (354 + 16 * several + 12 * len(config.score.evidence)) * n + pieces + 7 * m + whole
    first = embedding + about_attributes if on_gpu else max(embedding, about_attributes)
    return 80 * _MIB + max(first, about_nodes, 3 * whole * several)


def report(graph: Graph, num_features: int) -> Ways[str]:
    """No option makes it smaller; strange edges are left out where they do not fit."""
    held, mapped = report_bytes(Size.of(graph)), 2 * graph.num_bytes + 4 * graph.num_edges
    for_edges = 4 * graph.num_nodes * num_features + 58 * graph.num_edges  # mean features around nodes, and sums sorted
    return [("with strange edges", Need(held + for_edges, mapped)), ("without strange edges", Need(held, mapped))]


def report_bytes(size: Size) -> int:
    """The table (150 bytes a node), its columns again when sorted and shown; of edges hops, distances or weights."""
    return 80 * _MIB + 316 * size.num_nodes + (24 if size.weighted else 20) * size.num_edges
