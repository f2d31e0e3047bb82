"""The train stage: an encoder's graph, features and labelled pairs in; a folder of posterior samples out.

    out/  train.json  propagated/  checkpoints/  samples/  metrics.jsonl  tensorboard/

Everything that decides the result is hashed into a key. A finished folder of the same key is returned as it is, an
unfinished one is resumed from its last checkpoint, and one of another key is emptied first: runs are never mixed. A
sample is written before the checkpoint that counts it, so a kill at any moment costs the steps since the last
checkpoint and nothing else; on the CPU the resumed run ends in the same bytes, on a GPU it goes on with the same
batches and noise.

Memory: the model, a few prepared batches, one window of pairs per class; graph, features and pairs stay on disk. A GPU
holds graph, features and pairs too, as far as they fit (`sampling.gpu`).
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.features.propagate import fingerprint_features, propagate_features
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.checkpoint import load_checkpoint, save_checkpoint
from hcm_scale.posterior.journal import METRICS, Journal
from hcm_scale.posterior.loop import Chain, Step, SumRanks, run_chain
from hcm_scale.posterior.meter import Meter
from hcm_scale.posterior.recorded import Recorder, training_on
from hcm_scale.posterior.samples import Samples, open_samples, seal_samples, write_sample
from hcm_scale.shards import Labels, open_labels
from hcm_scale.stages.recipe import ChainPlan, Recipe
from hcm_scale.stages.train_batches import training_batches

FORMAT = 1  # part of the key: a change of the arithmetic starts runs afresh
RUN = "train.json"
_OURS = ("samples/manifest.json", "samples/sample-*.safetensors", "checkpoints/step-*", METRICS, "tensorboard/events*")


@dataclass(frozen=True)
class Record:
    """What a run writes besides its samples. `trend(samples folder, samples so far)` returns numbers to log."""

    checkpoint_every: int = 200
    log_every: int = 20
    tensorboard: bool = False
    trend: Callable[[Path, int], dict[str, float]] | None = None
    trend_every: int = 1  # samples

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "log_every", "trend_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class Ranks:
    """One process among those that train together; rank 0 writes."""

    rank: int = 0
    world: int = 1
    sum: SumRanks | None = None
    barrier: Callable[[], Any] = lambda: None


DEFAULT, ALONE, USUAL = Recipe(), Ranks(), Record()


def train(
    structure: Graph,
    features: NDArray[np.float32],
    labels: Path | str | Labels,
    out: Path | str,
    *,
    recipe: Recipe = DEFAULT,
    seed: int = 0,
    device: str = "cpu",
    workers: int = 1,
    record: Record = USUAL,
    ranks: Ranks = ALONE,
    propagated: Path | None = None,
) -> Samples:
    """Samples the posterior of the hop model whose encoder runs on `structure`, and opens the samples.

    `features` is (n, q) float32 and finite, in memory or mapped; `labels` are the labelled pairs over the same nodes.
    `propagated` is the folder that keeps Â X, by default `out/propagated`; runs on one graph may share it.
    """
    out = Path(out)
    labels = labels if isinstance(labels, Labels) else open_labels(labels)
    check_sizes(structure, features, labels)
    x_key = fingerprint_features(features)
    parts = [structure.fingerprint, x_key, labels.fingerprint, dataclasses.asdict(recipe), seed]
    key = files.hash_value([FORMAT, *parts])
    if is_finished(out, key):
        return open_samples(out / "samples")
    _in_turn(ranks, lambda: claim(out, key))
    x = features
    if recipe.batching.exact_first_hop:
        folder = propagated or out / "propagated"
        x = _in_turn(ranks, lambda: propagate_features(structure, features, folder, fingerprint=x_key))
    model = dataclasses.asdict(recipe.network) | {"num_attributes": x.shape[1], "num_classes": labels.classes}
    model |= {"directed": structure.directed, "seed": seed}
    chain = start_chain(out, key, model, device)
    source: dict[str, Any] = {
        "seed": seed,
        "first_step": chain.num_done,
        "rank": ranks.rank,
        "world": ranks.world,
        "workers": workers,
    }
    made = training_batches(structure, x, labels, recipe, device=device, **source)
    with training_on(device), contextlib.closing(made) as batches:
        sampler = dataclasses.asdict(recipe.langevin) | {"num_pairs": labels.num_pairs, "seed": seed}
        steps = run_chain(chain, batches, recipe.plan, sum_ranks=ranks.sum, measure=Recorder(), **sampler)
        meter = Meter(labels.num_pairs, recipe.langevin.temperature)
        if ranks.rank == 0:
            write_steps(chain, steps, meter, recipe.plan, record, out, key, ranks.barrier)
            seal_samples(out / "samples", recipe.plan.num_samples, key=key, model=model)
        else:
            check_steps(chain, steps, meter, recipe.plan, record, ranks.barrier)
    ranks.barrier()
    return open_samples(out / "samples")


def check_sizes(structure: Graph, features: NDArray[np.float32], labels: Labels) -> None:
    """Refuses parts that cannot belong to one graph."""
    if not labels.plan.num_nodes == structure.num_nodes == len(features):
        raise ValueError(
            f"labels are over {labels.plan.num_nodes} nodes, the graph has {structure.num_nodes} and the features "
            f"{len(features)} rows: they must belong to one graph"
        )


def _in_turn(ranks: Ranks, make: Callable[[], Any]) -> Any:
    """What rank 0 makes on disk first and the others then find there."""
    if ranks.rank > 0:
        ranks.barrier()
        return make()
    made = make()
    ranks.barrier()
    return made


def is_finished(out: Path, key: str) -> bool:
    """Whether `out` holds the sealed samples of this key."""
    return _key_of(out) == key and (out / "samples" / files.MANIFEST).exists()


def claim(out: Path, key: str) -> None:
    """Makes `out` this key's: keeps its own unfinished work, removes that of another run and no other file."""
    out.mkdir(parents=True, exist_ok=True)
    if _key_of(out) == key:
        return
    (out / RUN).unlink(missing_ok=True)  # first: half of another run's work must not pass for all of it
    for pattern in _OURS:
        for path in out.glob(pattern):
            path.unlink()
    files.write_json(out / RUN, {"key": key})


