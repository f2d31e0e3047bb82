"""What decides the samples of a run besides its data and its seed, in four small frozen parts.

Equal recipes, data and seeds give equal samples. What does not change them (threads, logging, where it runs) is
not here.
"""

from dataclasses import dataclass

from hcm_scale.posterior.schedules import MOST_BURN_IN, ChainPlan

__all__ = ["MOST_BURN_IN", "Batching", "ChainPlan", "Langevin", "Network", "Recipe"]


@dataclass(frozen=True)
class Network:
    """The sizes of the model that data do not decide."""

    num_layers: int
    width: int
    head_width: int
    last_relu: bool = False


@dataclass(frozen=True)
class Batching:
    """How pairs and neighbourhoods become batches."""

    batch_pairs: int | None  # None: all pairs of an epoch in one batch
    sampling_ratio: float  # of the smallest class, drawn from every class in an epoch
    fan_outs: tuple[int | None, ...]  # one per sampled layer, input side first, or one for all; None: all neighbours
    hub_cap: int | None  # the most neighbours drawn where the fan-out is all
    exact_first_hop: bool
    backend: str
    whole_graph: bool = False  # steps on all nodes where a batch's neighbourhood would be most of them

    def layer_fan_outs(self, num_layers: int) -> tuple[int | None, ...]:
        """One fan-out per sampled layer.

        >>> Batching(64, 0.3, (10,), None, exact_first_hop=True, backend="numba").layer_fan_outs(4)
        (10, 10, 10)
        """
        num_blocks = num_layers - self.exact_first_hop
        if len(self.fan_outs) == 1:
            return tuple(self.fan_outs) * num_blocks
        if len(self.fan_outs) != num_blocks:
            raise ValueError(
                f"fan_outs={list(self.fan_outs)} must have one entry for all layers, or one for each of the "
                f"{num_blocks} that are sampled"
            )
        return tuple(self.fan_outs)


@dataclass(frozen=True)
class Langevin:
    """The sampler; `posterior.sgld` has the formulas."""

    kernel: str
    prior: float
    temperature: float | None  # None: 1 / N, N the number of labelled pairs


@dataclass(frozen=True)
class Recipe:
    """The four parts together."""

    network: Network
    batching: Batching
    langevin: Langevin
    plan: ChainPlan
