"""What an edge pass is given: the pair head of one parameter sample, pairs on a device; and the checks made on them."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from hcm_scale.score.numbering import EdgeIndex


class Head(NamedTuple):
    """|z_u - z_v| -> Linear -> ReLU -> Linear: weights (width, hidden) and (hidden, C), each with its bias."""

    weight0: Tensor
    bias0: Tensor
    weight1: Tensor
    bias1: Tensor

    @staticmethod
    def of(sample: Mapping[str, Tensor]) -> "Head":
        """The head's part of a parameter sample."""
        return Head(*(sample[f"head.{i}.{part}"].detach() for i in range(2) for part in ("weight", "bias")))


class Pairs(NamedTuple):
    """Edges on a device, (m,) each; whether z_u - z_v keeps its sign; whether the hop is expected or likeliest."""

    left: Tensor
    right: Tensor
    signed: bool
    expected: bool


def check_sample(edges: EdgeIndex, z: Tensor, head: Head) -> None:
    """Refuses an embedding that does not fit the graph or the head."""
    wanted = (edges.num_nodes, head.weight0.shape[0])
    if tuple(z.shape) != wanted:
        raise ValueError(f"the embedding has shape {tuple(z.shape)}; the graph and the head need {wanted}")


def check_finite(finite: bool, count: int) -> None:
    """Refuses the count-th sample where its predictions overflowed."""
    if not finite:
        raise ValueError(
            f"parameter sample {count - 1} predicts NaN or infinite logits: the chain it came from diverged"
        )
