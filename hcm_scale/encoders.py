"""Encoders other than the GCN. `Encoder` is the base of one's own, `Sage` and `Gat` are two from torch_geometric.

    class Sage(Encoder):
        def make_layer(self, num_inputs, num_outputs):
            return SAGEConv(num_inputs, num_outputs)

is all that a layer of torch_geometric takes. An encoder begins at the features X, where the GCN begins at Â X, and runs
over as many blocks as it has layers. For scores all nodes are embedded layer by layer, a few rows and all their
neighbours at a time (`model.embed_graph`): memory is that of two layers, (n, width) each, and of a chunk of 131,072
entries, or of the largest node's.

Parameters are what is sampled and stored. Layers are in evaluation mode: dropout does nothing, since samples take its
place, and a buffer stays as it was made. A layer is a function of its input alone, as threads share it.
"""

import itertools
from typing import Any

from torch import Tensor, nn

from hcm_scale.model import Block


class Encoder(nn.Module):
    """Layers from `num_attributes` numbers a node to `width`, by `make_layer`; a relu between two of them.

    `loops` says whether a node is among its own neighbours; layers that treat it apart, as most do, take it without.
    """

    loops = False

    def __init__(self, num_attributes: int, width: int, num_layers: int) -> None:
        super().__init__()
        widths = [num_attributes] + [width] * num_layers
        self.layers = nn.ModuleList(self.make_layer(*pair) for pair in itertools.pairwise(widths))

    def make_layer(self, num_inputs: int, num_outputs: int) -> nn.Module:
        """One layer, called with ((sources, q), (targets, q)) and edges (2, entries), as torch_geometric's are."""
        raise NotImplementedError(f"{type(self).__name__}.make_layer(num_inputs, num_outputs) returns a layer")

    def run_layer(self, depth: int, h: Tensor, block: Block) -> Tensor:
        """Numbers of the block's targets, (targets, width), from those of its sources; the targets are the first."""
        try:
            out: Tensor = self.layers[depth]((h, h[: block.num_targets]), block.edges(self.loops))
        except TypeError as error:  # of a layer that takes other arguments
            layer = f"layer {depth + 1} of the encoder {type(self).__name__}, a {type(self.layers[depth]).__name__}"
            called = (
                "it is called with ((sources, q), (targets, q)) and edges (2, entries); run_layer may call it otherwise"
            )
            raise ValueError(f"{layer}: {error}; {called}") from error
        return out.relu() if depth < len(self.layers) - 1 else out

    def forward(self, h: Tensor, blocks: Any) -> Tensor:
        """Embeddings of the last block's targets, from the input of the first one's sources."""
        for depth, block in enumerate(blocks):
            h = self.run_layer(depth, h, block)
        return h


class Sage(Encoder):
    """GraphSAGE: W a + V mean of the neighbours + b."""

    def make_layer(self, num_inputs: int, num_outputs: int) -> nn.Module:
        from torch_geometric.nn import SAGEConv

        return SAGEConv(num_inputs, num_outputs)


class Gat(Encoder):
    """A graph attention network: neighbours, and the node itself, by weights that its features learn."""

    loops, heads = True, 4

    def make_layer(self, num_inputs: int, num_outputs: int) -> nn.Module:
        from torch_geometric.nn import GATConv

        if num_outputs % self.heads:
            raise ValueError(f"model.width={num_outputs}: the {self.heads} heads of model.encoder=gat share it evenly")
        return GATConv(num_inputs, num_outputs // self.heads, self.heads, add_self_loops=False)
