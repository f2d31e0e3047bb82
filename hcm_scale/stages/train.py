"""The train stage: an encoder's graph, its input and labelled pairs in; a folder of posterior samples out.

    out/  checkpoints/  samples/  metrics.jsonl  train.json (on GPUs: what they hold)

A `Training` decides the samples: equal ones give equal samples, whatever the threads, the logging and the workers.

The chain ends with the plan's last sample, or before, when one more no longer moves the ranking of some edges
(`posterior.loop.RankingConvergence`). Samples and metrics are written before the checkpoint that counts them, so a kill
at any moment costs the steps since the last checkpoint and nothing else; a signal that asks to stop is answered after a
step, with a checkpoint. On the CPU the resumed run ends in the same bytes, on a GPU it continues with the same batches
and noise.

Which batch comes at which step is a function of (training, step). On the CPU `workers` threads prepare batches ahead,
or the caller's own thread if there are none; where the graph is so small that a batch would reach most of it, every
step embeds all nodes. A GPU makes batches itself from what fits its memory (`sampling.device.batches`); where the graph
does not fit, those of the host are copied to it while it works. Pairs on a GPU come in another order than pairs from
the host, so the ranks agree on what all their GPUs hold, and note it: a resumed training, with more memory free, uses
the same.

Memory: the model, a few prepared batches, one window of pairs per class; graph, features and pairs stay on disk. A GPU
holds graph, features and pairs too, as far as they fit.
"""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import files, signals
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import ModelInput, gcn_scale
from hcm_scale.base.threads import CancelledError, check_cancelled, prefetch
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, MiniBatch
from hcm_scale.posterior.loop import (
    Chain,
    Journal,
    Meter,
    RankingConvergence,
    Recorder,
    Step,
    run_chain,
    training_settings,
)
from hcm_scale.posterior.samples import (
    Samples,
    load_checkpoint,
    load_sample,
    open_samples,
    save_checkpoint,
    seal_samples,
    write_sample,
)
from hcm_scale.posterior.sgld import ChainPlan
from hcm_scale.ranks.world import ALONE, LostRankError, World
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.batches import EndsBatch
from hcm_scale.sampling.device.graph import graph_to
from hcm_scale.sampling.neighbors import BACKENDS, import_sample_adj, make_batch, most_drawn
from hcm_scale.sampling.pairs import MAX_CACHED_PAIRS, WINDOW, Cut, PairBatch, cut_epoch, pair_batches, pairs_per_epoch
from hcm_scale.shards import Labels

__all__ = ["Batching", "ChainPlan", "Langevin", "Network", "Recipe", "Record", "Training", "train"]
FORMAT = 3  # of the folder and of the arithmetic behind it
AHEAD = 3  # prepared batches per worker: enough to level out hubs, few enough to stay small
_NEIGHBORS = 0x4E42  # separates the neighbour draws from all others made with the same seed
_PROBE = 0x5072
_SAMPLED_DEGREES = 1 << 16
_PROBED_EDGES = 1_024  # a rank correlation of so many is good to a thousandth where it is near one
_SMALL_PRODUCT = 1 << 24  # multiplications of a step's largest product: about a millisecond of one core


@dataclass(frozen=True)
class Network:
    """The sizes of the model that data do not decide."""

    num_layers: int
    width: int
    head_width: int
    last_relu: bool = False
    encoder: str = "gcn"  # or the identity of a plug-in


