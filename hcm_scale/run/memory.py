"""The most memory that each stage will hold at once, estimated before any of its work is done.

`estimate(stage, sizes)` turns plain numbers into bytes, and `choose(stage, ways, budget)` picks the first way to make
a stage that fits. Between them one function per stage reads the sizes from the options and the folders made so far, and
returns a `Need`, or the ways to make the stage with the need of each, fastest first: fewer threads or narrower blocks,
fewer workers, embeddings and moments of edges on disk. Ways differ in memory and time, never in the result.

Bytes are those that the process itself holds; pages of mapped files, which the system drops when it needs them, do not
count. Each formula adds up the arrays that are alive at the same moment; `python -m bench foreseen` compares them with
what is measured.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale.base.memory import Budget, Need, gib
from hcm_scale.features.auto import expected_width, sampled_rows
from hcm_scale.features.parts import block_rows
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.hops import choose_sources
from hcm_scale.hops.engines import STATE_BYTES, WORDS, choose_words, sharing_pays, wide_bytes
from hcm_scale.hops.label import rows_in_flight
from hcm_scale.hops.layout import linked_nodes, original_layout
from hcm_scale.model import CHUNK_ROWS
from hcm_scale.sampling.neighbors import most_drawn
from hcm_scale.sampling.pairs import KEPT_PAIRS, WINDOW, pairs_per_epoch
from hcm_scale.score.residual import CHUNK_ROWS as RESIDUAL_ROWS
from hcm_scale.score.table import group_rows
from hcm_scale.shards import LabelPlan, Labels
from hcm_scale.stages.edges import chunk_of
from hcm_scale.stages.label import num_writers
from hcm_scale.stages.train import AHEAD, Recipe, pairs_per_step, takes_whole_graph

MOST_WORKERS = 1  # threads that prepare batches beside the training; results do not depend on their number
_MIB = 1 << 20
_COVARIANCE_COLUMNS = {True: 2_048, False: 8_192}  # by whether storage is sparse: of more none is formed
_SAMPLED_DEGREES = 1 << 16

log = logging.getLogger(__name__)
Choice = TypeVar("Choice")
Ways = list[tuple[Choice, Need]]


def estimate(stage: str, *sizes: Any, **named: Any) -> int:
    """Bytes that a stage holds at most; sizes are the arguments of its formula.

    >>> estimate("propagate", 1000, 20)
    2209152
    """
    start, formula = _FORMULAS[stage]
    return start * _MIB + formula(*sizes, **named)


def choose(stage: str, ways: Ways[Choice], budget: Budget, *, logs: bool = True) -> Choice:
    """The first way that fits into memory, the last if none does; logged where it is not the fastest."""
    chosen, need = budget.choose(ways)
    if logs and chosen != ways[0][0]:
        free, fastest = budget.free(), ways[0][1]
        sizes = gib(fastest.held), gib(need.held), gib(free.held), free.bound
        log.info("%s: %s to save memory: %s would be needed, this takes %s, and %s are %s", stage, chosen, *sizes)
    return chosen


# The formulas. Beside what they add up every stage loads compiled code and first touches its libraries: the MiB in
# `_FORMULAS`, as seen on tiny graphs.


def _synthetic(num_nodes: int, edges_per_node: int, num_attributes: int) -> int:
    """A generated graph: its pairs (8 bytes), their arcs twice (16 and 8); or the CSR beside the attributes."""
    pairs = num_nodes * edges_per_node
    return 8 * num_nodes + max(32 * pairs, 8 * pairs + 4 * num_nodes * num_attributes)


def _inject(num_nodes: int, num_arcs: int, num_values: int, *, weighted: bool = False) -> int:
    """Anomalies planted into a graph on disk: a second CSR, with weights, and a second copy of all attribute values."""
    return 24 * num_nodes + (16 if weighted else 12) * num_arcs + 4 * num_values


def _purify(
    num_nodes: int,
    num_edges: int,
    num_attributes: int,
    *,
    num_values: int,
    num_features: int,
    ratio: float,
    weighted: bool = False,
) -> int:
    """Features and purified graph; `num_values` are the attribute values that are stored, all of them if dense.

    First the survey, which holds a sample of the rows twice, and the covariance where columns are reduced; then blocks
    of rows in float64 beside the features; then similarities (4 bytes an edge, twice, and two marks) and the new CSR,
    beside the features. Weights of edges are read with the similarities and copied into the new CSR.
    """
    per_row = max(1, num_values // max(1, num_nodes))
    is_sparse = num_values < num_nodes * num_attributes
    sample = min(num_nodes, sampled_rows(per_row))
    survey = (8 if is_sparse else 4) * sample * per_row * (2 if sample < num_nodes else 1)
    if is_sparse:
        survey += 20 * sample * per_row
    if num_features < num_attributes <= _COVARIANCE_COLUMNS[is_sparse]:
        survey += (16 if is_sparse else 24) * num_attributes**2
    block = min(num_nodes, block_rows(per_row))
    blocks = block * (36 * per_row + 16 * num_features if is_sparse else 20 * per_row + 8 * num_features)
    edges = 32 * num_nodes + 4 * num_edges + max(6 * num_edges, num_edges + int(8 * (1 - ratio) * num_edges))
    edges += int((12 + 8 * (1 - ratio)) * num_edges) if weighted else 0
    return max(survey, 4 * num_nodes * num_features + max(blocks, edges))


def _propagate(num_nodes: int, num_features: int) -> int:
    """One weight per node, and a block that is checked for values that are not finite."""
    return 12 * num_nodes + 5 * min(num_nodes, 1 << 17) * num_features


@dataclass(frozen=True)
class Searches:
    """How the label stage searches: threads, and the most bytes of state that each may have."""

    threads: int
    state_bytes: int


def _label(plan: LabelPlan, num_linked: int, num_arcs: int, *, shares: bool, how: Searches) -> int:
    """The searches' state, the rows of the sources in flight, and the shards being made and written.

    Where sources share blocks (`shares`) the CSR is copied in another order and the state is 24 bytes and more a node
    and word; else a thread holds six bytes a node. A shard is held as it came (9 bytes a pair), in order (8) and
    encoded, in buffers that double as they grow and once more when it is written (22).
    """
    n, most = plan.num_nodes, plan.num_nodes if plan.pairs_per_class is None else plan.pairs_per_class
    sample = most if most < n else 0
    if shares:
        words = choose_words(num_linked, plan.num_sources, sample, how.threads, how.state_bytes)
        state = 40 * n + 4 * num_arcs + how.threads * wide_bytes(num_linked, words, sample)
    else:
        state = 16 * n + how.threads * 6 * n
    per_source = min(n - 1, min(most, num_arcs // max(1, num_linked)) + (plan.classes - 1) * most)
    width = plan.index_type.itemsize
    row_bytes = min(n, most * plan.classes) * width
    in_flight = min(plan.num_sources, rows_in_flight(row_bytes, plan.sources_per_shard, how.threads))
    shard, written = plan.sources_per_shard * per_source, min(plan.num_shards, num_writers())
    shards = 9 * shard * min(plan.num_shards, num_writers() + 1) + 30 * shard * written
    return state + in_flight * (per_source * width + 16 * plan.classes) + shards


@dataclass(frozen=True)
class BatchShape:
    """The expected sizes of a training batch: pairs, nodes reached layer by layer from the seeds outwards, entries."""

    pairs: int
    layers: tuple[int, ...]
    entries: int

    @staticmethod
    def expected(num_nodes: int, pairs: int, drawn: list[float], *, whole_graph: bool = False) -> "BatchShape":
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


def _train(
    num_nodes: int,
    batch: BatchShape,
    *,
    num_features: int,
    widths: tuple[int, int],
    num_drawn: int,
    window: int,
    workers: int,
) -> int:
    """Batches prepared ahead and the current one, its step, four bytes a node and worker, a window of pairs a class.

    A batch holds a row of features per node, both directions of every entry and three numbers per pair; its step
    makes values and gradients of each layer, of both ends and of the head of each pair. An epoch draws `num_drawn`
    pairs; `window` is the most that the windows of all classes hold.
    """
    width, head_width = widths
    outer = batch.layers[-1]
    batch_bytes = outer * (8 + 4 * num_features) + 16 * batch.entries + 24 * batch.pairs
    hidden = sum(batch.layers) + outer * (len(batch.layers) > 1)
    step_bytes = 12 * width * hidden + 4 * batch.pairs * (6 * width + 3 * head_width)
    ahead = AHEAD * workers + 2 if workers else 2
    num_batches = 1 if batch.layers[0] == num_nodes else ahead
    scratch = 4 * num_nodes * (max(1, workers) + 3) + 16 * min(num_drawn, window) + 8 * KEPT_PAIRS
    return scratch + num_batches * batch_bytes + step_bytes


def _score(
    num_nodes: int,
    num_edges: int,
    *,
    num_features: int,
    widths: tuple[int, int],
    chunk_edges: int,
    threads: int,
    num_views: int,
    on_disk: bool,
    num_ranks: int = 1,
) -> int:
    """First embeddings and the running moments of edges, then everything about nodes, which is rank 0's.

    Two layers of embeddings and moments of 8 bytes an edge, unless they are on disk, a chunk of rows as it passes
    through a layer, and a chunk of edges a thread; ranks have their layers on disk, share the moments, and map what
    rank 0 continues with. Moments are there a second time while a second view is predicted, and a third while views
    are averaged. About attributes there are distances over edges, and five copies of a chunk of features a thread,
    most in float64, beside the moments. About nodes there are eleven numbers, sorted by every kind, and pieces of
    their table, one a thread and one more, as rows (140 bytes each) and encoded, in buffers that double; marks of far
    edges and distances.
    """
    width, head_width = widths
    several = num_views > 1
    layers = 0 if on_disk or num_ranks > 1 else 8 * num_nodes * width
    chunks = 4 * threads * min(chunk_edges, num_edges) * (width + head_width + 8)
    rows = min(num_nodes, CHUNK_ROWS) * (4 * width + 6 * num_features)
    moments = 0 if on_disk else 8 * num_edges
    whole = moments if num_ranks == 1 else 0
    embedding = layers + 20 * num_nodes + rows + chunks + (moments // num_ranks) + whole * several
    residuals = 44 * threads * min(num_nodes, RESIDUAL_ROWS) * num_features
    about_attributes = 60 * num_nodes + residuals + 4 * num_edges + whole
    pieces = 280 * min(num_nodes, (threads + 1) * group_rows(num_nodes))
    about_nodes = (190 + 16 * several) * num_nodes + pieces + 7 * num_edges + whole
    return max(embedding, about_attributes, about_nodes, 3 * whole * several)


def _report(num_nodes: int, num_edges: int, *, weighted: bool = False) -> int:
    """The table (150 bytes a node), its columns again when sorted and shown, distances over edges or their weights."""
    return 300 * num_nodes + (16 if weighted else 12) * num_edges


_FORMULAS: dict[str, tuple[int, Callable[..., int]]] = {  # MiB of any graph, and what depends on its size
    "synthetic": (8, _synthetic),
    "inject": (8, _inject),
    "purify": (10, _purify),
    "propagate": (2, _propagate),
    "label": (42, _label),
    "train": (50, _train),
    "score": (50, _score),
    "report": (58, _report),
}


# The stages: sizes read from the options and from the folders made so far.


def ingest(source: schema.GraphConfig, given: Graph | None, *, injects: bool) -> Need:
    """Need of graphs that are generated, or given by the caller; of files nothing is known before they are read."""
    held = 0
    if given is not None and injects:
        sizes = given.num_nodes, given.num_arcs, _num_values(given)
        held = estimate("inject", *sizes, weighted=given.weights is not None)
    if given is None and isinstance(source, schema.SyntheticGraph):
        nodes, per_node, attributes = source.num_nodes, source.edges_per_node, source.num_attributes
        held = estimate("synthetic", nodes, per_node, attributes)
        if injects:
            held += estimate("inject", nodes, 2 * nodes * per_node, nodes * attributes)
    return Need(held, change="lower graph.num_nodes, graph.edges_per_node or graph.num_attributes")


def purify(config: schema.Config, graph: Graph) -> Need:
    """The number of features that the rules will make is guessed from a few rows."""
    options = config.attributes
    num_features = options.pca or graph.num_attributes
    if graph.x is not None and options.scale == "auto":
        num_features = expected_width(graph.x, options.pca, graph.columns)
    held = estimate(
        "purify",
        *(graph.num_nodes, graph.num_edges, graph.num_attributes),
        num_values=_num_values(graph),
        num_features=num_features,
        ratio=config.purify.ratio,
        weighted=graph.weights is not None,
    )
    return Need(held, graph.num_bytes, "set or lower attributes.pca")


def propagate(graph: Graph, features: NDArray[np.float32]) -> Need:
    """The output is mapped."""
    return Need(estimate("propagate", *features.shape), graph.num_bytes + 2 * features.nbytes)


def label(options: dict[str, Any], graph: Graph) -> Ways[Searches]:
    """All threads with blocks as wide as is fast, then narrower ones, then fewer threads."""
    sources = choose_sources(graph.indptr, num_sources=options["num_sources"], seed=options["seed"])
    threads = numba.get_num_threads()
    if len(sources) == 0:
        return [(Searches(threads, STATE_BYTES), Need(0))]
    names = ("classes", "pairs_per_class", "seed", "shard_pairs", "row_group_rows")
    plan = LabelPlan(
        fingerprint="",
        num_nodes=graph.num_nodes,
        num_sources=len(sources),
        directed=graph.directed,
        **{name: options[name] for name in names},
    )
    shares = sharing_pays(original_layout(graph.indptr, graph.indices), sources, classes=plan.classes)
    narrow = [wide_bytes(graph.num_nodes, words, 0) for words in WORDS] if shares else []
    ways = [Searches(threads, STATE_BYTES)]
    ways += [Searches(threads, most) for most in narrow if most < STATE_BYTES]
    while ways[-1].threads > 1:
        ways.append(Searches(ways[-1].threads // 2, 1))
    num_linked, num_arcs = len(linked_nodes(graph.indptr)), graph.num_arcs * (1 + graph.directed)
    change = "lower hops.num_sources, hops.pairs_per_class, shards.shard_pairs or world.threads"

    def need(how: Searches) -> Need:
        held = estimate("label", plan, num_linked, num_arcs, shares=shares, how=how)
        return Need(held, graph.num_bytes, change)

    return [(how, need(how)) for how in ways]


def train(config: schema.Config, recipe: Recipe, graph: Graph, x: NDArray[np.float32], labels: Labels) -> Ways[int]:
    """A worker that prepares batches, then none; a trend scores while training, which adds up."""
    batching, network = recipe.batching, recipe.network
    limits = [most_drawn(fan_out, batching.hub_cap) for fan_out in batching.layer_fan_outs(network.num_layers)]
    batch = BatchShape.expected(
        graph.num_nodes,
        pairs_per_step(labels, batching),
        _neighbors_drawn(graph.indptr, limits[::-1]),
        whole_graph=takes_whole_graph(graph, batching),
    )
    num_drawn = pairs_per_epoch(labels, sampling_ratio=batching.sampling_ratio)
    trend = _score_bytes(config, graph, x, on_disk=False) if config.posterior.trend_every else 0
    change = "lower sampling.batch_pairs, sampling.fan_out, sampling.hub_cap or model.width"

    def need(workers: int) -> Need:
        held = estimate(
            "train",
            *(graph.num_nodes, batch),
            num_features=x.shape[1],
            widths=(network.width, network.head_width),
            num_drawn=num_drawn,
            window=labels.classes * WINDOW * labels.plan.row_group_rows,
            workers=workers,
        )
        return Need(trend + held, graph.num_bytes + x.nbytes, change)

    return [(workers, need(workers)) for workers in range(MOST_WORKERS, -1, -1)]


def score(config: schema.Config, graph: Graph, x: NDArray[np.float32], *, num_ranks: int = 1) -> Ways[str]:
    """Embeddings and moments of edges where score.state says; with auto in memory, then on disk."""
    options = config.score
    places = ("memory", "disk") if options.state == "auto" else (options.state,)
    change = f"{'' if 'disk' in places else 'set score.state=disk, or '}lower model.width"
    files = 8 * graph.num_nodes * config.model.width + 24 * graph.num_edges

    def need(on_disk: bool) -> Need:
        held = _score_bytes(config, graph, x, on_disk=on_disk, num_ranks=num_ranks)
        return Need(held, 2 * graph.num_bytes + 2 * x.nbytes + files * (on_disk or num_ranks > 1), change)

    return [(place, need(place == "disk")) for place in places]


def _score_bytes(
    config: schema.Config, graph: Graph, x: NDArray[np.float32], *, on_disk: bool, num_ranks: int = 1
) -> int:
    return estimate(
        "score",
        *(graph.num_nodes, graph.num_edges),
        num_features=x.shape[1],
        widths=(config.model.width, config.model.head_width),
        chunk_edges=chunk_of(None, "cpu"),
        threads=numba.get_num_threads(),
        num_views=len(config.score.views),
        on_disk=on_disk,
        num_ranks=num_ranks,
    )


def report(graph: Graph) -> Need:
    """No option makes it smaller."""
    held = estimate("report", graph.num_nodes, graph.num_edges, weighted=graph.weights is not None)
    return Need(held, 2 * graph.num_bytes + 8 * graph.num_edges)


def _num_values(graph: Graph) -> int:
    if isinstance(graph.x, SparseRows):
        return len(graph.x.data)
    return 0 if graph.x is None else graph.x.size


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
