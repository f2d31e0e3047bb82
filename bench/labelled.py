"""The labelled graphs that are at hand, for themes that measure how well anomalies are found."""

from collections.abc import Iterator
from pathlib import Path

from bench import data
from bench.accuracy.problem import DATA, open_problem, prepare
from hcm_scale.graph import Graph

NAMES = ("inj_cora", "dblp", "Reddit", "Amazon", "Enron", "BlogCatalog", "Flickr", "tolokers")


def graphs(root: Path, seed: int = 0) -> Iterator[tuple[str, Graph]]:
    """Name and graph of those whose files HCM_DATA has, made under `root`; the seed plants where a file has no labels.

    Memory: the graph that is read.
    """
    for name in NAMES:
        if (data.folder() / str(DATA[name].file)).is_file():
            folder = root / f"{name}-{seed}"
            folder.mkdir()
            prepare(name, seed, data.folder(), folder)
            yield name, open_problem(folder).graph
