"""The purify stage: attributes become features, and the least similar edges are dropped.

    purified/    fitted.safetensors   how attributes become features, (n, q) float32, the input of the model
                 x.npy                the features, where they are not as soon made again: components, sparse attributes
                 dropped.npy          the purified graph: a bit for each entry of the given graph's CSR, 1 where it
                                      goes (np.packbits in little order); empty where none does
                 weights.npy          if edges have weights: the strength of each entry of the given graph; the weights
                                      of the purified graph are strengths as well (`features/purify.py`)
                 manifest.json        names of the features, which rule made them of which attributes, which edges go

`Purified` makes the graph and the features when they are first asked for, in seconds: in memory, or where that is short
in a file without a name beside the folder.
"""

import logging
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.files import read_tensors
from hcm_scale.base.memory import Budget
from hcm_scale.base.names import DEGREE
from hcm_scale.base.npy import FINITE, first_illegal, new_array, open_array, read_only, save_npy
from hcm_scale.features import auto, parts
from hcm_scale.features.auto import table
from hcm_scale.features.parts import Allocator, FittedTransform, fitted_from_bytes, fitted_to_bytes
from hcm_scale.features.purify import (
    find_dropped,
    marks_size,
    median_weight,
    signal_edges,
    without_dropped,
    write_strengths,
)
from hcm_scale.features.transform import Features, transform
from hcm_scale.graph import Graph
from hcm_scale.graph.size import Size

log = logging.getLogger(__name__)

