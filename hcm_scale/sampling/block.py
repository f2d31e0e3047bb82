"""One layer of a mini-batch: a bipartite graph from sources to targets, in CSR, as torch tensors.

Indices take 32 bits: they are positions within the batch, not nodes of the graph. An entry costs 8 bytes, 16 with the
transpose.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.sampling import kernels


@dataclass(frozen=True, eq=False)
class Block:
    """One bipartite layer in CSR: row i times the sources' rows is target i's aggregate.

    The targets are the first `num_targets` of the sources, and each row's first entry is its self loop. The transpose
    makes the backward pass a row-wise product too; it is None where nobody asks for gradients of the sources.
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
    def of(
        indptr: NDArray[np.int32], indices: NDArray[np.int32], weights: NDArray[np.float32], num_sources: int
    ) -> "Block":
        """From arrays, sharing their memory."""
        forward = torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(weights)
        return Block(*forward, len(indptr) - 1, num_sources)

    @property
    def num_entries(self) -> int:
        return len(self.indices)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Block":
        """The same block with every tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in tensors(self)}
        return replace(self, **changed)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Block":
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Block":
        """In page-locked memory, from where a GPU can copy while the CPU goes on."""
        return self.map(Tensor.pin_memory)

    def with_transpose(self) -> "Block":
        """The same block with its transpose filled in."""
        t_indptr = np.empty(self.num_sources + 1, np.int32)
        t_indices, t_weights = np.empty(self.num_entries, np.int32), np.empty(self.num_entries, np.float32)
        forward = self.indptr.numpy(), self.indices.numpy(), self.weights.numpy()
        kernels.transpose(*forward, t_indptr, t_indices, t_weights)
        return replace(
            self,
            t_indptr=torch.from_numpy(t_indptr),
            t_indices=torch.from_numpy(t_indices),
            t_weights=torch.from_numpy(t_weights),
        )


def tensors(value: Any) -> list[tuple[str, Tensor]]:
    """The fields of a dataclass that hold a tensor."""
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return [(name, item) for name, item in named if isinstance(item, Tensor)]
