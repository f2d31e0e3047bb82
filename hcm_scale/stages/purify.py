"""The purify stage, attributes become features and the least similar edges are dropped, and the first propagation.

    purified/    fitted.safetensors   how attributes become features, (n, q) float32, the input of the model
                 x.npy                the features, where they are not as soon made again: components, sparse attributes
                 dropped.npy          the purified graph: a bit for each entry of the given graph's CSR, 1 where it
                                      goes (np.packbits in little order); empty where none does
                 weights.npy          if edges have weights: the strength of each entry of the given graph; the weights
                                      of the purified graph are strengths as well (`features/purify.py`)
                 manifest.json        names of the features, which rule made them of which attributes, which edges go
    propagated/  x.npy                Â X (`features/propagate.py`)

`Purified` makes the graph and the features when they are first asked for, in seconds: in memory, or where that is short
in a file without a name beside the folder.

Ranks share the similarities of edges and the rows of Â X: each computes one range and writes it to a file of its own in
`parts/`, and rank 0 joins them. Ranges are whole tasks or chunks of the single process, and no row depends on another:
the result is the same bytes at any number of ranks. Parts are separate files because two machines that write to one
page of a file would undo each other's work on some network file systems.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.files import read_tensors
from hcm_scale.base.memory import Budget
from hcm_scale.base.names import DEGREE
from hcm_scale.base.npy import FINITE, create_npy, first_illegal, new_array, open_array, open_npy, read_only, save_npy
from hcm_scale.features import propagate
from hcm_scale.features.auto import table
from hcm_scale.features.parts import FittedTransform, fitted_from_bytes, fitted_to_bytes
from hcm_scale.features.purify import (
    edge_similarity,
    find_dropped,
    marks_size,
    median_weight,
    num_least_similar,
    signal_edges,
    without_dropped,
    write_strengths,
)
from hcm_scale.features.transform import Features, transform
from hcm_scale.graph import Graph
from hcm_scale.graph.store import Attributes
from hcm_scale.ranks.world import ALONE, World

log = logging.getLogger(__name__)

KIND = "hcm_scale purified"
FORMAT = 4
_FITTED = "fitted.safetensors"
_TYPES: dict[str, Any] = {"features": dict[str, Any], "columns": list[str], "source": str, "fingerprint": str}
_TYPES |= {"purified": dict[str, Any], "num_nodes": int, "num_arcs": int, "directed": bool}
_TYPES |= {"weight_median": float | None}
_DROPPED = {"similarity": str, "ratio": float, "threshold": float | None, "dropped_at_threshold": float}
_WEIGHTS, _MARKS, _FEATURES = "weights.npy", "dropped.npy", "x.npy"
_PARTS = "parts"
Allocator = Callable[..., NDArray[Any]]  # (shape, dtype) -> an uninitialised array


@dataclass(frozen=True, eq=False)
class Purified:
    """A purified graph and its features, and the record of how attributes became features."""

    record: dict[str, Any]
    columns: tuple[str, ...]  # names of the features
    folder: Path
    info: dict[str, Any]  # which edges went, and why
    num_edges: int
    fingerprint: str  # of the purified graph
    of: Graph | None  # the given graph
    room: Allocator
    weight_median: float | None = None  # by which weights of edges became strengths; None where there are none

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(n, q); mapped where the folder has them, else made."""
        of, path, shape = self._given(), self.folder / _FEATURES, (self._given().num_nodes, len(self.columns))
        if path.exists():
            return open_array(path, np.float32, shape, legal=FINITE)
        assert of.x is not None
        with files.naming_damage(self.folder / _FITTED):
            x = self.fitted().apply(of.x, of.columns, self.room)
            if x.shape != shape or first_illegal(x, np.isfinite) >= 0:
                raise ValueError(f"it makes {x.shape} features, of which some are not finite or not in the manifest")
        return read_only(x)

    @cached_property
    def graph(self) -> Graph:
        """The same nodes, fewer edges, no attributes; weights are strengths."""
        of, path = self._given(), self.folder / _MARKS
        weighted = of if self.weight_median is None else replace(of, weights=self.strengths(of.num_arcs))
        marks = open_array(path, np.uint8, (None,))
        if len(marks) not in (0, marks_size(of.num_arcs)):
            raise files.FolderError(f"{path} has {len(marks)} bytes; {marks_size(of.num_arcs)} are expected")
        made = without_dropped(weighted, marks, self.info, self.room)
        try:
            if made.num_edges != self.num_edges:
                raise ValueError(f"it keeps {made.num_edges:,} edges, and the manifest says {self.num_edges:,}")
            files.check_once([path], made.check)
        except ValueError as error:
            raise files.FolderError(f"{path} is damaged: {error}") from error
        made.__dict__["fingerprint"] = self.fingerprint  # no byte is read
        return made

    def _given(self) -> Graph:
        if self.of is None:
            raise ValueError(f"{self.folder} is opened without the graph that it is of")
        return self.of

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
    before: dict[str, Any] | None = None  # what was decided for another graph, whose threshold counts

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
    before = like.info
    is_needed = before["threshold"] is not None
    dropping = _Dropping(before["similarity"], before["ratio"], attributes, is_needed, before)
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
        world.barrier()  # the features, or what makes them, are there
        path, x = out / _FEATURES, graph.x
        assert x is not None
        if dropping.attributes == "transformed":
            fitted = read_tensors(out / _FITTED, fitted_from_bytes)
            x = open_npy(path) if path.exists() else fitted.apply(x, graph.columns)
        arguments = graph.indptr, graph.indices, x, dropping.similarity
        _measure_shared(world, out / _PARTS, *arguments, directed=graph.directed)
    world.barrier()
    return open_purified(out, graph)


