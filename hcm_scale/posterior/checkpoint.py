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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hcm_scale.base import files
from hcm_scale.posterior.samples import sample_path

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
