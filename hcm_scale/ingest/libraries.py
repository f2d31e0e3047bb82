"""Graphs of other Python libraries: networkx as two Arrow tables, torch_geometric to a graph folder.

networkx: nodes that are all whole numbers or all text keep their names; others go by `str`. An attribute that is a list
of equal length in every node becomes as many columns, `NAME_0`, `NAME_1`, ...; one that a node lacks is null there, as
are the NaN, NaT and NA that a pandas table holds for gaps. Attributes of edges that hold numbers alone are columns of
the edge table, for graph.weight_column to name one.

torch_geometric: a `HeteroData` as such tables too; a `Data` object in memory. Labels there are mostly classes, not
anomalies: they are not read. Edges are `edge_index`, or `adj_t` where there is none.
"""

from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph, SparseRows
from hcm_scale.ingest.arrays import DenseRows, Edges, write_arrays
from hcm_scale.ingest.policy import DEFAULT_POLICY, InputError, Policy, reading
from hcm_scale.ingest.tables import ColumnLine

if TYPE_CHECKING:
    from torch_geometric.data import Data

ID_COLUMN = "networkx node"  # of the node table
_END_COLUMNS = ("source", "target")  # of the edge table
_READ = ("edge_index", "adj_t", "x", "num_nodes")  # fields of torch_geometric
_WEIGHTS = ("edge_weight", "edge_attr")  # of a Data: the first that has one number an edge


def is_networkx(data: Any) -> bool:
    """Whether it is a graph of networkx, or acts as one."""
    return all(hasattr(data, name) for name in ("nodes", "edges", "is_directed", "adj"))


def tables_of(graph: Any) -> tuple[pa.Table, pa.Table]:
    """(edges, nodes) of a networkx graph, nodes in its own order."""
    attributes = dict(graph.nodes(data=True))
    are_numbers = all(isinstance(node, Integral) for node in attributes)
    names = {node: int(node) if are_numbers else str(node) for node in attributes}
    columns = {ID_COLUMN: _column("the nodes' names", list(names.values()))}
    for key in dict.fromkeys(key for held in attributes.values() for key in held):
        columns |= _columns(str(key), [held.get(key) for held in attributes.values()])
    ends = [(names[edge[0]], names[edge[1]]) for edge in graph.edges()]
    kind = columns[ID_COLUMN].type
    edges = {name: pa.array([end[side] for end in ends], kind) for side, name in enumerate(_END_COLUMNS)}
    edge_attributes = [held for *_, held in graph.edges(data=True)]
    for key in dict.fromkeys(key for held in edge_attributes for key in held if str(key) not in _END_COLUMNS):
        values = [held.get(key) for held in edge_attributes]
        if any(value is not None for value in values) and all(isinstance(value, Real | None) for value in values):
            edges[str(key)] = pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.table(edges), pa.table(columns)


def hetero_tables(data: Any) -> tuple[pa.Table, dict[str, pa.Table]]:
    """(edges, nodes by type) of a torch_geometric HeteroData: `user:5` is node 5 of type user, `user_0` its first x."""
    nodes, edges = {}, []
    with reading("the torch_geometric HeteroData cannot be read"):
        for name, store in zip(data.node_types, data.node_stores, strict=True):
            numbers = pa.array(range(store.num_nodes)).cast(pa.string())
            x = store.x.detach().cpu().numpy().T if "x" in store else ()
            columns = {f"{name}_{k}": column for k, column in enumerate(x)}
            nodes[name] = pa.table({"id": pc.binary_join_element_wise(name, numbers, ":"), **columns})
        for (source, _, target), store in zip(data.edge_types, data.edge_stores, strict=True):
            ends = zip(_END_COLUMNS, (source, target), _ends_of(store, "the HeteroData")[:2], strict=True)
            edges.append(pa.table({end: nodes[name]["id"].take(pa.array(index)) for end, name, index in ends}))
    return pa.concat_tables(edges), nodes


def event_table(ends: Any, values: Any, time: Any) -> pa.Table:
    """A table of events of their ends (2, E), values of each (E,) or (E, k) or None, and times (E,).

    One value of each is its amount; several are columns `value_0`, `value_1`, ...
    """
    arrays = [_as_numpy(array) for array in (ends[0], ends[1], time)]
    columns = dict(zip(("source", "target", "time"), arrays, strict=True))
    if values is not None and (wide := _as_numpy(values)).size:
        wide = wide.reshape(len(wide), -1)
        names = ["amount"] if wide.shape[1] == 1 else [f"value_{k}" for k in range(wide.shape[1])]
        columns |= dict(zip(names, wide.T, strict=True))
    if len(lengths := {name: len(array) for name, array in columns.items()}.values()) and len({*lengths}) > 1:
        raise InputError(f"edge_index, edge_attr and time have {', '.join(map(str, lengths))} entries; legal are equal")
    return pa.table(columns)


