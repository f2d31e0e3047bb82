"""What comes from files, as a terminal may show it: control characters spelled out, long texts cut.

An id or the name of a column may hold what a terminal obeys: ESC [2J clears it, others hide or reverse what follows.
"""

import logging
import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # but tab and line break


def printable(text: str) -> str:
    r"""The text, every control character but tab and line break spelled out.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_short(text: str, most: int = 200) -> str:
    r"""The text as one line of about `most` characters: its beginning and its end.

    >>> in_short("a\nb"), in_short("0123456789", 4)
    ('a\\nb', '012 ... 9')
    """
    line = printable(text).replace("\n", "\\n")
    end = most // 4
    return line if len(line) <= most else f"{line[: most - end]} ... {line[-end:]}"


class Printable(logging.Formatter):
    """A log record of one or more lines."""

    def format(self, record: logging.LogRecord) -> str:
        """As ever, but printable."""
        return printable(super().format(record))