@dataclass(frozen=True)
class Batching:
    """How pairs and neighbourhoods become batches."""

    batch_pairs: int | None  # None: all pairs of an epoch in one batch
    sampling_ratio: float  # of the smallest class, drawn from every class in an epoch
    fan_outs: tuple[int | None, ...]  # one per sampled layer, input side first, or one for all; None: all neighbours
    hub_cap: int | None  # the most neighbours drawn where the fan-out is all
    exact_first_hop: bool
    whole_graph: bool = False  # steps on all nodes where a batch's neighbourhood would be most of them
    backend: str = "numba"


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

    @property
    def fan_outs(self) -> tuple[int | None, ...]:
        """One fan-out per sampled layer, input side first."""
        num_blocks = self.network.num_layers - self.batching.exact_first_hop
        given = self.batching.fan_outs
        assert len(given) in (1, num_blocks)
        return given * num_blocks if len(given) == 1 else given

    @property
    def limits(self) -> tuple[int, ...]:
        """The most neighbours that a target draws, one per sampled layer, input side first."""
        return tuple(most_drawn(fan_out, self.batching.hub_cap) for fan_out in self.fan_outs)

    @property
    def step_threads(self) -> int | None:
        """1 for steps of a few million products, where threads wait for each other longer than they work; None: all."""
        width, pairs = self.network.width, self.batching.batch_pairs
        is_small = pairs is not None and pairs * width * max(width, self.network.head_width) <= _SMALL_PRODUCT
        return 1 if is_small else None

    def model(self, num_attributes: int, num_classes: int, *, directed: bool, seed: int) -> dict[str, Any]:
        data = {"num_attributes": num_attributes, "num_classes": num_classes, "directed": directed, "seed": seed}
        sizes = asdict(self.network) | data
        return {name: value for name, value in sizes.items() if (name, value) != ("encoder", "gcn")}


@dataclass(frozen=True, eq=False)
class Training:
    """What decides the samples: the encoder's graph and its input, labelled pairs over the same nodes, recipe, seed.

    `x` is (n, q) float32, in memory, mapped or made when needed: Â X where the first hop is exact, else the features X.
    """

    structure: Graph
    x: ModelInput
    labels: Labels
    recipe: Recipe
    seed: int

    def __post_init__(self) -> None:
        assert self.labels.plan.num_nodes == self.structure.num_nodes == len(self.x)

    @property
    def model(self) -> dict[str, Any]:
        sizes = self.x.shape[1], self.labels.classes
        return self.recipe.model(*sizes, directed=self.structure.directed, seed=self.seed)

    @property
    def batch_pairs(self) -> int:
        batching = self.recipe.batching
        return batching.batch_pairs or pairs_per_epoch(self.labels, sampling_ratio=batching.sampling_ratio)

    def cut(self, world: World) -> Cut:
        """How an epoch is cut into batches, and a batch into the slices of the ranks."""
        options = {"batch_pairs": self.batch_pairs, "rank": world.rank, "num_ranks": world.size}
        return cut_epoch(self.labels, sampling_ratio=self.recipe.batching.sampling_ratio, **options)

    @property
    def takes_whole_graph(self) -> bool:
        """Whether steps embed all nodes: wanted, the same neighbourhoods, and few more nodes than a batch has seeds."""
        batching = self.recipe.batching
        takes_all = batching.backend == "numba" and all(fan_out is None for fan_out in batching.fan_outs)
        is_small = batching.batch_pairs is None or self.structure.num_nodes <= 2 * batching.batch_pairs
        if not (batching.whole_graph and takes_all and is_small):
            return False
        return batching.hub_cap is None or int(self.structure.degrees.max(initial=0)) <= batching.hub_cap


@dataclass(frozen=True)
class Record:
    """What a run writes besides its samples."""

    checkpoint_every: int
    log_every: int = 20


def train(training: Training, out: Path, *, device: str, workers: int, record: Record, world: World = ALONE) -> Samples:
    """Samples of the posterior of the hop model, in `out`, which is empty or holds what an earlier call left."""
    samples = out / "samples"
    is_finished = (samples / files.MANIFEST).exists()
    world.barrier()  # all have looked before one writes
    if not is_finished:
        out.mkdir(parents=True, exist_ok=True)
        run = _start(training, out, device, record, world)
        batches = training_batches(training, run.chain.num_done, out / "train.json", device, workers, world)
        with training_settings(device, training.recipe.step_threads), contextlib.closing(batches):
            _make_samples(run, training, batches, device)
        if world.leads:
            seal_samples(samples, run.hashes, training.model)
        world.barrier()
    return open_samples(samples)


