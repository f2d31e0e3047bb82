"""What to search: the words of the command line, sorted into what is fixed, what is searched and how.

The options to search come from `conf/sweep/optuna.yaml` or from the command line, in Hydra's own words:
`purify.ratio=interval(0,0.5)`, `hops.classes=range(3,7)`, `score.views=choice([purified],[original])`; an option that
the command line fixes is not searched. `tune.num_trials=50` and its like say how.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcm_scale.base.files import slug
from hcm_scale.base.names import OBJECTIVES
from hcm_scale.config import Config, check, choice, number
from hcm_scale.sweep.named import listed_values, split

Compose = Callable[[list[str]], Config]


@dataclass
class TuneConfig:
    """How to search. Trials are judged over `num_seeds` repeats; `folder` is by default beside the graph's sweeps."""

    num_trials: int = number(30, 1)
    num_seeds: int = number(1, 1, 100)
    objective: str = choice("planted", OBJECTIVES)
    folder: str = ""


@dataclass(frozen=True)
class Search:
    """What to search, over what, judged how. `space` maps options to Hydra's sweeps, as text."""

    fixed: tuple[str, ...]
    space: dict[str, str]
    options: TuneConfig
    compose: Compose

    @property
    def folder(self) -> Path:
        return Path(self.options.folder)

    def config(self, chosen: dict[str, Any], *more: str) -> Config:
        """The configuration of these choices; stages are shared within the search."""
        config = self.compose([*self.fixed, *(f"{name}={value}" for name, value in chosen.items()), *more])
        config.share_dir = config.share_dir or str(self.folder / "stages")
        return config


def read_search(overrides: Sequence[str], compose: Compose) -> Search:
    """Reads the command line; flags such as -m are passed over."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = [text for text in overrides if not text.startswith("-") and split(text)[0] != "sweep"]
    if any(split(text)[0].startswith("hydra") for text in words):
        raise ValueError("sweep=optuna runs its trials one after the other: hydra.* and launchers have no effect on it")
    options = read_options([text for text in words if text.startswith("tune.")])
    rest = [text for text in words if not text.startswith("tune.")]
    parsed = OverridesParser.create().parse_overrides(rest)
    fixed = tuple(text for text, entry in zip(rest, parsed, strict=True) if not entry.is_sweep_override())
    named = {split(text)[0] for text in rest}
    space = {name: values for name, values in listed_values("optuna").items() if name not in named}
    space |= dict(split(text) for text, entry in zip(rest, parsed, strict=True) if entry.is_sweep_override())
    folder = options.folder or f"multirun/{slug(compose(list(fixed)).graph.name)}/optuna"
    return Search(fixed, space, dataclasses.replace(options, folder=folder), compose)


def read_options(words: Sequence[str]) -> TuneConfig:
    """`tune.*` as checked options.

    >>> read_options(["tune.num_trials=5"]).num_trials
    5
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    given = OmegaConf.from_dotlist([word.removeprefix("tune.") for word in words])
    try:
        options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TuneConfig), given))
    except OmegaConfBaseException as error:
        legal = ", ".join(f"tune.{entry.name}" for entry in dataclasses.fields(TuneConfig))
        raise ValueError(f"{' '.join(words)}: {str(error).splitlines()[0]}; legal are {legal}") from error
    check(options, "tune.")
    return options


def distribution(name: str, values: str) -> Any:
    """Optuna's distribution for one of Hydra's sweeps.

    >>> distribution("purify.ratio", "interval(0,0.5)")  # doctest: +SKIP
    FloatDistribution(high=0.5, log=False, low=0.0, step=None)
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import IntervalSweep
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    entry = OverridesParser.create().parse_override(f"{name}={values}")
    value: Any = entry.value()
    if not isinstance(value, IntervalSweep):
        return CategoricalDistribution(list(entry.sweep_string_iterator()))
    whole = isinstance(value.start, int) and isinstance(value.end, int)
    kind: Any = IntDistribution if whole else FloatDistribution
    return kind(value.start, value.end, log="log" in value.tags)
