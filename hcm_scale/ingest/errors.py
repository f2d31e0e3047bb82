"""What a file of the user's is refused with: `InputError`, and the ways to it.

`reading` stands around calls of a library that decodes a file. What a library raises on a damaged file is promised
nowhere, so everything is taken: our sentence first, its words after a colon. `naming` adds the file to an error of a
room that knows none. `check_growth` refuses what a packed file would unpack to.
"""

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence

import numpy as np

_OF_CSV = re.compile(r"(?:In CSV column #\d+: )?Row #(\d+)")  # pyarrow counts as editors do: the header is 1
_TOO_LONG = "straddling object straddles two block boundaries (try to increase block size?)"  # pyarrow
_OFTEN = 100  # no table or matrix that tells something packs better than this
_OF_THE_FILE = (None, errno.EINVAL)  # a seek to a place that a damaged file names; other numbers are of the system
_NAMES = 12  # of columns that a message lists


class InputError(ValueError):
    """A file that cannot be read or that no graph can be made from: its name, the place in it, and what is legal."""


def shown_names(names: Sequence[str]) -> str:
    """Names of columns for a message: the first of them, and how many more there are.

    >>> shown_names(["a", "b"]), shown_names([str(n) for n in range(99)])[-11:]
    ("['a', 'b']", 'and 87 more')
    """
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return f"{list(names[:_NAMES])}{more}"


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns what a library raises into an InputError that begins with `what`; only calls of libraries belong inside.

    A missing file, a forbidden one or a broken disk stays the OSError that it is.

    >>> with reading("a.csv is no table"):
    ...     int("x")
    Traceback (most recent call last):
    hcm_scale.ingest.errors.InputError: a.csv is no table: invalid literal for int() with base 10: 'x'
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
def naming(origin: str) -> Iterator[None]:
    """Puts the name of the files before a ValueError of a room that knows no files.

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
    """Refuses a file of `packed` bytes that unpacks to more than `max_bytes` and to over a hundred times its size.

    >>> check_growth("a.npz", 1_000, 10_000_000, 1_000_000)
    Traceback (most recent call last):
    hcm_scale.ingest.errors.InputError: a.npz has 1,000 bytes and unpacks to 10,000,000 or more; \
graph.max_bytes=1000000 is the limit for a file that grows over 100 times: a larger one accepts it
    """
    if unpacked > max_bytes and unpacked > _OFTEN * packed:
        raise InputError(
            f"{name} has {packed:,} bytes and unpacks to {unpacked:,} or more; graph.max_bytes={max_bytes} is the "
            f"limit for a file that grows over {_OFTEN} times: a larger one accepts it"
        )
