"""The most memory that each stage will hold at once, foreseen from plain numbers before any of its work is done.

n nodes, m edges (undirected, or arcs of a directed graph), q features, w width of the encoder, C classes. Bytes are
those that the process itself holds; pages of mapped files, which the system drops when it needs them, do not count.
Each formula adds up the arrays that are alive at the same moment; `python -m bench foreseen` compares them with what is
measured. Every stage also loads its compiled code and first touches its libraries: `_START`, seen on tiny graphs.
"""

import math
from dataclasses import dataclass

from hcm_scale.features.rescale import block_rows
from hcm_scale.features.survey import sampled_rows
from hcm_scale.hops.engines import choose_words, wide_bytes
from hcm_scale.hops.label import rows_in_flight
from hcm_scale.model import CHUNK_ROWS
from hcm_scale.sampling.pair_order import WINDOW
from hcm_scale.sampling.pairs import KEPT_PAIRS
from hcm_scale.score.residual import CHUNK_ROWS as RESIDUAL_ROWS
from hcm_scale.score.table import group_rows
from hcm_scale.shards.schema import LabelPlan
from hcm_scale.stages.label import num_writers
from hcm_scale.stages.train_batches import AHEAD

MIB = 1 << 20
_COVARIANCE_COLUMNS = {True: 2_048, False: 8_192}  # by whether storage is sparse: of more none is formed (pca.py)
_START = {"graph": 8 * MIB, "purify": 10 * MIB, "label": 42 * MIB, "train": 50 * MIB, "score": 50 * MIB}
_START |= {"report": 58 * MIB, "propagate": 2 * MIB}


def synthetic_bytes(num_nodes: int, edges_per_node: int, num_attributes: int) -> int:
    """A graph that is made: its pairs (8 bytes), their arcs twice (16 and 8); or the CSR beside the attributes."""
    pairs = num_nodes * edges_per_node
    sorting = 8 * num_nodes + 32 * pairs
    filled = 8 * num_nodes + 8 * pairs + 4 * num_nodes * num_attributes
    return _START["graph"] + max(sorting, filled)


def inject_bytes(num_nodes: int, num_arcs: int, num_values: int, *, weighted: bool = False) -> int:
    """Anomalies planted into a graph on disk: a second CSR, with weights, and a second copy of all attribute values."""
    return _START["graph"] + 24 * num_nodes + (16 if weighted else 12) * num_arcs + 4 * num_values


