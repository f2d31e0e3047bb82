"""Hop-count based anomaly detection on attributed graphs, in bounded memory.

>>> import hcm_scale
>>> hcm_scale.__version__.count(".")
2
"""

__version__ = "0.1.0"
