"""The purify stage, attributes become features and the least similar edges are dropped, and the first propagation.

    purified/    x.npy                (n, q) float32, the input of the model
                 fitted.safetensors   how attributes become these features, to be applied to other rows too
                 manifest.json        names of the features, and which rule made them of which attributes
                 graph/               the purified graph: the same nodes, fewer edges, no attributes
                 weights.npy          if edges have weights: the strength of each entry of the given graph; the weights
                                      of the purified graph are strengths as well (`features/purify.py`)
    propagated/  x.npy                Â X (`features/propagate.py`)

Ranks share the similarities of edges and the rows of Â X: each computes one range and writes it to a file of its own in
`parts/`, and rank 0 joins them. Ranges are whole tasks or chunks of the single process, and no row depends on another:
the result is the same bytes at any number of ranks. Parts are separate files because two machines that write to one
page of a file would undo each other's work on some network file systems.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.files import read_tensors
from hcm_scale.base.names import DEGREE
from hcm_scale.base.npy import FINITE, create_npy, open_array, open_npy, save_npy
from hcm_scale.base.threads import run_concurrently
from hcm_scale.features import propagate
from hcm_scale.features.auto import table
from hcm_scale.features.parts import FittedTransform, fitted_from_bytes, fitted_to_bytes
from hcm_scale.features.purify import edge_similarity, median_weight, num_least_similar, signal_edges, write_strengths
from hcm_scale.features.purify import purify as drop_edges
from hcm_scale.features.transform import Features, transform
from hcm_scale.graph import Graph
from hcm_scale.graph.store import Attributes
from hcm_scale.ranks.world import ALONE, World

log = logging.getLogger(__name__)

KIND = "hcm_scale purified"
FORMAT = 3
_FITTED = "fitted.safetensors"
_TYPES = {"features": dict[str, Any], "columns": list[str], "source": str, "weight_median": float | None}
_DROPPED = {"similarity": str, "ratio": float, "threshold": float | None, "dropped_at_threshold": float}
_WEIGHTS = "weights.npy"
_PARTS = "parts"


@dataclass(frozen=True, eq=False)
class Purified:
    """The features (n, q) as a memory map, the purified graph, and the record of how attributes became features."""

    features: NDArray[np.float32]
    graph: Graph
    record: dict[str, Any]
    columns: tuple[str, ...]  # names of the features
    folder: Path
    weight_median: float | None = None  # by which weights of edges became strengths; None where there are none

    def strengths(self, num_arcs: int | None = None) -> NDArray[np.float32] | None:
        """The strength of each entry of the given graph, which has so many, mapped."""
        path = self.folder / _WEIGHTS
        return None if self.weight_median is None else open_array(path, np.float32, (num_arcs,), legal=FINITE)

    def fitted(self) -> FittedTransform:
        return read_tensors(self.folder / _FITTED, fitted_from_bytes)


class _Dropping(NamedTuple):
    """How the least similar edges are dropped."""

    similarity: str
    ratio: float
    attributes: str  # that similarity is measured on, transformed or raw
    is_needed: bool  # whether any edge is to be dropped
    like: Graph | None = None  # a purified graph whose threshold counts

    def measured(self, graph: Graph, features: NDArray[np.float32]) -> Attributes:
        assert graph.x is not None
        return features if self.attributes == "transformed" else graph.x


def purify(
    graph: Graph,
    out: Path,
    *,
    scale: str,
    pca: int | None,
    standardise: bool,
    similarity: str,
    ratio: float,
    attributes: str,
    world: World = ALONE,
) -> Purified:
    """Features and purified graph, in the folder `out`; similarity is measured on `transformed` or `raw` attributes.

    Every rank calls this: rank 0 makes the features, all measure similarities.
    """
    assert graph.x is not None
    dropping = _Dropping(similarity, ratio, attributes, num_least_similar(graph, ratio) > 0)
    if not world.leads:
        return _help(graph, out, dropping, world)
    ends = signal_edges(graph)
    features = transform(graph.x, scale=scale, pca=pca, standardise=standardise, columns=graph.columns, ends=ends)
    _check_varied(features, graph.columns)
    if "columns" in features.record:
        counts = f"{graph.num_attributes:,} attributes become {len(features.columns):,} features"
        log.info("%s by rule (attributes.scale=auto):\n%s", counts, table(features.record["columns"]))
    median = None if graph.weights is None else median_weight(graph.weights)
    return _write(out, graph, features, median, dropping, world)


def _check_varied(features: Features, columns: tuple[str, ...]) -> None:
    """Refuses attributes that are all constant: by rule they leave no feature, and standardised they are all 0."""
    if features.record.get("num_constant_columns", 0) < len(features.columns):
        return
    if columns == (DEGREE,):
        raise ValueError(
            f"all nodes have the same degree, so that their one attribute, {DEGREE}, is constant and tells none from "
            "another; bring attributes that differ"
        )
    raise ValueError(
        "all attributes are constant and tell no node from another; bring some that differ, or leave them out (of "
        "tables graph.include=[] does) with graph.featureless=degree, which gives every node its degree"
    )


def purify_like(graph: Graph, out: Path, like: Purified, *, attributes: str, world: World = ALONE) -> Purified:
    """Features and purified graph of another graph, by the transform and the threshold of `like`: nothing is fitted."""
    assert graph.x is not None
    if (graph.weights is None) != (like.weight_median is None):
        ours, theirs = ("none", "some") if graph.weights is None else ("some", "none")
        raise ValueError(
            f"this graph has {ours} and the trained one {theirs}: weights of edges (graph.weight_column or "
            "graph.weights) belong to both graphs or to neither"
        )
    before = like.graph.info["purified"]
    is_needed = before["threshold"] is not None
    dropping = _Dropping(before["similarity"], before["ratio"], attributes, is_needed, like.graph)
    if not world.leads:
        return _help(graph, out, dropping, world)
    fitted = like.fitted()
    try:
        x = fitted.apply(graph.x, graph.columns)
    except IndexError as error:
        raise files.FolderError(f"{like.folder / _FITTED} is damaged: {error}") from error
    features = Features(x, like.columns, like.record, fitted)
    return _write(out, graph, features, like.weight_median, dropping, world)


def _help(graph: Graph, out: Path, dropping: _Dropping, world: World) -> Purified:
    """What the other ranks do: they share the similarities, if any edge is to be dropped."""
    if dropping.is_needed:
        world.barrier()  # the features are there
        measured = dropping.measured(graph, open_npy(out / "x.npy"))
        arguments = graph.indptr, graph.indices, measured, dropping.similarity
        _measure_shared(world, out / _PARTS, *arguments, directed=graph.directed)
    world.barrier()
    return open_purified(out)


def _write(
    out: Path, graph: Graph, features: Features, weight_median: float | None, dropping: _Dropping, world: World
) -> Purified:
    """Writes the folder, the manifest last; edges are dropped while the features are written."""
    out.mkdir(parents=True, exist_ok=True)
    source, median = graph.fingerprint, {}
    if graph.weights is not None and weight_median is not None:
        graph = replace(graph, weights=write_strengths(out / _WEIGHTS, graph.weights, weight_median))
        files.sync_file(out / _WEIGHTS)
        median = {"weight_median": weight_median}
    measured, (similarity, ratio, _, is_needed, like) = dropping.measured(graph, features.x), dropping
    drop = partial(drop_edges, graph, measured, similarity=similarity, ratio=ratio, like=like)

    def save_features() -> None:
        save_npy(out / "x.npy", features.x)
        files.sync_file(out / "x.npy")

    if world.size == 1 or not is_needed:
        run_concurrently([lambda: drop().save(out / "graph"), save_features])
    else:
        save_features()
        world.barrier()  # the others map them
        drop(measure=partial(_measure_shared, world, out / _PARTS)).save(out / "graph")
        shutil.rmtree(out / _PARTS)
    files.write_bytes(out / _FITTED, fitted_to_bytes(features.fitted))
    body = {"features": features.record, "columns": list(features.columns), "source": source, **median}
    files.write_manifest(out, KIND, FORMAT, body)
    world.barrier()
    return open_purified(out)


def open_purified(folder: Path, of: Graph | None = None) -> Purified:
    """A finished folder, whoever wrote it; FolderError where its parts do not fit each other, or the graph `of`."""
    body = files.read_manifest(folder, KIND, FORMAT, types=_TYPES)
    graph, columns = Graph.open(folder / "graph", verify=False), len(body["columns"]) or None
    if of is not None and (graph.num_nodes, graph.directed) != (of.num_nodes, of.directed):
        raise files.FolderError(f"{folder} is not of {of.path}: it has {graph.num_nodes:,} nodes, not {of.num_nodes:,}")
    x = open_array(folder / "x.npy", np.float32, (graph.num_nodes, columns), legal=FINITE)
    with files.naming_damage(graph_manifest := folder / "graph" / files.MANIFEST):
        files.check_types(graph_manifest, graph.info["purified"], _DROPPED)
    return Purified(x, graph, body["features"], tuple(body["columns"]), folder, body.get("weight_median"))


def propagate_shared(
    structure: Graph, x: NDArray[np.float32], out: Path, world: World, device: str = "cpu"
) -> NDArray[np.float32]:
    """Â x, written into the folder `out` and mapped; every rank calls this."""
    if world.size == 1:
        shutil.rmtree(out / _PARTS, ignore_errors=True)  # of ranks that were killed
        return propagate.propagate_features(structure, x, out, device)
    propagate.check_propagated(structure, x)
    start, stop = world.share(len(x), propagate.CHUNK_ROWS)
    parts = _gather(world, out / _PARTS, lambda path: propagate.write_rows(structure, x, path, start, stop, device))
    if world.leads:
        joined = create_npy(out / "x.npy", np.float32, x.shape)
        for rank, part in enumerate(parts):
            joined[slice(*world.share(len(x), propagate.CHUNK_ROWS, rank))] = part
        joined.flush()
        shutil.rmtree(out / _PARTS)
        propagate.seal_propagated(out, x.shape)
    world.barrier()
    return propagate.open_propagated(out)


def _measure_shared(world: World, folder: Path, *arguments: Any, **options: Any) -> NDArray[np.float32]:
    """What `edge_similarity` returns for these arguments, on rank 0; empty on the others. Every rank calls this."""

    def write(path: Path) -> None:
        save_npy(path, edge_similarity(*arguments, **options, share=(world.rank, world.size)))

    return np.concatenate([np.empty(0, np.float32), *_gather(world, folder, write)])


def _gather(world: World, folder: Path, write: Callable[[Path], None]) -> list[NDArray[np.float32]]:
    """The arrays that the ranks write, mapped, in the order of the ranks, on rank 0; empty on the others."""
    if world.leads:
        shutil.rmtree(folder, ignore_errors=True)  # of ranks that were killed
    world.barrier()
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{world.rank}.npy")
    world.barrier()
    return [open_npy(folder / f"{rank}.npy") for rank in range(world.size)] if world.leads else []
