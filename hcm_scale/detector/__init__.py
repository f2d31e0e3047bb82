"""The Python face: `HCM(...).fit(data)`, then scores, labels, explanations; see `docs/python.md`."""

from hcm_scale.detector.hcm import HCM
from hcm_scale.detector.results import Explained, NotFitted

__all__ = ["HCM", "Explained", "NotFitted"]