KIND = "hcm_scale purified"
FORMAT = 5
_FITTED = "fitted.safetensors"
_TYPES: dict[str, Any] = {"features": dict[str, Any], "columns": list[str], "source": str, "fingerprint": str}
_TYPES |= {"purified": dict[str, Any], "num_nodes": int, "num_arcs": int, "directed": bool}
_TYPES |= {"weight_median": float | None}
_DROPPED = {"similarity": str, "ratio": float, "threshold": float | None, "dropped_at_threshold": float}
_WEIGHTS, _MARKS, _FEATURES = "weights.npy", "dropped.npy", "x.npy"


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
    allocate: Allocator
    weight_median: float | None = None  # by which weights of edges became strengths; None where there are none

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(n, q); mapped where the folder has them, else made."""
        of, path, shape = self._given(), self.folder / _FEATURES, (self._given().num_nodes, len(self.columns))
        if path.exists():
            return open_array(path, np.float32, shape, legal=FINITE)
        assert of.x is not None
        with files.naming_damage(self.folder / _FITTED):
            x = self.fitted().apply(of.x, of.columns, self.allocate)
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
        made = without_dropped(weighted, marks, self.info, self.allocate)
        try:
            if made.num_edges != self.num_edges:
                raise ValueError(f"it keeps {made.num_edges:,} edges, and the manifest says {self.num_edges:,}")
            files.check_once([path], made.check)
        except ValueError as error:
            raise files.FolderError(f"{path} is damaged: {error}") from error
        made.__dict__["fingerprint"] = self.fingerprint  # no byte is read
        return made

    def _given(self) -> Graph:
        assert self.of is not None, "it is opened with the graph that it is of"
        return self.of

    def strengths(self, num_arcs: int | None = None) -> NDArray[np.float32] | None:
        """The strength of each entry of the given graph, which has so many, mapped."""
        path = self.folder / _WEIGHTS
        return None if self.weight_median is None else open_array(path, np.float32, (num_arcs,), legal=FINITE)

    def fitted(self) -> FittedTransform:
        return read_tensors(self.folder / _FITTED, fitted_from_bytes)


def purify(
    graph: Graph, out: Path, *, scale: str, pca: int | None, similarity: str, ratio: float, attributes: str
) -> Purified:
    """Features and purified graph, in the folder `out`; similarity is measured on `transformed` or `raw` attributes."""
    assert graph.x is not None
    ends = signal_edges(graph)
    features = transform(graph.x, scale=scale, pca=pca, columns=graph.columns, ends=ends)
    _check_varied(features, graph.columns)
    counts = f"{graph.num_attributes:,} attributes become {len(features.columns):,} features"
    log.info("%s by rule (attributes.scale=%s):\n%s", counts, scale, table(features.record["columns"]))
    median = None if graph.weights is None else median_weight(graph.weights)
    return _write(out, graph, features, median, attributes, similarity=similarity, ratio=ratio)


def _check_varied(features: Features, columns: tuple[str, ...]) -> None:
    """Refuses attributes that are all constant: they leave no feature, or one of zeros."""
    if features.record["num_constant"] < len(features.fitted.means):
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


def purify_like(graph: Graph, out: Path, reference: Purified, *, attributes: str) -> Purified:
    """Features and purified graph of another graph, by transform and threshold of `reference`: nothing is fitted."""
    assert graph.x is not None
    if (graph.weights is None) != (reference.weight_median is None):
        ours, theirs = ("none", "some") if graph.weights is None else ("some", "none")
        raise ValueError(
            f"this graph has {ours} and the trained one {theirs}: weights of edges (graph.weight_column or "
            "graph.weights) belong to both graphs or to neither"
        )
    dropping = {name: reference.info[name] for name in ("similarity", "ratio")} | {"before": reference.info}
    fitted = reference.fitted()
    try:
        x = fitted.apply(graph.x, graph.columns)
        if x.shape[1] != len(reference.columns):
            raise IndexError(f"it makes {x.shape[1]} features, and the manifest names {len(reference.columns)}")
    except IndexError as error:
        raise files.FolderError(f"{reference.folder / _FITTED} is damaged: {error}") from error
    features = Features(x, reference.columns, reference.record, fitted)
    return _write(out, graph, features, reference.weight_median, attributes, **dropping)


def _write(
    out: Path, graph: Graph, features: Features, weight_median: float | None, attributes: str, **dropping: Any
) -> Purified:
    """Writes the folder, the manifest last; the graph and the features that it returns are made already."""
    out.mkdir(parents=True, exist_ok=True)
    given, source, x, median = graph, graph.fingerprint, graph.x, {}
    assert x is not None
    files.write_bytes(out / _FITTED, fitted_to_bytes(features.fitted))
    if not features.fitted.is_made_in_seconds(x, graph.columns):
        save_npy(out / _FEATURES, features.x)
        files.sync_file(out / _FEATURES)
    if graph.weights is not None and weight_median is not None:
        graph = replace(graph, weights=write_strengths(out / _WEIGHTS, graph.weights, weight_median))
        files.sync_file(out / _WEIGHTS)
        median = {"weight_median": weight_median}
    marks, info = find_dropped(graph, features.x if attributes == "transformed" else x, **dropping)
    save_npy(out / _MARKS, marks)
    files.sync_file(out / _MARKS)
    made = without_dropped(graph, marks, info)
    body = {"features": features.record, "columns": list(features.columns), "source": source, **median}
    body |= {"purified": info, "fingerprint": made.fingerprint, "directed": graph.directed}
    body |= {"num_nodes": made.num_nodes, "num_arcs": made.num_arcs}
    files.write_manifest(out, KIND, FORMAT, body)
    opened = open_purified(out, given)
    opened.__dict__.update(features=read_only(features.x), graph=made)
    return opened


def open_purified(folder: Path, of: Graph | None = None, allocate: Allocator | None = None) -> Purified:
    """A finished folder, whoever wrote it; FolderError where its parts do not fit each other, or the graph `of`.

    Without `of` there is no graph and there are no features. `allocate` makes the arrays of both.
    """
    body = files.read_manifest(folder, KIND, FORMAT, types=_TYPES)
    about = body["num_nodes"], body["directed"], body["source"]
    if of is not None and about != (of.num_nodes, of.directed, of.fingerprint):
        raise files.FolderError(f"{folder} is not of {of.path}: it is of another graph, of {body['num_nodes']:,} nodes")
    files.check_types(folder / files.MANIFEST, body["purified"], _DROPPED)
    num_edges = body["num_arcs"] // (1 if body["directed"] else 2)
    allocate = allocate or partial(new_array, near=folder.parent, budget=Budget())
    stored = body["features"], tuple(body["columns"]), folder, body["purified"], num_edges, body["fingerprint"]
    return Purified(*stored, of, allocate, body.get("weight_median"))


def needed_bytes(size: Size, num_features: int, ratio: float) -> int:
    """Fits and makes the features; then beside them similarities of edges (twice) and marks, or bits and the new CSR.

    Weights of edges are read with the similarities and copied into the new CSR.
    """
    n, m = size.num_nodes, size.num_edges
    shape: Any = {"num_values": size.num_values, "is_sparse": size.is_sparse}
    fits = auto.needed_bytes(n, size.num_attributes, num_features, **shape)
    applies = parts.needed_bytes(n, size.num_attributes, num_features, **shape)
    edges = 32 * n + max(10 * m, m + m // 4 + int(8 * (1 - ratio) * m))
    edges += int((12 + 8 * (1 - ratio)) * m) if size.weighted else 0
    return (18 << 20) + max(fits, applies, 4 * n * num_features + edges)


def propagating_bytes(num_nodes: int, num_features: int) -> int:
    """One weight per node, and a block that is checked for values that are not finite; the output is mapped."""
    return (2 << 20) + 12 * num_nodes + 5 * min(num_nodes, 1 << 17) * num_features
