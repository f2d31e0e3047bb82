"""From labelled pairs on disk to batches in the hands of the model, starting at any step.

Which batch comes at which step is a function of (labels, settings, seed, step), so a resumed run asks for the batches
from its step on and gets those of the uninterrupted run. `workers` threads prepare them ahead; none prepares them in
the caller's own thread.
"""

from collections.abc import Generator

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base.rng import key
from hcm_scale.base.spmm import gcn_scale
from hcm_scale.graph import Graph
from hcm_scale.sampling.batches import MiniBatch, make_batch, make_sampler
from hcm_scale.sampling.pairs import PairBatch, pair_batches, pairs_per_epoch, steps_per_epoch
from hcm_scale.sampling.prefetch import WaitClock, prefetch
from hcm_scale.shards import Labels
from hcm_scale.stages.recipe import Recipe

_NEIGHBORS = 0x4E42  # keeps the neighbour draws apart from all others made with the same seed
_AHEAD = 3  # prepared batches a worker: enough to level out hubs, few enough to stay small


def training_batches(
    structure: Graph,
    x: NDArray[np.float32],
    labels: Labels,
    recipe: Recipe,
    *,
    seed: int,
    first_step: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
    device: torch.device | str = "cpu",
    clock: WaitClock | None = None,
) -> Generator[MiniBatch, None, None]:
    """Batches first_step, first_step + 1, ... without end, on `device`; close it to stop its threads.

    `x` is (n, q), holding Â X where the first hop is exact; `clock` adds up how long the consumer waited.
    """
    batching, network = recipe.batching, recipe.network
    ratio = batching.sampling_ratio
    batch_pairs = batching.batch_pairs or pairs_per_epoch(labels, sampling_ratio=ratio)
    epoch, step = divmod(first_step, steps_per_epoch(labels, batch_pairs=batch_pairs, sampling_ratio=ratio))
    sample = make_sampler(
        batching.backend,
        structure.indptr,
        structure.indices,
        gcn_scale(structure.indptr),
        batching.layer_fan_outs(network.num_layers),
        seed=key(seed, _NEIGHBORS),
        hub_cap=batching.hub_cap,
    )
    pairs = pair_batches(
        labels,
        batch_pairs=batch_pairs,
        sampling_ratio=ratio,
        seed=seed,
        epoch_start=epoch,
        step_start=step,
        rank=rank,
        world=world,
    )
    # attributes get no gradient, so a first block that sums them directly needs no transpose
    input_gradients = batching.exact_first_hop or x.shape[1] > network.width
    on_gpu = torch.device(device).type == "cuda"

    def make(item: PairBatch) -> MiniBatch:
        batch = make_batch(item, x, sample, input_gradients=input_gradients)
        return batch.pin() if on_gpu else batch

    batches = (
        prefetch(pairs, make, depth=_AHEAD * workers, workers=workers, clock=clock) if workers else map(make, pairs)
    )
    for batch in batches:
        yield batch.to(device, non_blocking=True) if on_gpu else batch
