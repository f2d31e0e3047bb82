"""The train stage: an encoder's graph, its input and labelled pairs in; a folder of posterior samples out.

    out/  checkpoints/  samples/  metrics.jsonl  tensorboard/  train.json (on GPUs: what they hold)

A `Recipe` decides the samples besides data and seed: equal recipes, data and seeds give equal samples. What does not
change them (threads, logging, the device) is no part of it.

The chain ends with the plan's last sample, or before, when one more no longer moves the ranking of some edges
(`posterior.loop.RankingConvergence`). Samples and metrics are written before the checkpoint that counts them, so a kill
at any moment costs the steps since the last checkpoint and nothing else; a signal that asks to stop is answered after a
step, with a checkpoint. On the CPU the resumed run ends in the same bytes, on a GPU it continues with the same batches
and noise.

Which batch comes at which step is a function of (labels, recipe, seed, step). On the CPU `workers` threads prepare
batches ahead, or the caller's own thread if there are none. Where the graph is so small that a batch would reach most
of it, its neighbourhoods are prepared once and every step embeds all nodes. A GPU makes batches itself from what fits
its memory (`sampling.device.batches`); where the graph does not fit, those of the host are copied to it while it works.
Pairs on a GPU come in another order than pairs from the host, so the ranks agree on what all their GPUs hold, and note
it: a resumed training, with more memory free, uses the same.

Memory: the model, a few prepared batches, one window of pairs per class; graph, features and pairs stay on disk. A GPU
holds graph, features and pairs too, as far as they fit.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import files, signals
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import gcn_scale
from hcm_scale.base.threads import CancelledError, check_cancelled
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.loop import Chain, Journal, Meter, RankingConvergence, Step, run_chain
from hcm_scale.posterior.recorded import Recorder, record_training
from hcm_scale.posterior.samples import (
    Samples,
    load_checkpoint,
    load_sample,
    open_samples,
    save_checkpoint,
    seal_samples,
    write_sample,
)
from hcm_scale.posterior.sgld import MOST_BURN_IN, ChainPlan
from hcm_scale.ranks.world import ALONE, LostRankError, World
from hcm_scale.sampling import torch_sparse_backend
from hcm_scale.sampling.batches import MiniBatch, make_batch, make_sampler
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.fused import EndsBatch
from hcm_scale.sampling.device.graph import graph_to
from hcm_scale.sampling.device.pairs import pairs_to
from hcm_scale.sampling.pairs import Cut, PairBatch, cut_epoch, pair_batches, pairs_per_epoch, steps_per_epoch
from hcm_scale.sampling.prefetch import prefetch
from hcm_scale.shards import Labels

__all__ = ["MOST_BURN_IN", "Batching", "ChainPlan", "Langevin", "Network", "Recipe", "Record", "train"]
FORMAT = 3  # of the folder and of the arithmetic behind it
AHEAD = 3  # prepared batches per worker: enough to level out hubs, few enough to stay small
_NEIGHBORS = 0x4E42  # separates the neighbour draws from all others made with the same seed
_PROBE = 0x5072
_PROBED_EDGES = 1_024  # a rank correlation of so many is good to a thousandth where it is near one
_SMALL_PRODUCT = 1 << 24  # multiplications of a step's largest product: about a millisecond of one core


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


@dataclass(frozen=True)
class Record:
    """What a run writes besides its samples. `trend(samples folder, samples so far)` returns numbers to log."""

    checkpoint_every: int
    log_every: int = 20
    tensorboard: bool = False
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
    """Samples of the posterior of the hop model whose encoder runs on `structure`.

    `x` is the encoder's input, (n, q) float32, in memory or mapped: Â X where the recipe's first hop is exact, else the
    features X. `labels` are the labelled pairs over the same nodes. `out` is empty, or holds what an earlier call with
    the same arguments left.
    """
    if not labels.plan.num_nodes == structure.num_nodes == len(x):
        raise ValueError(
            f"labels are over {labels.plan.num_nodes} nodes, the graph has {structure.num_nodes} and the features "
            f"{len(x)} rows: they must belong to one graph"
        )
    finished = (out / "samples" / files.MANIFEST).exists()
    world.barrier()  # all have looked before one writes
    if finished:
        return open_samples(out / "samples")
    out.mkdir(parents=True, exist_ok=True)
    model = asdict(recipe.network) | {"num_attributes": x.shape[1], "num_classes": labels.classes}
    model |= {"directed": structure.directed, "seed": seed}
    batch_pairs, ratio = pairs_per_step(labels, recipe.batching), recipe.batching.sampling_ratio
    plan = recipe.plan.within(steps_per_epoch(labels, batch_pairs=batch_pairs, sampling_ratio=ratio))
    chain, hashes = _start_chain(out, model, device, world.size, in_blocks=step_threads(recipe) is None)
    world.barrier()  # all have read before one removes
    if chain.num_done == 0 and world.leads:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)  # damaged ones, or of another number of ranks
    made = training_batches(
        structure,
        x,
        labels,
        recipe,
        seed=seed,
        first_step=chain.num_done,
        world=world,
        workers=workers,
        device=device,
        note=out / "train.json",
    )
    with record_training(device, step_threads(recipe)), contextlib.closing(made) as batches:
        sampler = asdict(recipe.langevin) | {"num_pairs": labels.num_pairs, "seed": seed}
        sum_ranks = world.sum if world.size > 1 else None
        steps = run_chain(chain, batches, plan, sum_ranks=sum_ranks, measure=Recorder(), **sampler)
        meter = Meter(labels.num_pairs, recipe.langevin.temperature)
        convergence = None
        if plan.settled is not None and world.leads:
            probe = _probe_batch(structure, x, recipe, seed=seed, device=device)
            convergence = RankingConvergence(chain.model, probe, plan.settled)
            for index in range(plan.num_kept(chain.num_done)):
                convergence.add(load_sample(out / "samples", index))
        if world.broadcast(convergence is not None and convergence.has_settled):
            pass  # killed between its last checkpoint and its seal
        elif world.leads:
            _lead_steps(chain, steps, meter, plan, record, out, hashes=hashes, convergence=convergence, world=world)
        else:
            _follow_steps(chain, steps, meter, plan, record, world)
        if world.leads:
            seal_samples(out / "samples", hashes, model)
    world.barrier()
    return open_samples(out / "samples")


def _start_chain(
    out: Path, model: dict[str, Any], device: str, num_ranks: int, *, in_blocks: bool
) -> tuple[Chain, list[str]]:
    """A chain at its first step, or at its last checkpoint, and the hashes of the samples drawn so far."""
    network = HopModel(**model).to(device)
    for layer in (*network.encoder, *network.head):
        layer.in_blocks = in_blocks
    chain = Chain.start(network)
    saved = load_checkpoint(out / "checkpoints", out / "samples", num_ranks)
    if saved is None:
        return chain, []
    chain.restore(saved.num_done, saved.tensors)
    return chain, saved.sample_hashes


def step_threads(recipe: Recipe) -> int | None:
    """1 for steps of a few million products, where threads wait for each other longer than they work; None: all."""
    network, pairs = recipe.network, recipe.batching.batch_pairs
    is_small = pairs is not None and pairs * network.width * max(network.width, network.head_width) <= _SMALL_PRODUCT
    return 1 if is_small else None


def _lead_steps(
    chain: Chain,
    steps: Iterator[Step],
    meter: Meter,
    plan: ChainPlan,
    record: Record,
    out: Path,
    *,
    hashes: list[str],
    convergence: RankingConvergence | None,
    world: World,
) -> None:
    """Runs the chain to its end and writes samples, then metrics, then the checkpoints that count them.

    `hashes` are those of the samples so far; those of new samples are appended.
    """
    samples, is_settled = out / "samples", False
    written = Journal(out, plan.num_steps, chain.num_done, tensorboard=record.tensorboard)
    with written as journal, _leaving_checkpoint(chain, meter, out, hashes, world):
        for step in steps:
            meter.add(step)
            done = step.t + 1
            if step.sample is not None:
                meter.check(chain)
                hashes.append(write_sample(samples, plan.num_kept(step.t), step.sample))
                num_kept = plan.num_kept(done)
                if record.trend is not None and record.has_trend(num_kept):
                    journal.write({"step": done, "num_samples": num_kept, **record.trend(samples, num_kept)})
                    world.barrier()  # a trend may take longer than a step may wait
                if convergence is not None:
                    convergence.add(step.sample)
                    is_settled = world.broadcast(convergence.has_settled)
            if done % record.log_every == 0 or done == plan.num_steps or is_settled:
                journal.tell(meter.read(chain))
            if done % record.checkpoint_every == 0:
                meter.check(chain)
                save_checkpoint(out / "checkpoints", done, chain.tensors(), hashes, world.size)
            if is_settled:
                break
            check_cancelled()
            signals.check_stop_requested()


@contextlib.contextmanager
def _leaving_checkpoint(chain: Chain, meter: Meter, out: Path, hashes: list[str], world: World) -> Iterator[None]:
    """Defers signals to the end of a step, and writes a checkpoint where one asks to stop."""
    with signals.signals_deferred():
        try:
            yield
        except (signals.StoppedBetweenSteps, CancelledError, LostRankError):  # all of them come between two steps
            if signals.is_stop_requested():
                meter.check(chain)
                save_checkpoint(out / "checkpoints", chain.num_done, chain.tensors(), hashes, world.size)
            raise


def _follow_steps(
    chain: Chain, steps: Iterator[Step], meter: Meter, plan: ChainPlan, record: Record, world: World
) -> None:
    """Runs the chain to its end where rank 0 writes; stops where it would, and waits for its trends."""
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


# Batches, starting at any step.


def training_batches(
    structure: Graph,
    x: NDArray[np.float32],
    labels: Labels,
    recipe: Recipe,
    *,
    seed: int,
    first_step: int,
    world: World,
    workers: int,
    device: torch.device | str,
    note: Path,
) -> Generator[MiniBatch | EndsBatch, None, None]:
    """Batches first_step, first_step + 1, ... without end, on `device`; close it to stop its threads.

    `note` is the file that says what GPUs hold.
    """
    batching, network = recipe.batching, recipe.network
    ratio, batch_pairs = batching.sampling_ratio, pairs_per_step(labels, batching)
    ranks = {"rank": world.rank, "num_ranks": world.size}
    cut = cut_epoch(labels, batch_pairs=batch_pairs, sampling_ratio=ratio, **ranks)
    epoch, step = divmod(first_step, cut.num_steps)
    where = ranks | {"epoch_start": epoch, "step_start": step}
    pairs = pair_batches(labels, batch_pairs=batch_pairs, sampling_ratio=ratio, seed=seed, **where)
    on_gpu = torch.device(device).type == "cuda"
    fit = agree(gpu_fit(structure, x, labels, recipe, cut, device), world, device, note) if on_gpu else None
    if fit is not None:
        graph = graph_to(device, structure.indptr, structure.indices, x, fit.columns, structure.weights)
        source = pairs_to(device, labels) if fit.has_pairs else prefetch(pairs, lambda item: item, depth=AHEAD)
        limits = gpu.row_limits(batching.layer_fan_outs(network.num_layers), batching.hub_cap)
        if fit.columns is not None:
            yield from gpu.fused_batches(graph, source, cut, limits[0], seed=seed, first_step=first_step)
        else:
            yield from gpu.block_batches(graph, source, cut, limits, seed=seed, first_step=first_step)
        return
    make = batch_maker(structure, x, recipe, seed=seed)
    made: Callable[[PairBatch], MiniBatch] = (lambda item: make(item).pin()) if on_gpu else make
    batches = prefetch(pairs, made, depth=AHEAD * workers, workers=workers) if workers else map(made, pairs)
    yield from gpu.to_gpu(batches, device) if on_gpu else batches


def pairs_per_step(labels: Labels, batching: Batching) -> int:
    """Pairs of a batch, over all ranks."""
    return batching.batch_pairs or pairs_per_epoch(labels, sampling_ratio=batching.sampling_ratio)


def check_backend(backend: str) -> None:
    """Refuses a sampler that is not installed, before anything is made for it."""
    if backend == "torch_sparse":
        torch_sparse_backend.import_sample_adj()


def batch_maker(
    structure: Graph, x: NDArray[np.float32], recipe: Recipe, *, seed: int
) -> Callable[[PairBatch], MiniBatch]:
    """A function from pairs to batches, on the CPU."""
    batching, network = recipe.batching, recipe.network
    sample = make_sampler(
        batching.backend,
        structure.indptr,
        structure.indices,
        gcn_scale(structure.indptr, structure.weights),
        batching.layer_fan_outs(network.num_layers),
        seed=key(seed, _NEIGHBORS),
        hub_cap=batching.hub_cap,
        weights=structure.weights,
    )
    # attributes get no gradient, so a first block that sums them directly needs no transpose
    input_gradients = batching.exact_first_hop or x.shape[1] > network.width

    def make(pairs: PairBatch) -> MiniBatch:
        return make_batch(pairs, x, sample, input_gradients=input_gradients)

    if not takes_whole_graph(structure, batching):
        return make
    nodes = np.arange(structure.num_nodes)
    everything = make(PairBatch(0, 0, nodes, nodes, nodes))

    def choose(pairs: PairBatch) -> MiniBatch:
        u, v, hop = (torch.from_numpy(values) for values in (pairs.u, pairs.v, pairs.hop))
        return replace(everything, left=u, right=v, hop=hop, epoch=pairs.epoch, step=pairs.step)

    return choose


def _probe_batch(
    structure: Graph, x: NDArray[np.float32], recipe: Recipe, *, seed: int, device: torch.device | str
) -> MiniBatch:
    """Some edges of the graph as one batch, all of class 0, drawn by the seed."""
    rng = np.random.default_rng(key(seed, _PROBE))
    count = min(_PROBED_EDGES, len(structure.indices))
    entries = np.sort(rng.choice(len(structure.indices), count, replace=False, shuffle=False))
    u = np.searchsorted(structure.indptr, entries, side="right") - 1
    pairs = PairBatch(0, 0, u, structure.indices[entries].astype(np.int64), np.zeros(count, np.int64))
    return batch_maker(structure, x, recipe, seed=seed)(pairs).to(device)


def takes_whole_graph(structure: Graph, batching: Batching) -> bool:
    """Whether steps embed all nodes: wanted, the same neighbourhoods, and few more nodes than a batch has seeds."""
    takes_all = batching.backend == "numba" and all(fan_out is None for fan_out in batching.fan_outs)
    is_small = batching.batch_pairs is None or structure.num_nodes <= 2 * batching.batch_pairs
    if not (batching.whole_graph and takes_all and is_small):
        return False
    return batching.hub_cap is None or int(structure.degrees.max(initial=0)) <= batching.hub_cap


def gpu_fit(
    structure: Graph, x: NDArray[np.float32], labels: Labels, recipe: Recipe, cut: Cut, device: torch.device | str
) -> gpu.Fit | None:
    """What of this training fits the device; None where batches are to be made on the host."""
    batching, network = recipe.batching, recipe.network
    if batching.backend != "numba":  # another sampler was asked for, and it runs on the host
        return None
    return gpu.choose_fit(
        device,
        structure.num_nodes,
        structure.indices,
        x.shape[1],
        labels,
        batch_pairs=cut.most,
        limits=gpu.row_limits(batching.layer_fan_outs(network.num_layers), batching.hub_cap),
        widths=(network.width, network.head_width),
        exact_first_hop=batching.exact_first_hop,
        weighted=structure.weights is not None,
    )


def agree(fit: gpu.Fit | None, world: World, device: torch.device | str, note: Path) -> gpu.Fit | None:
    """What this rank's GPU is to hold: no more than fits that of every rank, and no more than `note` says."""
    noted = _noted(note) if note.exists() else {"graph": True, "pairs": True}
    wanted = [fit is not None and noted["graph"], fit is not None and fit.has_pairs and noted["pairs"]]
    votes = world.sum(torch.tensor(wanted, dtype=torch.float32, device=device))
    graph, pairs = (votes == world.size).tolist()
    if world.leads:
        files.write_json(note, {"graph": graph, "pairs": pairs})
    return replace(fit, has_pairs=pairs) if fit is not None and graph else None


def _noted(note: Path) -> dict[str, bool]:
    """What an earlier run wrote down; FolderError where it is damaged."""
    try:
        found = json.loads(note.read_bytes())
        return {name: {True: True, False: False}[found[name]] for name in ("graph", "pairs")}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise files.FolderError(f"{note} is damaged; remove {note.parent} to have it made again") from error
