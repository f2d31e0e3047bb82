"""ROOM 1, the graph at rest: read, checked, generated, injected, transformed, purified. Imports no other room."""

from hcm_scale.graph.store import Graph, SparseRows

__all__ = ["Graph", "SparseRows"]
