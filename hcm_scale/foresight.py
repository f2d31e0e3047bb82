"""What each stage of a run will need of memory: the options and what is on disk so far, put into the formulas.

`stages/memory.py` has the formulas. A stage that can be made in several ways has a list of them with the need of each,
the fastest first: fewer threads or narrower blocks, fewer workers, embeddings and moments of edges on disk. The ways of
a stage differ in memory and time, never in the result.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale.base.budget import Need
from hcm_scale.features.auto_fit import foreseen_width
from hcm_scale.graph import Graph
from hcm_scale.graph.store import SparseRows
from hcm_scale.hops import choose_sources
from hcm_scale.hops.engines import STATE_BYTES, WORDS, sharing_pays, wide_bytes
from hcm_scale.hops.layout import as_given, linked_nodes
from hcm_scale.sampling.neighbors import most_drawn
from hcm_scale.sampling.pairs import pairs_per_epoch
from hcm_scale.shards import LabelPlan, Labels
from hcm_scale.stages import memory
from hcm_scale.stages.memory import BatchShape, Searches
from hcm_scale.stages.recipe import Recipe
from hcm_scale.stages.shared_edges import chunk_of
from hcm_scale.stages.train_batches import pairs_per_step, takes_whole_graph

_LOOKED_AT = 1 << 16  # nodes whose degrees stand for those of all


def ingest(source: schema.GraphConfig, given: Graph | None, *, injects: bool) -> Need:
    """Of graphs that are made, or brought by the caller; of files nothing is known before they are read."""
    held = 0
    if given is not None and injects:
        weighted = given.weights is not None
        held = memory.inject_bytes(given.num_nodes, given.num_arcs, _num_values(given), weighted=weighted)
    if given is None and isinstance(source, schema.SyntheticGraph):
        sizes = source.num_nodes, source.edges_per_node, source.num_attributes
        held = memory.synthetic_bytes(*sizes)
        if injects:
            held += memory.inject_bytes(sizes[0], 2 * sizes[0] * sizes[1], sizes[0] * sizes[2])
    return Need(held, change="lower graph.num_nodes, graph.edges_per_node or graph.num_attributes")


def purify(config: schema.Config, graph: Graph) -> Need:
    """The features that the rules will make are guessed from a few rows."""
    options = config.attributes
    num_features = options.pca or graph.num_attributes
    if graph.x is not None and options.scale == "auto":
        num_features = foreseen_width(graph.x, options.pca, graph.columns)
    held = memory.purify_bytes(
        graph.num_nodes,
        graph.num_edges,
        graph.num_attributes,
        num_values=_num_values(graph),
        num_features=num_features,
        ratio=config.purify.ratio,
        weighted=graph.weights is not None,
    )
    return Need(held, graph.num_bytes, "set or lower attributes.pca")


def propagate(graph: Graph, features: NDArray[np.float32]) -> Need:
    """The output is mapped."""
    return Need(memory.propagate_bytes(*features.shape), graph.num_bytes + 2 * features.nbytes)


def label(options: dict[str, Any], graph: Graph) -> list[tuple[Searches, Need]]:
    """All threads with blocks as wide as is fast, then narrower ones, then fewer threads."""
    sources = choose_sources(graph.indptr, num_sources=options["num_sources"], seed=options["seed"])
    threads, classes = numba.get_num_threads(), options["classes"]
    if len(sources) == 0:
        return [(Searches(threads, STATE_BYTES), Need(0))]
    names = ("classes", "pairs_per_class", "seed", "shard_pairs", "row_group_rows")
    shape: dict[str, Any] = {"num_nodes": graph.num_nodes, "num_sources": len(sources), "directed": graph.directed}
    plan = LabelPlan(fingerprint="", **shape, **{name: options[name] for name in names})
    shares = sharing_pays(as_given(graph.indptr, graph.indices), sources, classes=classes)
    narrow = [wide_bytes(graph.num_nodes, words, 0) for words in WORDS] if shares else []
    ways = [Searches(threads, STATE_BYTES)]
    ways += [Searches(threads, most) for most in narrow if most < STATE_BYTES]
    while ways[-1].threads > 1:
        ways.append(Searches(ways[-1].threads // 2, 1))
    num_linked = len(linked_nodes(graph.indptr))
    change = "lower hops.num_sources, hops.pairs_per_class, shards.shard_pairs or world.threads"
    sizes = plan, num_linked, graph.num_arcs * (1 + graph.directed)
    return [(how, Need(memory.label_bytes(*sizes, shares=shares, how=how), graph.num_bytes, change)) for how in ways]


def train(
    config: schema.Config, recipe: Recipe, graph: Graph, x: NDArray[np.float32], labels: Labels
) -> list[tuple[int, Need]]:
    """As many workers as are asked for, then fewer; a trend scores now and then, which adds up."""
    batching, network = recipe.batching, recipe.network
    limits = [most_drawn(fan_out, batching.hub_cap) for fan_out in batching.layer_fan_outs(network.num_layers)]
    batch = BatchShape.foreseen(
        graph.num_nodes,
        pairs_per_step(labels, batching),
        _neighbors_drawn(graph.indptr, limits[::-1]),
        whole_graph=takes_whole_graph(graph, batching),
    )
    sizes: dict[str, Any] = {
        "num_features": x.shape[1],
        "widths": (network.width, network.head_width),
        "num_drawn": pairs_per_epoch(labels, sampling_ratio=batching.sampling_ratio),
        "window": memory.pair_window(labels.classes, labels.plan.row_group_rows),
    }
    trend = _score_bytes(config, graph, x, on_disk=False) if config.posterior.trend_every else 0
    change = "lower sampling.batch_pairs, sampling.fan_out, sampling.hub_cap or model.width"
    workers = range(config.sampling.workers, -1, -1)
    held = {count: trend + memory.train_bytes(graph.num_nodes, batch, workers=count, **sizes) for count in workers}
    return [(count, Need(held[count], graph.num_bytes + x.nbytes, change)) for count in workers]


def score(config: schema.Config, graph: Graph, x: NDArray[np.float32], *, num_ranks: int = 1) -> list[tuple[str, Need]]:
    """Embeddings and moments of edges where score.state says; with auto in memory, then on disk."""
    options = config.score
    places = ("memory", "disk") if options.state == "auto" else (options.state,)
    change = f"{'' if 'disk' in places else 'set score.state=disk, or '}lower score.chunk_edges or model.width"
    files = 8 * graph.num_nodes * config.model.width + 24 * graph.num_edges
    ways = []
    for place in places:
        on_disk = place == "disk"
        held = _score_bytes(config, graph, x, on_disk=on_disk, num_ranks=num_ranks)
        mapped = 2 * graph.num_bytes + 2 * x.nbytes + files * (on_disk or num_ranks > 1)
        ways.append((place, Need(held, mapped, change)))
    return ways


def _score_bytes(config: schema.Config, graph: Graph, x: NDArray[np.float32], **how: Any) -> int:
    """What scoring holds; `how` are `on_disk` and `num_ranks` of the formula."""
    return memory.score_bytes(
        graph.num_nodes,
        graph.num_edges,
        num_features=x.shape[1],
        widths=(config.model.width, config.model.head_width),
        chunk_edges=chunk_of(config.score.chunk_edges, "cpu"),
        threads=numba.get_num_threads(),
        num_views=len(config.score.views),
        **how,
    )


def report(graph: Graph) -> Need:
    """No option makes it smaller."""
    held = memory.report_bytes(graph.num_nodes, graph.num_edges, weighted=graph.weights is not None)
    return Need(held, 2 * graph.num_bytes + 8 * graph.num_edges)


def _num_values(graph: Graph) -> int:
    if isinstance(graph.x, SparseRows):
        return len(graph.x.data)
    return 0 if graph.x is None else graph.x.size


def _neighbors_drawn(indptr: NDArray[np.int64], limits: Sequence[int]) -> list[float]:
    """Neighbours that a node draws on average, at most `limits`, seeds outwards.

    Three seeds in four are as any node, the fourth is met by its links, and so are all nodes further out.
    """
    step = max(1, (len(indptr) - 1) // _LOOKED_AT)
    degrees = (indptr[1::step] - indptr[:-1:step]).astype(np.float64)
    linked = max(1.0, degrees.sum())
    drawn = []
    for depth, limit in enumerate(limits):
        taken = np.minimum(degrees, limit)
        by_link = float((taken * degrees).sum() / linked)
        drawn.append(0.75 * float(taken.mean()) + 0.25 * by_link if depth == 0 else by_link)
    return drawn
