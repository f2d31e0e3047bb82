"""What a plain `pip install hcm-scale` brings along, in the versions of this environment: one NAME==VERSION a line.

`make sbom` makes the bill of materials of it: extras, developers' tools and whatever else is installed stay out.
"""

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def walk(lines: list[str]) -> dict[str, str]:
    """Versions by name of all that these requirements need here, directly or not."""
    found: dict[str, str] = {}
    waiting = [Requirement(line) for line in lines]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        installed = distribution(name)
        found[name] = installed.version.partition("+")[0]  # torch's +cpu is not on the index
        waiting += [Requirement(line) for line in installed.requires or []]
    return found


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for name, version in sorted(walk(project["dependencies"]).items()):
        print(f"{name}=={version}")
