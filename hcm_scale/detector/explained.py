"""Why a node is where it is, as one thing that prints as text and holds the numbers."""

from dataclasses import dataclass
from typing import Any

from hcm_scale.report import terminal
from hcm_scale.report.explain import Explanation


@dataclass(frozen=True, repr=False)
class Explained:
    """`text` is what `print` shows; `data` has the same in numbers: rank, scores, reasons, neighbors, differences."""

    text: str
    data: dict[str, Any]

    @staticmethod
    def of(explanation: Explanation) -> "Explained":
        return Explained(terminal.text(explanation), explanation.as_dict())

    def __repr__(self) -> str:
        return self.text

    def __contains__(self, words: str) -> bool:
        return words in self.text
