"""A graph at rest: a folder of .npy files and one manifest, opened as memory maps.

| file                            | type        | what                                                              |
|---------------------------------|-------------|-------------------------------------------------------------------|
| indptr, indices                 | i64, i32/64 | CSR, rows sorted, no loops, no repeats; symmetric unless directed |
| x                               | f32, f16    | dense attributes (n, d), or instead:                              |
| x_indptr, x_indices, x_data     | i64 i32 f32 | sparse attributes in CSR                                          |
| y, kind                         | u8          | optional: 1 = anomaly; injected: 0 no, 1 structural, 2 attribute  |
| edge_types                      | u16         | optional: by entry of indices, bit i = info.edge_types[i] joins   |
| weights                         | f32         | optional: by entry of indices, > 0; symmetric unless directed     |
| ids  or  ids_offsets, ids_bytes | i64, u8     | optional: the user's own ids, integers or UTF-8 strings           |
| node_types, node_type_names     | u8          | optional: place among the names, 255 = none; UTF-8, joined by NUL |
| row_payer, row_payee            | i32         | optional: rows of the edge table by time, such as payments: ends, |
| row_time, row_amount            | f64         | seconds since 1970, rising; amounts, NaN for none                 |
| row_currency, row_number        | u8, i64     | number of the currency, 255 = none; number of the row in the table |
| row_category                    | u8          | optional: number of the category, 255 = none                      |

The manifest holds the hash of every file; the fingerprint is the hash of those hashes, equal for equal content wherever
it came from. Opening checks everything that readers rely on: the manifest and the .npy headers must match the table
above, and every value is looked at (`check.py`), once a process and state of the files. `verify` also compares the
hashes and looks for equal ids; for folders of stages the workspace compares hashes of its own.
"""

import functools
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
import xxhash
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.npy import open_array, open_npy, save_npy
from hcm_scale.graph.check import NO_TYPE, PAYMENTS, check_arrays, check_names, check_shape, ids_of, type_names_of

KIND = "hcm_scale graph"
FORMAT = 1
NORMAL, STRUCTURAL, ATTRIBUTE = 0, 1, 2
KIND_NAMES = ("normal", "structural", "attribute")
MAX_TYPES = 64  # of nodes
_REMEDY = "have the folder written again by Graph.save"
_TOLD = {"table": str, "column": str, "type": str, "use": str, "distinct": int | None, "gaps": int | None}
_COLUMN: dict[str, Any] = {"name": str, "method": str, "origin": float | None, "prior": float | None}
_COLUMN["readings"] = dict[str, dict[str, float | list[str]]] | None
_OF_ROWS: dict[str, Any] = {"time": str | None, "amount": str | None, "currency": str | None, "steps": bool}
_OF_ROWS |= {"currencies": list[str], "seconds": float | None, "read": dict[str, Any] | None}  # seconds of a step
_OF_ROWS |= {"category": str | None, "categories": list[str] | None}
_TYPES = {"files": dict[str, Any], "num_columns": int, "columns": list[str], "directed": bool, "info": dict[str, Any]}


