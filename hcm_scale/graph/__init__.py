"""The graph on disk: its folder, its checks, look-ups in it, and how it is built from edge rows."""

from hcm_scale.graph.store import Graph, SparseRows

__all__ = ["Graph", "SparseRows"]
