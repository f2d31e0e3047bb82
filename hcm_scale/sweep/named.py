"""Named sweeps: `conf/sweep/NAME.yaml` lists the values of each option under `hydra.sweeper.params`.

Hydra runs the product of those lists and of the user's own, also where both name one option: `sweep=drop_ratio seed=0`
would run every job five times under five names. Here the user's values take the place of the file's.
"""

from collections.abc import Sequence
from pathlib import Path

_READS_ONLY = ("--cfg", "-c", "--info", "-i", "--resolve")


def split(override: str) -> tuple[str, str]:
    """The option that an override names, and its value.

    >>> split("+hydra.sweep.dir=a=b"), split("-m")
    (('hydra.sweep.dir', 'a=b'), ('', '-m'))
    """
    if override.startswith("-") or "=" not in override:
        return "", override
    key, value = override.lstrip("+~").split("=", 1)
    return key, value


def named_sweep(overrides: Sequence[str]) -> str:
    """The sweep that the overrides name, or nothing."""
    return next((value for key, value in map(split, reversed(overrides)) if key == "sweep" and value != "null"), "")


def listed_values(name: str, conf: Path) -> dict[str, str]:
    """Option to list of values, as the sweep's file has them."""
    from omegaconf import OmegaConf

    path = conf / "sweep" / f"{name}.yaml"
    if not path.is_file():
        legal = ", ".join(sorted(found.stem for found in path.parent.glob("*.yaml")))
        raise ValueError(f"sweep={name} is not known; legal are {legal}")
    listed = OmegaConf.select(OmegaConf.load(path), "hydra.sweeper.params") or {}
    return {str(key): str(values) for key, values in listed.items()}


def settle(overrides: Sequence[str], conf: Path) -> list[str]:
    """The overrides with every option named once: where the user and the named sweep differ, the user wins."""
    name = named_sweep(overrides)
    if not name:
        return list(overrides)
    if not {"-m", "--multirun", *_READS_ONLY} & set(overrides):
        raise ValueError(f"sweep={name} is a list of runs: add -m")
    listed = listed_values(name, conf)
    given = {key for key, _ in map(split, overrides)}
    if not given & set(listed):
        return list(overrides)
    rest = [f"{key}={values}" for key, values in listed.items() if key not in given]
    return [*overrides, "hydra.sweeper.params=null", *rest]
