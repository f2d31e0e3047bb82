"""A fitted detector as a folder, without pickles: its finished run, and a manifest with its parameters.

    folder/  manifest.json  stages.json  config.json  records/  graph/  purified/  ...  scores/

The stages are copied as they stand, with their records, so that what is read back is checked against its hashes.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hcm_scale import __version__, listed, pipeline
from hcm_scale.base import files, sealed
from hcm_scale.config import inert_options
from hcm_scale.detector.fitted import Fitted, Training
from hcm_scale.detector.given import COLUMNS
from hcm_scale.detector.parameters import SECTIONS, dotted
from hcm_scale.options import plain

KIND = "hcm_scale detector"
FORMAT = 1
_TRAINED = "training_scores.npy"  # of a detector that `apply` made: the scores of the run that was trained
_NOT_KEPT = ("run_dir", "callback", "verbose")  # of this process, and of no use in another


def save(folder: Path, fitted: Fitted, parameters: dict[str, Any]) -> None:
    """Writes the folder, whole or not at all; one that is there already must be empty or of a detector."""
    _check_free(folder)
    with files.replacing(folder) as fresh:
        listed.copy_run(fitted.folder, fresh)
        body = {
            "parameters": {name: plain(value) for name, value in parameters.items() if name not in _NOT_KEPT},
            "fingerprint": fitted.fingerprint,
            "columns": fitted.columns,
            "contamination": plain(fitted.contamination),
            "bound": plain(fitted.bound),
            "version": __version__,
        }
        if fitted.trained is not None:
            np.save(fresh / _TRAINED, fitted.trained.scores)
            body["trained"] = {"num_odd": fitted.trained.num_odd, "hash": files.hash_file(fresh / _TRAINED)}
        files.write_manifest(fresh, KIND, FORMAT, body)


def _check_free(folder: Path) -> None:
    """Refuses to write over what is not ours."""
    legal = "save writes to a folder that is new, empty, or holds a saved detector, which it replaces"
    if folder.exists() and not folder.is_dir():
        raise files.FolderError(f"{folder} is a file; {legal}")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            files.read_manifest(folder, KIND, FORMAT)
        except files.FolderError as error:
            raise files.FolderError(f"{folder} holds other files, and no saved detector; {legal}") from error


def load(folder: Path) -> tuple[dict[str, Any], Fitted]:
    """The parameters and the finished run of a folder, its files checked; FolderError where it is not as it was."""
    manifest = files.read_manifest(folder, KIND, FORMAT)
    for stage in listed.read_stages(folder):
        files.below(folder, stage["name"])  # `save` leaves no links
    try:
        kept = [manifest[name] for name in ("fingerprint", "columns", "contamination")]
        kept += [manifest["bound"], _trained(folder, manifest)]
        for name in manifest["columns"]:
            if name not in COLUMNS:
                raise files.FolderError(f"{folder / files.MANIFEST} is damaged: {name!r} is no column of a table")
        parameters = _inert(manifest["parameters"]) | {"views": tuple(manifest["parameters"]["views"])}
        return parameters, Fitted(folder, pipeline.read_scores(folder), *kept)
    except (LookupError, TypeError, AttributeError) as error:
        raise files.FolderError(f"{folder / files.MANIFEST} is damaged: {error!r}") from error


def _inert(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a folder, which anybody may have written, without those that could make a fit write elsewhere.

    What is left out is warned of: options but for `inert_options` and names of option files, the folder of the run, and
    text in which OmegaConf would put values of the environment.
    """
    legal, asked = {*inert_options()}, dotted(parameters["options"] or {})
    options = {
        key: value
        for key, value in asked.items()
        if (key in legal or (key in SECTIONS and isinstance(value, str))) and "${" not in json.dumps(value)
    }
    taken = {name: value for name, value in parameters.items() if name not in _NOT_KEPT}
    for name in [*(asked.keys() - options.keys()), *(parameters.keys() - taken.keys())]:
        warnings.warn(f"{name} of the saved detector is left out: set_params sets it, where you trust it", stacklevel=4)
    return taken if options == asked else taken | {"options": options}


def _trained(folder: Path, manifest: dict[str, Any]) -> Training | None:
    """The scores that those of the folder are compared with; None where they are compared with each other."""
    if "trained" not in manifest:
        return None
    num_odd, digest = (manifest["trained"][name] for name in ("num_odd", "hash"))
    sealed.check_folder(folder, {_TRAINED: digest}, "save the detector again")
    return Training(np.load(folder / _TRAINED, allow_pickle=False), num_odd)
