"""Damaged input files of every format: reading one ends in a sound graph or in an InputError that names a file of it.

This file is both the test and the child that reads the cases. A case is a number: it decides a small valid input of
some format and one to three faults. Half of the faults are in the values, which are then written as they should be,
half in the bytes of a file. A reading of more than 20 seconds ends the child by a signal; one that takes over a GiB of
memory has failed.
"""

import gzip
import io
import resource
import shutil
import signal
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from helpers import report_case
from scipy import io as scipy_io
from scipy import sparse

from hcm_scale.graph import Graph, SparseRows
from hcm_scale.ingest.readers import Columns, InputError, Policy, read_matrix, read_tables

SEED, SECONDS, MAX_GROWTH_BYTES = 20, 20, 1 << 30
EXTREMES = [0, 1, -1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1]
WORDS = [b"9" * 20, b"-1", b"NaN", b"1e400", b'"', b"\0", b"\xff\xfe", b"\n", b",", b"2147483646", b"007", b""]
TYPES = ["i1", "u1", ">i4", "u8", "f2", "f4", ">f8", "c16", "M8[s]", "S3", "U2", "?", "V4", "O"]
Rng = np.random.Generator
Files = dict[str, bytes]
Values = dict[str, Any]


def check_cases(go_through: Callable[..., list[str]], folder: Path, count: int) -> Counter[tuple[str, str]]:
    """How often a reading of each format had each outcome, all of which must be legal."""
    assert go_through(__file__, folder, range(count)) == []
    lines = [line.split("\t") for line in (folder / "output").read_text().splitlines() if line.count("\t") == 2]
    ended = Counter((what.partition(":")[0], outcome) for outcome, _, what in lines if outcome != "begins")
    assert sum(ended.values()) == count
    return ended


def test_damaged_file_of_each_format__is_a_graph_or_an_error_that_names_it(tmp_path, go_through):
    ended = check_cases(go_through, tmp_path, 2 * len(MAKERS))
    assert all(ended[kind, "graph"] for kind in MAKERS), "undamaged, they are read"