def purify_bytes(
    num_nodes: int,
    num_edges: int,
    num_attributes: int,
    *,
    num_values: int,
    num_features: int,
    ratio: float,
    weighted: bool = False,
) -> int:
    """Features and purified graph; `num_values` are the attribute values that are stored, n d of them where dense.

    First the survey, which holds a sample of the rows twice, and the covariance where columns are reduced; then blocks
    of rows in float64 beside the features; then similarities (4 bytes an edge, twice, and two marks) and the new CSR,
    beside the features. Weights of edges are weighed with the similarities and copied into the new CSR.
    """
    per_row = max(1, num_values // max(1, num_nodes))
    is_sparse = num_values < num_nodes * num_attributes
    sample = min(num_nodes, sampled_rows(per_row))
    value_bytes = 8 if is_sparse else 4
    survey = value_bytes * sample * per_row * (2 if sample < num_nodes else 1)
    if is_sparse:
        survey += 20 * sample * per_row
    if num_features < num_attributes <= _COVARIANCE_COLUMNS[is_sparse]:
        survey += (16 if is_sparse else 24) * num_attributes**2
    block = min(num_nodes, block_rows(per_row))
    blocks = block * (36 * per_row + 16 * num_features if is_sparse else 20 * per_row + 8 * num_features)
    edges = 32 * num_nodes + 4 * num_edges + max(6 * num_edges, num_edges + int(8 * (1 - ratio) * num_edges))
    edges += int((12 + 8 * (1 - ratio)) * num_edges) if weighted else 0
    features = 4 * num_nodes * num_features
    return _START["purify"] + max(survey, features + blocks, features + edges)


def propagate_bytes(num_nodes: int, num_features: int) -> int:
    """A weight a node, and what looks whether values are finite."""
    return _START["propagate"] + 12 * num_nodes + 5 * min(num_nodes, 1 << 17) * num_features


@dataclass(frozen=True)
class Searches:
    """How the label stage walks: threads, and the most bytes of state that each may have."""

    threads: int
    state_bytes: int


def label_bytes(plan: LabelPlan, num_linked: int, num_arcs: int, *, shares: bool, how: Searches) -> int:
    """The searches' state, the rows of the sources in flight, and the shards being made and written.

    Where sources share blocks (`shares`) the graph is laid out anew, its CSR copied and the state is 24 bytes and more
    a node and word; else a thread holds six bytes a node. A shard is held as it came (9 bytes a pair), in order (8) and
    encoded, in buffers that double as they grow and once more when it is handed over (22).
    """
    n, most = plan.num_nodes, plan.num_nodes if plan.pairs_per_class is None else plan.pairs_per_class
    sample = most if most < n else 0
    if shares:
        words = choose_words(num_linked, plan.num_sources, sample, how.threads, how.state_bytes)
        state = 40 * n + 4 * num_arcs + how.threads * wide_bytes(num_linked, words, sample)
    else:
        state = 16 * n + how.threads * 6 * n
    per_source = min(n - 1, min(most, num_arcs // max(1, num_linked)) + (plan.classes - 1) * most)
    step = plan.sources_per_shard
    width = plan.index_type.itemsize
    in_flight = min(plan.num_sources, rows_in_flight(min(n, most * plan.classes) * width, step, how.threads))
    shard = step * per_source
    written = min(plan.num_shards, num_writers())
    shards = 9 * shard * min(plan.num_shards, num_writers() + 1) + 30 * shard * written
    return _START["label"] + state + in_flight * (per_source * width + 16 * plan.classes) + shards


@dataclass(frozen=True)
class BatchShape:
    """What a batch of training is: its pairs, the nodes that they reach layer by layer, seeds first, and entries."""

    pairs: int
    layers: tuple[int, ...]  # nodes from the seeds outwards
    entries: int

    @staticmethod
    def foreseen(num_nodes: int, pairs: int, drawn: list[float], *, whole_graph: bool = False) -> "BatchShape":
        """Of a graph whose nodes draw so many neighbours on average, one number a sampled layer, seeds outwards.

        >>> BatchShape.foreseen(1000, 10, [4.0])
        BatchShape(pairs=10, layers=(20, 95), entries=100)
        """
        layers, entries = [num_nodes if whole_graph else min(num_nodes, 2 * pairs)], 0
        for neighbors in drawn:
            entries += int(layers[-1] * (1 + neighbors))
            met = layers[-1] * (1 + neighbors)
            layers.append(int(num_nodes * -math.expm1(-met / num_nodes)))  # some more than once
        return BatchShape(pairs, tuple(layers), entries)

    def held_bytes(self, num_features: int) -> int:
        """The batch itself: a row of features a node, both directions of every entry, three numbers a pair."""
        return self.layers[-1] * (8 + 4 * num_features) + 16 * self.entries + 24 * self.pairs

    def step_bytes(self, width: int, head_width: int) -> int:
        """What a step makes of it: values and gradients of each layer, and of both ends and the head of each pair."""
        hidden = sum(self.layers) + self.layers[-1] * (len(self.layers) > 1)
        return 4 * width * (3 * hidden) + 4 * self.pairs * (6 * width + 3 * head_width)


def train_bytes(
    num_nodes: int,
    batch: BatchShape,
    *,
    num_features: int,
    widths: tuple[int, int],
    num_drawn: int,
    window: int,
    workers: int,
) -> int:
    """Batches prepared ahead and the one in hand, its step, four bytes a node and worker, a window of pairs a class.

    An epoch draws `num_drawn` pairs; `window` is the most that WINDOW row groups of all classes hold.
    """
    ahead = AHEAD * workers + 2 if workers else 2
    scratch = 4 * num_nodes * (max(1, workers) + 3)
    pairs = 16 * min(num_drawn, window) + 8 * KEPT_PAIRS
    shared = 1 if batch.layers[0] == num_nodes else ahead
    return _START["train"] + scratch + pairs + shared * batch.held_bytes(num_features) + batch.step_bytes(*widths)


def pair_window(classes: int, row_group_rows: int) -> int:
    """The most pairs that the windows of all classes hold."""
    return classes * WINDOW * row_group_rows


def score_bytes(
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

    Two layers of embeddings (`embedding.py`) and moments of 8 bytes an edge, unless they are on disk, a chunk of rows
    as it passes through a layer, and a chunk of edges a thread; ranks have their layers on disk, share the moments, and
    map what rank 0 goes on with. Moments are there a second time while a second view is predicted, and a third while
    views are averaged. About attributes there are distances over edges, and five copies of a chunk of features a
    thread, most in float64, beside the moments. About nodes there are eleven numbers, sorted by every kind, and pieces
    of their table, one a thread and one more, as rows (140 bytes each) and encoded, in buffers that double; marks of
    far edges and distances.
    """
    width, head_width = widths
    layers = 0 if on_disk or num_ranks > 1 else 8 * num_nodes * width
    chunks = 4 * threads * min(chunk_edges, num_edges) * (width + head_width + 8)
    rows = min(num_nodes, CHUNK_ROWS) * (4 * width + 6 * num_features)
    several = num_views > 1
    moments = 0 if on_disk else 8 * num_edges
    whole = moments if num_ranks == 1 else 0
    embedding = layers + 20 * num_nodes + rows + chunks + (moments // num_ranks) + whole * several
    residuals = 44 * threads * min(num_nodes, RESIDUAL_ROWS) * num_features
    about_attributes = 60 * num_nodes + residuals + 4 * num_edges + whole
    pieces = 280 * min(num_nodes, (threads + 1) * group_rows(num_nodes))
    about_nodes = (190 + 16 * several) * num_nodes + pieces + 7 * num_edges + whole
    return _START["score"] + max(embedding, about_attributes, about_nodes, 3 * whole * several)


def report_bytes(num_nodes: int, num_edges: int, *, weighted: bool = False) -> int:
    """The table (150 bytes a node), its columns again as they are sorted and shown, and distances over the edges.

    Or, where edges have weights, a copy of those.
    """
    return _START["report"] + 300 * num_nodes + (16 if weighted else 12) * num_edges
