r"""Text that looks like numbers or dates in another form than is read as such: `1,234.56`, `1.234,56 €`, `31.01.2024`.

It stays text, since 03/04/2024 and 1,234 are two things in two countries; the line of its column says so, and how to
write it.
"""

import pyarrow as pa
import pyarrow.compute as pc

_UNIT = r"(\p{Sc}|%|[A-Z]{3})?"  # a currency, or per cent
_AMOUNT = r"(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}([.' \x{a0}]\d{3})+(,\d+)?|\d+([.,]\d+)?)"
_DAY = r"(\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{4}[./-]\d{1,2}[./-]\d{1,2})"
_FORMS = {
    "numbers": rf"^[-+]?{_UNIT} ?[-+]?{_AMOUNT} ?{_UNIT}$",
    "dates": rf"^{_DAY}([ T].*)?$",
}
_DIGITS = r"^\d*$"  # codes and ids: 00731
WRITTEN = {"numbers": "1234.56", "dates": "2024-01-31"}


class Looks:
    """What all values of a text column look like: a name in `WRITTEN`, or nothing.

    >>> looks = Looks()
    >>> looks.add(pa.array(["1,234.56", "17"]))
    >>> looks.settled()
    'numbers'
    """

    def __init__(self) -> None:
        self._left = list(_FORMS)
        self._all_digits = True

    def add(self, values: pa.Array) -> None:
        """Takes some more values, none of them null."""
        self._left = [name for name in self._left if _all_match(values, _FORMS[name])]
        self._all_digits = self._all_digits and bool(self._left) and _all_match(values, _DIGITS)

    def settled(self) -> str:
        """The name; empty where values are of no form, or bare digits, as codes are."""
        return self._left[0] if self._left and not self._all_digits else ""


def _all_match(values: pa.Array, form: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, form), min_count=0).as_py())