@pytest.mark.audit
def test_damaged_files__are_a_graph_or_an_error_that_names_them(tmp_path, go_through):
    ended = check_cases(go_through, tmp_path, 252)
    assert all(ended[kind, outcome] for kind in MAKERS for outcome in ("graph", "refused"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_damaged_files__are_a_graph_or_an_error_that_names_them(tmp_path, go_through):
    check_cases(go_through, tmp_path, 10_000)


def arrays() -> Values:
    """A ring of 30 nodes with chords."""
    u = np.concatenate([np.arange(30), np.arange(0, 30, 3)])
    v = np.concatenate([(np.arange(30) + 1) % 30, (np.arange(0, 30, 3) + 7) % 30])
    x = np.where(np.arange(120).reshape(30, 4) % 3, 0, np.linspace(-1, 2, 120).reshape(30, 4))
    return {"edge_index": np.stack([u, v]), "x": x.astype(np.float32), "y": (np.arange(30) % 7 == 0).astype(np.int64)}


def adjacency() -> Any:
    u, v = arrays()["edge_index"]
    return sparse.coo_array((np.ones(len(u)), (u, v)), shape=(30, 30))


def weights() -> Any:
    """One an edge."""
    return np.linspace(0.5, 900, arrays()["edge_index"].shape[1])


def csr_arrays() -> Values:
    a, x = sparse.csr_array(adjacency()), sparse.csr_array(arrays()["x"])
    return {
        "indptr": a.indptr,
        "indices": a.indices,
        "x_indptr": x.indptr,
        "x_indices": x.indices,
        "x_data": x.data,
        "x_shape": np.array(x.shape),
    }


def scipy_arrays(layout: str) -> Values:
    stream = io.BytesIO()
    sparse.save_npz(stream, adjacency().asformat(layout))
    with np.load(io.BytesIO(stream.getvalue())) as loaded:
        return dict(loaded)


def edge_columns(text: bool) -> Values:
    u, v = arrays()["edge_index"]
    return {name: np.array([f"n{i}é" for i in ends]) if text else ends for name, ends in (("source", u), ("target", v))}


def node_columns(text: bool) -> Values:
    days = np.datetime64("2020-01-31") + np.arange(30)
    ids = np.array([f"n{i}é" for i in range(30)]) if text else np.arange(30)
    kinds = np.array(["red", "green", "blue"])[np.arange(30) % 3]
    return {"id": ids, "size": np.linspace(0, 1, 30), "kind": kinds, "day": days, "y": arrays()["y"]}


def npz(values: Values, rng: Rng) -> bytes:
    """An archive, sometimes with a member that is twice there or whose header says something else than its data."""
    stream = io.BytesIO()
    with (
        warnings.catch_warnings(),
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED * int(rng.integers(2))) as archive,
    ):
        warnings.simplefilter("ignore")  # the same name twice
        for name, array in values.items():
            data = npy(array, rng)
            for _ in range(1 + (rng.random() < 0.02)):
                archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy(array: Any, rng: Rng) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
    data = stream.getvalue()
    if rng.random() < 0.05:
        words = [
            (b"(", b"(-1, "),
            (b"(", b"(4611686018427387904, "),
            (b"(", b"(((((("),
            (b"<", b">"),
            (b"'descr'", b"'dscr'"),
        ]
        old, new = words[rng.integers(len(words))]
        data = data[:10] + data[10:].replace(old, new, 1)
    return data


def mat(values: Values, rng: Rng) -> bytes:
    """A MATLAB file; a packed one may be damaged before it is packed."""
    stream = io.BytesIO()
    scipy_io.savemat(stream, values)
    data = stream.getvalue()
    if rng.random() < 0.3:
        data = damage_bytes(data, rng)
    out, at = data[:128], 128
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        packed = zlib.compress(data[at : at + 8 + size])
        out += b"\x0f\0\0\0" + len(packed).to_bytes(4, "little") + packed
        at += 8 + size
    return out if rng.random() < 0.5 else data


def csv(values: Values, delimiter: str = ",") -> bytes:
    stream = io.BytesIO()
    pacsv.write_csv(pa.table(values), stream, pacsv.WriteOptions(delimiter=delimiter, quoting_style="needed"))
    return stream.getvalue()


def parquet(values: Values, rng: Rng) -> bytes:
    stream, table = io.BytesIO(), pa.table(values)
    if rng.random() < 0.1:  # a text that is none
        table = pa.table([_broken_text(column) for column in table.columns], table.column_names)
    if table.num_columns and rng.random() < 0.05:
        table = table.rename_columns([table.column_names[0]] * table.num_columns)
    pq.write_table(
        table,
        stream,
        row_group_size=int(rng.choice([7, 1000])),
        compression=str(rng.choice(["none", "snappy", "gzip", "zstd"])),
        use_dictionary=bool(rng.integers(2)),
        data_page_version=str(rng.choice(["1.0", "2.0"])),
    )
    return stream.getvalue()


def _broken_text(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if not pa.types.is_string(array.type):
        return array
    validity, offsets, data = array.buffers()
    return pa.Array.from_buffers(pa.string(), len(array), [validity, offsets, pa.py_buffer(b"\xff" * data.size)])


def damage_values(values: Values, rng: Rng) -> Values:
    """One array or column lost, renamed, cut, turned, of another type, or with an extreme number in it."""
    name = str(rng.choice(list(values)))
    array = np.asarray(values[name])
    if array.dtype == object or sparse.issparse(values[name]):
        return {key: value for key, value in values.items() if key != name}
    ways: list[Callable[[], Values]] = [
        lambda: {key: value for key, value in values.items() if key != name},
        lambda: {key + "2" * (key == name): value for key, value in values.items()},
        lambda: {**values, name: array[: rng.integers(len(array))] if array.ndim else array},
        lambda: {**values, name: array.T if array.ndim != 1 else array[::-1]},
        lambda: {**values, name: array.reshape(-1)},
        lambda: {**values, name: array[:0] if array.ndim else array},
        lambda: {**values, name: array.astype(TYPES[rng.integers(len(TYPES))])},
        lambda: {**values, name: _with_extreme(array, rng)},
        lambda: {**values, name: _with_extreme(array, rng)},
    ]
    try:
        return ways[rng.integers(len(ways))]()
    except (ValueError, TypeError, OverflowError, RuntimeError):  # a type that cannot hold these values
        return values


def _with_extreme(array: Any, rng: Rng) -> Any:
    changed = array.astype(np.float64) if array.dtype.kind in "iuf" and rng.random() < 0.3 else array.copy()
    number = (
        EXTREMES[rng.integers(len(EXTREMES))] if rng.random() < 0.7 else float(rng.choice([np.nan, np.inf, 0.5, 1e300]))
    )
    if changed.ndim and changed.size:
        changed.reshape(-1)[rng.integers(changed.size)] = number
    return changed


def damage_bytes(data: bytes, rng: Rng) -> bytes:
    """One fault somewhere, in a third of the cases near the beginning or the end, where headers are."""
    if not data:
        return b"\0"
    size = len(data)
    at = [int(rng.integers(size)), int(rng.integers(min(size, 160))), size - 1 - int(rng.integers(min(size, 160)))]
    at = at[rng.choice(3, p=[0.6, 0.2, 0.2])]
    length = int(rng.choice([1, 4, 16, 64, 512]))
    other = int(rng.integers(size))
    number = EXTREMES[rng.integers(len(EXTREMES))] % 2**64
    width = int(rng.choice([1, 2, 4, 8]))
    ways = [
        lambda: data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :],
        lambda: data[:at],
        lambda: data + rng.bytes(length),
        lambda: data + b"\0" * length,
        lambda: data[:at] + b"\0" * min(length, size - at) + data[at + length :],
        lambda: data[:at] + rng.bytes(length) + data[at + length :],
        lambda: data[:at] + data[at + length :],
        lambda: data[:at] + data[at : at + length] + data[at:],
        lambda: data[:at] + data[other : other + length] + data[at + length :],
        lambda: data[:at] + (number % 256**width).to_bytes(width, "little") + data[at + width :],
        lambda: data[:at] + WORDS[rng.integers(len(WORDS))] + data[at + 1 :],
    ]
    return ways[rng.integers(len(ways))]()


def make(number: int) -> tuple[str, Files, bool]:
    """(format, files by name, whether something is wrong with them)."""
    rng = np.random.default_rng([SEED, number])
    kind = list(MAKERS)[number % len(MAKERS)]
    faults = 0 if number < len(MAKERS) else int(rng.integers(1, 4))
    in_values = [rng.random() < 0.5 for _ in range(faults)]

    def faulty(values: Values) -> Values:
        for _ in range(sum(in_values)):
            values = damage_values(values, rng) if values else values
        return values

    chosen = rng if faults else Sound(np.random.PCG64(number))
    try:
        files = MAKERS[kind](faulty, chosen)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):  # values that cannot be written at all
        files, in_values = MAKERS[kind](lambda values: values, rng), [False] * faults
    for is_value in in_values:
        if not is_value:
            name = str(rng.choice(list(files)))
            files[name] = damage_bytes(files[name], rng)
    return kind, files, faults > 0


