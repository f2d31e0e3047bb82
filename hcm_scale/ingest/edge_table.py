"""An edge table as chunks of node numbers; ids that no node has are counted, dropped, or collected beforehand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hcm_scale.graph.build import Chunk
from hcm_scale.ingest.batches import TableFiles
from hcm_scale.ingest.edge_weights import Weighed
from hcm_scale.ingest.id_column import IdReader
from hcm_scale.ingest.ids import Growing, Ids, NumberIds, Numbers, TextIds, in_order
from hcm_scale.ingest.policy import Offenders


@dataclass(frozen=True)
class EdgeTable:
    """An edge table, the names of its two id columns, and the type of its ids."""

    files: TableFiles
    source: str
    target: str
    kind: str
    unknown: Offenders = field(
        default_factory=lambda: Offenders(
            "rows name an id that is not a node",
            "the edge table",
            "graph.unknown=drop leaves these rows out, add makes nodes of them, without attributes",
        )
    )
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)  # distinct nodes and gaps of both, once read

    def endpoints(self, drop_nulls: bool, adds: bool = False) -> Iterator[tuple[int, pa.Array, pa.Array]]:
        """Streams (first row, sources, targets) in the ids' own type; raises at the end where there were faults."""
        reader = IdReader(self.kind, self.files.rows_of("the edge table"), self.files.place)
        others = ", and all that name no node; to add those, leave rows without an id out of the table" if adds else ""
        reader.null.remedy = f"graph.unknown=drop drops their rows{others}"
        row = 0
        for batch in self.files.batches(self._ends):
            yield row, reader.read(batch[self.source], row), reader.read(batch[self.target], row)
            row += len(batch)
        reader.check(nulls=not drop_nulls)

    def chunks(self, ids: Ids, unknown: str) -> Iterator[Chunk]:
        """Streams edges as node numbers; rows with an unknown end are counted, and dropped or refused at the end."""
        is_named, gaps = np.zeros((2, len(ids)), np.bool_), [0, 0]
        num_rows = num_loops = 0
        strangers: list[str] = []  # a few ids that are not nodes
        for row, sources, targets in self.endpoints(unknown == "drop", unknown == "add"):
            u, v = find_nodes(ids, sources), find_nodes(ids, targets)
            gaps = [gaps[0] + sources.null_count, gaps[1] + targets.null_count]
            lost = (u < 0) | (v < 0)
            if lost.any():
                self.unknown.where = self.files.rows_of("the edge table")
                self.unknown.add(lost, lambda i: f"{self.files.place(row + i)}: {sources[i]} -> {targets[i]}")  # noqa: B023
                if self.kind == "text":
                    strangers += (sources[int(lost.argmax())].as_py() or "", targets[int(lost.argmax())].as_py() or "")
                u, v = u[~lost], v[~lost]
            num_rows, num_loops = num_rows + len(lost), num_loops + int((u == v).sum())
            is_named[0, u] = is_named[1, v] = True
            yield u, v
        self.ends[self.source] = int(is_named[0].sum()), gaps[0]
        self.ends[self.target] = int(is_named[1].sum()), gaps[1]
        if unknown != "drop" and self.unknown.count:
            if _differ_by_zeros(ids, strangers):
                self.unknown.remedy = "graph.id_type=integer reads 0042 and 42 as one id"
            self.unknown.check()
        if self.unknown.count and self.unknown.count + num_loops == num_rows:
            raise ValueError(
                f"the graph has no edges: {num_rows:,} rows read, {num_loops:,} of them self loops, and by "
                f"graph.unknown=drop {self.unknown.count:,} dropped that name an id that is not a node: "
                f"{'; '.join(self.unknown.first)}"
            )

    def weighed(self, ids: Ids, column: str) -> Iterator[Weighed]:
        """Streams edges as node numbers, -1 for ids that are none, with the weights in `column`, NaN for gaps."""
        reader = IdReader(self.kind, "the edge table")
        for batch in self.files.with_casts({column: pa.float64()}).batches([*self._ends, column]):
            u, v = (find_nodes(ids, reader.read(batch[end], 0)) for end in (self.source, self.target))
            yield u, v, batch[column].to_numpy(zero_copy_only=False)

    @property
    def _ends(self) -> list[str]:
        return list(dict.fromkeys((self.source, self.target)))

    def strangers(self, known: Growing | None) -> Growing:
        """The ids that edges name and `known` does not hold, in ascending order."""
        found: Growing = TextIds() if self.kind == "text" else NumberIds()
        for _, sources, targets in self.endpoints(drop_nulls=True):
            for column in (sources.drop_null(), targets.drop_null()):
                found.add(column.filter(pa.array(known.find(column) < 0)) if known is not None else column)
        return in_order(found)


def _differ_by_zeros(ids: Ids, strangers: Sequence[str]) -> bool:
    """Whether some text of digits that is no id is one with fewer zeros before it, or as long as the first id."""
    column = ids.column()
    length = len(column[0].as_py()) if strangers and column is not None and len(column) else 0
    digits = [text for text in strangers if text.isdecimal()]
    forms = {form for text in digits for form in (text.lstrip("0"), text.zfill(length))} - {"", *digits}
    return bool(forms) and bool((ids.find(pa.array(sorted(forms), pa.large_string())) >= 0).any())


def find_nodes(ids: Ids, column: pa.Array) -> Numbers:
    """Node numbers, -1 for unknown ids and nulls."""
    if not column.null_count:
        return ids.find(column)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    filler = "" if pa.types.is_large_string(column.type) else 0
    return np.where(missing, -1, ids.find(column.fill_null(filler)))
