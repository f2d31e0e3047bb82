"""A finished run whose samples score another graph: `trained=RUN_DIR`, for tomorrow's graph without training anew.

What the run learned stands in its folders: how attributes become features (purified), the samples (train-VIEW), and
what scores are measured by (scores). `open_trained` checks those folders and gives their keys, by which the stages of
the new run are known. What decided them is not up for choice: `settled` puts the options of the trained run in the
place of the configuration's own.
"""

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hcm_scale.base import files
from hcm_scale.config import Config
from hcm_scale.listed import open_stages, stage_keys
from hcm_scale.options import stored_options, with_options

log = logging.getLogger(__name__)

_SECTIONS = ("attributes", "purify", "hops", "sampling", "model", "posterior", "score")
_HERE = ("precision", "chunk_edges", "state", "workers", "csv", "copy_to")  # how this machine computes, where to write
_FREE = ("rank_by", "fdr", "explained")  # what is shown: as asked, else as the trained run did


@dataclass(frozen=True)
class Trained:
    """The folders of a finished run that another is made with, and their keys, by the names of the stages."""

    folders: dict[str, Path]
    keys: dict[str, str]


def settled(config: Config) -> Config:
    """The configuration with the options of the trained run where those decided what it learned.

    An option that was asked for and is not to be changed is warned about; one that is at its default counts as not
    asked for.
    """
    if config.trained is None:
        return config
    before = _options_of(config)
    pairs = {section: (getattr(config, section), getattr(before, section)) for section in _SECTIONS}
    return replace(config, **{section: _merged(section, *pair, config.trained) for section, pair in pairs.items()})


def _options_of(config: Config) -> Config:
    """What the trained run was made with, in the sections that count; all of it is legal."""
    where = Path(config.trained or "")
    if files.resolved(where) == files.resolved(Path(config.run_dir)):
        raise ValueError(f"trained={config.trained} is run_dir itself; name another run_dir for the new scores")
    stored = stored_options(where)
    if not stored:
        raise ValueError(f"trained={config.trained} is not the run_dir of a run: it has no config.json")
    if earlier := stored.get("trained"):
        raise ValueError(f"trained={config.trained} was itself scored with trained={earlier}; name that one")
    wanted = {key: value for key, value in stored.items() if key.split(".")[0] in _SECTIONS}
    try:
        if missing := {*_SECTIONS} - {key.split(".")[0] for key in wanted}:
            raise ValueError(f"it has no section {min(missing)}")
        return with_options(Config(), wanted)
    except ValueError as error:
        why = "it was made by another version, or changed since: run it again with hcm-scale run"
        raise files.FolderError(f"{where / 'config.json'}: {error}; {why}") from error


def _merged(section: str, now: Any, before: Any, trained: str) -> Any:
    """A section of the trained run, with what may be chosen anew."""
    usual = type(now)()
    for name in (entry.name for entry in fields(now)):
        asked, had = getattr(now, name), getattr(before, name)
        if name in _HERE or (name in _FREE and asked != getattr(usual, name)):
            setattr(before, name, asked)
        elif asked not in (getattr(usual, name), had):
            log.warning("%s.%s=%s has no effect: trained=%s was made with %s", section, name, asked, trained, had)
    return before


def open_trained(config: Config) -> Trained | None:
    """The folders that a run with `config.trained` is made with, all of their files checked; None where it trains."""
    if config.trained is None:
        return None
    names = ["purified", *(f"train-{view}" for view in config.score.views), "scores"]
    names += ["graph"] if config.graph.source in ("tables", "sql") else []
    where = Path(config.trained)
    folders, keys = open_stages(where, *names), stage_keys(where)
    if {name for name in keys if name.startswith("train-")} - {*names}:
        raise files.FolderError(f"{where / 'config.json'} is not of the run that {where / 'stages.json'} lists")
    return Trained(dict(zip(names, folders, strict=True)), {name: keys[name] for name in names})
