"""The libraries of torch, loaded by a thread while Python composes the options: a fifth of a second on two cores.

An import holds the GIL for as long as the system's loader works; a call of the loader by ctypes does not. The loader
keeps what it has loaded, so the import that comes later finds it. It does one thing at a time: an import of any other
library would wait for it, so this is for a while without such imports. The order is that of torch's own import, and
whatever goes wrong here goes wrong again there, where it is told.
"""

import importlib.util
import os
import sys
import threading
from pathlib import Path


def start() -> threading.Thread | None:
    """Begins to load, on Linux; returns the thread that does it."""
    found = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if found is None or found.origin is None:
        return None
    thread = threading.Thread(target=_load, args=(Path(found.origin).parent / "lib",), daemon=True)
    thread.start()
    return thread


def _load(folder: Path) -> None:
    import ctypes

    for name, flag in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch_python.so", os.RTLD_LOCAL)):
        if (folder / name).exists():
            ctypes.CDLL(None).dlopen(os.fsencode(folder / name), os.RTLD_NOW | flag)
