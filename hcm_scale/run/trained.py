"""A finished run whose samples score another graph: `trained=RUN_DIR`, for tomorrow's graph without training again.

What the run learned is in its folders: how attributes become features (purified), the samples (train-VIEW), and the
reference of the scores (scores). `open_trained` checks those folders and returns their keys, which are among the
options of the new run's stages. The options of the trained run are the defaults of the new run (`as_trained`), and
those that decided what it learned cannot be changed (`with_trained_options`).
"""

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hcm_scale.base import files
from hcm_scale.config import Config, stored_options, with_options
from hcm_scale.run.workspace import open_stages, stage_keys

log = logging.getLogger(__name__)

_SECTIONS = ("attributes", "purify", "hops", "sampling", "model", "posterior", "score")
_HERE = ("precision", "state", "csv", "copy_to")  # how this machine computes, where to write
_FREE = ("rank_by", "fdr")  # what is shown


@dataclass(frozen=True)
class Trained:
    """The folders of a finished run that another is made with, and their keys, by the names of the stages."""

    folders: dict[str, Path]
    keys: dict[str, str]


def as_trained(config: Config) -> Config:
    """The configuration with the options of the trained run in the sections that count, all of them legal.

    The user's options come on top: one that differs from the trained run was then asked for. How this machine computes
    and where results go is not taken from there.
    """
    where = Path(config.trained or "")
    stored = stored_options(where)
    if not stored:
        raise ValueError(f"trained={config.trained} is not the run_dir of a run: it has no config.json")
    if earlier := stored.get("trained"):
        raise ValueError(f"trained={config.trained} was itself scored with trained={earlier}; name that one")
    keys = [key for key in stored if key.split(".")[0] in _SECTIONS and key.split(".")[-1] not in _HERE]
    try:
        if missing := {*_SECTIONS} - {key.split(".")[0] for key in keys}:
            raise ValueError(f"it has no section {min(missing)}")
        before = with_options(Config(), {key: stored[key] for key in keys})
    except ValueError as error:
        why = "it was made by another version, or changed since: run it again with hcm-scale run"
        raise files.FolderError(f"{where / 'config.json'}: {error}; {why}") from error
    return replace(config, **{section: getattr(before, section) for section in _SECTIONS})


def with_trained_options(config: Config) -> Config:
    """The configuration with the options that decided what the trained run learned; warns of other values."""
    if config.trained is None:
        return config
    if files.resolved(Path(config.trained)) == files.resolved(Path(config.run_dir)):
        raise ValueError(f"trained={config.trained} is run_dir itself; name another run_dir for the new scores")
    made = as_trained(config)
    for section in _SECTIONS:
        now, before = getattr(config, section), getattr(made, section)
        for name in (entry.name for entry in fields(now)):
            asked, had = getattr(now, name), getattr(before, name)
            if name in _HERE + _FREE:
                setattr(before, name, asked)
            elif asked != had:
                option = f"{section}.{name}={asked}"
                log.warning("%s has no effect: trained=%s was made with %s", option, config.trained, had)
    return made


def open_trained(config: Config) -> Trained | None:
    """The folders that a run with `config.trained` is made with, all of their files checked; None if it trains."""
    if config.trained is None:
        return None
    names = ["purified", *(f"train-{view}" for view in config.score.views), "scores"]
    names += ["graph"] if config.graph.source in ("tables", "sql") else []
    where = Path(config.trained)
    folders, keys = open_stages(where, *names), stage_keys(where)
    if {name for name in keys if name.startswith("train-")} - {*names}:
        raise files.FolderError(f"{where / 'config.json'} is not of the run that {where / 'stages.json'} lists")
    return Trained(dict(zip(names, folders, strict=True)), {name: keys[name] for name in names})
