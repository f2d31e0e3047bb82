"""Errors name options as a command line has them; those that leave the detector also say how Python names them."""

import contextlib
import re
from collections.abc import Iterator

from hcm_scale.detector.parameters import ELSEWHERE, KEYS, SECTIONS

_OPTION = re.compile(r"\b([a-z]+)\.([a-z_]+)=")
_KEYWORDS = {key: f"HCM({name}=...)" for name, key in KEYS.items()}


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Around all that the detector calls; also a decorator."""
    try:
        yield
    except (ValueError, MemoryError) as error:
        if len(error.args) == 1:
            error.args = (reworded(str(error.args[0])),)
        raise


def reworded(text: str) -> str:
    """A message with the Python word for every option that it names.

    >>> reworded("hops.classes=1 is out of range")
    'hops.classes=1 is out of range (in Python: HCM(classes=...))'
    >>> reworded("data has no attributes; graph.featureless=degree gives it one")
    'data has no attributes; graph.featureless=degree gives it one (in Python: HCM(options={"graph.featureless": ...}))'
    """
    keys = [f"{section}.{name}" for section, name in _OPTION.findall(text) if section in SECTIONS]
    ways = dict.fromkeys(_way(key) for key in keys)
    return f"{text} (in Python: {', '.join(ways)})" if ways and "(in Python: " not in text else text


def _way(key: str) -> str:
    return _KEYWORDS.get(key) or ELSEWHERE.get(key) or f'HCM(options={{"{key}": ...}})'