@dataclass(frozen=True, eq=False)
class _Run:
    """A chain on its way, as one rank sees it."""

    chain: Chain
    plan: ChainPlan
    meter: Meter
    record: Record
    out: Path
    hashes: list[str]  # of the samples so far
    world: World

    def save_checkpoint(self) -> None:
        """Saves the chain as it is; NonFiniteLossError if it has diverged."""
        self.meter.check(self.chain)
        folder, chain = self.out / "checkpoints", self.chain
        save_checkpoint(folder, chain.num_done, chain.tensors(), self.hashes)


def _start(training: Training, out: Path, device: str, record: Record, world: World) -> _Run:
    """The chain at its first step, or at its last checkpoint."""
    recipe = training.recipe
    plan = recipe.plan
    network = HopModel(**training.model).to(device)
    for layer in (*(network.encoder if network.is_gcn else ()), *network.head):
        layer.in_blocks = recipe.step_threads is None
    chain = Chain.start(network)
    saved = load_checkpoint(out / "checkpoints", out / "samples")
    if saved is not None:
        chain.restore(saved.num_done, saved.tensors)
    world.barrier()  # all have read before one removes
    if chain.num_done == 0 and world.leads:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)  # damaged ones
    meter = Meter(training.labels.num_pairs, recipe.langevin.temperature)
    return _Run(chain, plan, meter, record, out, [] if saved is None else saved.sample_hashes, world)


def _make_samples(run: _Run, training: Training, batches: Iterator[Any], device: str) -> None:
    """Runs the chain to its end; rank 0 writes."""
    world, sampler = run.world, asdict(training.recipe.langevin)
    sampler |= {"num_pairs": training.labels.num_pairs, "seed": training.seed}
    sum_ranks = world.sum if world.size > 1 else None
    steps = run_chain(run.chain, batches, run.plan, sum_ranks=sum_ranks, measure=Recorder(), **sampler)
    convergence = None
    if run.plan.stop_correlation is not None and world.leads:
        convergence = RankingConvergence(run.chain.model, _probe_batch(training, device), run.plan.stop_correlation)
        for index in range(run.plan.num_kept(run.chain.num_done)):
            convergence.add(load_sample(run.out / "samples", index))
    if world.broadcast(convergence is not None and convergence.has_settled):
        return  # killed between its last checkpoint and its seal
    if world.leads:
        _lead_steps(run, steps, convergence)
    else:
        _follow_steps(run, steps)


def _lead_steps(run: _Run, steps: Iterator[Step], convergence: RankingConvergence | None) -> None:
    """Writes samples, then metrics, then the checkpoints that count them."""
    record, has_converged = run.record, False
    journal = Journal(run.out, run.plan.num_steps, run.chain.num_done)
    with journal, _checkpoint_where_stopped(run):
        for step in steps:
            run.meter.add(step)
            if step.sample is not None:
                run.meter.check(run.chain)
                run.hashes.append(write_sample(run.out / "samples", len(run.hashes), step.sample))
                if convergence is not None:
                    convergence.add(step.sample)
                    has_converged = run.world.broadcast(convergence.has_settled)
            done = run.chain.num_done
            if done % record.log_every == 0 or done == run.plan.num_steps or has_converged:
                journal.write_metrics(run.meter.read(run.chain))
            if done % record.checkpoint_every == 0:
                run.save_checkpoint()
            if has_converged:
                break
            check_cancelled()
            signals.check_stop_requested()


@contextlib.contextmanager
def _checkpoint_where_stopped(run: _Run) -> Iterator[None]:
    """Defers signals to the end of a step, and writes a checkpoint where one asks to stop."""
    with signals.signals_deferred():
        try:
            yield
        except (signals.StoppedBetweenSteps, CancelledError, LostRankError):  # all of them come between two steps
            if signals.is_stop_requested():
                run.save_checkpoint()
            raise


def _follow_steps(run: _Run, steps: Iterator[Step]) -> None:
    """The steps of a rank that writes nothing: it stops where rank 0 does."""
    for step in steps:
        run.meter.add(step)
        is_asked = step.sample is not None and run.plan.stop_correlation is not None
        has_converged = is_asked and run.world.broadcast(None)
        if run.chain.num_done % run.record.log_every == 0 or has_converged:
            run.meter.read(run.chain)
        if has_converged:
            break


