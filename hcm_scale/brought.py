"""Files among the words of a command line: `hcm-scale run edges.csv nodes.csv`, `hcm-scale run graph.mat`.

They become options, `graph=tables graph.path=edges.csv graph.nodes=nodes.csv graph.name=edges`, where the user did not
say these. Of tables the columns that nobody named are guessed, as `HCM.fit` does (`ingest/guess.py`), when the
configuration is composed; the log says what was guessed.
"""

import dataclasses
import glob
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hcm_scale.base import remote
from hcm_scale.config import GraphConfig, TablesGraph
from hcm_scale.ingest.kind import kind_of

_COLUMNS = ("source_column", "target_column", "id_column")


def is_file(word: str) -> bool:
    """Whether a word names a file, and is no option: a URL, or a path or glob that is there.

    >>> is_file("s3://bucket/day=1/edges.csv"), is_file("seed=1"), is_file("-m"), is_file("nowhere.csv")
    (True, False, False, False)
    """
    key, equals, _ = word.partition("=")
    if remote.is_url(word):
        return True
    if not word or word[0] in "-+~" or (equals and "/" not in key):
        return False
    return Path(word).exists() or bool(glob.has_magic(word) and glob.glob(word, recursive=True))  # noqa: PTH207


def as_options(files: Sequence[str], words: Sequence[str]) -> list[str]:
    """The options that the files stand for, less those that other words name.

    >>> as_options(["a/edges.csv.gz", "nodes.csv"], ["graph.name=mine"])
    ['graph=tables', 'graph.path=a/edges.csv.gz', 'graph.nodes=nodes.csv']
    """
    if not files:
        return []
    kind, named = kind_of(remote.local_path(files[0])), {word.lstrip("+").partition("=")[0] for word in words}
    most = 2 if kind == "tables" else 1
    if len(files) > most:
        legal = "an edge table and a node table" if kind == "tables" else f"one, since {files[0]} is no table"
        raise ValueError(f"{' '.join(files)}: {len(files)} files; legal are {legal}")
    if "graph.path" in named:
        raise ValueError(f"{files[0]} and graph.path=... both name the graph; say one of them")
    options = {"graph": kind, "graph.path": files[0], "graph.nodes": files[1] if len(files) == 2 else None}
    options["graph.name"] = _stem(files[0])
    return [f"{key}={value}" for key, value in options.items() if value is not None and key not in named]


def _stem(where: str) -> str:
    """What a file is called, without endings; of a glob the folder that it looks into.

    >>> _stem("https://x.org/a/edges.csv.gz?key=1"), _stem("out/day=*/*.parquet"), _stem("..")
    ('edges', 'out', 'graph')
    """
    path = PurePosixPath(where.partition("?")[0] if where.startswith("http") else where)
    plain = [part for part in path.parts if not glob.has_magic(part) and part.strip("./")]
    name = plain[-1] if plain else "graph"
    return name.split(".")[0] or name


def name_columns(graph: GraphConfig, words: Sequence[str]) -> GraphConfig:
    """The section with the columns of its tables: as said in words or option files, else guessed."""
    if type(graph) is not TablesGraph:
        return graph
    said = {word.lstrip("+").partition("=")[0] for word in words}
    plain = TablesGraph()
    known = {
        name: getattr(graph, name)
        for name in _COLUMNS
        if f"graph.{name}" in said or getattr(graph, name) != getattr(plain, name)
    }
    if len(known) == len(_COLUMNS):
        return graph
    from hcm_scale.ingest import fetched, guess
    from hcm_scale.ingest.paths import CSV, PARQUET

    places = {"graph.path": graph.path, "graph.nodes": graph.nodes}
    with (
        tempfile.TemporaryDirectory(prefix="hcm-scale-guess-") as scratch,
        fetched.fetched(Path(scratch) / "graph", places, PARQUET + CSV) as (edges, nodes),
    ):
        found: dict[str, Any] = guess.guess_columns((edges, nodes), known, graph.max_bytes, "graph.")
    guess.tell({name: value for name, value in found.items() if name not in known})
    return dataclasses.replace(graph, **found)
