"""The graph at rest: its folder, its checks, look-ups in it."""

from hcm_scale.graph.store import Graph, SparseRows

__all__ = ["Graph", "SparseRows"]
