"""From the configuration to the arguments of stages: what decides labels, samples and scores, in frozen values."""

import dataclasses
import logging
from dataclasses import asdict
from typing import Any

from hcm_scale.config import Config, parse_fan_out
from hcm_scale.stages.recipe import MOST_BURN_IN, Batching, ChainPlan, Langevin, Network, Recipe
from hcm_scale.stages.score import Scoring

_ROW_GROUP_ROWS = 65_536  # pairs of a row group, the piece in which labels are read
_DECAY = {"decay_offset": 100.0, "decay_power": 0.55, "cycle_steps": 200}  # of the schedules, in `ChainPlan`

log = logging.getLogger(__name__)


def label_options(config: Config) -> dict[str, Any]:
    """What decides the labels, from the sections `hops` and `shards`."""
    is_drawn = config.hops.num_sources is not None or config.hops.pairs_per_class is not None
    seed = config.seed if is_drawn else 0  # every pair is kept: runs that differ in their seed share the labels
    return asdict(config.hops) | asdict(config.shards) | {"row_group_rows": _ROW_GROUP_ROWS, "seed": seed}


def recipe_of(config: Config) -> Recipe:
    """What decides the samples, from the sections `model`, `sampling` and `posterior`."""
    sampling, posterior = config.sampling, config.posterior
    if sampling.hub_cap and "all" not in sampling.fan_out:
        log.warning("sampling.hub_cap=%s has no effect: no fan-out is `all`", sampling.hub_cap)
    plan_fields = {field.name for field in dataclasses.fields(ChainPlan)}
    plan = _DECAY | {name: value for name, value in asdict(posterior).items() if name in plan_fields}
    if posterior.burn_in_steps is None:
        plan |= {"burn_in_steps": MOST_BURN_IN, "burn_in_epochs": 5.0}
    if posterior.num_samples is None:
        plan |= {"num_samples": 10, "settled": 0.995}  # docs/detector.md
    return Recipe(
        network=Network(**asdict(config.model)),
        batching=Batching(
            batch_pairs=sampling.batch_pairs,
            sampling_ratio=sampling.ratio,
            fan_outs=tuple(parse_fan_out(sampling.fan_out, num_blocks(config))),
            hub_cap=sampling.hub_cap,
            exact_first_hop=sampling.first_hop == "exact",
            backend=sampling.backend,
            whole_graph=sampling.whole_graph,
        ),
        langevin=Langevin(kernel=posterior.kernel, prior=posterior.prior, temperature=posterior.temperature),
        plan=ChainPlan(**plan),
    )


def scoring_of(config: Config) -> Scoring:
    """What decides the scores, from the section `score`."""
    options = config.score
    return Scoring(
        hop=options.hop,  # type: ignore[arg-type]  # one of the names that the schema allows
        trim=options.trim,
        far_share=options.far_share,
        max_neighbors=options.max_neighbors,
        rank_by=options.rank_by,
        fdr=options.fdr,
        precision=options.precision,
    )


def num_blocks(config: Config) -> int:
    """Layers whose neighbourhoods are sampled."""
    return config.model.num_layers - (config.sampling.first_hop == "exact")
