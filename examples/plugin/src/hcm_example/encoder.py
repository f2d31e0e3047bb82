"""The graph network of Morris and others: W a + V times the mean of the neighbours."""

from torch import nn

from hcm_scale.encoders import Encoder


class GraphConvEncoder(Encoder):
    """Layers of torch_geometric."""

    def make_layer(self, num_inputs: int, num_outputs: int) -> nn.Module:
        from torch_geometric.nn import GraphConv

        return GraphConv(num_inputs, num_outputs, aggr="mean")
