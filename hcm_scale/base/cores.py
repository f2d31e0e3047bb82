"""How many cores this process may use; macOS and Windows tell how many the machine has."""

import os


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
