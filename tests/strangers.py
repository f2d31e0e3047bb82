"""Graph folders and finished runs as a stranger would send them: small ones, odd values, and every hash made right."""

import contextlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers import FAST, small_graph
from scipy import sparse

from hcm_scale import HCM
from hcm_scale.base import files
from hcm_scale.cli import commands
from hcm_scale.graph import Graph, SparseRows, store
from hcm_scale.posterior import samples
from hcm_scale.run import workspace
from hcm_scale.score import table

NUM_NODES = 120
OPTIONS: dict[str, Any] = FAST | {"hops.num_sources": 20, "sampling.batch_pairs": 64, "world.threads": 1}


def graphs() -> dict[str, Graph]:
    made = small_graph(NUM_NODES, 4)
    texts = pa.array([f"node ü {i}" for i in range(NUM_NODES)])
    y = (np.arange(NUM_NODES) % 9 == 0).astype(np.uint8)
    rows = SparseRows.of(sparse.csr_array(np.abs(made.x) * (made.x > 0)))
    return {
        "dense": Graph(made.indptr, made.indices, made.x, y, y * 2, texts, ("a", "b", "c", "d")),
        "sparse": Graph(made.indptr, made.indices, rows, ids=pa.array(range(1000, 1000 + NUM_NODES))),
        "directed": Graph(made.indptr, made.indices, made.x, directed=True),
    }


Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays, str, random.Random], None]


def value(*odd: float) -> Change:
    """One of these values at a place that is drawn."""

    def change(arrays: Arrays, name: str, draw: random.Random) -> None:
        array = arrays[name].copy()
        if array.size:
            with np.errstate(all="ignore"):
                array.flat[draw.randrange(array.size)] = np.array(draw.choice(odd)).astype(array.dtype)
        arrays[name] = array

    return change


def made_by(function: Callable[[np.ndarray], Any]) -> Change:
    def change(arrays: Arrays, name: str, draw: random.Random) -> None:
        arrays[name] = np.asarray(function(arrays[name]))

    return change


def swap_two(arrays: Arrays, name: str, draw: random.Random) -> None:
    array = arrays[name].copy()
    if array.size > 1:
        i, j = draw.sample(range(array.size), 2)
        array.flat[i], array.flat[j] = array.flat[j], array.flat[i]
    arrays[name] = array


def drop_arc(arrays: Arrays, name: str, draw: random.Random) -> None:
    at = draw.randrange(len(arrays["indices"]))
    arrays["indices"] = np.delete(arrays["indices"], at)
    arrays["indptr"] = arrays["indptr"] - (arrays["indptr"] > at)


def copy_of(arrays: Arrays, name: str, draw: random.Random) -> None:
    arrays[name] = arrays[draw.choice(sorted(arrays))]


def gone(arrays: Arrays, name: str, draw: random.Random) -> None:
    del arrays[name]


CHANGES: list[Change] = [
    *(value(-1, NUM_NODES, 10**9, 2**31 - 1, -(2**31), 2**62, 0, 1, 2, 3, 200, np.nan, np.inf, 3.4e38),) * 6,
    *(swap_two,) * 2,
    *(drop_arc, copy_of, gone),
    *(made_by(lambda a: a[:-1]), made_by(lambda a: np.concatenate([a, a[-1:]])), made_by(lambda a: a[:0])),
    *(made_by(lambda a: a[::-1]), made_by(lambda a: a.reshape(1, -1)), made_by(lambda a: a.reshape(-1)[0])),
    *(made_by(np.zeros_like), made_by(np.sort), made_by(lambda a: -a), made_by(np.asfortranarray)),
    *(made_by(lambda a, t=t: a.astype(t)) for t in ("i2", "i4", "i8", "u4", "u8", "f4", "f8", "f2", "?", ">i8", "S8")),
    *(made_by(lambda a: a.astype(object)), made_by(lambda a: a.astype([("a", "i4"), ("b", "f4")]))),
]
ODD: list[Any] = [None, True, False, 0, 1, -1, 2**70, 1.5, float("nan"), "", "x", "<i8", "O", "../../y", [], [0], [-1]]
ODD += [[2**62, 2**62], ["a", "b", "c", "d"], {}, {"a": 1}, {"ingest": 5}, {"ingest": {"counts": {"num_nodes": "x"}}}]
ODD += [{"ingest": {"counts": [1]}}, {"ingest": {}}, [None], [[[[0]]]]]
ODD_VALUES = [*ODD, {"a": {"b": [1]}}, [[1, 2], [3]], "nan", -(2**63), "/etc/passwd", 1e999, ["x"] * 3, "sample"]


def seal_again(folder: Path) -> None:
    """Makes every hash right, and says of each file what it says of itself."""
    path = folder / files.MANIFEST
    manifest = files.read_sealed(path)
    manifest["files"] = {}
    for file in sorted(folder.glob("*.npy")):
        if not file.is_file():
            manifest["files"][file.stem] = {"dtype": "<i8", "shape": [1], "hash": "0"}
            continue
        described = {"dtype": "<i8", "shape": [NUM_NODES + 1]}
        with open(file, "rb") as stream, contextlib.suppress(Exception):  # no array: then it is no matter what is said
            np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            described = {"dtype": dtype.str, "shape": list(shape)}
        manifest["files"][file.stem] = described | {"hash": files.hash_file(file)}
    hashes = {name: entry["hash"] for name, entry in manifest["files"].items()}
    manifest["fingerprint"] = store._fingerprint(hashes, tuple(manifest["columns"]), manifest["directed"])
    files.write_sealed(path, manifest)


