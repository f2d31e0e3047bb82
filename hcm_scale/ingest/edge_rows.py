"""The rows of a user's own edge table, each with the number of its edge: results go back to where they came from.

The table is streamed a second time, with all of its columns, of a CSV as the text that stands there, and memory is that
of a few batches and of the ids that are asked for. A row finds its edge by the ids of its ends, as when the graph was
read; rows without an edge (self loops, unknown ids) have -1.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.graph.lookup import find_arcs
from hcm_scale.graph.store import Graph
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.ids import GrowingIds, IdReader, number_ids
from hcm_scale.ingest.policy import Columns
from hcm_scale.ingest.table_files import TableFiles, open_table

Numbers = NDArray[np.int64]


class EdgeRows:
    """An edge table at a file, folder or glob, of which a graph was made.

    `start` are the numbers of the first edge of each row of the graph, (n + 1). Edges between `nodes`, of all where it
    is None, are asked for.
    """

    def __init__(
        self, where: str, columns: Columns, max_bytes: int, graph: Graph, start: Numbers, nodes: Numbers | None = None
    ) -> None:
        table = open_table("graph.path", where, max_bytes)
        for option, name in (("source", columns.source), ("target", columns.target)):
            table.check_columns(f"graph.{option}_column", [name])
        names = table.schema.names
        self._files: TableFiles = table.with_casts(dict.fromkeys(names, pa.string())) if table.is_csv else table
        self._graph, self._columns, self._start = graph, columns, start
        self._nodes = np.arange(graph.num_nodes) if nodes is None else nodes
        is_integer = graph.ids is None or pa.types.is_integer(graph.ids.type)
        self._kind = "integer" if is_integer else "text"
        self._ids = GrowingIds(self._kind)
        self._ids.add(pa.array(self._nodes) if graph.ids is None else graph.ids.take(pa.array(self._nodes)))

    def batches(self, *, ends_alone: bool = False) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
        """Streams the rows of all columns, or of both ends alone, in order, and the edge of each."""
        reader, row, named = IdReader(self._kind, "", str), 0, (self._columns.source, self._columns.target)
        for batch in self._files.batches(named if ends_alone else self._files.schema.names):
            ends = [self._numbers(batch[name], reader, row) for name in named]
            row += len(batch)
            yield batch, self._edges(*ends)

    def count(self, edges: Numbers) -> Numbers:
        """How many rows lie on each of some edges, given by their numbers."""
        ordered, found = np.unique(edges), np.zeros(len(edges) + 1, np.int64)
        for _, edge in self.batches(ends_alone=True):
            place = np.searchsorted(ordered, edge)
            is_asked = (place < len(ordered)) & (ordered[np.minimum(place, len(ordered) - 1)] == edge)
            found += np.bincount(place[is_asked], minlength=len(found))
        return found[np.searchsorted(ordered, edges)]

    def _numbers(self, column: pa.Array, reader: IdReader, row: int) -> Numbers:
        """The node of each id, -1 for none that is asked for."""
        if self._kind == "integer" and self._columns.id_type == "integer" and is_text(column.type):
            column = column.cast(pa.int64())  # 0042 and 42 are one id then
        found = number_ids(self._ids.find, reader.read(column, row))
        return np.where(found < 0, -1, self._nodes[found]) if len(self._nodes) else found

    def _edges(self, left: Numbers, right: Numbers) -> Numbers:
        graph, out = self._graph, np.full(len(left), -1)
        both = np.flatnonzero((left >= 0) & (right >= 0) & (left != right))
        u, v = left[both], right[both]
        if not graph.directed:
            u, v = np.minimum(u, v), np.maximum(u, v)
        at, found = find_arcs(graph.indptr, graph.indices, u, v)
        out[both[found]] = (at - graph.indptr[u + 1] + self._start[u + 1])[found]
        return out
