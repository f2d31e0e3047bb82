"""Hop-count based anomaly detection on attributed graphs, in bounded memory.

>>> from hcm_scale import HCM  # the Python face; loaded when first asked for
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcm_scale.detector import HCM

__version__ = "0.1.0"
__all__ = ["HCM", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "HCM":
        from hcm_scale.detector import HCM

        return HCM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