# Batches, starting at any step.


def training_batches(
    training: Training, first_step: int, note: Path, device: torch.device | str, workers: int, world: World
) -> Generator[MiniBatch | EndsBatch, None, None]:
    """Batches first_step, first_step + 1, ... without end, on `device`; close it to stop its threads.

    `note` is the file that says what GPUs hold.
    """
    structure, x, labels, seed = training.structure, training.x, training.labels, training.seed
    cut = training.cut(world)
    pairs = pair_batches(labels, cut, seed=seed, first_step=first_step)
    on_gpu = torch.device(device).type == "cuda"
    fit = agree(gpu_fit(training, cut, device), world, device, note) if on_gpu else None
    if fit is not None:
        graph = graph_to(device, structure.indptr, structure.indices, x, fit.columns, structure.weights)
        source = gpu.pairs_to(device, labels) if fit.has_pairs else prefetch(pairs, lambda item: item, depth=AHEAD)
        limits = training.recipe.limits
        if fit.columns is not None:
            yield from gpu.fused_batches(graph, source, cut, limits[0], seed=seed, first_step=first_step)
        else:
            yield from gpu.block_batches(graph, source, cut, limits, seed=seed, first_step=first_step)
        return
    make = batch_maker(replace(training, x=np.asarray(x)))
    made: Callable[[PairBatch], MiniBatch] = (lambda item: make(item).map(torch.Tensor.pin_memory)) if on_gpu else make
    batches = prefetch(pairs, made, depth=AHEAD * workers, workers=workers) if workers else map(made, pairs)
    yield from gpu.to_gpu(batches, device) if on_gpu else batches


def check_backend(backend: str) -> None:
    """Refuses a sampler that is not installed, before anything is made for it."""
    if backend == "torch_sparse":
        import_sample_adj()


def batch_maker(training: Training) -> Callable[[PairBatch], MiniBatch]:
    """A function from pairs to batches, on the CPU."""
    structure, x, batching = training.structure, training.x, training.recipe.batching
    sample = BACKENDS[batching.backend](
        structure.indptr,
        structure.indices,
        gcn_scale(structure.indptr, structure.weights),
        training.recipe.fan_outs,
        seed=key(training.seed, _NEIGHBORS),
        hub_cap=batching.hub_cap,
        weights=structure.weights,
    )
    # attributes get no gradient, so a first block that sums them directly needs no transpose
    input_gradients = batching.exact_first_hop or x.shape[1] > training.recipe.network.width

    def make(pairs: PairBatch) -> MiniBatch:
        return make_batch(pairs, x, sample, input_gradients=input_gradients)

    if not training.takes_whole_graph:
        return make
    nodes = np.arange(structure.num_nodes)
    everything = make(PairBatch(0, 0, nodes, nodes, nodes))

    def choose(pairs: PairBatch) -> MiniBatch:
        u, v, hop = (torch.from_numpy(values) for values in (pairs.u, pairs.v, pairs.hop))
        return replace(everything, left=u, right=v, hop=hop, epoch=pairs.epoch, step=pairs.step)

    return choose


def _probe_batch(training: Training, device: str) -> MiniBatch:
    """Some edges of the graph as one batch, all of class 0, drawn by the seed."""
    indptr, indices = training.structure.indptr, training.structure.indices
    rng = np.random.default_rng(key(training.seed, _PROBE))
    count = min(_PROBED_EDGES, len(indices))
    entries = np.sort(rng.choice(len(indices), count, replace=False, shuffle=False))
    u = np.searchsorted(indptr, entries, side="right") - 1
    pairs = PairBatch(0, 0, u, indices[entries].astype(np.int64), np.zeros(count, np.int64))
    return batch_maker(training)(pairs).to(device)