@dataclass(frozen=True, eq=False)
class SparseRows:
    """n rows of sparse attributes in CSR, columns sorted within a row."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    num_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.num_columns

    def csr(self) -> "scipy.sparse.csr_array":
        """The same memory as a scipy array."""
        return scipy.sparse.csr_array((self.data, self.indices, self.indptr), shape=self.shape)

    @staticmethod
    def of(matrix: Any) -> "SparseRows":
        """From any scipy sparse matrix: duplicates summed, columns sorted, explicit zeros removed."""
        csr = scipy.sparse.csr_array(matrix, dtype=np.float32, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        return SparseRows(csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data, csr.shape[1])


Attributes = NDArray[np.float32] | SparseRows


class GraphRows(NamedTuple):
    """Rows of the edge table in the order of time, (m,) each; what they say stands in `info["rows"]`."""

    payer: NDArray[np.int32]
    payee: NDArray[np.int32]
    time: NDArray[np.float64]
    amount: NDArray[np.float64]
    currency: NDArray[np.uint8]
    number: NDArray[np.int64]
    category: NDArray[np.uint8] | None = None


class _File(TypedDict):
    """What the manifest says about a file."""

    dtype: str
    shape: list[int]
    hash: str


@dataclass(frozen=True, eq=False)
class NodeTypes:
    """The type of each node, such as user or shop: its place among `names`, NO_TYPE where it has none."""

    codes: NDArray[np.uint8]
    names: tuple[str, ...]

    @staticmethod
    def of(values: Any, what: str = "node_type") -> "NodeTypes | None":
        """From one text or number a node, null for none; None where all are of one type. `what` names them in errors.

        Arrow's dictionaries are taken as they are, in 4 bytes a node.

        >>> NodeTypes.of(["user", "shop", None, "user"]).codes.tolist()
        [1, 0, 255, 1]
        """
        is_arrow = isinstance(values, pa.ChunkedArray)
        encoded = values if is_arrow else pa.chunked_array([pa.array(values, from_pandas=True)])
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.cast(pa.large_string()).dictionary_encode()
        encoded = encoded.unify_dictionaries().combine_chunks()
        names = encoded.dictionary.cast(pa.large_string()).to_pylist()
        if len(names) > MAX_TYPES:
            shown = f"{len(names):,} values, {', '.join(map(repr, names[:3]))}, ..."
            raise ValueError(f"{what} has {shown}; legal are up to {MAX_TYPES} types of nodes")
        code_of = np.full(len(names) + 1, NO_TYPE, np.uint8)
        code_of[np.argsort(names)] = np.arange(len(names))
        codes = code_of[encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
        return NodeTypes(codes, tuple(sorted(names))) if len(names) + bool(encoded.null_count) > 1 else None

    def encode(self, codes: NDArray[np.uint8]) -> pa.DictionaryArray:
        """The names of such codes, null for none."""
        indices = pa.array(codes.astype(np.int16), mask=codes == NO_TYPE)
        return pa.DictionaryArray.from_arrays(indices, pa.array(self.names, pa.string()))


@dataclass(frozen=True, eq=False)
class Graph:
    """An attributed graph, in memory or mapped from disk; never changed after it is made.

    >>> g = Graph(np.array([0, 1, 2]), np.array([1, 0], np.int32), x=np.zeros((2, 3), np.float32))
    >>> g.num_nodes, g.num_edges, g.num_attributes
    (2, 1, 3)
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    x: Attributes | None = None
    y: NDArray[np.uint8] | None = None
    kind: NDArray[np.uint8] | None = None
    ids: pa.Array | None = None
    columns: tuple[str, ...] = ()
    directed: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    edge_types: NDArray[np.uint16] | None = None
    weights: NDArray[np.float32] | None = None
    node_types: NodeTypes | None = None
    rows: GraphRows | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        return len(self.indices)

    @property
    def num_edges(self) -> int:
        """Undirected edges, or arcs of a directed graph."""
        return self.num_arcs if self.directed else self.num_arcs // 2

    @property
    def num_attributes(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    @property
    def degrees(self) -> NDArray[np.int64]:
        return np.diff(self.indptr)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal content, in memory or on disk."""
        hashes = {name: _hash_as_npy(array) for name, array in _arrays(self).items()}
        return _fingerprint(hashes, self.columns, self.directed)

    def external_id(self, node: int) -> int | str:
        """The user's own id of a node; the node's number where the graph came without ids."""
        return node if self.ids is None else self.ids[node].as_py()

    def node_of(self, external_id: int | str) -> int:
        """The node with this id; an integer id may be given as text."""
        if self.ids is None:
            digits = str(external_id)
            if not (digits.isascii() and digits.isdecimal() and int(digits) < self.num_nodes):
                raise ValueError(f"node={external_id!r} is not in this graph; ids run from 0 to {self.num_nodes - 1}")
            return int(digits)
        try:
            node = pc.index(self.ids, pa.scalar(external_id).cast(self.ids.type)).as_py()
        except (pa.ArrowInvalid, OverflowError):
            node = -1
        if node < 0:
            raise ValueError(f"node={external_id!r} is not in this graph; ids look like {self.ids[0].as_py()!r}")
        return int(node)

    def save(self, folder: Path | str) -> "Graph":
        """Writes the folder, whole or not at all, and returns the graph opened from it."""
        with files.replacing_folder(Path(folder)) as fresh:
            for name, array in _arrays(self).items():
                save_npy(fresh / f"{name}.npy", np.ascontiguousarray(array))  # as hashed
            seal_folder(fresh, self.num_attributes, self.columns, self.directed, self.info)
        return Graph.open(folder, verify=False)

    def check(self) -> None:
        """ValueError naming the first array that cannot be a graph's, and what is legal; once a graph is enough."""
        if "checked" not in self.__dict__:
            if self.ids is not None and self.ids.null_count:
                raise ValueError(f"ids holds {self.ids.null_count} nulls; each node has an id")
            check_arrays(_arrays(self), self.directed, self.num_attributes, self.columns)
            self.__dict__["checked"] = True

    @staticmethod
    def open(folder: Path | str, verify: bool = True, remedy: str = _REMEDY) -> "Graph":
        """Maps a finished folder, whoever wrote it, and checks all of its values; FolderError with fault and remedy.

        `verify` compares hashes too, which the workspace has done for folders of stages, and tells equal ids.
        """
        folder = Path(folder)
        manifest = files.read_manifest(folder, KIND, FORMAT, remedy, _TYPES)
        with files.naming_damage(folder / files.MANIFEST, remedy):
            described = _described(manifest)
            _check_info(folder / files.MANIFEST, manifest, described["indptr"]["shape"][0] - 1)
        paths = {name: files.path_inside(folder, f"{name}.npy") for name in described}
        arrays = {name: _map(paths[name], entry, verify, remedy) for name, entry in described.items()}
        about = manifest["directed"], manifest["num_columns"], manifest["columns"]
        try:
            if verify:
                check_arrays(arrays, *about)
            else:
                once = lambda: check_arrays(arrays, *about, distinct=False)  # noqa: E731
                files.check_once([folder / files.MANIFEST, *paths.values()], once)
        except ValueError as error:
            raise files.FolderError(f"{folder} is no graph: {error}; {remedy}") from error
        x: Attributes | None = arrays.get("x")
        if "x_indptr" in arrays:
            x = SparseRows(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], manifest["num_columns"])
        graph = Graph(
            *(arrays["indptr"], arrays["indices"], x, arrays.get("y"), arrays.get("kind")),
            ids=ids_of(arrays),
            columns=tuple(manifest["columns"]),
            directed=manifest["directed"],
            info=manifest["info"],
            path=folder,
            edge_types=arrays.get("edge_types"),
            weights=arrays.get("weights"),
            node_types=NodeTypes(arrays["node_types"], type_names_of(arrays)) if "node_types" in arrays else None,
            rows=GraphRows(*(arrays[f"row_{name}"] for name in PAYMENTS))._replace(category=arrays.get("row_category"))
            if "row_time" in arrays
            else None,
        )
        hashes = {name: entry["hash"] for name, entry in described.items()}
        graph.__dict__["fingerprint"] = _fingerprint(hashes, graph.columns, graph.directed)  # no byte is read
        if verify:
            graph.__dict__["checked"] = True
        return graph


