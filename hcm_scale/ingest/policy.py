"""What a user decides about input, `Columns` and `Policy`, and what is said of it: errors and a summary.

Nothing is repaired silently. Each fault is counted while the input streams by; at the end it is an error that names the
count and the first offending rows, or, where the policy says so, a number in the summary.

A file that cannot be used is an `InputError`. `reading` stands around calls of a library that decodes a file: what it
raises on a damaged one is documented nowhere, so everything is caught. `naming_origin` adds the file to an error of
code that knows none. `check_growth` refuses what a packed file would unpack to.
"""

import contextlib
import dataclasses
import errno
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.console import shorten
from hcm_scale.base.text import words

_OF_CSV = re.compile(r"(?:In CSV column #\d+: )?Row #(\d+)")  # pyarrow counts as editors do: the header is 1
_TOO_LONG = "straddling object straddles two block boundaries (try to increase block size?)"  # pyarrow
MAX_BYTES = 4 << 30  # that a file which grows over a hundred times may unpack to
_MAX_GROWTH = 100  # no table or matrix of real data packs better than this
_OF_THE_FILE = (None, errno.EINVAL)  # a seek to a place that a damaged file names; other numbers are of the system
EXCLUDED = "not used: graph.exclude names it"  # what is told of such a column
_CASES = {"fraud", "fraudulent", "fraudster", "laundering", "sar", "anomaly", "anomalous", "outlier", "illicit", "scam"}
_BESIDE_CASES = {"is", "has", "known", "flag", "flagged", "label", "labels", "type", "class", "indicator", "alert"}
_NAMES = 12  # of columns that a message lists
_SHOWN = 5  # faults that a message shows


class InputError(ValueError):
    """A file that cannot be read or that no graph can be made from: its name, the place in it, and what is legal."""


def shown_names(names: Sequence[str]) -> str:
    """The first names of columns, for a message, and how many more there are."""
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return f"{list(names[:_NAMES])}{more}"


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns what a library raises into an InputError that begins with `what`; only calls of libraries belong inside.

    A missing file, a forbidden one or a broken disk stays the OSError that it is.

    >>> with reading("a.csv is no table"):
    ...     int("x")
    Traceback (most recent call last):
    hcm_scale.ingest.policy.InputError: a.csv is no table: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            raise
        text = _OF_CSV.sub(r"line \1", str(error))
        text = text.replace(_TOO_LONG, "a row goes on for over 4 MiB; a quote that is not closed would be the cause")
        raise InputError(f"{what}: {text or type(error).__name__}") from error


@contextlib.contextmanager
def naming_origin(origin: str) -> Iterator[None]:
    """Puts the name of the files before a ValueError of code that knows no files.

    numpy warns of no NaN inside: the checks find them, whatever they were made from.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from error


def check_growth(name: str, packed: int, unpacked: int, max_bytes: int) -> None:
    """Refuses a file of `packed` bytes that unpacks to more than `max_bytes` and to over a hundred times its size."""
    if unpacked > max_bytes and unpacked > _MAX_GROWTH * packed:
        raise InputError(
            f"{name} has {packed:,} bytes and unpacks to {unpacked:,} or more; {max_bytes:,} are the most for a file "
            f"that grows over {_MAX_GROWTH} times: unpack it first"
        )


@dataclass(frozen=True)
class Columns:
    """Which column is what, and how text becomes attributes: the options of `graph.` (cli/help.py), and two more.

    A text column with more distinct values than `max_categories` is hashed into `hash_buckets` columns.
    """

    source: str = "source"
    target: str = "target"
    id: str = "id"
    label: str | None = None
    type: str | None = None
    weight: str | None = None
    time: str | None = None
    amount: str | None = None
    currency: str | None = None
    category: str | None = None
    step_seconds: float | None = None
    node_type: str | None = None
    attributes: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    id_type: str = "auto"
    dates: str = "auto"
    max_categories: int = 64
    hash_buckets: int = 32

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The columns that are attributes, however many distinct values they have."""
        return frozenset((*self.categorical, *(self.attributes or ())))

    @property
    def named(self) -> tuple[str | None, ...]:
        of_rows = self.time, self.amount, self.currency, self.category
        of_edges = self.source, self.target, self.type, self.weight, *of_rows
        of_nodes = self.id, self.label, self.node_type, *(self.attributes or ())
        return (*of_edges, *of_nodes, *self.exclude, *self.categorical, *self.numbers)


def known_cases(name: str, columns: Columns) -> str:
    """Why a column that is named as known cases are is no attribute, or nothing: a list by it would know the answer.

    >>> known_cases("isFraud", Columns())[:51], known_cases("fraud_score", Columns())
    ('not used: its name says that it holds known cases, ', '')
    """
    held = set(words(name))
    holds_cases = held & _CASES and held <= _CASES | _BESIDE_CASES
    if not (holds_cases or held == {"alert", "id"}) or name in (*columns.wanted, *columns.numbers):
        return ""
    return f"not used: its name says that it holds known cases, the answer; graph.categorical=[{name}] uses it"


@dataclass(frozen=True)
class Policy:
    """Self loops are always dropped, repeated edges merged, isolated nodes kept; these are the choices, options of
    `graph.` (cli/help.py) but for one.

    `max_bytes` is what a packed file may unpack to where it grows over a hundred times, and a .mat file in any case.
    """

    directed: bool = False
    unknown: str = "error"
    repeated: str = "error"
    nonfinite: str = "error"
    featureless: str = "error"
    edge_attributes: str = "auto"
    max_bytes: int = MAX_BYTES
    num_nodes: int | None = None
    weights: bool = False


DEFAULT_POLICY = Policy()


@dataclass
class Offenders:
    """Counts one kind of fault and remembers the first few, for an error that a person can act upon.

    >>> bad = Offenders("negative ids", "edge rows")
    >>> bad.add(np.array([False, True]), lambda i: f"row {i}")
    >>> bad.check()
    Traceback (most recent call last):
    ValueError: 1 negative ids in edge rows: row 1
    """

    what: str
    where: str
    remedy: str = ""
    one: str = ""  # `what` in the singular
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, mask: NDArray[np.bool_], describe: Callable[[int], str]) -> None:
        """Counts the true positions of `mask`; `describe` puts one of them into words."""
        positions = np.flatnonzero(mask)
        self.count += len(positions)
        self.first += [shorten(describe(int(i))) for i in positions[: _SHOWN - len(self.first)]]

    def check(self) -> None:
        if self.count:
            more = "; ..." if self.count > len(self.first) else ""
            remedy = f". {self.remedy}" if self.remedy else ""
            what = self.one if self.one and self.count == 1 else self.what
            raise ValueError(f"{self.count:,} {what} in {self.where}: {'; '.join(self.first)}{more}{remedy}")


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
