"""ROOM 5, the model: a GCN encoder and a head that predicts how many hops lie between two nodes.

    encode   H_{l+1} = relu(Â H_l W_l + b_l)            the last layer without the relu, unless asked for
    compare  |z_u - z_v|, on a directed graph z_u - z_v
    predict  Linear(width, head_width) -> relu -> Linear(head_width, C), trained with cross entropy

`HopModel(batch)` works on a mini-batch: every layer is computed only for the nodes that later layers need. A layer
aggregates before it multiplies where its input is no wider than its output (Â H) W = Â (H W), so the sum runs over the
narrower side and the product over the fewer rows. `embed_graph` is the same encoder over the whole graph, exact, layer
by layer in row chunks; it holds the activations of two layers, 2 x n x width x 4 bytes, and one chunk. `Layers` says
where the layers are kept, and which rows of each this process makes.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hcm_scale.base.spmm import GcnWeights, csr_row_range, gcn_rows, gcn_weights
from hcm_scale.base.threads import num_cores, run_in_threads, torch_threads

# ----------------------------------------------------------------------------
# x W + b, and its gradient, in the same bits at any number of threads.
#
# A BLAS library cuts a product into as many parts as it has threads, and sums that are cut otherwise round otherwise.
# Here the rows are cut into blocks whose size follows from the shapes alone; a block is made by one thread, whoever
# is free, and what blocks have in common, the gradients of W and b, is added up in the order of the blocks. On a GPU
# the product is torch's own.
#
# Memory: the output, and for the gradient a matrix of the size of W a block, 8 million products each.


_BLOCK_PRODUCTS = 1 << 23  # a quarter of a millisecond of one core, ten times what a block costs besides
_LEAST_ROWS = 256  # a power of two, as block sizes are, so that all blocks begin at aligned addresses


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of x (rows, in) and weight (in, out), plus the bias (out,) where there is one, with a gradient.

    >>> affine(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [5.0]]), torch.tensor([1.0])).tolist()
    [[14.0]]
    """
    if x.device.type != "cpu":
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    result: Tensor = _Affine.apply(x, weight, bias)
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return affine_into(torch.empty(len(x), weight.shape[1], dtype=x.dtype), x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g, needs = gradients[0].contiguous(), ctx.needs_input_grad
        of_x = torch.empty_like(x) if needs[0] else None
        parts: dict[int, tuple[Tensor, Tensor]] = {}

        @torch.no_grad()
        def block(rows: slice) -> None:
            if of_x is not None:
                torch.mm(g[rows], weight.T, out=of_x[rows])
            parts[rows.start] = x[rows].T @ g[rows], g[rows].sum(0)

        blocked_product(len(x), weight.numel(), block)
        of_weight, of_bias = parts.pop(0)
        for first in sorted(parts):
            of_weight += parts[first][0]
            of_bias += parts[first][1]
        return of_x, of_weight, of_bias if needs[2] else None


@torch.no_grad()
def affine_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same without a gradient, written to `out`, which is returned."""

    @torch.no_grad()
    def block(rows: slice) -> None:
        if bias is None:
            torch.mm(x[rows], weight, out=out[rows])
        else:
            torch.addmm(bias, x[rows], weight, out=out[rows])

    if x.device.type == "cpu":
        blocked_product(len(x), weight.numel(), block)
    else:
        block(slice(None))
    return out


def blocked_product(num_rows: int, row_products: int, work: Callable[[slice], None]) -> None:
    """Calls work(rows) for the blocks that make up the rows, at least one, on as many threads as torch has."""
    size = max(_LEAST_ROWS, 1 << (_BLOCK_PRODUCTS // row_products).bit_length() - 1)
    blocks = [slice(first, first + size) for first in range(0, max(num_rows, 1), size)]
    num_threads, waiting = min(torch.get_num_threads(), len(blocks)), iter(blocks)

    def run() -> None:
        for rows in waiting:
            work(rows)

    with torch_threads(1):
        helpers = [_helpers().submit(run) for _ in range(num_threads - 1)]
        run()
        for helper in helpers:
            helper.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads in each of which torch works alone."""
    num_helpers, had = num_cores(), torch.get_num_threads()
    pool, meet = ThreadPoolExecutor(num_helpers, "product"), threading.Barrier(num_helpers)

    def settle_down() -> None:
        torch.set_num_threads(1)  # of this thread, and of those to come
        meet.wait()

    for helper in [pool.submit(settle_down) for _ in range(num_helpers)]:
        helper.result()
    torch.set_num_threads(had)
    return pool


# ----------------------------------------------------------------------------
# The sum over neighbours as one differentiable operation: `aggregate(block, h)` = B h for a sparse B.
#
# The gradient with respect to h is Bᵀ times the gradient of the output, and Bᵀ is again a CSR matrix, so forward and
# backward are the same row-wise product: every output row is written once, in order, by one thread. The result does
# not depend on the number of threads, and there are no atomics. The weights are constants: they get no gradient.
#
# On the CPU the rows are shared between plain threads, as many as torch uses, that run a serial kernel without the
# GIL. Not numba's own pool: torch's OpenMP threads and numba's wait for work by spinning, and alternating between two
# such pools in every step cost three quarters of the speed on two cores. Elsewhere the product is torch's weighted
# `embedding_bag`, the same sum in one kernel. Memory: the output, nothing per entry.


Array = NDArray[Any]
_PART_PRODUCTS = 1 << 20  # below about a third of a millisecond of work a thread is not worth waking


class Bipartite(Protocol):
    """What is read of a block: a CSR matrix (num_targets, num_sources), and its transpose where somebody made it."""

    @property
    def indptr(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def num_sources(self) -> int: ...
    @property
    def t_indptr(self) -> Tensor | None: ...
    @property
    def t_indices(self) -> Tensor | None: ...
    @property
    def t_weights(self) -> Tensor | None: ...


def aggregate(block: Bipartite, h: Tensor) -> Tensor:
    """Row i of the result is the sum of weights[e] * h[indices[e]] over the entries e of row i: (targets, width)."""
    if h.shape[0] != block.num_sources:
        raise ValueError(f"h has {h.shape[0]} rows; this block aggregates over {block.num_sources} sources")
    result: Tensor = _Aggregate.apply(h, block)
    return result


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Bipartite) -> Tensor:
        ctx.block = block
        return row_sums(block.indptr, block.indices, block.weights, h)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return row_sums(*transposed(ctx.block), gradients[0]), None


def transposed(block: Bipartite) -> tuple[Tensor, Tensor, Tensor]:
    """The CSR of the transpose, (num_sources, num_targets): the block's own, or made here by a stable sort."""
    if block.t_indptr is not None and block.t_indices is not None and block.t_weights is not None:
        return block.t_indptr, block.t_indices, block.t_weights
    columns, order = torch.sort(block.indices, stable=True)
    rows = torch.repeat_interleave(block.indptr.diff().long()).to(block.indices.dtype)
    edges = torch.arange(block.num_sources + 1, dtype=columns.dtype, device=columns.device)
    starts = torch.searchsorted(columns, edges).to(block.indptr.dtype)
    return starts, rows[order], block.weights[order]


def row_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """CSR times dense, without autograd.

    >>> indptr, indices, weights = torch.tensor([0, 2, 2]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    >>> row_sums(indptr, indices, weights, torch.tensor([[3.0], [5.0]])).tolist()
    [[13.0], [0.0]]
    """
    h = h.detach().contiguous()
    if h.device.type != "cpu":
        return bag_sums(indptr, indices, weights, h)
    out = torch.empty(len(indptr) - 1, h.shape[1], dtype=h.dtype)
    _threaded(*(tensor.numpy() for tensor in (indptr, indices, weights, h, out)))
    return out


def _threaded(indptr: Array, indices: Array, weights: Array, h: Array, out: Array) -> None:
    """Cuts the rows into one part of about equal work per thread; the caller does the first part itself."""
    parts = min(torch.get_num_threads(), 1 + indices.size * h.shape[1] // _PART_PRODUCTS)
    cuts = np.searchsorted(indptr, np.arange(1, parts) * (indices.size / parts)).tolist()
    ranges = list(itertools.pairwise([0, *cuts, len(indptr) - 1]))
    rest = [_threads().submit(csr_row_range, indptr, indices, weights, h, *cut, out) for cut in ranges[1:]]
    csr_row_range(indptr, indices, weights, h, *ranges[0], out)
    for future in rest:
        future.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_cores(), "aggregate")


def bag_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """The same product by torch alone, on any device."""
    starts = indptr.to(indices.dtype)
    return functional.embedding_bag(
        indices, h, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


class Batch(Protocol):
    """What is read of a mini-batch: attributes, blocks (input side first), and pairs of positions among the seeds."""

    @property
    def x(self) -> Tensor: ...
    @property
    def blocks(self) -> Sequence[Bipartite]: ...
    @property
    def left(self) -> Tensor: ...
    @property
    def right(self) -> Tensor: ...


class SummingBatch(Protocol):
    """A batch that computes the first layer of a two-layer model itself.

    `sum_hidden(W, b)` is, of each node, the sum over its entries e of weight_e * relu(x_e W + b): what `aggregate`
    makes of the first layer, without that layer in memory. The block leads from these nodes to the ends of the pairs,
    the left ones first.
    """

    def sum_hidden(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Bipartite]: ...


class Affine(nn.Module):
    """x W + b with `weight` (in, out), drawn as Glorot and Bengio do; the bias starts at zero."""

    in_blocks = True  # whether products are the same at any number of threads; where there is always one, torch's own

    def __init__(self, num_inputs: int, num_outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        nn.init.xavier_uniform_(self.weight, generator=generator)

    @property
    def narrows(self) -> bool:
        """Whether the output is narrower than the input: then it pays to multiply before aggregating."""
        return self.weight.shape[1] < self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.bias)

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product of x and the weight, plus a bias where one is given."""
        if self.in_blocks:
            return affine(x, self.weight, bias)
        return x @ self.weight if bias is None else torch.addmm(bias, x, self.weight)


def _stack(widths: Sequence[int], generator: torch.Generator) -> list[Affine]:
    """Affine layers from each width to the next; a ModuleList, which the type checker may read as a list."""
    return cast(list[Affine], nn.ModuleList(Affine(*pair, generator) for pair in itertools.pairwise(widths)))


def parameter_shapes(
    *, num_attributes: int, num_classes: int, width: int, num_layers: int, head_width: int
) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the parameters of a HopModel of these sizes, which is not made."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stack, widths in (
        ("encoder", [num_attributes] + [width] * num_layers),
        ("head", [width, head_width, num_classes]),
    ):
        for depth, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            shapes |= {f"{stack}.{depth}.weight": (inputs, outputs), f"{stack}.{depth}.bias": (outputs,)}
    return shapes


class HopModel(nn.Module):
    """The hop classifier; its initial weights are a function of the sizes and the seed alone.

    >>> model = HopModel(num_attributes=20, num_classes=4, width=8, num_layers=2)
    >>> [tuple(layer.weight.shape) for layer in model.encoder], tuple(model.head[1].weight.shape)
    ([(20, 8), (8, 8)], (64, 4))
    """

    def __init__(
        self,
        num_attributes: int,
        num_classes: int = 4,
        *,
        width: int = 64,
        num_layers: int = 2,
        head_width: int = 64,
        directed: bool = False,
        last_relu: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        least = {"num_attributes": 1, "num_classes": 2, "width": 1, "num_layers": 1, "head_width": 1}
        given = num_attributes, num_classes, width, num_layers, head_width
        for (name, low), value in zip(least.items(), given, strict=True):
            if value < low:
                raise ValueError(f"{name}={value} must be at least {low}")
        generator = torch.Generator().manual_seed(seed)
        widths = [num_attributes] + [width] * num_layers
        self.encoder = _stack(widths, generator)
        self.head = _stack([width, head_width, num_classes], generator)
        self.directed = directed
        self.last_relu = last_relu

    @property
    def num_classes(self) -> int:
        return int(self.head[1].weight.shape[1])

    def forward(self, batch: Batch | SummingBatch) -> Tensor:
        """Logits of the batch's pairs: (pairs, C)."""
        if hasattr(batch, "sum_hidden"):
            first, second = self.encoder
            sums, ends = batch.sum_hidden(first.weight, first.bias)
            return self.predict(*aggregate(ends, self.activate(1, second(sums))).chunk(2))
        z = self.encode(batch.x, batch.blocks)
        return self.predict(z.index_select(0, batch.left), z.index_select(0, batch.right))

    def encode(self, x: Tensor, blocks: Sequence[Bipartite]) -> Tensor:
        """Embeddings of the last block's targets, (targets, width).

        With one block fewer than layers, x holds rows of Â X: the first propagation has been done, exactly.
        """
        missing = len(self.encoder) - len(blocks)
        if missing not in (0, 1):
            raise ValueError(f"{len(blocks)} blocks for {len(self.encoder)} layers; as many, or one fewer, are needed")
        h = x
        for depth, layer in enumerate(self.encoder):
            h = layer(h) if depth < missing else convolve(layer, blocks[depth - missing], h)
            h = self.activate(depth, h)
        return h

    def activate(self, depth: int, h: Tensor) -> Tensor:
        """Relu, in place (no layer needs its own output before it), except after the last layer unless asked for."""
        return h.relu_() if depth < len(self.encoder) - 1 or self.last_relu else h

    def predict(self, z_left: Tensor, z_right: Tensor) -> Tensor:
        """Logits (pairs, C) from the embeddings of both ends, (pairs, width) each."""
        apart = z_left - z_right
        hidden = self.head[0](apart if self.directed else apart.abs())
        logits: Tensor = self.head[1](hidden.relu_())
        return logits


def convolve(layer: Affine, block: Bipartite, h: Tensor) -> Tensor:
    """One graph convolution without its relu: (sources, in) -> (targets, out)."""
    if layer.narrows:
        return aggregate(block, layer.multiply(h)) + layer.bias
    result: Tensor = layer(aggregate(block, h))
    return result


CHUNK_ROWS = 65_536  # of one product over nodes


class Layers(Protocol):
    """Where the layers of a graph's embedding are kept, and who makes which rows."""

    def own(self, chunks: list[slice]) -> list[slice]:
        """Those of the rows, in chunks, that this process makes."""

    def room(self) -> Tensor:
        """(n, width) for a layer; the one before it stays, earlier ones may go."""

    def whole(self, layer: Tensor) -> Tensor:
        """The layer that was given room, when all its rows are made."""


@torch.no_grad()
def embed_graph(
    model: HopModel,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: NDArray[np.float32],
    *,
    propagated: bool,
    weights: NDArray[np.float32] | None = None,
    chunk_rows: int = CHUNK_ROWS,
    device: torch.device | str | None = None,
    layers: Layers | None = None,
) -> Tensor:
    """Embeddings of all nodes, (n, width), from exact neighbourhoods; on `device`, by default where the model is.

    `x` is (n, q): the attributes, or Â X where `propagated`; `weights` are those of the edges, else 1. `layers` are on
    the same device; by default each is new.
    """
    num_nodes, num_attributes = len(indptr) - 1, len(model.encoder[0].weight)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows={chunk_rows} must be at least 1")
    if x.shape != (num_nodes, num_attributes):
        raise ValueError(f"x has shape {x.shape}; this graph and model need {(num_nodes, num_attributes)}")
    place = model.encoder[0].weight.device if device is None else torch.device(device)
    gcn = gcn_weights(indptr, weights)
    sums: RowSums = _HostSums(indptr, indices, gcn) if place.type == "cpu" else _DeviceSums(indptr, indices, gcn, place)
    chunks = [slice(first, min(first + chunk_rows, num_nodes)) for first in range(0, num_nodes, chunk_rows)]
    h: Any = x if place.type == "cpu" else torch.tensor(x, device=place)
    layers = layers or _NewLayers((num_nodes, model.encoder[0].weight.shape[1]), place)
    own = layers.own(chunks)
    for depth in range(len(model.encoder)):
        h = _embed_layer(model, depth, h, None if propagated and depth == 0 else sums, own, place, layers)
    result: Tensor = h
    return result


@dataclass(frozen=True)
class _NewLayers:
    """Every layer in memory of its own, made by one process."""

    shape: tuple[int, int]
    place: torch.device

    def own(self, chunks: list[slice]) -> list[slice]:
        return chunks

    def room(self) -> Tensor:
        return torch.empty(self.shape, device=self.place)

    def whole(self, layer: Tensor) -> Tensor:
        return layer


class RowSums(Protocol):
    """Rows of Â h, and rows of (Â h) W + b."""

    def rows(self, h: Any, rows: slice) -> Tensor:
        """Those rows of Â h, which last until others are asked for; h are all nodes."""

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        """Those rows of (Â h) W + b, written to `out`."""


def _embed_layer(
    model: HopModel, depth: int, h: Any, sums: RowSums | None, own: list[slice], place: torch.device, layers: Layers
) -> Tensor:
    """One layer over the whole graph, this process's rows chunk by chunk; without `sums`, h is propagated already."""
    layer = model.encoder[depth]
    weight, bias = layer.weight.to(place), layer.bias.to(place)
    multiplied = sums is not None and layer.narrows
    if multiplied:
        product = layers.room()
        for rows in own:
            affine_into(product[rows], _take(h, rows, place), weight)
        h = layers.whole(product)
    out = layers.room()
    for rows in own:
        if sums is None:
            made = affine_into(out[rows], _take(h, rows, place), weight, bias)
        elif multiplied:
            made = torch.add(sums.rows(h, rows), bias, out=out[rows])
        else:
            made = sums.multiplied(h, rows, weight, bias, out[rows])
        model.activate(depth, made)
    return layers.whole(out)


def _take(h: Any, rows: slice, place: torch.device) -> Tensor:
    """Rows of a tensor, or a copy of the rows of an array (which may be a read-only map)."""
    return h[rows] if isinstance(h, Tensor) else torch.tensor(h[rows], device=place)


@dataclass
class _HostSums:
    """On the CPU: a block of rows is added up and multiplied by the thread that takes it."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weights: GcnWeights
    room: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def rows(self, h: Any, rows: slice) -> Tensor:
        room = self._room(rows, h.shape[1])
        run_in_threads(len(room), gcn_rows, self.indptr, self.indices, self.weights, np.asarray(h), rows.start, room)
        return torch.from_numpy(room)

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        room, whole = self._room(rows, h.shape[1]), np.asarray(h)
        sums = torch.from_numpy(room)

        @torch.no_grad()
        def block(part: slice) -> None:
            span = part.start, min(part.stop, len(room))
            gcn_rows(span, self.indptr, self.indices, self.weights, whole, rows.start, room)
            torch.addmm(bias, sums[part], weight, out=out[part])

        blocked_product(len(room), weight.numel(), block)
        return out

    def _room(self, rows: slice, width: int) -> NDArray[np.float32]:
        num_rows = rows.stop - rows.start
        if len(self.room) < num_rows or self.room.shape[1] != width:
            self.room = np.empty((num_rows, width), np.float32)
        return self.room[:num_rows]


class _DeviceSums:
    """On a GPU."""

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[Any], weights: GcnWeights, place: torch.device
    ) -> None:
        self.indptr, self.place = indptr, place
        self.columns = torch.tensor(indices, device=place)
        self.scale, self.edges = (torch.tensor(part, device=place) for part in weights)

    def rows(self, h: Any, rows: slice) -> Tensor:
        indptr, scale = self.indptr, self.scale
        starts = torch.tensor(indptr[rows.start : rows.stop + 1] - indptr[rows.start], device=self.place)
        entries = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
        near, own = self.columns[entries], scale[rows, None]
        factor = scale[near] * self.edges[entries] if len(self.edges) else scale[near]
        return (row_sums(starts, near, factor, h) + own * h[rows]) * own

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        return affine_into(out, self.rows(h, rows), weight, bias)
