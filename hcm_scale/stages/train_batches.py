"""From labelled pairs on disk to batches in the hands of the model, starting at any step.

Which batch comes at which step is a function of (labels, settings, seed, step), so a resumed run asks for the batches
from its step on and gets those of the uninterrupted run. On the CPU `workers` threads prepare them ahead; none prepares
them in the caller's own thread. Where the graph is so small that a batch would reach most of it, its neighbourhoods are
prepared once and every step embeds all nodes. A GPU makes batches itself from what fits its memory
(`sampling.device.batches` has the table); where the graph does not fit, the host's are copied to it while it works.
Pairs on a GPU come in another order than pairs from the host, so the ranks settle together what all their GPUs hold,
and note it: a resumed training, with more memory free, keeps to it.
"""

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.rng import key
from hcm_scale.base.spmm import gcn_scale
from hcm_scale.graph import Graph
from hcm_scale.ranks.world import World
from hcm_scale.sampling import torch_sparse_backend
from hcm_scale.sampling.batches import MiniBatch, make_batch, make_sampler
from hcm_scale.sampling.device import batches as gpu
from hcm_scale.sampling.device.fused import EndsBatch
from hcm_scale.sampling.device.graph import DeviceGraph, graph_to
from hcm_scale.sampling.device.pairs import DevicePairs, pairs_to
from hcm_scale.sampling.device.transfer import to_gpu
from hcm_scale.sampling.pairs import Cut, PairBatch, cut_epoch, pair_batches, pairs_per_epoch, steps_per_epoch
from hcm_scale.sampling.prefetch import WaitClock, prefetch
from hcm_scale.shards import Labels
from hcm_scale.stages.recipe import Batching, Recipe

_NEIGHBORS = 0x4E42  # keeps the neighbour draws apart from all others made with the same seed
_PROBE = 0x5072
_PROBED_EDGES = 1_024  # a rank correlation of so many is good to a thousandth where it is near one
AHEAD = 3  # prepared batches a worker: enough to level out hubs, few enough to stay small


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
    note: Path | None = None,
    clock: WaitClock | None = None,
) -> Generator[MiniBatch | EndsBatch, None, None]:
    """Batches first_step, first_step + 1, ... without end, on `device`; close it to stop its threads.

    `x` is (n, q), holding Â X where the first hop is exact; `note` is a file that says what GPUs hold; `clock` adds up
    how long the consumer waited.
    """
    ratio, batch_pairs = recipe.batching.sampling_ratio, pairs_per_step(labels, recipe.batching)
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
        yield from gpu_batches(graph, source, recipe, cut, fit, seed=seed, first_step=first_step)
    else:
        make = batch_maker(structure, x, recipe, seed=seed)
        batches = host_batches(make, pairs, workers=workers, pin=on_gpu, clock=clock)
        yield from to_gpu(batches, device) if on_gpu else batches


def pairs_per_step(labels: Labels, batching: Batching) -> int:
    """Pairs of a batch, over all ranks."""
    return batching.batch_pairs or pairs_per_epoch(labels, sampling_ratio=batching.sampling_ratio)


def check_backend(backend: str) -> None:
    """Refuses a sampler that is not installed, before anything is made for it."""
    if backend == "torch_sparse":
        torch_sparse_backend.import_sample_adj()


def epoch_steps(labels: Labels, batching: Batching) -> int:
    """Steps of an epoch."""
    pairs = pairs_per_step(labels, batching)
    return steps_per_epoch(labels, batch_pairs=pairs, sampling_ratio=batching.sampling_ratio)


def probe_batch(
    structure: Graph, x: NDArray[np.float32], recipe: Recipe, *, seed: int, device: torch.device | str
) -> MiniBatch:
    """Some edges of the graph as one batch, all of class 0: a function of the graph, the recipe and the seed."""
    rng = np.random.default_rng(key(seed, _PROBE))
    count = min(_PROBED_EDGES, len(structure.indices))
    entries = np.sort(rng.choice(len(structure.indices), count, replace=False, shuffle=False))
    u = np.searchsorted(structure.indptr, entries, side="right") - 1
    pairs = PairBatch(0, 0, u, structure.indices[entries].astype(np.int64), np.zeros(count, np.int64))
    return batch_maker(structure, x, recipe, seed=seed)(pairs).to(device)


def batch_maker(
    structure: Graph, x: NDArray[np.float32], recipe: Recipe, *, seed: int
) -> Callable[[PairBatch], MiniBatch]:
    """From pairs to batches, on the CPU."""
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


def takes_whole_graph(structure: Graph, batching: Batching) -> bool:
    """Whether steps embed all nodes: wanted, the same neighbourhoods, and few more nodes than a batch has seeds."""
    takes_all = batching.backend == "numba" and all(fan_out is None for fan_out in batching.fan_outs)
    is_small = batching.batch_pairs is None or structure.num_nodes <= 2 * batching.batch_pairs
    if not (batching.whole_graph and takes_all and is_small):
        return False
    return batching.hub_cap is None or int(structure.degrees.max(initial=0)) <= batching.hub_cap


def host_batches(
    make: Callable[[PairBatch], MiniBatch],
    pairs: Iterator[PairBatch],
    *,
    workers: int,
    pin: bool,
    clock: WaitClock | None = None,
) -> Iterator[MiniBatch]:
    """Batches made by threads on the CPU, in page-locked memory where `pin` is set."""
    made: Callable[[PairBatch], MiniBatch] = (lambda item: make(item).pin()) if pin else make
    if workers:
        return prefetch(pairs, made, depth=AHEAD * workers, workers=workers, clock=clock)
    return map(made, pairs)


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


def agree(fit: gpu.Fit | None, world: World, device: torch.device | str, note: Path | None) -> gpu.Fit | None:
    """What this rank's GPU is to hold: no more than fits that of every rank, and no more than `note` says."""
    noted = _noted(note) if note is not None and note.exists() else {"graph": True, "pairs": True}
    wanted = [fit is not None and noted["graph"], fit is not None and fit.has_pairs and noted["pairs"]]
    votes = world.sum(torch.tensor(wanted, dtype=torch.float32, device=device))
    graph, pairs = (votes == world.size).tolist()
    if note is not None and world.leads:
        files.write_json(note, {"graph": graph, "pairs": pairs})
    return replace(fit, has_pairs=pairs) if fit is not None and graph else None


def _noted(note: Path) -> dict[str, bool]:
    """What an earlier run wrote down; FolderError where it is damaged."""
    try:
        found = json.loads(note.read_bytes())
        return {name: {True: True, False: False}[found[name]] for name in ("graph", "pairs")}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise files.FolderError(f"{note} is damaged; remove {note.parent} to have it made again") from error


def gpu_batches(
    graph: DeviceGraph,
    source: DevicePairs | Iterator[PairBatch],
    recipe: Recipe,
    cut: Cut,
    fit: gpu.Fit,
    **start: Any,
) -> Iterator[MiniBatch | EndsBatch]:
    """Batches made on the device; pairs that do not fit it are read ahead by a thread."""
    limits = gpu.row_limits(recipe.batching.layer_fan_outs(recipe.network.num_layers), recipe.batching.hub_cap)
    if fit.columns is not None:
        return gpu.fused_batches(graph, source, cut, limits[0], **start)
    return gpu.block_batches(graph, source, cut, limits, **start)
