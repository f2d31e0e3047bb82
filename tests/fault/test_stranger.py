"""A stranger's graph folder, every hash in it right: whatever it holds, it is refused by name, or it is a graph.

This file is both the test and the child that runs the cases, many in one process, as in `test_damage.py`. A case is a
number: it decides the graph, what is changed in its folder, and by which door the folder comes in. Whether a folder
that was let in is a graph is told by a slow twin of the check, in plain Python.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import traceback
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import report_case, small_config
from strangers import CHANGES, ODD, graphs, seal_again

from hcm_scale.base import files
from hcm_scale.config import FolderGraph
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline

OPTIONS = {"hops.num_sources": 30, "sampling.batch_pairs": 64, "posterior.burn_in_steps": 2, "posterior.num_samples": 1}
OPTIONS |= {"world.threads": 1}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", [range(6), pytest.param(range(6, 60), marks=pytest.mark.audit)])
def test_stranger__is_refused_by_name_or_is_a_graph(tmp_path, go_through, cases):
    assert go_through(__file__, tmp_path, cases) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_strangers__are_refused_by_name_or_are_graphs(tmp_path, go_through):
    assert go_through(__file__, tmp_path, range(60, 560)) == []


TEXTS = [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 200_000, b'{"kind": "hcm_scale graph", "format": 1}', b"\0" * 9]
HEADERS = [b"", b"{}", b"(" * 5000, b"__import__('os').abort()"]
HEADERS += [b"{'descr': 'O', 'fortran_order': False, 'shape': (9,)}"]
HEADERS += [b"{'descr': '<i8', 'fortran_order': False, 'shape': (%s,)}" % size for size in (b"-1", b"10**9", b"99" * 9)]
HEADERS += [b"{'descr': [('a', '<i8', (2**40,))], 'fortran_order': 1, 'shape': ()}", b"'" * 77, b"\xff" * 60, b"1 +"]


def change_array(folder: Path, draw: random.Random) -> str:
    """One array changed, or two, and the folder sealed again."""
    arrays = {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))}
    names = [draw.choice(sorted(arrays)) for _ in range(draw.choice((1, 1, 1, 2)))]
    for name in names:
        if name in arrays:
            try:
                draw.choice(CHANGES)(arrays, name, draw)
            except (ValueError, TypeError, IndexError):  # this type has no such value
                continue
    for path in folder.glob("*.npy"):
        path.unlink()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=True)
    return "array " + " and ".join(names)


def change_manifest(folder: Path, draw: random.Random) -> str:
    """A value of the manifest, or all of it."""
    path = folder / files.MANIFEST
    if draw.random() < 0.2:
        path.write_bytes(draw.choice(TEXTS))
        return "text of the manifest"
    manifest = files.read_sealed(path)
    place, name = manifest, draw.choice(sorted(manifest))
    while isinstance(place[name], dict) and place[name] and draw.random() < 0.8:
        place, name = place[name], draw.choice(sorted(place[name]))
    odd = draw.choice(ODD)
    if draw.random() < 0.2:
        del place[name]
    elif draw.random() < 0.1:
        place[draw.choice(("../x", "z", "in_indptr", "x_indptr", "ids"))] = odd
    else:
        place[name] = odd
    files.write_sealed(path, manifest)
    return f"manifest {name}: {str(odd)[:40]}"


def change_file(folder: Path, draw: random.Random) -> str:
    """The bytes of a .npy file, or what stands under its name."""
    path = draw.choice(sorted(folder.glob("*.npy")))
    data = path.read_bytes()
    header = draw.choice(HEADERS)
    version = draw.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\x09"))
    length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    contents = [b"\x93NUMPY" + version + length + header + data[128:], data + b"more", data[:-3], b"", os.urandom(300)]
    places = [path.mkdir, lambda: path.symlink_to("/dev/zero"), lambda: path.symlink_to(path), lambda: os.mkfifo(path)]
    path.unlink()
    if draw.random() < 0.2:
        draw.choice(places)()
        return f"another thing under {path.name}"
    path.write_bytes(draw.choice([contents[0]] * 4 + contents[1:]))
    return f"bytes of {path.name}"


def stranger(folder: Path, made: dict[str, Graph], case: int) -> str:
    """Writes the folder of a case; what is odd about it."""
    draw = random.Random(case)
    shutil.rmtree(folder, ignore_errors=True)
    kind = draw.choice(sorted(made))
    made[kind].save(folder)
    change = draw.choice((change_array, change_array, change_array, change_manifest, change_file))
    told = change(folder, draw)
    if change is not change_manifest:
        seal_again(folder)
    return f"{kind}, {told}"


def holds_graph(folder: Path) -> bool:
    """The slow twin of the check: whether the arrays of a folder are a graph."""
    manifest = json.loads((folder / files.MANIFEST).read_text())
    arrays = {name: np.load(folder / f"{name}.npy") for name in manifest["files"]}
    indptr = arrays["indptr"].tolist()
    n, width = len(indptr) - 1, manifest["num_columns"]
    arcs = rows_of(indptr, arrays["indices"].tolist(), n)
    good = arcs is not None and not any(u in row for u, row in enumerate(arcs))
    good = good and (manifest["directed"] or all(u in arcs[v] for u, row in enumerate(arcs) for v in row))
    if "x_indptr" in arrays:
        good = good and rows_of(arrays["x_indptr"].tolist(), arrays["x_indices"].tolist(), width) is not None
        good = good and len(arrays["x_indptr"]) == n + 1 and len(arrays["x_data"]) == len(arrays["x_indices"])
    elif "x" in arrays:
        good = good and arrays["x"].shape == (n, width)
    good = good and all(np.isfinite(arrays[name]).all() for name in ("x", "x_data") if name in arrays)
    for name, largest in (("y", 1), ("kind", 2)):
        good = good and (name not in arrays or (len(arrays[name]) == n and max(arrays[name]) <= largest))
    if "ids" in arrays:
        good = good and len(set(arrays["ids"].tolist())) == len(arrays["ids"]) == n
    if "ids_offsets" in arrays:
        offsets, data = arrays["ids_offsets"].tolist(), arrays["ids_bytes"].tobytes()
        texts = {data[a:b].decode() for a, b in pairwise(offsets)}
        good = good and offsets == sorted(offsets) and (offsets[0], offsets[-1]) == (0, len(data))
        good = good and len(texts) == len(offsets) - 1 == n
    types = {"indptr": "<i8", "x": "<f4", "y": "|u1", "kind": "|u1", "ids": "<i8", "x_indices": "<i4", "x_data": "<f4"}
    return bool(good and all(arrays[name].dtype.str == kind for name, kind in types.items() if name in arrays))


def is_graph(folder: Path) -> bool:
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return holds_graph(folder)
    return False


def rows_of(indptr: list[int], indices: list[int], width: int) -> list[list[int]] | None:
    """The rows of a CSR; None where it is none, or rows are not sorted sets of 0 .. width - 1."""
    if not indptr or indptr != sorted(indptr) or (indptr[0], indptr[-1]) != (0, len(indices)):
        return None
    rows = [indices[a:b] for a, b in pairwise(indptr)]
    legal = all(row == sorted(set(row)) and all(0 <= v < width for v in row) for row in rows)
    return rows if legal else None


def let_in(folder: Path, run_dir: Path, by_folder: bool) -> None:
    """Both doors, and then all rooms."""
    config, graph = small_config(run_dir, **OPTIONS), None
    if by_folder:
        config.graph = FolderGraph(path=str(folder))
    else:
        graph = Graph.open(folder)
        assert len({graph.external_id(node) for node in range(graph.num_nodes)}) == graph.num_nodes
    pipeline.run(config, graph=graph)


def outcome(folder: Path, run_dir: Path, by_folder: bool) -> str:
    try:
        let_in(folder, run_dir, by_folder)
    except (ValueError, OSError, FloatingPointError) as error:  # what the command line tells as an error
        if str(folder) in str(error):
            return "refused"
        return "odd" if is_graph(folder) else f"unnamed\t{error!r}"  # a graph may still be one that cannot be learned
    except Exception:
        return f"traceback\t{traceback.format_exc(limit=-2)}"
    return "same" if is_graph(folder) else "silent"


def main() -> None:
    place, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder, run_dir, made = place / "stranger", place / "run", graphs()
    for case in range(first, last):
        shutil.rmtree(run_dir, ignore_errors=True)
        what = f"{stranger(folder, made, case)}, {'graph=folder' if case % 2 else 'Graph.open'}"
        report_case(case, what, lambda: outcome(folder, run_dir, bool(case % 2)))  # noqa: B023


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
