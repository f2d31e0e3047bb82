"""The size of a graph, from which the memory that stages will take is foreseen."""

from typing import NamedTuple

from hcm_scale.graph.store import Graph, SparseRows


class Size(NamedTuple):
    """Counts; `num_values` are the attribute values that are stored, all of them if they are dense."""

    num_nodes: int
    num_edges: int
    num_arcs: int
    num_attributes: int
    num_values: int
    weighted: bool = False
    value_bytes: int = 4  # of a value on disk
    num_rows: int = 0  # of the edge table, where they are kept

    @staticmethod
    def of(graph: Graph) -> "Size":
        values = graph.x.data if isinstance(graph.x, SparseRows) else graph.x
        num_values, value_bytes = (0, 4) if values is None else (values.size, values.itemsize)
        counts = graph.num_nodes, graph.num_edges, graph.num_arcs, graph.num_attributes
        num_rows = 0 if graph.rows is None else len(graph.rows.time)
        return Size(*counts, num_values, graph.weights is not None, value_bytes, num_rows)

    @staticmethod
    def made(num_nodes: int, edges_per_node: int, num_attributes: int) -> "Size":
        """Of an undirected graph with dense attributes."""
        num_edges = num_nodes * edges_per_node
        return Size(num_nodes, num_edges, 2 * num_edges, num_attributes, num_nodes * num_attributes)

    @property
    def is_sparse(self) -> bool:
        return self.num_values < self.num_nodes * self.num_attributes

    @property
    def mapped_bytes(self) -> int:
        """Of the files of the graph, and of one with fewer edges."""
        return 2 * (8 * self.num_nodes + 8 * self.num_arcs + 4 * self.num_values)
