"""The long description of the package: README.md without links and pictures that lead into the repository.

PyPI shows the text away from the repository, where they would lead nowhere. Links to other sites stay.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_ELSEWHERE = r"(?!https?://)"


def description(readme: str) -> str:
    """The text of a README as it can stand alone."""
    text = re.sub(rf'<img src="{_ELSEWHERE}[^>]*>\n*', "", readme)
    text = re.sub(rf"!\[[^]]*\]\({_ELSEWHERE}[^)]*\)\n*", "", text)
    return re.sub(rf"\[([^]]*)\]\({_ELSEWHERE}[^)]*\)", r"\1", text)


class LongDescription(MetadataHookInterface):
    """Called by hatchling when a wheel or an sdist is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text)}