def _arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    """The files of a graph, by name, in a fixed order."""
    arrays: dict[str, NDArray[Any] | None] = {"indptr": graph.indptr, "indices": graph.indices}
    arrays |= {"edge_types": graph.edge_types, "weights": graph.weights}
    if isinstance(graph.x, SparseRows):
        arrays |= {"x_indptr": graph.x.indptr, "x_indices": graph.x.indices, "x_data": graph.x.data}
    else:
        arrays["x"] = graph.x
    arrays |= {"y": graph.y, "kind": graph.kind, **({} if graph.ids is None else id_arrays(graph.ids))}
    arrays |= {} if graph.node_types is None else type_arrays(graph.node_types)
    arrays |= {} if graph.rows is None else {f"row_{name}": array for name, array in graph.rows._asdict().items()}
    return {name: array for name, array in arrays.items() if array is not None}


def id_arrays(ids: pa.Array) -> dict[str, NDArray[Any]]:
    """The files that hold external ids, by name."""
    if pa.types.is_integer(ids.type):
        return {"ids": np.asarray(ids.cast(pa.int64()))}
    offsets, data = text_buffers(ids)
    return {"ids_offsets": offsets - offsets[0], "ids_bytes": data[offsets[0] : offsets[-1]]}


def type_arrays(types: NodeTypes) -> dict[str, NDArray[Any]]:
    """The files that hold the types of nodes, by name."""
    names = "\0".join(name.replace("\0", " ") for name in types.names)
    return {"node_types": types.codes, "node_type_names": np.frombuffer(names.encode(), np.uint8)}


