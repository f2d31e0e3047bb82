"""The Python interface: `HCM(...).fit(data)`, scores, labels, reasons."""

from hcm_scale.detector.hcm import HCM
from hcm_scale.detector.results import Explained, NotFitted

__all__ = ["HCM", "Explained", "NotFitted"]
