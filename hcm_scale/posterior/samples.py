"""Parameter samples and checkpoints of a chain on disk, whole or absent.

    samples/      sample-00000.safetensors ...   manifest.json, written last: the model's sizes, every sample's hash
    checkpoints/  step-000001200.safetensors     the parameters and the kernel's state
                  step-000001200.json            number of steps, hashes of the tensors and of all samples

Samples are read one at a time, and `HopModel(**samples.model)` rebuilds the model. A folder may come from anybody: that
its sizes are legal, and that the header of every file describes the parameters of such a model, is checked before
memory is taken for either.

Randomness is a function of (seed, step), so a checkpoint holds no generator: a restored chain repeats the uninterrupted
run bit for bit on the CPU. The last two checkpoints are kept. One that is damaged, or counts a sample that is not as it
was written, is passed over for the one before it, with a warning; if none is left, the chain starts again. Any number
of ranks goes on with it: where they share steps, sums of other parts round differently. The caller makes sure that a
checkpoint folder belongs to one run.
"""

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

KIND = "hcm_scale samples"
FORMAT = 1
_SIZES = {"num_attributes": (1, 1 << 31), **MODEL_SIZES}
_TYPES: dict[str, Any] = dict.fromkeys((*_SIZES, "seed"), int) | dict.fromkeys(("directed", "last_relu"), bool)
_TYPES["encoder"] = str  # identity of a plug-in
_NUM_CHECKPOINTS = 2


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
    """Hash of the sample, which is written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save_tensors(sample)
    files.write_bytes(sample_path(folder, index), data)
    return files.hash_bytes(data)


def load_sample(folder: Path, index: int) -> dict[str, Tensor]:
    """One sample of a folder that need not be finished, unchecked."""
    return load_tensors(sample_path(folder, index).read_bytes())


def seal_samples(folder: Path, hashes: list[str], model: dict[str, Any]) -> Samples:
    """The folder, declared finished; `hashes` are those that `write_sample` returned."""
    files.write_manifest(folder, KIND, FORMAT, {"model": model, "hashes": hashes})
    return open_samples(folder)


def open_samples(folder: Path | str) -> Samples:
    """A finished folder; FolderError if it is unfinished or something else."""
    folder = Path(folder)
    body = files.read_manifest(folder, KIND, FORMAT)
    model, hashes = body.get("model"), body.get("hashes")
    if not isinstance(model, dict) or not isinstance(hashes, list) or not hashes:
        raise files.FolderError(f"{folder / files.MANIFEST} is damaged: it names no model, or no samples")
    shapes = _parameter_shapes(folder / files.MANIFEST, model)
    for index in range(len(hashes)):
        _check_header(sample_path(folder, index), shapes)
    return Samples(folder, model, tuple(hashes))


def _parameter_shapes(path: Path, model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the model in a manifest; FolderError if the model is not legal."""
    for name, value in model.items():
        low, high = _SIZES.get(name, (0, 1 << 31))
        if type(value) is not _TYPES.get(name) or (name != "encoder" and not low <= value <= high):
            raise files.FolderError(f"{path} is damaged: model.{name}={value!r:.40} is not legal")
    if missing := [name for name in (*_SIZES, "directed") if name not in model]:
        raise files.FolderError(f"{path} is damaged: model.{missing[0]} is missing")
    try:
        return parameter_shapes(model.get("encoder", "gcn"), **{name: model[name] for name in _SIZES})
    except ValueError as error:  # of a plug-in
        raise files.FolderError(f"{path}: {error}") from error


def _check_header(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises FolderError if the file does not hold these parameters as float32; reads its header alone."""
    if not path.is_file():
        raise files.FolderError(f"{path} is missing or damaged: the manifest names it")
    try:
        with safe_open(path, "pt") as file:
            names: list[str] = file.keys()
            tensors = {name: file.get_slice(name) for name in names}
            stored = {name: (tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in tensors.items()}
    except SafetensorError as error:
        raise files.FolderError(f"{path} is damaged: {error}") from error
    for name in sorted(stored.keys() | shapes.keys()):
        if stored.get(name) != ("F32", shapes.get(name)):
            has, wanted = stored.get(name, "missing"), shapes.get(name, "no such parameter")
            raise files.FolderError(f"{path} is not of the model in its manifest: {name} is {has}, not F32 {wanted}")


class Checkpoint(NamedTuple):
    """State of a chain: steps done, its tensors, and the hashes of the samples drawn."""

    num_done: int
    tensors: dict[str, Tensor]
    sample_hashes: list[str]


def save_checkpoint(folder: Path, num_done: int, tensors: dict[str, Tensor], sample_hashes: Sequence[str] = ()) -> None:
    """Writes the state after `num_done` steps and deletes all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{num_done:09d}.safetensors"
    data = save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    files.write_bytes(path, data)
    note = {"num_done": num_done, "hash": files.hash_bytes(data), "samples": list(sample_hashes)}
    files.write_sealed(path.with_suffix(".json"), note)
    for old in sorted(folder.glob("step-*.json"))[:-_NUM_CHECKPOINTS]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(folder: Path, samples: Path) -> Checkpoint | None:
    """The newest whole checkpoint, whose samples are in the folder `samples`; None if there is none."""
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            note = files.read_sealed(path)
            data = path.with_suffix(".safetensors").read_bytes()
            is_whole = files.hash_bytes(data) == note["hash"]
        except (files.FolderError, OSError):
            is_whole = False
        damaged = _damaged_sample(samples, note["samples"]) if is_whole else path.with_suffix("")
        if damaged is None:
            return Checkpoint(note["num_done"], load_tensors(data), note["samples"])
        warnings.warn(f"{damaged} is damaged; the chain goes on from the checkpoint before it", stacklevel=2)
    return None


def _damaged_sample(folder: Path, hashes: Sequence[str]) -> Path | None:
    """Path of the first of these samples that is missing or not as it was written."""
    for index, digest in enumerate(hashes):
        path = sample_path(folder, index)
        if not path.is_file() or files.hash_file(path) != digest:
            return path
    return None