def _write(
    out: Path, graph: Graph, features: Features, weight_median: float | None, dropping: _Dropping, world: World
) -> Purified:
    """Writes the folder, the manifest last; the graph and the features that it returns are made already."""
    out.mkdir(parents=True, exist_ok=True)
    given, source, median = graph, graph.fingerprint, {}
    assert graph.x is not None
    files.write_bytes(out / _FITTED, fitted_to_bytes(features.fitted))
    if not features.fitted.is_made_in_seconds(graph.x, graph.columns):
        save_npy(out / _FEATURES, features.x)
        files.sync_file(out / _FEATURES)
    if graph.weights is not None and weight_median is not None:
        graph = replace(graph, weights=write_strengths(out / _WEIGHTS, graph.weights, weight_median))
        files.sync_file(out / _WEIGHTS)
        median = {"weight_median": weight_median}
    measured, (similarity, ratio, _, is_needed, before) = dropping.measured(graph, features.x), dropping
    find = partial(find_dropped, graph, measured, similarity=similarity, ratio=ratio, before=before)
    if world.size == 1 or not is_needed:
        marks, info = find()
    else:
        world.barrier()  # the others make or map the features
        marks, info = find(measure=partial(_measure_shared, world, out / _PARTS))
        shutil.rmtree(out / _PARTS)
    save_npy(out / _MARKS, marks)
    files.sync_file(out / _MARKS)
    made = without_dropped(graph, marks, info)
    body = {"features": features.record, "columns": list(features.columns), "source": source, **median}
    body |= {"purified": info, "fingerprint": made.fingerprint, "directed": graph.directed}
    body |= {"num_nodes": made.num_nodes, "num_arcs": made.num_arcs}
    files.write_manifest(out, KIND, FORMAT, body)
    world.barrier()
    opened = open_purified(out, given)
    opened.__dict__.update(features=read_only(features.x), graph=made)
    return opened


def open_purified(folder: Path, of: Graph | None = None, room: Allocator | None = None) -> Purified:
    """A finished folder, whoever wrote it; FolderError where its parts do not fit each other, or the graph `of`.

    Without `of` there is no graph and there are no features. `room` makes the arrays of both.
    """
    body = files.read_manifest(folder, KIND, FORMAT, types=_TYPES)
    about = body["num_nodes"], body["directed"], body["source"]
    if of is not None and about != (of.num_nodes, of.directed, of.fingerprint):
        raise files.FolderError(f"{folder} is not of {of.path}: it is of another graph, of {body['num_nodes']:,} nodes")
    files.check_types(folder / files.MANIFEST, body["purified"], _DROPPED)
    num_edges = body["num_arcs"] // (1 if body["directed"] else 2)
    room = room or partial(new_array, near=folder.parent, budget=Budget())
    told = body["features"], tuple(body["columns"]), folder, body["purified"], num_edges, body["fingerprint"]
    return Purified(*told, of, room, body.get("weight_median"))


def propagate_shared(structure: Graph, x: NDArray[np.float32], out: Path, world: World) -> NDArray[np.float32]:
    """Â x, written into the folder `out` and mapped; every rank calls this."""
    if world.size == 1:
        shutil.rmtree(out / _PARTS, ignore_errors=True)  # of ranks that were killed
        return propagate.propagate_features(structure, x, out)
    propagate.check_propagated(structure, x)
    start, stop = world.share(len(x), propagate.CHUNK_ROWS)
    parts = _gather(world, out / _PARTS, lambda path: propagate.write_rows(structure, x, path, start, stop))
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
