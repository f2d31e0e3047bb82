"""A fitted detector as a folder, without pickles: its finished run, and a manifest with its parameters.

    folder/  manifest.json  stages.json  config.json  records/  graph/  purified/  ...  scores/

The stages are copied as they stand, with their records, so that what is read back is checked against its hashes.
"""

from pathlib import Path
from typing import Any

from hcm_scale import __version__, listed, pipeline
from hcm_scale.base import files
from hcm_scale.detector.fitted import Fitted
from hcm_scale.options import plain

KIND = "hcm_scale detector"
FORMAT = 1
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
    try:
        kept = [manifest[name] for name in ("fingerprint", "columns", "contamination", "bound")]
        parameters = manifest["parameters"] | {"views": tuple(manifest["parameters"]["views"])}
        return parameters, Fitted(folder, pipeline.read_scores(folder), *kept)
    except (LookupError, TypeError) as error:
        raise files.FolderError(f"{folder / files.MANIFEST} is damaged: {error!r}") from error
