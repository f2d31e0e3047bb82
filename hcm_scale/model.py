"""The HCM network: a GCN encoder, and a head that predicts hops.

    encode   H_{l+1} = relu(Â H_l W_l + b_l)            the last layer without the relu, unless asked for
    compare  |z_u - z_v|, on a directed graph z_u - z_v
    predict  Linear(width, head_width) -> relu -> Linear(head_width, C), trained with cross entropy

`HopModel(batch)` works on a mini-batch: every layer is computed only for the nodes that later layers need. As
(Â H) W = Â (H W), a layer aggregates on the narrower side of its product. `embed_graph` is the same encoder over the
whole graph, exact, layer by layer in row chunks; it holds the activations of two layers, 2 x n x width x 4 bytes, and
one chunk.

Results on a CPU are the same bits at any number of threads:

- `affine`, x W + b, cuts the rows into blocks whose size follows from the shapes alone, where a BLAS library would cut
  by threads and round differently. Each block is computed by one thread; the gradients of W and b are added up in the
  order of the blocks, which takes a matrix of the size of W per block of 8 million products.
- `aggregate`, B h for a sparse B, and its gradient, Bᵀ times that of the output, are the same row-wise product: every
  output row is written once, in order, by one thread. Rows are shared between plain threads that run a serial kernel
  without the GIL. Not numba's own pool: torch's and numba's threads both wait by spinning, and alternating between two
  such pools in every step cost three quarters of the speed on two cores.

On other devices both are torch's own products.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hcm_scale import plugins
from hcm_scale.base.jit import kernel
from hcm_scale.base.npy import read_only
from hcm_scale.base.spmm import GcnWeights, csr_row_range, gcn_rows, gcn_weights
from hcm_scale.base.threads import num_cores, run_in_threads, torch_threads

CHUNK_ROWS = 65_536  # of `embed_graph`
_BLOCK_PRODUCTS = 1 << 23  # of `affine`: a quarter of a millisecond of one core, ten times a block's overhead
_LEAST_ROWS = 256  # of a block; a power of two, as block sizes are, so that all blocks begin at aligned addresses
_PIECE_ENTRIES = 1 << 17  # of rows that pass through a layer of another encoder together
_THREAD_PRODUCTS = 1 << 20  # of `aggregate`: below a third of a millisecond of work a thread is not worth waking


GENERATOR = threading.Lock()  # of torch, whose state is put back


@dataclass(frozen=True, eq=False)
class Block:
    """One bipartite layer in CSR: row i times the sources' rows is target i's aggregate.

    The targets are the first `num_targets` sources. The transpose makes the backward pass a row-wise product too; it is
    None where the sources need no gradients.
    """

    indptr: Tensor  # i32 (num_targets + 1,)
    indices: Tensor  # i32 (entries,): positions into the sources
    weights: Tensor  # f32 (entries,)
    num_targets: int
    num_sources: int
    t_indptr: Tensor | None = None  # i32 (num_sources + 1,)
    t_indices: Tensor | None = None  # i32 (entries,): positions into the targets
    t_weights: Tensor | None = None  # f32 (entries,)

    @staticmethod
    def of(indptr: NDArray[Any], indices: NDArray[Any], weights: NDArray[Any], num_sources: int) -> "Block":
        csr = torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(weights)
        return Block(*csr, len(indptr) - 1, num_sources)

    def with_transpose(self) -> "Block":
        t_indptr = torch.empty(self.num_sources + 1, dtype=torch.int32)
        t_indices, t_weights = torch.empty_like(self.indices), torch.empty_like(self.weights)
        arrays = self.indptr, self.indices, self.weights, t_indptr, t_indices, t_weights
        transpose(*(array.numpy() for array in arrays))
        return replace(self, t_indptr=t_indptr, t_indices=t_indices, t_weights=t_weights)

    def edges(self, loops: bool) -> Tensor:
        """Entries as torch_geometric has edges, i64 (2, entries), sources above targets.

        Without `loops`, the first entry of every row is left out, which is the target itself.
        """
        counts = self.indptr.diff().long()
        targets = torch.repeat_interleave(counts, output_size=len(self.indices))
        pairs = torch.stack([self.indices.long(), targets])
        if loops:
            return pairs
        is_near = torch.ones(len(self.indices), dtype=torch.bool, device=pairs.device)
        is_near[self.indptr[:-1].long()] = False
        return pairs[:, is_near]


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """Labelled pairs and the input that predicts them. Seeds come first: `out[:num_seeds]` is the answer."""

    nodes: Tensor  # i64 (sources of blocks[0],): nodes of the graph
    num_seeds: int
    x: Tensor  # f32 (len(nodes), q)
    blocks: tuple[Block, ...]  # input side first; blocks[i].num_targets == blocks[i + 1].num_sources
    left: Tensor  # i64 (pairs,): position of u among the seeds
    right: Tensor  # i64 (pairs,): position of v
    hop: Tensor  # i64 (pairs,): class index 0 .. C - 1
    epoch: int
    step: int

    def map(self, change: Callable[[Tensor], Tensor]) -> "MiniBatch":
        blocks = tuple(_map_tensors(block, change) for block in self.blocks)
        return replace(_map_tensors(self, change), blocks=blocks)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "MiniBatch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    named = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: change(item) for name, item in named.items() if isinstance(item, Tensor)})


@kernel(nogil=True)
def transpose(indptr, indices, weights, t_indptr, t_indices, t_weights):
    """The CSR of the transpose by counting; entries of a row come in the order of their old rows."""
    num_rows, num_columns = len(indptr) - 1, len(t_indptr) - 1
    t_indptr[:] = 0
    for e in range(len(indices)):
        t_indptr[indices[e] + 1] += 1
    for j in range(num_columns):
        t_indptr[j + 1] += t_indptr[j]
    free = t_indptr[:-1].copy()
    for i in range(num_rows):
        for e in range(indptr[i], indptr[i + 1]):
            slot = free[indices[e]]
            free[indices[e]] += 1
            t_indices[slot] = i
            t_weights[slot] = weights[e]


class SummingBatch(Protocol):
    """A mini-batch that computes the first layer of a two-layer model itself.

    `sum_hidden(W, b)` is, for each node, the sum over its entries e of weight_e * relu(x_e W + b), and the block that
    leads from these nodes to the ends of the pairs, left ones first.
    """

    def sum_hidden(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Block]: ...


class HopModel(nn.Module):
    """The hop classifier; its initial weights are a function of the sizes and the seed alone.

    `encoder` is the name or identity of a plug-in, which begins at X, not at Â X, where it is not the GCN.

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
        encoder: str = "gcn",
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.num_attributes, self.width, self.num_layers = num_attributes, width, num_layers
        self.is_gcn = encoder == "gcn"
        if self.is_gcn:
            self.encoder = _stack([num_attributes] + [width] * num_layers, generator)
        else:
            self.encoder = cast(Any, _own_encoder(encoder, (num_attributes, width, num_layers), seed))
        self.head = _stack([width, head_width, num_classes], generator)
        self.directed = directed
        self.last_relu = last_relu

    @property
    def num_classes(self) -> int:
        return int(self.head[1].weight.shape[1])

    def forward(self, batch: MiniBatch | SummingBatch) -> Tensor:
        """Logits of the batch's pairs: (pairs, C)."""
        if hasattr(batch, "sum_hidden"):
            first, second = self.encoder
            sums, ends = batch.sum_hidden(first.weight, first.bias)
            return self.predict(*aggregate(ends, self.activate(1, second(sums))).chunk(2))
        z = self.encode(batch.x, batch.blocks)
        return self.predict(z.index_select(0, batch.left), z.index_select(0, batch.right))

    def encode(self, x: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Embeddings of the last block's targets, (targets, width).

        With one block fewer than layers, x holds rows of Â X: the first propagation has been done, exactly.
        """
        if not self.is_gcn:
            return cast(Tensor, cast(Any, self.encoder)(x, blocks))
        missing = len(self.encoder) - len(blocks)
        if missing not in (0, 1):
            raise ValueError(f"{len(blocks)} blocks for {len(self.encoder)} layers; as many, or one fewer, are needed")
        h = x
        for depth, layer in enumerate(self.encoder):
            if depth < missing:
                h = layer(h)
            elif layer.narrows:
                h = aggregate(blocks[depth - missing], layer.multiply(h)) + layer.bias
            else:
                h = layer(aggregate(blocks[depth - missing], h))
            h = self.activate(depth, h)
        return h

    def activate(self, depth: int, h: Tensor) -> Tensor:
        """Relu, in place (no layer needs its own output before it), except after the last layer unless asked for."""
        return h.relu_() if depth < len(self.encoder) - 1 or self.last_relu else h

    def predict(self, z_left: Tensor, z_right: Tensor) -> Tensor:
        """Logits (pairs, C) from the embeddings of both ends, (pairs, width) each."""
        difference = z_left - z_right
        hidden = self.head[0](difference if self.directed else difference.abs())
        logits: Tensor = self.head[1](hidden.relu_())
        return logits


class Affine(nn.Module):
    """x W + b with `weight` (in, out), drawn as Glorot and Bengio do; the bias starts at zero."""

    in_blocks = True  # same bits at any number of threads; where there is always one thread, torch's own product

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
        return (affine if self.in_blocks else _product)(x, self.weight, bias)


def _stack(widths: Sequence[int], generator: torch.Generator) -> list[Affine]:
    """Affine layers from each width to the next; a ModuleList, which the type checker may read as a list."""
    return cast(list[Affine], nn.ModuleList(Affine(*pair, generator) for pair in itertools.pairwise(widths)))


def _own_encoder(name: str, sizes: tuple[int, int, int], seed: int) -> nn.Module:
    """The encoder of a plug-in, made from the seed alone; ValueError where its parameters cannot be sampled."""
    make, what = plugins.load("encoders", name), f"model.encoder={name}"
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = make(*sizes)
        except TypeError as error:  # of other arguments, here or in make_layer
            raise ValueError(f"{what}: {error}; it is called with num_attributes, width and num_layers") from error
    if not isinstance(made, nn.Module) or not (hasattr(made, "run_layer") or hasattr(made, "embed")):
        raise ValueError(f"{what} makes a {type(made).__name__} that is no hcm_scale.encoders.Encoder")
    for parameter, value in made.named_parameters():
        if isinstance(value, nn.UninitializedParameter) or value.dtype != torch.float32 or not value.requires_grad:
            raise ValueError(f"{what}: its parameter {parameter} is not a float32 of known shape that takes gradients")
    return made.train(False)


def parameter_shapes(encoder: str = "gcn", **sizes: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of a HopModel of these sizes, without taking memory for them."""
    with torch.device("meta"):
        made = HopModel(**sizes, encoder=encoder)
    return {name: tuple(value.shape) for name, value in made.named_parameters()}


def aggregate(block: Block, h: Tensor) -> Tensor:
    """Sum of weights[e] * h[indices[e]] over the entries e of each row, (targets, width); weights get no gradient."""
    assert h.shape[0] == block.num_sources
    result: Tensor = _Aggregate.apply(h, block)
    return result


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return _row_sums(block.indptr, block.indices, block.weights, h)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return _row_sums(*_transposed(ctx.block), gradients[0]), None


def _transposed(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """CSR of the transpose, (num_sources, num_targets): the block's own, or made by a stable sort."""
    if block.t_indptr is not None and block.t_indices is not None and block.t_weights is not None:
        return block.t_indptr, block.t_indices, block.t_weights
    columns, order = torch.sort(block.indices, stable=True)
    rows = torch.repeat_interleave(block.indptr.diff().long()).to(block.indices.dtype)
    edges = torch.arange(block.num_sources + 1, dtype=columns.dtype, device=columns.device)
    starts = torch.searchsorted(columns, edges).to(block.indptr.dtype)
    return starts, rows[order], block.weights[order]


def _row_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    """CSR times dense, without autograd; on a CPU in one part of equal work per thread, the first in the caller."""
    h = h.detach().contiguous()
    if h.device.type != "cpu":
        return _bag_sums(indptr, indices, weights, h)
    out = torch.empty(len(indptr) - 1, h.shape[1], dtype=h.dtype)
    csr = indptr.numpy(), indices.numpy(), weights.numpy(), h.numpy()
    num_cuts = min(torch.get_num_threads(), 1 + len(indices) * h.shape[1] // _THREAD_PRODUCTS)
    cuts = np.searchsorted(csr[0], np.arange(1, num_cuts) * (len(indices) / num_cuts)).tolist()
    ranges = list(itertools.pairwise([0, *cuts, len(indptr) - 1]))
    others = [_helpers().submit(csr_row_range, *csr, *cut, out.numpy()) for cut in ranges[1:]]
    csr_row_range(*csr, *ranges[0], out.numpy())
    for other in others:
        other.result()
    return out


def _bag_sums(indptr: Tensor, indices: Tensor, weights: Tensor, h: Tensor) -> Tensor:
    starts = indptr.to(indices.dtype)
    return functional.embedding_bag(
        indices, h, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of x (rows, in) and weight (in, out), plus the bias (out,) if given, with a gradient."""
    result: Tensor = (_Affine.apply if x.device.type == "cpu" else _product)(x, weight, bias)
    return result


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    return torch.mm(x, weight, out=out) if bias is None else torch.addmm(bias, x, weight, out=out)


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _affine_into(torch.empty(len(x), weight.shape[1], dtype=x.dtype), x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g, needs = gradients[0].contiguous(), ctx.needs_input_grad
        of_x = torch.empty_like(x) if needs[0] else None
        gradients_of: dict[int, tuple[Tensor, Tensor]] = {}

        @torch.no_grad()
        def block(rows: slice) -> None:
            if of_x is not None:
                torch.mm(g[rows], weight.T, out=of_x[rows])
            gradients_of[rows.start] = x[rows].T @ g[rows], g[rows].sum(0)

        _in_blocks(len(x), weight.numel(), block)
        of_weight, of_bias = gradients_of.pop(0)
        for first in sorted(gradients_of):
            of_weight += gradients_of[first][0]
            of_bias += gradients_of[first][1]
        return of_x, of_weight, of_bias if needs[2] else None


@torch.no_grad()
def _affine_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`affine` without a gradient, written to `out`, which is returned."""
    if x.device.type != "cpu":
        return _product(x, weight, bias, out)

    @torch.no_grad()
    def block(rows: slice) -> None:
        _product(x[rows], weight, bias, out[rows])

    _in_blocks(len(x), weight.numel(), block)
    return out


def _in_blocks(num_rows: int, row_products: int, work: Callable[[slice], None]) -> None:
    """Calls work(rows) for the blocks that make up the rows, at least one, on as many threads as torch has."""
    size = max(_LEAST_ROWS, 1 << (_BLOCK_PRODUCTS // row_products).bit_length() - 1)
    _share([slice(first, first + size) for first in range(0, max(num_rows, 1), size)], work)


def _share(blocks: list[slice], work: Callable[[slice], None]) -> None:
    """Calls work(rows) for every block, at least one, on as many threads as torch has, in each of which it has one."""
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
    """Threads, one per core, in each of which torch works alone."""
    num_helpers, had = num_cores(), torch.get_num_threads()
    pool, all_started = ThreadPoolExecutor(num_helpers, "model"), threading.Barrier(num_helpers)

    def start() -> None:
        torch.set_num_threads(1)  # of this thread, and of those to come
        all_started.wait()

    for helper in [pool.submit(start) for _ in range(num_helpers)]:
        helper.result()
    torch.set_num_threads(had)
    return pool


class Layers:
    """Where the layers of a graph's embedding are stored, and which rows this process computes: new memory, and all."""

    def __init__(self, shape: tuple[int, int], device: torch.device | str = "cpu") -> None:
        self.shape, self.device = shape, device

    def own(self, chunks: list[slice]) -> list[slice]:
        """Chunks of rows that this process computes."""
        return chunks

    def room(self) -> Tensor:
        """Storage (n, width) for a layer; the one before it stays, earlier ones may go."""
        return torch.empty(self.shape, device=self.device)

    def whole(self, layer: Tensor) -> Tensor:
        """The layer stored in `room`, when all its rows are computed."""
        return layer


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
    the same device; by default each is newly allocated.
    """
    num_nodes, num_attributes = len(indptr) - 1, model.num_attributes
    if x.shape != (num_nodes, num_attributes):
        raise ValueError(f"x has shape {x.shape}; this graph and model need {(num_nodes, num_attributes)}")
    target = model.head[0].weight.device if device is None else torch.device(device)
    gcn, layers = gcn_weights(indptr, weights), layers or Layers((num_nodes, model.width), target)
    own = layers.own([slice(first, min(first + chunk_rows, num_nodes)) for first in range(0, num_nodes, chunk_rows)])
    h: Any = x if target.type == "cpu" else torch.tensor(x, device=target)
    if not model.is_gcn:
        return _embed_own(model, (indptr, indices, gcn), h, own, layers)
    sums = _HostSums(indptr, indices, gcn) if target.type == "cpu" else _DeviceSums(indptr, indices, gcn, target)
    for depth in range(len(model.encoder)):
        h = _embed_layer(model, depth, h, None if propagated and depth == 0 else sums, own, layers)
    result: Tensor = h
    return result


def _embed_own(model: HopModel, graph: tuple[Any, Any, GcnWeights], h: Any, own: list[slice], layers: Layers) -> Tensor:
    """`embed_graph` of another encoder: rows and all their neighbours, a few at a time, pass through one layer.

    An encoder with a method `embed(indptr, indices, x)` embeds the graph itself.
    """
    encoder, device = cast(Any, model.encoder).to(layers.device), torch.device(layers.device)
    if hasattr(encoder, "embed"):
        return cast(Tensor, encoder.embed(*graph[:2], torch.as_tensor(np.array(h) if device.type == "cpu" else h)))
    pieces = [piece for rows in own for piece in _cut_by_entries(graph[0], rows)]
    for depth in range(model.num_layers):
        out = layers.room()

        @torch.no_grad()
        def embed(rows: slice, depth: int = depth, h: Any = h, out: Tensor = out) -> None:
            nodes, block = block_of_rows(*graph, rows)
            near = _take(h, nodes, device) if device.type == "cpu" else h[torch.from_numpy(nodes).to(device)]
            out[rows] = encoder.run_layer(depth, near, _map_tensors(block, lambda tensor: tensor.to(device)))

        if device.type == "cpu" and pieces:
            _share(pieces, embed)
        else:
            for rows in pieces:
                embed(rows)
        h = layers.whole(out)
    return cast(Tensor, h)


def _cut_by_entries(indptr: NDArray[np.int64], rows: slice) -> list[slice]:
    """Consecutive parts of the rows, cut where they pass a multiple of so many entries."""
    starts = indptr[rows.start : rows.stop + 1]
    inner = np.searchsorted(starts, np.arange(starts[0] + _PIECE_ENTRIES, starts[-1], _PIECE_ENTRIES)) + rows.start
    return [slice(*ends) for ends in itertools.pairwise(np.unique([rows.start, *inner, rows.stop]).tolist())]


def block_of_rows(
    indptr: NDArray[np.int64], indices: NDArray[Any], gcn: GcnWeights, rows: slice
) -> tuple[NDArray[np.int64], Block]:
    """Nodes that these rows of the graph need, the rows first, and the block of all their neighbours."""
    entries, own = slice(int(indptr[rows.start]), int(indptr[rows.stop])), np.arange(rows.stop - rows.start)
    starts, near = indptr[rows.start : rows.stop + 1] - entries.start, indices[entries].astype(np.int64)
    outside = (near < rows.start) | (near >= rows.stop)
    others, numbers = np.unique(near[outside], return_inverse=True)
    position = near - rows.start
    position[outside] = len(own) + numbers
    nodes = np.concatenate([rows.start + own, others])
    scale, weights = gcn.scale[nodes], gcn.edges[entries] if len(gcn.edges) else np.ones(len(near), np.float32)
    position, weights = np.insert(position, starts[:-1], own), np.insert(weights, starts[:-1], 1.0)
    weights *= scale[np.repeat(own, np.diff(starts) + 1)] * scale[position]
    ends = (starts + np.arange(len(starts))).astype(np.int32)
    return nodes, Block.of(ends, position.astype(np.int32), weights.astype(np.float32), len(nodes))


def _embed_layer(
    model: HopModel, depth: int, h: Any, sums: "_HostSums | _DeviceSums | None", own: list[slice], layers: Layers
) -> Tensor:
    """One layer over the whole graph, this process's rows chunk by chunk; without `sums`, h is propagated already."""
    layer, device = model.encoder[depth], layers.device
    weight, bias = layer.weight.to(device), layer.bias.to(device)
    multiplies_first = sums is not None and layer.narrows
    if multiplies_first:
        product = layers.room()
        for rows in own:
            _affine_into(product[rows], _take(h, rows, device), weight)
        h = layers.whole(product)
    out = layers.room()
    for rows in own:
        if sums is None:
            made = _affine_into(out[rows], _take(h, rows, device), weight, bias)
        elif multiplies_first:
            made = torch.add(sums.rows(h, rows), bias, out=out[rows])
        else:
            made = sums.multiplied(h, rows, weight, bias, out[rows])
        model.activate(depth, made)
    return layers.whole(out)


def _take(h: Any, rows: Any, device: torch.device | str) -> Tensor:
    """Rows of a tensor, or a copy of the rows of an array (which may be a read-only map)."""
    return h[rows] if isinstance(h, Tensor) else torch.tensor(h[rows], device=device)


@dataclass
class _HostSums:
    """Rows of Â h and of (Â h) W + b on a CPU: a block of rows is summed and multiplied by the thread that takes it."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weights: GcnWeights
    buffer: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def rows(self, h: Any, rows: slice) -> Tensor:
        """Rows of Â h, valid until the next call; h are all nodes."""
        out = self._buffer(rows, h.shape[1])
        run_in_threads(
            len(out), gcn_rows, self.indptr, self.indices, self.weights, read_only(np.asarray(h)), rows.start, out
        )
        return torch.from_numpy(out)

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        """Rows of (Â h) W + b, written to `out`."""
        buffer, whole = self._buffer(rows, h.shape[1]), read_only(np.asarray(h))
        sums = torch.from_numpy(buffer)

        @torch.no_grad()
        def block(own: slice) -> None:
            span = own.start, min(own.stop, len(buffer))
            gcn_rows(span, self.indptr, self.indices, self.weights, whole, rows.start, buffer)
            torch.addmm(bias, sums[own], weight, out=out[own])

        _in_blocks(len(buffer), weight.numel(), block)
        return out

    def _buffer(self, rows: slice, width: int) -> NDArray[np.float32]:
        num_rows = rows.stop - rows.start
        if len(self.buffer) < num_rows or self.buffer.shape[1] != width:
            self.buffer = np.empty((num_rows, width), np.float32)
        return self.buffer[:num_rows]


class _DeviceSums:
    """The same on a GPU."""

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[Any], weights: GcnWeights, device: torch.device
    ) -> None:
        self.indptr, self.device = indptr, device
        self.columns = torch.tensor(indices, device=device)
        self.scale, self.edges = (torch.tensor(array, device=device) for array in weights)

    def rows(self, h: Any, rows: slice) -> Tensor:
        indptr, scale = self.indptr, self.scale
        starts = torch.tensor(indptr[rows.start : rows.stop + 1] - indptr[rows.start], device=self.device)
        entries = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
        near, own = self.columns[entries], scale[rows, None]
        factor = scale[near] * self.edges[entries] if len(self.edges) else scale[near]
        return (_row_sums(starts, near, factor, h) + own * h[rows]) * own

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        return _affine_into(out, self.rows(h, rows), weight, bias)