# The runs.


def write_tables(folder: Path) -> None:
    """Edges with amounts and times, three later ones; nodes with types, categories, dates, gaps and a vector each."""
    graph, rng = small_graph(NUM_NODES, 3), np.random.default_rng(0)
    u = np.repeat(np.arange(NUM_NODES), graph.degrees)
    once, ids = u < graph.indices, np.array([f"n{i}" for i in range(NUM_NODES)])
    edges = {"source": ids[u[once]], "target": ids[graph.indices[once]], "amount": rng.random(once.sum()) + 0.1}
    edges["when"] = (np.datetime64("2024-01-01") + rng.integers(0, 9_000_000, once.sum())).astype("M8[s]")
    edges["channel"] = np.array(["web", "shop"])[rng.integers(2, size=once.sum())]
    nodes = {
        "id": ids,
        "type": np.array(["user", "shop"])[np.arange(NUM_NODES) % 2],
        "section": np.array(["a", "b", "c"])[rng.integers(3, size=NUM_NODES)],
        "since": (np.datetime64("2020-01-01") + rng.integers(0, 900, NUM_NODES)).astype("M8[s]"),
        "size": pa.array(np.asarray(graph.x)[:, 0], mask=np.arange(NUM_NODES) % 7 == 0),
        "vector": pa.FixedSizeListArray.from_arrays(np.asarray(graph.x)[:, :3].ravel(), 3),
        "y": (np.arange(NUM_NODES) % 9 == 0).astype(np.int64),
    }
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    new = {"source": ["n0", "n1", "later"], "target": ["n77", "n99", "n3"], "amount": [0.5, 0.2, None]}
    new["when"] = np.array(["2024-04-15"] * 3, "M8[s]")
    pq.write_table(pa.table(new | {"channel": ["web"] * 3}), folder / "new.parquet")
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")


def fitted(kind: str, place: Path) -> HCM:
    options = OPTIONS | ({"graph.weight_column": "amount"} if kind == "tables" else {})
    data = (place / "edges.parquet", place / "nodes.parquet") if kind == "tables" else graphs()["sparse"]
    return HCM(options, classes=3, fdr=0.2).fit(data, **({"label_column": "y"} if kind == "tables" else {}))


KINDS = ("tables", "sparse")


def saved_run(kind: str, place: Path) -> Path:
    """The folder of a finished, taught and saved detector, made once."""
    folder = place / f"saved-{kind}"
    if not folder.exists():
        if kind == "tables":
            write_tables(place)
        made = fitted(kind, place)
        ids = made.ids_.tolist()
        made.teach({ids[i]: bool(made.scores[i] < np.median(made.scores)) for i in range(0, len(ids), 2)})
        made.save(folder)
        if kind == "tables":
            commands.score_edges([str(folder), str(place / "new.parquet"), "-o", str(place / "scored.csv")])
    return folder


# Every hash made right again.


def repair(run: Path) -> None:
    """Makes all hashes, sizes and seals those of the files as they are."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        seal_again(run / "graph")
        of = files.read_sealed(run / "graph" / files.MANIFEST)["fingerprint"]
        _update(run / "purified", lambda body: body.update(source=of))
    for folder in run.glob("train-*/samples"):
        _update(folder, lambda body, folder=folder: body.update(hashes=[
            files.hash_file(samples.sample_path(folder, i)) for i in range(len(body["hashes"]))
        ]))  # fmt: skip
    _update(run / "labels", partial(_repair_shards, run / "labels"))
    for folder in (run / name for name in ("scores", "taught", "embeddings", "stream")):
        _update(folder, lambda body, folder=folder: body.update(
            files={name: files.hash_file(folder / name) for name in body["files"]}
        ))  # fmt: skip
    _update(run / "taught", lambda body: body.update(scores=files.hash_file(run / "scores" / table.FILE)))
    for path in (run / workspace.RECORDS).glob("*.json"):
        record, folder = files.read_sealed(path), run / path.stem
        if isinstance(record.get("files"), dict) and folder.is_dir():
            record["files"] = {
                name: files.hash_file(folder / name) if (folder / name).is_file() else digest
                for name, digest in record["files"].items()
            }
            files.write_sealed(path, record)


def _update(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, OSError):
        body = files.read_sealed(folder / files.MANIFEST)
        change(body)
        files.write_sealed(folder / files.MANIFEST, body)


def _repair_shards(folder: Path, body: dict[str, Any]) -> None:
    for shard in body["shards"]:
        data = (folder / shard["file"]).read_bytes()
        shard["num_bytes"], shard["hash"] = len(data), files.hash_bytes(data)
        shard["footer_bytes"] = int.from_bytes(data[-8:-4], "little") + 8
        shard["footer_hash"] = files.hash_bytes(data[len(data) - shard["footer_bytes"] :])
