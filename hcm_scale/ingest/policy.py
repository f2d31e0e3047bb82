"""What to do with input that is not clean, and what was done: `Policy`, `Offenders`, `IngestSummary`.

Nothing is repaired silently. Each fault is counted while the input streams by; at the end it is an error that names the
count and the first offending rows, or, where the policy says so, a number in the summary.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.names import POLICIES
from hcm_scale.base.printable import in_short

_SHOWN = 5


@dataclass(frozen=True)
class Policy:
    """Self loops are always dropped, repeated edges merged, isolated nodes kept; the rest is said here.

    directed      keep the direction of the edges; else an edge and its reverse are one
    unknown       edges to ids outside the node table: error, drop the edge, or add a node with imputed attributes
    repeated      rows of the node table with the same id: error, or keep the first
    nonfinite     infinite attributes, and of arrays NaN (in tables it is a gap): error, zero, or the mean of the
                  column's finite values
    featureless   a graph without attributes: error, or log1p(degree) as its one attribute
    max_bytes     what a packed file may unpack to where it grows over a hundred times, and a .mat file in any case
    num_nodes     of arrays: how many nodes there are; None is as many as they say, which must not be far more than
                  their edges name
    weights       of arrays: take the values that they have for edges as weights

    >>> Policy(unknown="skip")
    Traceback (most recent call last):
    ValueError: graph.unknown='skip' must be one of 'error', 'drop', 'add'
    """

    directed: bool = False
    unknown: str = "error"
    repeated: str = "error"
    nonfinite: str = "error"
    featureless: str = "error"
    max_bytes: int = 4 << 30
    num_nodes: int | None = None
    weights: bool = False

    def __post_init__(self) -> None:
        for name, legal in POLICIES.items():
            if getattr(self, name) not in legal:
                raise ValueError(f"graph.{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, legal))}")


@dataclass
class Offenders:
    """Counts one kind of fault and remembers the first few, for an error that a person can act upon.

    >>> bad = Offenders("negative ids", "edge rows")
    >>> bad.add(np.array([False, True]), lambda i: f"row {i}")
    >>> bad.error()
    ValueError('1 negative ids in edge rows: row 1')
    """

    what: str
    where: str
    remedy: str = ""
    one: str = ""  # `what`, said of a single one
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, mask: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Counts the true positions of `mask`; `describe` puts one of them into words."""
        if not mask.any():
            return
        positions = np.flatnonzero(mask)
        self.count += len(positions)
        self.first += [in_short(describe(int(i))) for i in positions[: _SHOWN - len(self.first)]]

    def error(self) -> ValueError:
        more = "; ..." if self.count > len(self.first) else ""
        remedy = f". {self.remedy}" if self.remedy else ""
        what = self.one if self.one and self.count == 1 else self.what
        return ValueError(f"{self.count:,} {what} in {self.where}: {'; '.join(self.first)}{more}{remedy}")

    def check(self) -> None:
        """Raises if there were any."""
        if self.count:
            raise self.error()


def not_finite(where: str) -> Offenders:
    """To count attributes that are not finite, in rows that messages know as `where`."""
    remedy = "graph.nonfinite=zero or mean replaces them"
    return Offenders("attribute values are not finite", where, remedy, "attribute value is not finite")


@dataclass(frozen=True)
class IngestSummary:
    """Everything that was counted on the way in.

    edge_rows = unknown_edges + self_loops + repeated_edges + reversed_edges + num_edges.
    """

    origin: str
    num_nodes: int
    num_edges: int
    num_attributes: int
    edge_rows: int
    self_loops: int
    repeated_edges: int
    reversed_edges: int
    unknown_edges: int = 0
    isolated_nodes: int = 0
    repeated_nodes: int = 0
    added_nodes: int = 0
    imputed_values: int = 0
    nonfinite_values: int = 0
    num_anomalies: int | None = None

    def table(self) -> str:
        """The counts as lines of text: what, how many, and what was done; what there was none of is left out."""
        rows = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "origin"]
        lines = [
            f"{name.removeprefix('num_').replace('_', ' '):<18}{value:>15,}  {_DONE.get(name, '')}".rstrip()
            for name, value in rows
            if value or name in ("num_nodes", "num_edges", "num_attributes")
        ]
        return "\n".join([f"read {self.origin}", *lines])

    @staticmethod
    def of(info: dict[str, Any]) -> "IngestSummary | None":
        """The summary kept in a graph's `info`, if it has one."""
        counts = info.get("ingest", {}).get("counts")
        return IngestSummary(**counts) if counts else None


_DONE = {
    "self_loops": "dropped",
    "repeated_edges": "merged",
    "reversed_edges": "merged with their reverse",
    "unknown_edges": "dropped",
    "isolated_nodes": "kept",
    "repeated_nodes": "dropped, the first row kept",
    "added_nodes": "named by edges only",
    "imputed_values": "nulls filled in",
    "nonfinite_values": "replaced",
    "num_anomalies": "labelled",
}
