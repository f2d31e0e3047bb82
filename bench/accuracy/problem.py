"""What every method is given: one graph with known anomalies, and one matrix of features.

A problem is made once per (data set, seed), by the caller, and written to a folder: `graph/` (the graph with its raw
attributes, after anomalies were planted), `x.npy` (the features made from them) and, for files that have labels of
their own, `one_way/` (the file's arcs as they stand there). All methods open that folder, so none can see another
graph. The seed plants the anomalies where a data set has none of its own, and is the model's seed. Some files with
labels of their own were planted by others, and say which anomaly is of which kind (see `known_kinds`).

`Amazon+clique` and `Amazon+clique-weak` are problems of the zoo: one kind of odd nodes planted into a data set as it
came, whose known anomalies are left out of the measurement (zoo.py; `judged.npy`).

Memory: the features; the graph is a memory map.
"""

import argparse
import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.zoo import KINDS, plant
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph
from hcm_scale.graph.store import ATTRIBUTE, NORMAL, STRUCTURAL
from hcm_scale.ingest.readers import Policy, read_matrix
from hcm_scale.synthetic.families import community
from hcm_scale.synthetic.inject import inject

_COUNTS = {"scale": "log1p", "pca": 20}
_MEASURES = {"scale": "none", "pca": None}


@dataclass(frozen=True)
class DataSet:
    """A file, the cliques to plant (0: it has labels of its own), and how attributes become features."""

    file: str | None
    num_cliques: int
    features: dict[str, Any]
    clique_size: int = 15


DATA = {
    "BlogCatalog": DataSet("BlogCatalog.mat", 10, _COUNTS),
    "Flickr": DataSet("Flickr.mat", 15, _COUNTS),
    "ACM": DataSet("ACM.mat", 20, _COUNTS),
    "Amazon": DataSet("Amazon.mat", 0, _MEASURES),
    "Enron": DataSet("Enron.mat", 0, _MEASURES),
    "inj_cora": DataSet("suite/pygod_inj_cora.npz", 0, _COUNTS),
    "dblp": DataSet("suite/dblp_inj.npz", 0, _COUNTS),
    "Reddit": DataSet("suite/pygod_reddit.npz", 0, _MEASURES),
    "tolokers": DataSet("suite/tolokers.npz", 0, _MEASURES),
    "Planted": DataSet(None, 3, _MEASURES, clique_size=10),  # made here: 600 nodes, to try the harness
}


@dataclass(frozen=True, eq=False)
class Problem:
    """One graph, symmetric, with `y` (and `kind` where planted), its features, f32 (n, q), and its one-way arcs."""

    name: str
    seed: int
    graph: Graph
    x: NDArray[np.float32]
    one_way: Graph | None = None
    judged: NDArray[np.bool_] | None = None  # nodes that take part in the measurement; None: all

    @property
    def sources(self) -> NDArray[np.int64]:
        """The node that each arc leaves, (num_arcs,); `graph.indices` holds the one it reaches."""
        return np.repeat(np.arange(self.graph.num_nodes), self.graph.degrees)


def prepare(name: str, seed: int, data_dir: Path, out: Path) -> None:
    """Writes the problem `name` with anomalies planted by `seed` into the folder `out`."""
    base, kind, strong = parse_name(name)
    data = DATA[base]
    with tempfile.TemporaryDirectory(dir=out) as raw:
        if data.file is None:
            graph = community(600, num_communities=4, seed=seed)
        else:
            graph = _read(data.file, data_dir, Path(raw) / "graph")
            graph = replace(graph, kind=known_kinds(data_dir / data.file))
        if kind is not None:
            graph, judged = plant(graph, kind, strong=strong, seed=seed)
            np.save(out / "judged.npy", judged, allow_pickle=False)
        elif data.num_cliques:
            graph = inject(
                graph,
                num_cliques=data.num_cliques,
                clique_size=data.clique_size,
                seed=seed,
                num_attribute_anomalies=None,
            )
        if graph.x is None or graph.y is None:
            raise ValueError(f"data={name}: {data.file} lacks attributes or labels")
        graph.save(out / "graph")
        np.save(out / "x.npy", transform(graph.x, **data.features).x, allow_pickle=False)
    if data.file is not None and not data.num_cliques and kind is None:
        _read(data.file, data_dir, out / "one_way", directed=True)
    (out / "problem.json").write_text(json.dumps({"name": name, "seed": seed}))


def parse_name(name: str) -> tuple[str, str | None, bool]:
    """The data set, the kind of the zoo that is planted into it or None, and whether strongly.

    >>> parse_name("Amazon"), parse_name("Amazon+hub-weak")
    (('Amazon', None, True), ('Amazon', 'hub', False))
    """
    base, _, planted = name.partition("+")
    kind, _, strength = planted.partition("-")
    if base not in DATA or kind not in ("", *KINDS) or strength not in ("", "weak"):
        raise ValueError(
            f"data={name!r} is unknown; it is one of {', '.join(DATA)}, or one of these with +KIND or +KIND-weak; "
            f"KIND is one of {', '.join(KINDS)}"
        )
    return base, kind or None, strength != "weak"


def parse_seeds(text: str) -> list[int]:
    """Seeds from one number or an inclusive range.

    >>> parse_seeds("0-2"), parse_seeds("7")
    ([0, 1, 2], [7])
    """
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if last < first:
        raise argparse.ArgumentTypeError(f"seeds={text!r} must be a number such as 3 or a range such as 0-4")
    return list(range(first, last + 1))


def zoo_of(base: str) -> list[str]:
    """The twelve problems of the zoo on one data set."""
    return [f"{base}+{kind}{strength}" for kind in KINDS for strength in ("", "-weak")]


def _read(file: str, data_dir: Path, out: Path, directed: bool = False) -> Graph:
    path = data_dir / file
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not at hand; --data-dir or the variable HCM_DATA names the folder that holds it"
        )
    return read_matrix(out, path, policy=Policy(directed=directed))


def known_kinds(path: Path) -> NDArray[np.uint8] | None:
    """Which anomalies an .npz file calls structural and which attribute, (n,); None where it does not say.

    Either `y_str` and `y_attr`, or PyGOD's `y_raw`: 1 attribute, 2 structural, 3 both. Both counts as structural.
    """
    if path.suffix != ".npz":
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if "y_raw" in arrays:
            structural, attribute = arrays["y_raw"] & 2, arrays["y_raw"] & 1
        elif "y_str" in arrays:
            structural, attribute = arrays["y_str"], arrays["y_attr"]
        else:
            return None
    return np.select([structural > 0, attribute > 0], [STRUCTURAL, ATTRIBUTE], NORMAL).astype(np.uint8)


def open_problem(folder: Path) -> Problem:
    """The problem that `prepare` wrote."""
    said = json.loads((folder / "problem.json").read_text())
    x = np.load(folder / "x.npy", allow_pickle=False)
    one_way = Graph.open(folder / "one_way") if (folder / "one_way").is_dir() else None
    judged = np.load(folder / "judged.npy", allow_pickle=False) if (folder / "judged.npy").is_file() else None
    return Problem(said["name"], said["seed"], Graph.open(folder / "graph"), x, one_way, judged)
