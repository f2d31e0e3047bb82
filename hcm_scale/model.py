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

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hcm_scale.aggregate import Bipartite, aggregate, row_sums
from hcm_scale.base.product import affine, affine_into, in_blocks
from hcm_scale.base.spmm import GcnWeights, gcn_rows, gcn_weights
from hcm_scale.base.threads import in_threads


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
        in_threads(len(room), gcn_rows, self.indptr, self.indices, self.weights, np.asarray(h), rows.start, room)
        return torch.from_numpy(room)

    def multiplied(self, h: Any, rows: slice, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        room, whole = self._room(rows, h.shape[1]), np.asarray(h)
        sums = torch.from_numpy(room)

        @torch.no_grad()
        def block(part: slice) -> None:
            span = part.start, min(part.stop, len(room))
            gcn_rows(span, self.indptr, self.indices, self.weights, whole, rows.start, room)
            torch.addmm(bias, sums[part], weight, out=out[part])

        in_blocks(len(room), weight.numel(), block)
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
