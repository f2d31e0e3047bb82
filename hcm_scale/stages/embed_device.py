"""Embeddings of a whole graph on a CUDA device, by the kernel that trains: the first layer is never in memory.

A model of two layers on an exact first hop needs, of each node, the sum over its row of Â of relu(x W + b), and x are
rows of Â X. `sum_hidden` makes it for a chunk of nodes at a time, with all their neighbours, and the second layer
multiplies it. Device memory: the graph (`graph.graph_bytes`), 4 width bytes a node for the result, and a chunk.
"""

import torch
from torch import Tensor

from hcm_scale.model import HopModel
from hcm_scale.sampling.device.fused import EndsBatch, fused_columns, sum_hidden
from hcm_scale.sampling.device.graph import DeviceGraph

CHUNK_ROWS = 1 << 20
_ALL = 2**31 - 1  # neighbours


def columns_for(model: HopModel, device: torch.device, *, propagated: bool) -> int | None:
    """Columns of x for `embed_all`; None where it cannot serve this model or device."""
    if not propagated or len(model.encoder) != 2:
        return None
    num_attributes, width = model.encoder[0].weight.shape
    return fused_columns(num_attributes, width, device)


@torch.no_grad()
def embed_all(model: HopModel, graph: DeviceGraph, out: Tensor) -> Tensor:
    """Embeddings of all nodes into `out`, (n, width) f32, from exact neighbourhoods; as exact as torch's products are.

    `out` may hold the embeddings of another sample, which are used up.
    """
    first, second = model.encoder
    none, key = graph.indices[:0], torch.zeros(1, dtype=torch.int64, device=graph.device)
    row = EndsBatch(graph, none, none, key, limit=_ALL, epoch=0, step=0)
    for begin in range(0, graph.num_nodes, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, graph.num_nodes)
        nodes = torch.arange(begin, end, dtype=graph.indices.dtype, device=graph.device)
        torch.addmm(second.bias, sum_hidden(row, nodes, first.weight, first.bias), second.weight, out=out[begin:end])
        model.activate(1, out[begin:end])
    return out
