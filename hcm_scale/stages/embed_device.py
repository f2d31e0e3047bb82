"""Embeddings of a whole graph on a CUDA device, by the kernel that trains: the first layer is never in memory.

A model of two layers on an exact first hop needs, of each node, the sum over its row of Â of relu(x W + b), and x are
rows of Â X. `sum_hidden` makes it for a chunk of nodes at a time, with all their neighbours, and the second layer
multiplies it. Device memory: the graph (`graph.graph_bytes`), 4 width bytes a node for the result, and a chunk.

Where the neighbours of all nodes do not fit, those of a chunk pass through: x and the result stay, in 20 + 4 (columns +
width) bytes a node. A graph that is too large even for that is scored by the cores.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base.pinned import copied, free_bytes
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.sampling.device.fused import EndsBatch, fused_columns, sum_hidden
from hcm_scale.sampling.device.graph import DeviceGraph, graph_bytes, graph_to

CHUNK_ROWS = 1 << 20
_ALL = 2**31 - 1  # neighbours
_WORK_BYTES = 1 << 30  # beside them: ranges of edges on their way through, and what CUDA and Triton take


def columns_for(model: HopModel, device: torch.device, *, propagated: bool) -> int | None:
    """Columns of x for `embed_all`; None where it cannot serve this model or device."""
    if not propagated or len(model.encoder) != 2:
        return None
    num_attributes, width = model.encoder[0].weight.shape
    return fused_columns(num_attributes, width, device)


def hold(structure: Graph, x: NDArray[np.float32], columns: int, width: int, device: str) -> DeviceGraph:
    """The graph on the device: all of it, or, where that does not fit beside its embedding, without the neighbours."""
    beside = 4 * width * (structure.num_nodes + min(CHUNK_ROWS, structure.num_nodes)) + _WORK_BYTES
    fits = graph_bytes(structure.num_nodes, structure.indices, columns) + beside <= free_bytes(device)
    return graph_to(device, structure.indptr, structure.indices if fits else structure.indices[:0], x, columns)


def fits_device(structure: Graph, columns: int, width: int, device: str) -> bool:
    """Whether there is room for x and the result, and the neighbours of any chunk."""
    chunk = 4 * width * min(CHUNK_ROWS, structure.num_nodes)
    firsts = structure.indptr[:: min(CHUNK_ROWS, max(1, structure.num_nodes))]
    neighbors = structure.indices.itemsize * int(np.diff(np.append(firsts, structure.num_arcs)).max(initial=0))
    held = (20 + 4 * (columns + width)) * structure.num_nodes
    return held + chunk + neighbors + _WORK_BYTES <= free_bytes(device)


@torch.no_grad()
def embed_all(model: HopModel, graph: DeviceGraph, out: Tensor, indices: NDArray[Any] | None = None) -> Tensor:
    """Embeddings of all nodes into `out`, (n, width) f32, from exact neighbourhoods; as exact as torch's products are.

    `indices` are the neighbours of all nodes on the host, for a graph that has none on the device. `out` may hold the
    embeddings of another sample, which are used up.
    """
    first, second = model.encoder
    none, key = graph.indices[:0], torch.zeros(1, dtype=torch.int64, device=graph.device)
    for begin in range(0, graph.num_nodes, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, graph.num_nodes)
        nodes = torch.arange(begin, end, dtype=graph.indices.dtype, device=graph.device)
        row = EndsBatch(_around(graph, begin, end, indices), none, none, key, limit=_ALL, epoch=0, step=0)
        torch.addmm(second.bias, sum_hidden(row, nodes, first.weight, first.bias), second.weight, out=out[begin:end])
        model.activate(1, out[begin:end])
    return out


def _around(graph: DeviceGraph, begin: int, end: int, indices: NDArray[Any] | None) -> DeviceGraph:
    """A graph in which the nodes begin .. end - 1 have their neighbours: the same, or one with those alone."""
    if indices is None or len(graph.indices) == len(indices):
        return graph
    low, high = graph.indptr[[begin, end]].tolist()
    return replace(graph, indptr=graph.indptr - low, indices=copied(indices[low:high], graph.device))