class Sound(np.random.Generator):
    """Chooses among ways to write a file, and no fault."""

    def random(self) -> float:  # type: ignore[override]
        return 1.0


def _tables(
    faulty: Any, rng: Rng, suffix: str, write: Callable[[Values], bytes], text: bool, weighted: bool = False
) -> Files:
    """An edge table and a node table; a fault in the values is in one of them."""
    edges, nodes = edge_columns(text) | ({"amount": weights()} if weighted else {}), node_columns(text)
    if rng.random() < 0.5:
        edges = faulty(edges)
    else:
        nodes = faulty(nodes)
    return {f"edges{suffix}": write(edges), f"nodes{suffix}": write(nodes)}


MAKERS: dict[str, Callable[[Any, Rng], Files]] = {
    "csv": lambda f, rng: _tables(f, rng, ".csv", csv, False),
    "csv text": lambda f, rng: _tables(f, rng, ".csv", csv, True),
    "tsv": lambda f, rng: _tables(f, rng, ".tsv", lambda v: csv(v, "\t"), True),
    "csv.gz": lambda f, rng: _tables(f, rng, ".csv.gz", lambda v: gzip.compress(csv(v), mtime=0), False),
    "parquet": lambda f, rng: _tables(f, rng, ".parquet", lambda v: parquet(v, rng), False),
    "parquet text": lambda f, rng: _tables(f, rng, ".parquet", lambda v: parquet(v, rng), True),
    "parquet folder": lambda f, rng: {
        "tables-folder/day=1/part-0.parquet": parquet(edge_columns(False), rng),
        "tables-folder/day=2/part-0.parquet": parquet(f(edge_columns(False)), rng),
    },
    "csv weights": lambda f, rng: _tables(f, rng, ".csv", csv, False, True),
    "parquet weights": lambda f, rng: _tables(f, rng, ".parquet", lambda v: parquet(v, rng), False, True),
    "npz weights": lambda f, rng: {"g.npz": npz(f(arrays() | {"edge_weight": weights()}), rng)},
    "scipy weights": lambda f, rng: {"g.npz": npz(f(scipy_arrays(str(rng.choice(["csr", "csc", "coo"])))), rng)},
    "npy": lambda f, rng: {"g.npy": npy(next(iter(f({"edge_index": arrays()["edge_index"]}).values()), 0), rng)},
    "npy folder": lambda f, rng: {f"npy-folder/{name}.npy": npy(array, rng) for name, array in f(arrays()).items()},
    "npz": lambda f, rng: {"g.npz": npz(f(arrays()), rng)},
    "npz csr": lambda f, rng: {"g.npz": npz(f(csr_arrays()), rng)},
    "scipy": lambda f, rng: {"g.npz": npz(f(scipy_arrays(str(rng.choice(["csr", "csc", "coo"])))), rng)},
    "mat": lambda f, rng: {
        "g.mat": mat(f({"A": adjacency().toarray(), "X": arrays()["x"], "gnd": arrays()["y"]}), rng)
    },
    "mat sparse": lambda f, rng: {
        "g.mat": mat(f({"Network": sparse.csc_array(adjacency()), "Attributes": sparse.csc_array(arrays()["x"])}), rng)
    },
}