def _as_numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def field_lines(data: Any) -> list[ColumnLine]:
    """A line for each field of a torch_geometric object that is not read: what it is, and how it would count.

    Known anomalies, `y` of a `Data`, are the caller's.
    """
    lines = []
    for store in data.stores:
        where = " ".join(store._key) if isinstance(store._key, tuple) else store._key or "data"
        for name, value in store.to_dict().items():
            if name in _READ or value is None or (name == "y" and where == "data"):
                continue
            shape, kind = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", type(value).__name__))
            use = "not used"
            if name == "y":
                use += ": fit(data, label) takes known anomalies, 0 or 1 for each node"
            elif name in _WEIGHTS and where == "data" and (len(shape) == 1 or shape[1:] == (1,)):
                use = "weight of edges with graph.weights=true, else not used"
            elif shape[:1] == (getattr(store, "num_edges", None),):
                use += ": columns of edges are read from tables, fit((edges, nodes))"
            elif shape[:1] == (getattr(store, "num_nodes", None),):
                use += f": all attributes are in x; torch.cat([x, {name}], 1) as x adds it"
            lines.append(ColumnLine(where, name, f"{kind} {shape or ''}".replace("torch.", "").strip(), use))
    return lines


def _ends_of(store: Any, origin: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Both ends of every edge by edge_index, or by adj_t, whose rows are targets, and the values of adj_t."""
    edge_index: Any = getattr(store, "edge_index", None)
    adjacency: Any = getattr(store, "adj_t", None)
    if edge_index is None and adjacency is not None:
        with reading(f"adj_t of {origin} is no sparse matrix"):
            entries, has_values = _entries(adjacency), getattr(adjacency, "has_value", lambda: True)
            return entries.col, entries.row, entries.data if has_values() else None
    shape = tuple(getattr(edge_index, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        held = "no edge_index" if edge_index is None else f"edge_index of shape {shape}"
        raise InputError(f"{origin}: data has {held}; legal is a Data with edge_index (2, E), or adj_t")
    with reading(f"edge_index of {origin} holds no numbers"):
        source, target = edge_index.cpu().numpy()
    return source, target, None


def _columns(name: str, values: list[Any]) -> dict[str, pa.Array]:
    """One column, or one for each place of lists that are all of one length."""
    lengths = {
        len(value) if isinstance(value, list | tuple) or getattr(value, "ndim", False) else None for value in values
    }
    what, length = f"attribute {name!r}", next(iter(lengths))
    if len(lengths) > 1 or length is None:
        return {name: _column(what, values)}
    return {f"{name}_{entry}": _column(what, [value[entry] for value in values]) for entry in range(length)}


def _column(what: str, values: list[Any]) -> pa.Array:
    with reading(f"{what} of the networkx graph is of several types"):
        return pa.array([value.item() if hasattr(value, "item") else value for value in values], from_pandas=True)


def read_data(
    out: Path | str, data: "Data", *, origin: str = "torch_geometric Data", policy: Policy = DEFAULT_POLICY
) -> Graph:
    """Writes a `Data` with edge_index (2, E) and x (n, d), dense or sparse, to the folder `out`; returns it opened.

    With `policy.weights` edges weigh `edge_weight`, or an `edge_attr` of one column.
    """
    source, target, values = _ends_of(data, origin)
    if "num_nodes" in data:
        policy = replace(policy, num_nodes=data.num_nodes)
    with reading(f"{origin} holds other than tensors of numbers"):
        x = _rows(getattr(data, "x", None))
        weights = (_weights(data) if values is None else values) if policy.weights else None
    if weights is not None and len(weights) != len(source):
        raise InputError(f"{origin}: data has {len(weights):,} weights for {len(source):,} edges; legal is one each")

    return write_arrays(out, origin, Edges.of(source, target, weights), x, None, policy)


def _weights(data: Any) -> NDArray[Any] | None:
    for name in _WEIGHTS:
        weights = getattr(data, name, None)
        if weights is not None and tuple(weights.shape[1:]) in ((), (1,)):
            values: NDArray[Any] = weights.detach().double().cpu().numpy().ravel()
            return values
    return None


def _rows(x: Any) -> DenseRows | SparseRows | None:
    import torch

    if x is None:
        return None
    if hasattr(x, "to_scipy") or x.layout != torch.strided:
        return SparseRows.of(_entries(x))
    if x.dim() != 2:
        raise InputError(f"x has shape {tuple(x.shape)}; legal is (n, d)")
    return DenseRows(x, convert=lambda block: block.detach().float().cpu().numpy())


def _entries(matrix: Any) -> Any:
    """A sparse matrix of torch, or a torch_sparse.SparseTensor, as one of scipy."""
    if hasattr(matrix, "to_scipy"):
        return matrix.to_scipy(layout="coo")
    entries = matrix.to_sparse_coo().coalesce()
    row, column = entries.indices().cpu().numpy()
    return scipy.sparse.coo_array((entries.values().detach().cpu().numpy(), (row, column)), shape=tuple(matrix.shape))
