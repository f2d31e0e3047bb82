r"""Text that looks like numbers or dates in another form than is read as such: `1,234.56`, `1.234,56 €`, `31.01.2024`.

It stays text, since 03/04/2024 and 1,234 are two things in two countries; the line of its column says so, and how to
write it. Where nearly all values look like numbers it says how many, and shows the first that does not.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.base.printable import in_short

_UNIT = r"(\p{Sc}|%|[A-Z]{3})?"  # a currency, or per cent
_AMOUNT = r"(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}([.' \x{a0}]\d{3})+(,\d+)?|\d+([.,]\d+)?)"
_DAY = r"(\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./-]\d{1,2}[./-]\d{1,2})"
_FORMS = {
    "numbers": rf"^[-+]?{_UNIT} ?[-+]?{_AMOUNT} ?{_UNIT}-?$",
    "dates": rf"^{_DAY}([ T].*)?$",
}
_DIGITS, _CODE = r"^\d*$", r"^0\d"  # codes and ids: 00731
_NEARLY_ALL, _SHOWN = 0.9, 40  # the share of values; characters of one
WRITTEN = {"numbers": "1234.56", "dates": "2024-01-31"}


class Looks:
    """What all values of a text column look like: a name in `WRITTEN`, or nothing.

    >>> looks = Looks()
    >>> looks.add(pa.array(["1,234.56", "17"]), np.array([1, 20]))
    >>> looks.settled()
    'numbers'
    >>> looks.add(pa.array(["unknown"]), np.array([2]))
    >>> looks.mostly()
    "21 of its 23 values look like numbers, the first of the others is 'unknown'"
    """

    def __init__(self) -> None:
        self._left = list(_FORMS)
        self._all_digits = True
        self._num_values = self._num_numbers = 0
        self._other = ""

    def add(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        """Takes some more values, none of them null, and how often each occurs."""
        is_number = _matches(values, _FORMS["numbers"]) & ~_matches(values, _CODE)
        if not self._other and not is_number.all():
            self._other = values[int(np.argmin(is_number))].as_py()
        self._num_values += int(counts.sum())
        self._num_numbers += int(counts[is_number].sum())
        self._left = [name for name in self._left if _matches(values, _FORMS[name]).all()]
        self._all_digits = self._all_digits and bool(self._left) and bool(_matches(values, _DIGITS).all())

    def settled(self) -> str:
        """The name; empty where values are of no form, or bare digits, as codes are."""
        return self._left[0] if self._left and not self._all_digits else ""

    def mostly(self) -> str:
        """How many values look like numbers, and the first that does not; empty where all do, or not nearly all."""
        if not _NEARLY_ALL * self._num_values <= self._num_numbers < self._num_values:
            return ""
        counted = f"{self._num_numbers:,} of its {self._num_values:,} values look like numbers"
        return f"{counted}, the first of the others is {in_short(self._other, _SHOWN)!r}"


def _matches(values: pa.Array, form: str) -> NDArray[np.bool_]:
    return np.asarray(pc.match_substring_regex(values, form).to_numpy(zero_copy_only=False), np.bool_)