def read(kind: str, folder: Path, names: list[str]) -> Graph:
    weighted = kind.endswith("weights")
    policy = Policy(featureless="degree", weights=weighted)
    if kind.startswith(("csv", "tsv", "parquet")):
        if "folder" in kind:
            return read_tables(folder / "out", folder / "tables-folder", policy=policy)
        text = {"id_type": "text", "categorical": ("size",)} if "text" in kind else {}
        columns = Columns(label="y", weight="amount" if weighted else None, **text)
        return read_tables(folder / "out", folder / names[0], folder / names[1], columns=columns, policy=policy)
    return read_matrix(folder / "out", folder / Path(names[0]).parts[0], policy=policy)


def check(graph: Graph) -> None:
    """The graph holds together: what everything after ingest takes for granted."""
    indptr, indices, n = np.asarray(graph.indptr), np.asarray(graph.indices), graph.num_nodes
    rows = np.repeat(np.arange(n), np.diff(indptr))
    assert indptr[0] == 0
    assert indptr[-1] == len(indices) > 0
    assert (np.diff(indptr) >= 0).all()
    assert indices.min() >= 0
    assert indices.max() < n
    assert (rows != indices).all()
    keys = rows * n + indices
    assert (np.diff(keys) > 0).all()
    assert np.array_equal(np.sort(indices.astype(np.int64) * n + rows), keys)
    data = graph.x.data if isinstance(graph.x, SparseRows) else graph.x
    assert graph.x.shape[0] == n
    assert np.isfinite(data).all()
    if isinstance(graph.x, SparseRows) and len(data):
        assert 0 <= graph.x.indices.min() <= graph.x.indices.max() < graph.x.num_columns
    assert graph.y is None or (len(graph.y) == n and np.isin(graph.y, (0, 1)).all())
    assert graph.ids is None or len(set(graph.ids.to_pylist())) == n
    if graph.weights is not None:
        mirrored = np.argsort(indices.astype(np.int64) * n + rows)
        assert len(graph.weights) == len(indices)
        assert np.isfinite(graph.weights).all()
        assert graph.weights.min() > 0
        assert np.array_equal(graph.weights[mirrored], graph.weights)


def outcome(kind: str, files: Files, is_damaged: bool, folder: Path) -> str:
    """Reads one case; the outcome, with the reason if a promise is broken."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(SECONDS)
    try:
        check(read(kind, folder, list(files)))
        ended = "graph"
    except InputError as error:
        named = any(Path(name).name in str(error) or Path(name).parts[0] in str(error) for name in files)
        ended = "refused" if named and is_damaged else f"unnamed\t{error}"
    except Exception as error:
        ended = f"traceback\t{error!r}"
    signal.alarm(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return ended if grown <= MAX_GROWTH_BYTES else "silent\tover a GiB"


def main() -> None:
    folder, first, last = Path(sys.argv[1]) / "case", int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_GROWTH_BYTES, MAX_GROWTH_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, last):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers that are too large for a type
            kind, files, is_damaged = make(number)
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        report_case(number, f"{kind}:", lambda: outcome(kind, files, is_damaged, folder))  # noqa: B023


if __name__ == "__main__":
    main()
