"""The types of edges, as bits beside the CSR: bit i of an entry says that a row of type i joins the two nodes.

Repeated edges are merged, so a pair of nodes may be joined by edges of several types. One more pass over the edge table
finds every row's place in the finished CSR, by the binary search of graph/lookup.py.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base.mapped import map_new, open_npy
from hcm_scale.graph.lookup import find_arcs
from hcm_scale.ingest.batches import TableFiles
from hcm_scale.ingest.edge_table import EdgeTable, find_nodes
from hcm_scale.ingest.errors import InputError
from hcm_scale.ingest.id_column import IdReader
from hcm_scale.ingest.ids import Ids

MAX_TYPES = 16


def write_edge_types(folder: Path, table: EdgeTable, column: str, ids: Ids, directed: bool) -> tuple[list[str], int]:
    """Writes edge_types.npy beside the CSR in `folder`; returns the names of the types and the rows without one."""
    indptr, indices = (open_npy(folder / f"{name}.npy") for name in ("indptr", "indices"))
    types = map_new(folder / "edge_types.npy", np.uint16, indices.shape)
    files: TableFiles = table.files.with_casts({column: pa.string()})
    reader, names, gaps = IdReader(table.kind, "the edge table"), list[str](), 0
    for batch in files.batches(list(dict.fromkeys((table.source, table.target, column)))):
        known = batch.filter(pc.is_valid(batch[column]))
        gaps += len(batch) - len(known)
        encoded = pc.dictionary_encode(known[column])
        names += [name for name in encoded.dictionary.to_pylist() if name not in names]
        if len(names) > MAX_TYPES:
            raise InputError(f"graph.type_column={column!r} has more than {MAX_TYPES} values: {', '.join(names)} ...")
        code_of = np.array([names.index(name) for name in encoded.dictionary.to_pylist()], np.uint16)
        bits = np.uint16(1) << code_of[encoded.indices.to_numpy()]
        u, v = (find_nodes(ids, reader.read(known[end], 0)) for end in (table.source, table.target))
        for rows, columns in ((u, v), (v, u))[: 1 if directed else 2]:
            is_known = (rows >= 0) & (columns >= 0)
            at, found = find_arcs(indptr, indices, rows[is_known], columns[is_known])
            np.bitwise_or.at(types, at[found], bits[is_known][found])
    types.flush()
    return names, gaps
