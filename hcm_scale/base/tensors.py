"""safetensors files that another run left, and anybody may have written: read whole, or refused by their names."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from hcm_scale.base.files import FolderError

Parsed = TypeVar("Parsed")


def read_tensors(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    """What `parse` makes of the bytes of a small file; FolderError where it cannot, or where a number is NaN."""
    try:
        data = path.read_bytes()
        for name, array in load(data).items():
            if np.isnan(array).any():
                raise ValueError(f"{name} holds NaN")
        return parse(data)
    except KeyError as error:
        raise FolderError(f"{path} is damaged: it has no {error}") from error
    except (SafetensorError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: {error}") from error
