"""The options of a run that sets none, for benchmarks that call its stages one by one."""

from dataclasses import asdict, replace
from typing import Any

from hcm_scale.config import Config
from hcm_scale.run.stages import label_options, recipe_of, scoring_of
from hcm_scale.stages.train import Record

_CONFIG = Config()
LABEL = label_options(_CONFIG)
PURIFY = asdict(_CONFIG.attributes) | asdict(_CONFIG.purify)
_RECIPE = recipe_of(_CONFIG)
PLAN = _RECIPE.plan
RECIPE = replace(_RECIPE, plan=PLAN)
SAMPLER: dict[str, Any] = asdict(RECIPE.langevin) | {"seed": 0}
TRAIN: dict[str, Any] = {"workers": 1, "record": Record(_CONFIG.posterior.checkpoint_every)}
SCORE: dict[str, Any] = {"options": scoring_of(_CONFIG), "state": "memory"}