def gpu_fit(training: Training, cut: Cut, device: torch.device | str) -> gpu.Fit | None:
    """What of this training fits the device; None where batches are to be made on the host."""
    structure, batching, network = training.structure, training.recipe.batching, training.recipe.network
    if batching.backend != "numba":  # another sampler was asked for, and it runs on the host
        return None
    return gpu.choose_fit(
        device,
        structure,
        training.x.shape[1],
        training.labels,
        batch_pairs=cut.most,
        limits=training.recipe.limits,
        widths=(network.width, network.head_width),
        exact_first_hop=batching.exact_first_hop,
    )


def agree(fit: gpu.Fit | None, world: World, device: torch.device | str, note: Path) -> gpu.Fit | None:
    """What this rank's GPU is to hold: no more than fits that of every rank, and no more than `note` says."""
    noted_graph, noted_pairs = _read_note(note) if note.exists() else (True, True)
    wanted = [fit is not None and noted_graph, fit is not None and fit.has_pairs and noted_pairs]
    votes = world.sum(torch.tensor(wanted, dtype=torch.float32, device=device))
    graph, pairs = (votes == world.size).tolist()
    if world.leads:
        files.write_json(note, {"graph": graph, "pairs": pairs})
    return replace(fit, has_pairs=pairs) if fit is not None and graph else None


def _read_note(note: Path) -> tuple[bool, bool]:
    """Whether GPUs held the graph, and the pairs, in an earlier run; FolderError where the note is damaged."""
    try:
        found = json.loads(note.read_bytes())
        graph, pairs = ({True: True, False: False}[found[name]] for name in ("graph", "pairs"))
        return graph, pairs
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise files.FolderError(f"{note} is damaged; remove {note.parent} to have it made again") from error


def needed_bytes(
    recipe: Recipe,
    num_nodes: int,
    num_features: int,
    drawn: Sequence[float],
    *,
    most_pairs: int,
    group_pairs: int,
    workers: int,
) -> int:
    """Batches prepared ahead and the current one, its step, four bytes a node and worker, windows of pairs.

    Nodes draw so many neighbours on average, `drawn` by sampled layer, seeds outwards. An epoch has up to `most_pairs`,
    a row group of every class `group_pairs`. A batch holds a row of features per node, both directions of every entry
    and three numbers per pair; its step makes values and gradients of each layer, of both ends and of the head.
    """
    network, pairs = recipe.network, min(recipe.batching.batch_pairs or most_pairs, most_pairs)
    layers, entries = [min(num_nodes, 2 * pairs)], 0
    for neighbors in drawn:
        reached = layers[-1] * (1 + neighbors)
        entries += int(reached)
        layers.append(int(num_nodes * -math.expm1(-reached / num_nodes)))  # some more than once
    batch = layers[-1] * (8 + 4 * num_features) + 16 * entries + 24 * pairs
    hidden = sum(layers) + layers[-1] * (len(layers) > 1)
    messages = 16 * network.width * entries if network.encoder != "gcn" else 0  # of every entry, and their gradients
    step = messages + 12 * network.width * hidden + 4 * pairs * (6 * network.width + 3 * network.head_width)
    num_batches = 1 if layers[0] == num_nodes else 2 + AHEAD * workers
    scratch = 4 * num_nodes * (max(1, workers) + 3) + 8 * MAX_CACHED_PAIRS
    return (60 << 20) + scratch + 16 * min(most_pairs, WINDOW * group_pairs) + num_batches * batch + step


def mean_drawn(indptr: NDArray[np.int64], limits: Sequence[int]) -> list[float]:
    """Mean number of neighbours that a node draws, at most `limits`, one per sampled layer, seeds outwards.

    Three seeds in four are drawn uniformly; the fourth, and all nodes further out, in proportion to their degree.
    """
    step = max(1, (len(indptr) - 1) // _SAMPLED_DEGREES)
    degrees = (indptr[1::step] - indptr[:-1:step]).astype(np.float64)
    drawn = []
    for depth, limit in enumerate(limits):
        taken = np.minimum(degrees, limit)
        by_degree = float((taken * degrees).sum() / max(1.0, degrees.sum()))
        drawn.append(0.75 * float(taken.mean()) + 0.25 * by_degree if depth == 0 else by_degree)
    return drawn
