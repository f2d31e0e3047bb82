"""Hop-count based anomaly detection on attributed graphs, in bounded memory.

>>> from hcm_scale import HCM  # the Python face; loaded when first asked for
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcm_scale.detector import HCM, NotFitted
    from hcm_scale.graph import Graph
    from hcm_scale.ingest.policy import InputError

__version__ = "0.1.0"
__all__ = ["HCM", "Graph", "InputError", "NotFitted", "__version__"]
_HOMES = {"HCM": "detector", "NotFitted": "detector", "Graph": "graph", "InputError": "ingest.policy"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"hcm_scale.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
