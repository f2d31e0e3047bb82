"""The train stage: an encoder's graph, its input and labelled pairs in; a folder of posterior samples out.

    out/  checkpoints/  samples/  metrics.jsonl  tensorboard/  train.json (of GPUs: what they hold)

The chain ends with the plan's last sample, or before, where one more no longer moves the ranking of some edges
(`posterior.settle`). Samples and metrics are written before the checkpoint that counts them, so a kill at any moment
costs the steps since the last checkpoint and nothing else; a signal that asks to stop is answered after a step, with a
checkpoint. On the CPU the resumed run ends in the same bytes, on a GPU it goes on with the same batches and noise.

Memory: the model, a few prepared batches, one window of pairs per class; graph, features and pairs stay on disk. A GPU
holds graph, features and pairs too, as far as they fit (`sampling.device.batches`).
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files, stopping
from hcm_scale.base.beside import UnwantedError, check_wanted
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.checkpoint import load_checkpoint, save_checkpoint
from hcm_scale.posterior.journal import Journal
from hcm_scale.posterior.loop import Chain, Step, run_chain
from hcm_scale.posterior.meter import Meter
from hcm_scale.posterior.recorded import Recorder, training_on
from hcm_scale.posterior.samples import Samples, load_sample, open_samples, seal_samples, write_sample
from hcm_scale.posterior.settle import Settling
from hcm_scale.ranks.world import ALONE, LostRankError, World
from hcm_scale.sampling.batches import MiniBatch
from hcm_scale.shards import Labels
from hcm_scale.stages.recipe import ChainPlan, Recipe
from hcm_scale.stages.train_batches import epoch_steps, probe_batch, training_batches

FORMAT = 3  # of the folder and of the arithmetic behind it
_SMALL_PRODUCT = 1 << 24  # multiplications of a step's largest product: about a millisecond of one core


@dataclass(frozen=True)
class Record:
    """What a run writes besides its samples. `trend(samples folder, samples so far)` returns numbers to log."""

    checkpoint_every: int
    log_every: int
    tensorboard: bool
    trend: Callable[[Path, int], dict[str, float]] | None = None
    trend_every: int = 1  # samples

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "log_every", "trend_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    def has_trend(self, num_kept: int) -> bool:
        """Whether a trend is due after so many samples."""
        return self.trend is not None and num_kept % self.trend_every == 0


def train(
    structure: Graph,
    x: NDArray[np.float32],
    labels: Labels,
    out: Path,
    *,
    recipe: Recipe,
    seed: int,
    device: str,
    workers: int,
    record: Record,
    world: World = ALONE,
) -> Samples:
    """Samples the posterior of the hop model whose encoder runs on `structure`, and opens the samples.

    `x` is the encoder's input, (n, q) float32, in memory or mapped: Â X where the recipe's first hop is exact, else the
    features X. `labels` are the labelled pairs over the same nodes. `out` is empty, or holds what an earlier call with
    the same arguments left.
    """
    check_sizes(structure, x, labels)
    finished = (out / "samples" / files.MANIFEST).exists()
    world.barrier()  # all have looked before one writes
    if finished:
        return open_samples(out / "samples")
    out.mkdir(parents=True, exist_ok=True)
    model = dataclasses.asdict(recipe.network) | {"num_attributes": x.shape[1], "num_classes": labels.classes}
    model |= {"directed": structure.directed, "seed": seed}
    recipe = dataclasses.replace(recipe, plan=recipe.plan.within(epoch_steps(labels, recipe.batching)))
    chain, hashes = start_chain(out, model, device, world.size, in_blocks=step_threads(recipe) is None)
    world.barrier()  # all have read before one removes
    if chain.num_done == 0 and world.leads:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)  # damaged ones, or of another number of ranks
    source: dict[str, Any] = {"seed": seed, "first_step": chain.num_done, "world": world, "workers": workers}
    made = training_batches(structure, x, labels, recipe, device=device, note=out / "train.json", **source)
    with training_on(device, step_threads(recipe)), contextlib.closing(made) as batches:
        sampler = dataclasses.asdict(recipe.langevin) | {"num_pairs": labels.num_pairs, "seed": seed}
        sum_ranks = world.sum if world.size > 1 else None
        steps = run_chain(chain, batches, recipe.plan, sum_ranks=sum_ranks, measure=Recorder(), **sampler)
        meter = Meter(labels.num_pairs, recipe.langevin.temperature)
        settling = None
        if recipe.plan.settled is not None and world.leads:
            probe = probe_batch(structure, x, recipe, seed=seed, device=device)
            settling = start_settling(chain, probe, recipe.plan, out / "samples")
        if world.broadcast(settling is not None and settling.has_settled):
            pass  # killed between its last checkpoint and its seal
        elif world.leads:
            write_steps(chain, steps, meter, recipe.plan, record, out, hashes, settling=settling, world=world)
        else:
            check_steps(chain, steps, meter, recipe.plan, record, world)
        if world.leads:
            seal_samples(out / "samples", hashes, model)
    world.barrier()
    return open_samples(out / "samples")


def check_sizes(structure: Graph, x: NDArray[np.float32], labels: Labels) -> None:
    """Refuses parts that cannot belong to one graph."""
    if not labels.plan.num_nodes == structure.num_nodes == len(x):
        raise ValueError(
            f"labels are over {labels.plan.num_nodes} nodes, the graph has {structure.num_nodes} and the features "
            f"{len(x)} rows: they must belong to one graph"
        )


def start_chain(
    out: Path, model: dict[str, Any], device: str, num_ranks: int, *, in_blocks: bool
) -> tuple[Chain, list[str]]:
    """A chain at its beginning, or where its last checkpoint left it, and the hashes of the samples kept so far."""
    network = HopModel(**model).to(device)
    for layer in (*network.encoder, *network.head):
        layer.in_blocks = in_blocks
    chain = Chain.start(network)
    saved = load_checkpoint(out / "checkpoints", out / "samples", num_ranks)
    if saved is None:
        return chain, []
    chain.restore(saved.num_done, saved.tensors)
    return chain, saved.sample_hashes


def start_settling(chain: Chain, probe: MiniBatch, plan: ChainPlan, samples: Path) -> Settling:
    """What watches for the end of the chain, told of the samples that the chain has kept so far."""
    assert plan.settled is not None
    settling = Settling(chain.model, probe, plan.settled)
    for index in range(plan.num_kept(chain.num_done)):
        settling.add(load_sample(samples, index))
    return settling


def step_threads(recipe: Recipe) -> int | None:
    """One for steps of a few million products, where threads wait for each other longer than they work; None: all."""
    network, pairs = recipe.network, recipe.batching.batch_pairs
    is_small = pairs is not None and pairs * network.width * max(network.width, network.head_width) <= _SMALL_PRODUCT
    return 1 if is_small else None


def write_steps(
    chain: Chain,
    steps: Iterator[Step],
    meter: Meter,
    plan: ChainPlan,
    record: Record,
    out: Path,
    hashes: list[str],
    *,
    settling: Settling | None,
    world: World,
) -> None:
    """Runs the chain to its end and puts down what comes: samples, then metrics, then the checkpoints that count them.

    `hashes` are those of the samples so far, and grow with them.
    """
    samples, is_settled = out / "samples", False
    written = Journal(out, plan.num_steps, chain.num_done, tensorboard=record.tensorboard)
    with written as journal, leaving_checkpoint(chain, meter, out, hashes, world):
        for step in steps:
            meter.add(step)
            done = step.t + 1
            if step.sample is not None:
                meter.check(chain)
                hashes.append(write_sample(samples, plan.num_kept(step.t), step.sample))
                kept = plan.num_kept(done)
                if record.trend is not None and record.has_trend(kept):
                    journal.write({"step": done, "num_samples": kept, **record.trend(samples, kept)})
                    world.barrier()  # a trend may take longer than a step may wait
                if settling is not None:
                    settling.add(step.sample)
                    is_settled = world.broadcast(settling.has_settled)
            if done % record.log_every == 0 or done == plan.num_steps or is_settled:
                journal.tell(meter.read(chain))
            if done % record.checkpoint_every == 0:
                meter.check(chain)
                save_checkpoint(out / "checkpoints", done, chain.tensors(), hashes, world.size)
            if is_settled:
                break
            check_wanted()
            stopping.check_asked()


@contextlib.contextmanager
def leaving_checkpoint(chain: Chain, meter: Meter, out: Path, hashes: list[str], world: World) -> Iterator[None]:
    """Signals wait for the end of a step; whoever is then stopped by one leaves a checkpoint."""
    with stopping.held():
        try:
            yield
        except (stopping.StoppedAtRest, UnwantedError, LostRankError):  # all of them come between two steps
            if stopping.is_asked():
                meter.check(chain)
                save_checkpoint(out / "checkpoints", chain.num_done, chain.tensors(), hashes, world.size)
            raise


def check_steps(
    chain: Chain, steps: Iterator[Step], meter: Meter, plan: ChainPlan, record: Record, world: World
) -> None:
    """Runs the chain to its end where another rank writes; stops where that one would, and waits for its trends."""
    for step in steps:
        meter.add(step)
        done = step.t + 1
        if step.sample is not None and record.has_trend(plan.num_kept(done)):
            world.barrier()
        is_settled = step.sample is not None and plan.settled is not None and world.broadcast(None)
        if done % record.log_every == 0 or is_settled:
            meter.read(chain)
        if is_settled:
            break
