"""The graph at rest: its folder, look-ups in it, and how edges become one. Imports no other room."""

from hcm_scale.graph.store import Graph, SparseRows

__all__ = ["Graph", "SparseRows"]
