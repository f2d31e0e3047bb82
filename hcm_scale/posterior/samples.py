"""Checkpoints: where a chain is, on disk, whole or absent.

| file                        | what                                                                                  |
|-----------------------------|---------------------------------------------------------------------------------------|
| step-000001200.safetensors  | the parameters and the kernel's state                                                 |
| step-000001200.json         | the number of steps and of ranks, the hashes of the tensors and of all samples so far |

Randomness is a function of (seed, step), so there is no generator to save: a chain restored here repeats the
uninterrupted run bit for bit on the CPU. The last two are kept. One that is damaged, or counts a sample that is no
longer as it was written, is passed over for the one before it, with a warning; where none is left the chain begins
anew. So it does where another number of ranks goes on: they add up their gradients, and sums of other parts round
otherwise. The folder is that of one run: whoever gives it sees to that.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hcm_scale.base import files
from hcm_scale.base.names import MODEL_SIZES
from hcm_scale.model import parameter_shapes

# ----------------------------------------------------------------------------
# Parameter samples at rest: one safetensors file each, and a manifest, written last, that makes them exist.
#
#     samples/  sample-00000.safetensors ...  manifest.json: the model's sizes, the hash of every sample
#
# A reader needs nothing else to rebuild the model: `HopModel(**samples.model)`. Samples are read one at a time. A
# folder may come from anybody: its sizes are legal ones, and the head of every file tells of the parameters of such a
# model, before room is taken for either.


KIND = "hcm_scale samples"
FORMAT = 1
_SIZES = {"num_attributes": (1, 1 << 31), **MODEL_SIZES}
_KINDS: dict[str, Any] = dict.fromkeys((*_SIZES, "seed"), int) | dict.fromkeys(("directed", "last_relu"), bool)


@dataclass(frozen=True)
class Samples:
    """A finished folder of parameter samples; iterating loads and checks one after the other."""

    folder: Path
    model: dict[str, Any]  # the arguments of HopModel
    hashes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        path = sample_path(self.folder, range(len(self))[index])
        if not path.is_file() or files.hash_file(path) != self.hashes[index]:
            raise files.FolderError(f"{path} is missing or damaged: its hash differs from the manifest")
        sample = load_tensors(path.read_bytes())
        for name, tensor in sample.items():
            if not tensor.isfinite().all():
                raise files.FolderError(f"{path}: {name} holds NaN or infinite numbers: the chain it is of diverged")
        return sample

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(len(self)))


def sample_path(folder: Path, index: int) -> Path:
    return folder / f"sample-{index:05d}.safetensors"


def write_sample(folder: Path, index: int, sample: dict[str, Tensor]) -> str:
    """Writes one sample, whole or not at all, and returns its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save_tensors(sample)
    files.write_bytes(sample_path(folder, index), data)
    return files.hash_bytes(data)


def load_sample(folder: Path, index: int) -> dict[str, Tensor]:
    """One sample of a folder that need not be finished; whoever asks knows that it is whole."""
    return load_tensors(sample_path(folder, index).read_bytes())


def seal_samples(folder: Path, hashes: list[str], model: dict[str, Any]) -> Samples:
    """Declares the folder finished; `hashes` are those that its samples had when they were written."""
    files.write_manifest(folder, KIND, FORMAT, {"model": model, "hashes": hashes})
    return open_samples(folder)


def open_samples(folder: Path | str) -> Samples:
    """A finished folder; FolderError where it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT)
    model, hashes = body.get("model"), body.get("hashes")
    if not isinstance(model, dict) or not isinstance(hashes, list) or not hashes:
        raise files.FolderError(f"{folder / files.MANIFEST} is damaged: it tells of no model, or of no samples")
    shapes = _shapes(folder / files.MANIFEST, model)
    for index in range(len(hashes)):
        _check_head(sample_path(folder, index), shapes)
    return Samples(folder, model, tuple(hashes))


def _shapes(path: Path, model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the model that a manifest tells of; FolderError where it is not legal."""
    for name, value in model.items():
        low, high = _SIZES.get(name, (0, 1 << 31))
        if type(value) is not _KINDS.get(name) or not low <= value <= high:
            raise files.FolderError(f"{path} is damaged: model.{name}={value!r:.40} is not legal")
    if missing := [name for name in (*_SIZES, "directed") if name not in model]:
        raise files.FolderError(f"{path} is damaged: model.{missing[0]} is missing")
    return parameter_shapes(**{name: model[name] for name in _SIZES})


def _check_head(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuses a file that does not hold these parameters as float32; only its head is read."""
    if not path.is_file():
        raise files.FolderError(f"{path} is missing or damaged: the manifest tells of it")
    try:
        with safe_open(path, "pt") as file:
            names: list[str] = file.keys()
            parts = {name: file.get_slice(name) for name in names}
            found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        raise files.FolderError(f"{path} is damaged: {error}") from error
    for name in sorted(found.keys() | shapes.keys()):
        if found.get(name) != ("F32", shapes.get(name)):
            has, wanted = found.get(name, "missing"), shapes.get(name, "no such parameter")
            raise files.FolderError(f"{path} is not of the model in its manifest: {name} is {has}, not F32 {wanted}")


log = logging.getLogger(__name__)
NUM_KEPT = 2


class Checkpoint(NamedTuple):
    """Where a chain was: steps done, what it holds, and the hashes of the samples that it has kept."""

    num_done: int
    tensors: dict[str, Tensor]
    sample_hashes: list[str]


def save_checkpoint(
    folder: Path, num_done: int, tensors: dict[str, Tensor], sample_hashes: Sequence[str] = (), num_ranks: int = 1
) -> None:
    """Writes the state after `num_done` steps and forgets all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{num_done:09d}.safetensors"
    data = save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    files.write_bytes(path, data)
    note = {"num_done": num_done, "ranks": num_ranks, "hash": files.hash_bytes(data), "samples": list(sample_hashes)}
    files.write_sealed(path.with_suffix(".json"), note)
    for old in _notes(folder)[:-NUM_KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(folder: Path, samples: Path, num_ranks: int = 1) -> Checkpoint | None:
    """The newest whole checkpoint, whose samples stand in the folder `samples`; None where there is none."""
    for path in reversed(_notes(folder)):
        try:
            note = files.read_sealed(path)
            data = path.with_suffix(".safetensors").read_bytes()
            whole = files.hash_bytes(data) == note["hash"]
        except (files.FolderError, OSError):
            whole = False
        if whole and note["ranks"] != num_ranks:
            log.info("%s was left by %d ranks; %d begin anew", path.with_suffix(""), note["ranks"], num_ranks)
            return None
        hurt = _hurt_sample(samples, note["samples"]) if whole else path.with_suffix("")
        if hurt is None:
            return Checkpoint(note["num_done"], load_tensors(data), note["samples"])
        warnings.warn(f"{hurt} is damaged; the chain goes on from the checkpoint before it", stacklevel=2)
    return None


def _hurt_sample(folder: Path, hashes: Sequence[str]) -> Path | None:
    """The first of these samples that is missing or not as it was written."""
    for index, digest in enumerate(hashes):
        path = sample_path(folder, index)
        if not path.is_file() or files.hash_file(path) != digest:
            return path
    return None


def _notes(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.json"))
