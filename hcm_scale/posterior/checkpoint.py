"""Checkpoints: where a chain is, on disk, whole or absent.

| file                        | what                                                                        |
|-----------------------------|-----------------------------------------------------------------------------|
| step-000001200.safetensors  | the parameters and the kernel's state                                       |
| step-000001200.json         | the number of steps and the hash of the tensors; written last                |

Randomness is a function of (seed, step), so there is no generator to save: a chain restored here repeats the
uninterrupted run bit for bit on the CPU. The last two are kept; a damaged one is passed over for the one before it,
with a warning. The folder is that of one run: whoever gives it sees to that.
"""

import json
import warnings
from pathlib import Path

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hcm_scale.base import files

NUM_KEPT = 2


def save_checkpoint(folder: Path, num_done: int, tensors: dict[str, Tensor]) -> None:
    """Writes the state after `num_done` steps and forgets all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"step-{num_done:09d}.safetensors"
    files.write_bytes(data, save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()}))
    files.write_json(data.with_suffix(".json"), {"num_done": num_done, "hash": files.hash_file(data)})
    for old in _notes(folder)[:-NUM_KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[int, dict[str, Tensor]] | None:
    """The newest whole checkpoint as (steps done, tensors), or None where there is none."""
    for path in reversed(_notes(folder)):
        try:
            note = json.loads(path.read_text())
            data = path.with_suffix(".safetensors").read_bytes()
            whole = files.hash_file(path.with_suffix(".safetensors")) == note["hash"]
        except (ValueError, KeyError, OSError):
            whole = False
        if not whole:
            warnings.warn(f"{path.with_suffix('')} is damaged; the checkpoint before it is used", stacklevel=2)
            continue
        return int(note["num_done"]), load_tensors(data)
    return None


def _notes(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.json"))