def text_buffers(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The places where texts begin and end, and the bytes, of which a slice shares those of the longer array."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    borders = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return borders, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _hash_as_npy(array: NDArray[Any]) -> str:
    """The hash that the array's .npy file has, without writing it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array)))
    digest = xxhash.xxh3_128(header.getvalue())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _fingerprint(hashes: dict[str, str], columns: tuple[str, ...], directed: bool) -> str:
    return files.hash_value({"files": hashes, "columns": list(columns), "directed": directed})


def seal_folder(folder: Path, num_columns: int, columns: tuple[str, ...], directed: bool, info: dict[str, Any]) -> None:
    """Makes a graph of a folder whose .npy files are in place: hashes and flushes them, then writes the manifest."""
    described, paths = {}, sorted(folder.glob("*.npy"))
    with ThreadPoolExecutor(1) as beside:
        flushed = beside.map(files.sync_file, paths)
        for path in paths:
            array = open_npy(path)
            described[path.stem] = _File(dtype=array.dtype.str, shape=list(array.shape), hash=files.hash_once(path))
        list(flushed)  # raises what a flush did
    body = {
        "files": described,
        "num_nodes": described["indptr"]["shape"][0] - 1,
        "num_arcs": described["indices"]["shape"][0],
        "num_columns": num_columns,
        "columns": list(columns),
        "directed": directed,
        "info": info,
        "fingerprint": _fingerprint({name: entry["hash"] for name, entry in described.items()}, columns, directed),
    }
    files.write_manifest(folder, KIND, FORMAT, body)


def _described(manifest: dict[str, Any]) -> dict[str, _File]:
    """The files that a manifest describes; ValueError where a value is of no legal type or size."""
    if not 0 <= manifest["num_columns"] < 2**31:
        raise ValueError(f"num_columns is {manifest['num_columns']}; legal are 0 to {2**31 - 1}")
    described: dict[str, _File] = manifest["files"]
    check_names(described)
    for name, entry in described.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("hash"), str):
            raise ValueError(f"files has no hash of {name}")
        check_shape(name, entry.get("dtype"), entry.get("shape"))
    if described["indptr"]["shape"] == [0]:
        raise ValueError("indptr is empty; a graph has one node at least")
    return described


def _check_info(path: Path, manifest: dict[str, Any], num_nodes: int) -> None:
    """FolderError or ValueError where what ingest told is not what explanations and scores read."""
    ingest, names = manifest["info"].get("ingest", {}), {*manifest["columns"]}
    counts = files.typed(ingest.get("counts", {}), dict[str, int | str | None])
    if not 0 <= files.typed(counts.get("added_nodes", 0), int) <= num_nodes:
        raise ValueError(f"info.ingest says that {counts['added_nodes']} of {num_nodes} nodes were added")
    if "row_time" in manifest["files"]:
        files.check_types(path, manifest["info"].get("rows") or {}, _OF_ROWS)
    for line in ingest.get("told", []):
        files.check_types(path, line, _TOLD)
    for column in ingest.get("columns", []):
        files.check_types(path, column, _COLUMN)
        rows = {row for reading in (column.get("readings") or {}).values() for row in reading.get("rows", ())}
        if not rows <= names or (column["method"] == "date" and not abs(column["origin"]) < 2**52):
            raise ValueError(f"info.ingest says of {column['name']!r:.60} what cannot be read")


def _map(path: Path, entry: _File, verify: bool, remedy: str) -> NDArray[Any]:
    """One file as a memory map, checked against its manifest entry."""
    array = open_array(path, entry["dtype"], tuple(entry["shape"]), remedy)
    if verify and files.hash_once(path) != entry["hash"]:
        raise files.FolderError(f"{path} is damaged: its hash differs from the manifest; {remedy}")
    return array
