"""What this installation and this machine have, and what to install or to set for the rest: `hcm-scale doctor`."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path

from hcm_scale import __version__
from hcm_scale.base.cores import num_cores
from hcm_scale.commands.arguments import parser

REQUIRED = ("torch", "torch-geometric", "numba", "numpy", "scipy", "pyarrow", "hydra-core", "safetensors")
EXTRAS = {  # the extra that brings it: (a module of it, what it is for)
    "plots": ("matplotlib", "figures of sweeps"),
    "tune": ("optuna", "sweep=optuna"),
    "sweeps": ("submitit", "sweeps on SLURM and in parallel"),
    "sparse": ("torch_sparse", "sampling.backend=torch_sparse"),
}
_GIB = 2**30


def main(arguments: list[str]) -> str:
    """The findings as text."""
    parser("doctor", __doc__).parse_args(arguments)
    parts = {
        "versions": [
            f"hcm-scale {__version__}, Python {platform.python_version()}, {platform.platform()}",
            *versions(),
        ],
        "machine": [cores(), memory(), disk(Path.cwd())],
        "GPU": gpus(),
        "kernels": [kernels()],
        "optional": extras(),
    }
    lines = []
    for title, found in parts.items():
        lines += [f"{title if i == 0 else '':<10}{line}" for i, line in enumerate(found)]
    return "\n".join(lines)


def versions() -> list[str]:
    """The libraries that every run needs, four a line."""
    found = []
    for name in REQUIRED:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} is MISSING: pip install hcm-scale again")
    return [", ".join(found[at : at + 4]) for at in range(0, len(found), 4)]


def cores() -> str:
    """The cores that this process may use."""
    usable = num_cores()
    limited = f" of {os.cpu_count()}" if usable != os.cpu_count() else ""
    return f"{usable}{limited} cores to use (world.threads=N takes fewer)"


def memory() -> str:
    """Memory in all and free."""
    import psutil

    found = psutil.virtual_memory()
    return f"{found.available / _GIB:.1f} of {found.total / _GIB:.1f} GiB of memory free"


def disk(folder: Path) -> str:
    """Room for runs in this folder."""
    found = shutil.disk_usage(folder)
    return f"{found.free / _GIB:.1f} of {found.total / _GIB:.1f} GiB of disk free in {folder}"


def gpus() -> list[str]:
    """The CUDA devices, or why there are none."""
    if importlib.util.find_spec("torch") is None:
        return ["torch is missing, so none can be used"]
    import torch

    if not torch.cuda.is_available():
        build = "is a CPU build" if torch.version.cuda is None else f"(CUDA {torch.version.cuda}) finds no device"
        hint = "; install torch's CUDA build" if torch.version.cuda is None and shutil.which("nvidia-smi") else ""
        return [f"none: torch {torch.__version__} {build}{hint}"]
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(f"{torch.cuda.get_device_name(index)}, {free / _GIB:.0f} of {total / _GIB:.0f} GiB free")
    triton = importlib.util.find_spec("triton") is not None
    return [*found, "Triton is there" if triton else "Triton is missing: score.precision=bfloat16 will be slower"]


def kernels() -> str:
    """Whether a first run would wait for compilers."""
    import hcm_scale.warm  # noqa: F401  imports every kernel
    from hcm_scale.base import jit

    seconds = jit.missing_seconds()
    return f"not compiled: hcm-scale warm, about {seconds:.0f} core seconds" if seconds else "compiled"


def extras() -> list[str]:
    """What is not needed by every run."""
    lines = []
    for extra, (module, use) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        how = "" if there else f": pip install 'hcm-scale[{extra}]'"
        lines.append(f"{'has' if there else 'no '} {module:<15} for {use}{how}")
    return lines