def _key_of(out: Path) -> str | None:
    try:
        return str(json.loads((out / RUN).read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start_chain(out: Path, key: str, model: dict[str, Any], device: str) -> Chain:
    """A chain at its beginning, or where its last checkpoint left it."""
    chain = Chain.start(HopModel(**model).to(device))
    saved = load_checkpoint(out / "checkpoints", key)
    if saved is not None:
        chain.restore(*saved)
    return chain


def write_steps(
    chain: Chain,
    steps: Iterator[Step],
    meter: Meter,
    plan: ChainPlan,
    record: Record,
    out: Path,
    key: str,
    barrier: Callable[[], Any],
) -> None:
    """Runs the chain to its end and puts down what comes: samples, then checkpoints, then metrics."""
    samples = out / "samples"
    with Journal(out, plan.num_steps, chain.num_done, tensorboard=record.tensorboard) as journal:
        for step in steps:
            meter.add(step)
            done = step.t + 1
            if step.sample is not None:
                meter.check(chain)
                write_sample(samples, plan.num_kept(step.t), step.sample)
                kept = plan.num_kept(done)
                if record.trend is not None and kept % record.trend_every == 0:
                    journal.write({"step": done, "num_samples": kept, **record.trend(samples, kept)})
                    barrier()  # a trend may take longer than a step may wait
            if done % record.checkpoint_every == 0:
                meter.check(chain)
                save_checkpoint(out / "checkpoints", done, chain.tensors(), key)
            if done % record.log_every == 0 or done == plan.num_steps:
                journal.tell(meter.read(chain))


def check_steps(
    chain: Chain, steps: Iterator[Step], meter: Meter, plan: ChainPlan, record: Record, barrier: Callable[[], Any]
) -> None:
    """Runs the chain to its end where another rank writes; stops where that one would, and waits for its trends."""
    for step in steps:
        meter.add(step)
        done = step.t + 1
        if step.sample is not None and record.trend is not None and plan.num_kept(done) % record.trend_every == 0:
            barrier()
        if done % record.log_every == 0:
            meter.read(chain)
