"""The words of a sweep, completed for Hydra.

A named sweep, `conf/sweep/NAME.yaml`, lists the values of each option under `hydra.sweeper.params`. Hydra runs the
product of those lists and of the user's own even if both name one option: `sweep=drop_ratio seed=0` would run every job
five times under five names. Here the user's values replace the file's. A sweep without a name gets a folder of its own,
`multirun/GRAPH/VARIED-OPTIONS`, with a hash of the other overrides if there are any, so that the same words go on and
others begin anew; its jobs are named by the varied options only.
"""

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from hcm_scale.base.files import hash_value
from hcm_scale.config import option_file, option_names

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
    varied = [split(word)[0] for word, override in zip(words, parsed, strict=True) if override.is_sweep_override()]
    fixed = {key: value for key, value in map(split, words) if key not in (*varied, *_PLACES)}
    ours = {key: value for key, value in fixed.items() if not key.startswith("hydra")}
    keys = {split(word)[0] for word in words}
    if not varied or "hydra.sweep.dir" in keys:
        return []
    name = "+".join(varied).replace("/", "-") + (f"-{hash_value(ours)[:8]}" if ours else "")
    shared = [] if "share_dir" in keys else ["share_dir=multirun/${graph.name}/stages"]
    named_by = f"hydra.job.config.override_dirname.exclude_keys=[{','.join((*_PLACES, *ours))}]"
    return [f"hydra.sweep.dir='multirun/${{graph.name}}/{name}'", *shared, named_by]
