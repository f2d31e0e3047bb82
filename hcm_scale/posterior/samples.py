"""Parameter samples at rest: one safetensors file each, and a manifest, written last, that makes them exist.

    samples/  sample-00000.safetensors ...  manifest.json: the model's sizes, the hash of every sample

A reader needs nothing else to rebuild the model: `HopModel(**samples.model)`. Samples are read one at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hcm_scale.base import files

KIND = "hcm_scale samples"
FORMAT = 1


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
        return load_tensors(path.read_bytes())

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
    body = files.read_manifest(Path(folder), KIND, FORMAT)
    return Samples(Path(folder), body["model"], tuple(body["hashes"]))
