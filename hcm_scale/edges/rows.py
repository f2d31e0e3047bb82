"""The rows of a user's edge table, each with the nodes of its ends: results go back to where they came from.

The table is streamed, with all of its columns, of a CSV as the text that stands there, and memory is that of a few
batches and of the ids that are asked for. Ids are read as they were when the graph was made.

A table that is not the graph's own may have ids that the graph does not have. `add_new_nodes` reads its ends once,
refuses ids that cannot be any, numbers the new ones from n on, as they arrive, and returns which nodes each is joined
to: the new ids, 24 bytes each beside, and 8 bytes for every distinct pair of a new one and a node.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph
from hcm_scale.ingest.encode import is_number, is_text
from hcm_scale.ingest.ids import GrowingIds, IdReader, id_kind, number_ids
from hcm_scale.ingest.policy import Columns, InputError, naming_origin, reading
from hcm_scale.ingest.table_files import TableFiles

_MANY_PAIRS = 1 << 20  # that wait to be made distinct
Numbers = NDArray[np.int64]
Rows = tuple[pa.RecordBatch, Numbers, Numbers]  # all columns, and the nodes of both ends


class EdgeRows:
    """An edge table; ids of `nodes`, of all where it is None, are known."""

    def __init__(self, table: TableFiles, columns: Columns, graph: Graph, nodes: Numbers | None = None) -> None:
        names, self._table, self._columns = table.schema.names, table, columns
        self.files: TableFiles = table.with_casts(dict.fromkeys(names, pa.string())) if table.is_csv else table
        self._ends, self._id_type = (columns.source, columns.target), columns.id_type
        self._run = "the run" if graph.path is None else f"the run {graph.path.parent}"
        self._node_of = None if nodes is None else np.append(nodes, -1)
        is_integer = graph.ids is None or pa.types.is_integer(graph.ids.type)
        self._kind = "integer" if is_integer else "text"
        self._ids, self._num_own = GrowingIds(self._kind), graph.num_nodes
        some = np.arange(graph.num_nodes) if nodes is None else nodes
        self._ids.add(pa.array(some) if graph.ids is None else graph.ids.take(pa.array(some)))

    def batches(self, *, ends_alone: bool = False) -> Iterator[Rows]:
        """Streams the rows of all columns, or of both ends alone, in order, and the nodes of both ends.

        -1 is for an id that is not known.
        """
        names = list(dict.fromkeys(self._ends)) if ends_alone else self.files.schema.names
        reader = IdReader(self._kind, "", str)
        for batch in filter(len, self.files.batches(names)):  # an empty one breaks pyarrow's CSV
            left, right = (number_ids(self._ids.find, self._read(reader, batch[name], 0)) for name in self._ends)
            yield batch, *((left, right) if self._node_of is None else (self._node_of[left], self._node_of[right]))

    @cached_property
    def _read_as(self) -> TableFiles:
        """The table as its values were read when the graph was made."""
        names = [name for name in self.files.schema.names if name not in self._ends]
        return self._table.with_text_formats(names, self._columns.dates, self._columns.numbers)

    def with_values(self, table: pa.Table) -> pa.Table:
        """Rows of the table, its numbers and dates as such; text stays where the others would lose some of it."""
        for at, name in enumerate(table.column_names):
            if name in self._ends or name not in self.files.kinds or not is_text(table[name].type):
                continue
            kind, form, column = self._read_as.type_of(name), self._read_as.formats.get(name), table[name]
            is_code = is_number(kind) and form is None and pc.any(pc.match_substring_regex(column, r"^\s*0\d")).as_py()
            if not (is_text(kind) or pa.types.is_nested(kind) or is_code):
                with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):  # times of day stay text
                    table = table.set_column(at, name, form.read(column) if form else column.cast(kind))
        return table

    def add_new_nodes(self) -> tuple[Numbers, Numbers]:
        """The nodes that ids which the graph does not have are joined to, as indptr and indices of a CSR.

        Such an id is known from now on. InputError for ids of another type, missing ones, and where none is a node.
        """
        files, num_nodes, row, num_own = self.files, len(self._ids), 0, 0
        files.check_filled()
        for name, stored in ((name, files.type_of(name)) for name in self._ends):
            id_kind([(name, stored)])
            if self._kind == "text" and pa.types.is_floating(stored):
                raise InputError(f"column {name!r} of {files.origin} is {stored}; ids of the run are text")
        reader = IdReader(self._kind, files.rows_of("it"), files.describe_row, "Ids of the run are whole numbers")
        pairs, waiting = np.zeros(0, np.int64), list[Numbers]()
        for batch in files.batches(list(dict.fromkeys(self._ends))):
            columns = [self._read(reader, batch[name], row) for name in self._ends]
            with naming_origin(files.origin):
                reader.check()
            left, right = (self._ids.add(column) for column in columns)
            new, node = np.maximum(left, right), np.minimum(left, right)
            num_own += int(np.count_nonzero(node < num_nodes))
            one = (new >= num_nodes) & (node < num_nodes)
            waiting.append(np.unique((new[one] - num_nodes) * num_nodes + node[one]))
            if sum(map(len, waiting)) > max(_MANY_PAIRS, len(pairs)):
                pairs, waiting = np.unique(np.concatenate([pairs, *waiting])), []
            row += len(batch)
        if not num_own:
            own, given = (self._ids.column()[at].as_py() for at in (0, num_nodes))
            names = " and ".join(map(repr, self._ends))
            raise InputError(
                f"no id in {names} of {files.origin} is one of {self._run}: it has such as {given!r}, the run {own!r}"
            )
        new, node = np.divmod(np.unique(np.concatenate([pairs, *waiting])), num_nodes)
        return np.searchsorted(new, np.arange(len(self._ids) - num_nodes + 1)), node

    def new_ids(self) -> list[str]:
        """The ids that `add_new_nodes` has numbered, in their order."""
        return [str(name) for name in self._ids.column()[self._num_own :].to_pylist()]

    def count(self, edges: Numbers, find: Callable[[Numbers, Numbers], Numbers]) -> Numbers:
        """How many rows lie on each of some edges, given by their numbers; `find` is that of the graph's EdgeIndex."""
        ordered, counts = np.unique(edges), np.zeros(len(edges) + 1, np.int64)
        for _, left, right in self.batches(ends_alone=True):
            edge = find(left, right)
            position = np.searchsorted(ordered, edge)
            is_asked = (position < len(ordered)) & (ordered[np.minimum(position, len(ordered) - 1)] == edge)
            counts += np.bincount(position[is_asked], minlength=len(counts))
        return counts[np.searchsorted(ordered, edges)]

    def _read(self, reader: IdReader, column: pa.Array, row: int) -> pa.Array:
        if self._kind == "integer" and self._id_type == "integer" and is_text(column.type):
            with reading(f"{self.files.origin} has ids that are no whole numbers"):
                column = column.cast(pa.int64())  # 0042 and 42 are one id then
        return reader.read(column, row)


def with_edge_columns(table: pa.Table, numbers: pa.Table) -> pa.Table:
    """The table with columns of another as edge_NAME, or edge_NAME_ where that is taken: rank first, others last."""
    for name, values in zip(numbers.column_names, numbers.columns, strict=True):
        free = f"edge_{name}"
        while free in table.column_names:
            free += "_"
        table = table.add_column(0 if name == "rank" else table.num_columns, free, values)
    return table
