"""The words of a sweep or search, completed for Hydra or sorted into what is fixed, what is searched and how.

A named sweep, `conf/sweep/NAME.yaml`, lists the values of each option under `hydra.sweeper.params`. Hydra runs the
product of those lists and of the user's own even if both name one option: `sweep=drop_ratio seed=0` would run every job
five times under five names. Here the user's values replace the file's. A sweep without a name gets a folder of its own,
`multirun/GRAPH/VARIED-OPTIONS`, with a hash of the other overrides if there are any, so that the same words go on and
others begin anew; its jobs are named by the varied options only.

The options of a search come from `conf/sweep/optuna.yaml` or from the command line, in Hydra's grammar:
`purify.ratio=interval(0,0.5)`, `hops.classes=range(3,7)`, `score.views=choice([purified],[original])`; an option that
the command line fixes is not searched. `tune.num_trials=50` and the like say how.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hcm_scale.base.files import hash_value, slug
from hcm_scale.base.names import OBJECTIVES
from hcm_scale.config import Config, check, choice, number, option_file, option_names

READS_ONLY = ("--cfg", "-c", "--info", "-i", "--resolve")
MULTIRUN = ("-m", "--multirun")
_PLACES = ("run_dir", "share_dir", "sweep")  # no option of the experiment


def split(override: str) -> tuple[str, str]:
    """Key and value of an override; no key for a flag or a word without a value.

    >>> split("+hydra.sweep.dir=a=b"), split("-m")
    (('hydra.sweep.dir', 'a=b'), ('', '-m'))
    """
    if override.startswith("-") or "=" not in override:
        return "", override
    key, value = override.lstrip("+~").split("=", 1)
    return key, value


def named_sweep(overrides: Sequence[str]) -> str:
    """The name of the sweep among the overrides, or an empty text."""
    return next((value for key, value in map(split, reversed(overrides)) if key == "sweep" and value != "null"), "")


def listed_values(name: str) -> dict[str, str]:
    """The options that a named sweep varies, each with its list of values as text."""
    path = option_file("sweep", name)
    if path is None:
        raise ValueError(f"sweep={name} is not known; legal are {', '.join(option_names('sweep'))}")
    listed = OmegaConf.select(OmegaConf.load(path), "hydra.sweeper.params") or {}
    return {str(key): str(values) for key, values in listed.items()}


def finish_sweep_options(overrides: Sequence[str]) -> list[str]:
    """The overrides with every option named once: where the user and the named sweep differ, the user wins."""
    name = named_sweep(overrides)
    if not name:
        return [*overrides, *_own_folder(overrides)] if set(MULTIRUN) & set(overrides) else list(overrides)
    if not {*MULTIRUN, *READS_ONLY} & set(overrides):
        raise ValueError(f"sweep={name} is a list of runs: add -m")
    listed = listed_values(name)
    given = {key for key, _ in map(split, overrides)}
    if not given & set(listed):
        return list(overrides)
    rest = [f"{key}={values}" for key, values in listed.items() if key not in given]
    return [*overrides, "hydra.sweeper.params=null", *rest]


def _own_folder(overrides: Sequence[str]) -> list[str]:
    """Further overrides of a sweep without a name: its folder, the folder of shared stages, and the names of jobs."""
    words = [word for word in overrides if split(word)[0]]
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except HydraException:
        return []  # whoever parses them next reports it
    varied = [split(word)[0] for word, found in zip(words, parsed, strict=True) if found.is_sweep_override()]
    fixed = {key: value for key, value in map(split, words) if key not in (*varied, *_PLACES)}
    ours = {key: value for key, value in fixed.items() if not key.startswith("hydra")}
    keys = {split(word)[0] for word in words}
    if not varied or "hydra.sweep.dir" in keys:
        return []
    name = "+".join(varied).replace("/", "-") + (f"-{hash_value(ours)[:8]}" if ours else "")
    shared = [] if "share_dir" in keys else ["share_dir=multirun/${graph.name}/stages"]
    named_by = f"hydra.job.config.override_dirname.exclude_keys=[{','.join((*_PLACES, *ours))}]"
    return [f"hydra.sweep.dir='multirun/${{graph.name}}/{name}'", *shared, named_by]


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
    """A search: overrides of every trial, and `space` from options to Hydra's sweeps as text."""

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

    def distributions(self) -> dict[str, Any]:
        """`space` as Optuna's distributions."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        found = {}
        for name, values in self.space.items():
            entry = OverridesParser.create().parse_override(f"{name}={values}")
            value: Any = entry.value()
            if isinstance(value, IntervalSweep):
                whole = isinstance(value.start, int) and isinstance(value.end, int)
                kind: Any = IntDistribution if whole else FloatDistribution
                found[name] = kind(value.start, value.end, log="log" in value.tags)
            else:
                found[name] = CategoricalDistribution(list(entry.sweep_string_iterator()))
        return found


def read_search(overrides: Sequence[str], compose: Compose) -> Search:
    """The search that the words of a command line ask for; flags such as -m are ignored."""
    words = [text for text in overrides if not text.startswith("-") and split(text)[0] != "sweep"]
    if any(split(text)[0].startswith("hydra") for text in words):
        raise ValueError("sweep=optuna runs its trials one after the other: hydra.* and launchers have no effect on it")
    options = _read_options([text for text in words if text.startswith("tune.")])
    rest = [text for text in words if not text.startswith("tune.")]
    parser = OverridesParser.create()
    varied = [text for text in rest if parser.parse_override(text).is_sweep_override()]
    fixed = tuple(text for text in rest if text not in varied)
    named = {split(text)[0] for text in rest}
    space = {name: values for name, values in listed_values("optuna").items() if name not in named}
    space |= dict(map(split, varied))
    folder = options.folder or f"multirun/{slug(compose(list(fixed)).graph.name)}/optuna"
    return Search(fixed, space, dataclasses.replace(options, folder=folder), compose)


def _read_options(words: Sequence[str]) -> TuneConfig:
    given = OmegaConf.from_dotlist([word.removeprefix("tune.") for word in words])
    try:
        options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TuneConfig), given))
    except OmegaConfBaseException as error:
        legal = ", ".join(f"tune.{entry.name}" for entry in dataclasses.fields(TuneConfig))
        raise ValueError(f"{' '.join(words)}: {str(error).splitlines()[0]}; legal are {legal}") from error
    check(options, "tune.")
    return options
