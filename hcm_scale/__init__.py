"""Hop-count based anomaly detection on attributed graphs, in bounded memory.

>>> from hcm_scale import HCM  # the Python face; loaded when first asked for
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcm_scale.detector import HCM, NotFitted
    from hcm_scale.graph import Graph
    from hcm_scale.ingest.policy import InputError

__version__ = "1.0.0"
__all__ = ["HCM", "Graph", "InputError", "NotFitted", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Graph":
        from hcm_scale.graph import Graph

        return Graph
    if name in __all__:
        from hcm_scale import detector
        from hcm_scale.ingest.policy import InputError

        return InputError if name == "InputError" else getattr(detector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
