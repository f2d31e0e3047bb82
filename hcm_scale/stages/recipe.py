"""What decides the samples of a run besides its data and its seed, in four small frozen parts.

Equal recipes, data and seeds give equal samples. What does not change them (threads, logging, where it runs) is
not here.
"""

from dataclasses import dataclass, field

from hcm_scale.posterior.schedules import ChainPlan

__all__ = ["Batching", "ChainPlan", "Langevin", "Network", "Recipe"]


@dataclass(frozen=True)
class Network:
    """The sizes of the model that data do not decide."""

    num_layers: int = 2
    width: int = 128
    head_width: int = 256
    last_relu: bool = False


@dataclass(frozen=True)
class Batching:
    """How pairs and neighbourhoods become batches."""

    batch_pairs: int | None = 8_192  # None: all pairs of an epoch in one batch
    sampling_ratio: float = 0.3  # of the smallest class, drawn from every class in an epoch
    fan_outs: tuple[int | None, ...] = (
        None,
    )  # per sampled layer, input side first; None is all; one serves every layer
    hub_cap: int | None = 256  # the most neighbours drawn where the fan-out is all
    exact_first_hop: bool = True
    backend: str = "numba"

    def layer_fan_outs(self, num_layers: int) -> tuple[int | None, ...]:
        """One fan-out per sampled layer.

        >>> Batching(fan_outs=(10,)).layer_fan_outs(4), Batching(exact_first_hop=False).layer_fan_outs(2)
        ((10, 10, 10), (None, None))
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

    kernel: str = "psgld"
    prior: float = 5e-8
    temperature: float | None = None  # None: 1 / N, N the number of labelled pairs


@dataclass(frozen=True)
class Recipe:
    """The four parts together."""

    network: Network = field(default_factory=Network)
    batching: Batching = field(default_factory=Batching)
    langevin: Langevin = field(default_factory=Langevin)
    plan: ChainPlan = field(default_factory=ChainPlan)
