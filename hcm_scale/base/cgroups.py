"""The control groups by which Linux, and so a container, bounds this process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def own_groups(controller: str, own: Path = OWN, root: Path = ROOT) -> Iterator[tuple[Path, int]]:
    """(folder, version) of every group that this process is in, and of those above it; not each of them exists.

    In a container the mount itself may be the group.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount, version = (root / controller, 1) if controllers else (root, 2)
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder, version
            if folder == mount:
                break


def cpu_quota(own: Path = OWN, root: Path = ROOT) -> float | None:
    """Cores' worth of time that the groups allow, `docker run --cpus=2` say; None where they bound nothing."""
    quotas = []
    for folder, version in own_groups("cpu", own, root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:  # version 1 writes "no limit" as -1
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
