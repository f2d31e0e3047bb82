"""What the parameter samples of all views predict for every edge of the original graph, and for its nodes by that.

For each sample of each view the whole graph is embedded layer by layer on the view's structure (the purified or the
original graph), and every edge of the original graph is predicted. Views come one after the other.

    out/parts/KEY/  rank-0/  mean-00007.npy  m2-00007.npy    moments of the rank's edges after seven samples
                             progress.json                   of which edges and samples they are, their hashes
                    rank-1/ ...
                    layers/                                  embeddings that the ranks share (`embedding.py`)

Each rank predicts one contiguous range of edges, and rank 0 joins the ranges. They are cut where a single process ends
a chunk, so every product has the same shape and every edge the same bits at any number of ranks.

A rank saves the moments of its edges after the last sample, and on a CPU, also with a single process, after any sample
that ends a minute or more after the last save; the index is written after the data and names it. A stage that was
killed continues from there, with as many ranks and the same chunks as before: samples that all ranks have seen are
skipped, and a rank that has seen more only helps the others with the embeddings.

Memory: 8 bytes an edge of the range, none where `on_disk`; the joined arrays are mapped.
"""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcm_scale.base import files
from hcm_scale.base.console import Progress
from hcm_scale.base.device import TURN
from hcm_scale.base.npy import open_npy, save_npy
from hcm_scale.base.spmm import ModelInput
from hcm_scale.base.threads import run_in_slices
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.samples import Samples
from hcm_scale.ranks.world import World
from hcm_scale.score import nodes
from hcm_scale.score.edge_index import EdgeIndex, PairHead
from hcm_scale.score.edges import CPU_CHUNK_EDGES, CUDA_CHUNK_EDGES, EdgeHops, Hop, new_moments, predict_edges
from hcm_scale.stages.embedding import device_serves, embed_samples, fits_device

SAVE_SECONDS = 60.0  # between two saves of the moments: what a killed rank costs


class View(NamedTuple):
    """One encoder: the graph it runs on, its (n, q) input, Â X or X, and the samples of its parameters."""

    structure: Graph
    x: ModelInput
    samples: Samples


class Predicted(NamedTuple):
    """The hop of every edge, averaged over the views; AHP and IV of every node, (n,), and the AHP of each view."""

    hops: EdgeHops
    ahp: NDArray[np.float64]
    iv: NDArray[np.float64]
    view_ahp: Sequence[NDArray[np.float64]]  # empty if there is one view


@dataclass(frozen=True)
class Sharing:
    """How ranks share the edges, and the folder of the stage, in which they exchange their parts."""

    world: World
    folder: Path
    chunk: int  # edges of one product
    on_disk: bool  # whether embeddings and running moments are in files
    device: str
    num_samples: int
    key: str  # of what else decides the predictions: the samples, and the graph that they embed

    @property
    def parts(self) -> Path:
        """The folder of files that are needed until the stage is finished."""
        return self.folder / "parts" / self.key

    @property
    def layers(self) -> Path | None:
        """The folder of the layers of embeddings; None if they are in memory."""
        return self.parts / "layers" if self.on_disk or self.world.size > 1 else None

    def edge_range(self, num_edges: int, rank: int | None = None) -> tuple[int, int]:
        """The edges first .. last - 1 of a rank, by default of this one."""
        return self.world.share(num_edges, self.chunk, rank)

    def saved(self, num_edges: int, rank: int) -> "SavedMoments":
        """What a rank has saved of its edges."""
        of = [*self.edge_range(num_edges, rank), torch.device(self.device).type, self.num_samples]
        return SavedMoments(self.parts / f"rank-{rank}", of)

    def begin(self, num_edges: int) -> int:
        """Number of samples that all ranks have seen already; what else a killed run left is removed."""
        ranges = [self.edge_range(num_edges, rank) for rank in range(self.world.size)]
        ranks = [self.saved(num_edges, rank) for rank, (first, last) in enumerate(ranges) if last > first]
        if self.world.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            useful = {saved.folder for saved in ranks if saved.is_valid()}
            for path in self.parts.iterdir() if self.parts.is_dir() else ():
                if path not in useful:
                    shutil.rmtree(path)
        self.world.barrier()
        return min((saved.num_samples() for saved in ranks), default=0)

    def clear(self) -> None:
        """Removes the parts, by rank 0 when the scores are written."""
        if self.world.leads:
            shutil.rmtree(self.folder / "parts", ignore_errors=True)


def sharings_of(
    views: Sequence[View], out: Path, chunk: int, on_disk: bool, device: str, world: World
) -> list[Sharing]:
    """How ranks share the edges of each view; of several views each has a folder of its own."""
    folders = [out] if len(views) == 1 else [out / f"view-{number}" for number in range(len(views))]
    keys = [files.hash_value([view.structure.fingerprint, view.samples.hashes]) for view in views]
    return [
        Sharing(world, folder, chunk, on_disk, device, len(view.samples), key)
        for view, folder, key in zip(views, folders, keys, strict=True)
    ]


def chunk_of(chunk_edges: int | None, device: str) -> int:
    """Edges of one product in a single process."""
    return chunk_edges or (CUDA_CHUNK_EDGES if torch.device(device).type == "cuda" else CPU_CHUNK_EDGES)


def has_room(views: Sequence[View], device: str, propagated: bool, world: World) -> bool:
    """Whether every view fits the device of every rank; True for a CPU, and for models that no kernel serves."""
    if torch.device(device).type == "cpu":
        return True
    num_lacking = 0
    for structure, x, samples in views:
        net = HopModel(**samples.model)
        is_served = device_serves(net, structure, device, propagated=propagated)
        num_lacking += is_served and not fits_device(structure, x.shape[1], net.width, device)
    return world.sum(torch.tensor([float(num_lacking)], device=device)).item() == 0


def predict_views(
    edges: EdgeIndex,
    views: Sequence[View],
    sharings: Sequence[Sharing],
    *,
    hop: Hop,
    trim: float,
    precision: str,
    propagated: bool,
    chunk_rows: int,
) -> Predicted | None:
    """The predictions of the samples of all views; None but on rank 0."""
    of_view, device = [], sharings[0].device
    first, last = sharings[0].edge_range(edges.num_edges)
    total = (last - first) * sum(len(view.samples) for view in views)
    is_cuda = torch.device(device).type == "cuda"
    with TURN if is_cuda else nullcontext(), Progress(total, "edge", "score", unit_scale=True) as progress:
        for view, sharing in zip(views, sharings, strict=True):
            begun = sharing.begin(edges.num_edges)
            progress.skip(begun * (last - first))
            embedded = embed_samples(
                view.samples.model,
                islice(view.samples, begun, None),
                view.structure,
                view.x,
                propagated=propagated,
                chunk_rows=chunk_rows,
                device=device,
                folder=sharing.layers,
                world=sharing.world,
            )
            predict = partial(predict_shared, hop=hop, device=device, precision=precision, on_edges=progress.update)
            if (hops := predict(edges, embedded, sharing, begun=begun)) is not None:
                of_view.append(hops)
    if not of_view:
        return None
    if len(views) == 1:
        (ahp,), iv = nodes.average_hops(edges, [of_view[0].mean], of_view[0].var, trim, device)
        return Predicted(of_view[0], ahp, iv, [])
    is_mapped = sharings[0].layers is not None
    average = new_moments(edges.num_edges, sharings[0].folder.parent if is_mapped else None)
    if of_view[0].var.flags.owndata:  # no view's own variance is asked for again: gigabytes of new pages are spared
        average = average._replace(var=of_view[0].var)
    for whole, *of_views in zip(average, *of_view, strict=True):
        run_in_slices(len(whole), partial(_average, of_views, whole))
    means = [average.mean, *(hops.mean for hops in of_view)]
    (ahp, *view_ahp), iv = nodes.average_hops(edges, means, average.var, trim, device)
    return Predicted(average, ahp, iv, view_ahp)


def _average(arrays: Sequence[NDArray[np.float32]], out: NDArray[np.float32], which: slice) -> None:
    total = arrays[0][which] + arrays[1][which]
    for array in arrays[2:]:
        total += array[which]
    np.divide(total, len(arrays), out=out[which])


def predict_shared(
    edges: EdgeIndex, samples: Iterable[tuple[Tensor, PairHead]], sharing: Sharing, *, begun: int, **options: Any
) -> EdgeHops | None:
    """Mean and variance of every edge on rank 0, in files where `on_disk` or shared; None on the others.

    `samples` are those after the first `begun`, the number that `Sharing.begin` gave. `options` are those of
    `predict_edges`.
    """
    world, remaining, hops = sharing.world, iter(samples), None
    first, last = sharing.edge_range(edges.num_edges)
    if world.size == 1 or last > first:
        saved = sharing.saved(edges.num_edges, world.rank)
        for _ in islice(remaining, saved.num_samples() - begun):
            pass  # seen by this rank, but not by all
        if not 0 < saved.num_samples() == sharing.num_samples:
            window = edges if world.size == 1 else EdgeRange.of(edges, first, last)
            hops = _predict_own(window, remaining, sharing, saved, **options)
    for _ in remaining:
        pass  # a rank that has nothing more to predict still embeds its rows
    world.barrier()
    if not world.leads:
        return None
    shutil.rmtree(sharing.parts / "layers", ignore_errors=True)
    return hops if world.size == 1 and hops is not None else _join(sharing, edges.num_edges)


def _predict_own(
    edges: EdgeIndex,
    samples: Iterator[tuple[Tensor, PairHead]],
    sharing: Sharing,
    saved: "SavedMoments",
    **options: Any,
) -> EdgeHops:
    """Mean and variance of this rank's edges, saved for rank 0 if there are several, going on from what is saved."""
    is_alone, last_time = sharing.world.size == 1, time.monotonic()
    on_cpu = torch.device(sharing.device).type == "cpu"

    def on_sample(num_seen: int, moments: EdgeHops) -> None:
        nonlocal last_time
        is_last = not is_alone and num_seen == sharing.num_samples
        if is_last or (on_cpu and time.monotonic() - last_time >= SAVE_SECONDS):
            saved.save(num_seen, moments)
            last_time = time.monotonic()

    if num_seen := saved.num_samples():
        options |= {"begun": (num_seen, saved.moments())}
    if sharing.on_disk:
        saved.folder.mkdir(parents=True, exist_ok=True)
        options |= {"folder": sharing.folder if is_alone else saved.folder}
    return predict_edges(edges, samples, chunk_edges=sharing.chunk, on_sample=on_sample, **options)


def _join(sharing: Sharing, num_edges: int) -> EdgeHops:
    """The ranges of all ranks in edge order, in files of the folder."""
    mean, var = new_moments(num_edges, sharing.folder)
    for rank in range(sharing.world.size):
        first, last = sharing.edge_range(num_edges, rank)
        if last > first:
            moments = sharing.saved(num_edges, rank).moments()
            mean[first:last] = moments.mean
            np.divide(moments.var, sharing.num_samples, out=var[first:last])
    return EdgeHops(mean, var)


@dataclass(frozen=True, eq=False)
class EdgeRange(EdgeIndex):
    """The edges first .. last - 1 of an index, numbered from 0."""

    first: int
    last: int

    @staticmethod
    def of(edges: EdgeIndex, first: int, last: int) -> "EdgeRange":
        values = {entry.name: getattr(edges, entry.name) for entry in fields(EdgeIndex)}
        return EdgeRange(**values, first=first, last=last)

    @property
    def num_edges(self) -> int:
        return self.last - self.first

    def edges(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        left, right, number = super().edges(self.first + first, self.first + last)
        return left, right, number - self.first


@dataclass(frozen=True)
class SavedMoments:
    """Mean and sum of squared deviations of the edges that `of` names, in a folder."""

    folder: Path
    of: list[Any]  # JSON-able

    def save(self, num_samples: int, moments: EdgeHops) -> None:
        """Writes the moments, then the index that names them, and removes older ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        paths, hashes = self._paths(num_samples), {}
        for path, values in zip(paths, moments, strict=True):
            save_npy(path, values)
            files.sync_file(path)
            hashes[path.name] = files.hash_file(path)
        files.write_json(self._index, {"of": self.of, "num_samples": num_samples, "files": hashes})
        for path in {*self.folder.glob("mean-*"), *self.folder.glob("m2-*")} - {*paths}:
            path.unlink()

    def is_valid(self) -> bool:
        """Whether moments of the same edges and samples are there, as they were written."""
        try:
            index = json.loads(self._index.read_bytes())
            hashes = {name: files.hash_file(files.path_inside(self.folder, name)) for name in index["files"]}
            named = {path.name for path in self._paths(index["num_samples"])}
            return bool(index["of"] == self.of and hashes == index["files"] and {*hashes} == named)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False

    def num_samples(self) -> int:
        """Number of samples seen, of moments found valid; 0 if there are none."""
        return int(json.loads(self._index.read_bytes())["num_samples"]) if self._index.is_file() else 0

    def moments(self) -> EdgeHops:
        mean, m2 = (open_npy(path) for path in self._paths(self.num_samples()))
        return EdgeHops(mean, m2)

    @property
    def _index(self) -> Path:
        return self.folder / "progress.json"

    def _paths(self, num_samples: int) -> tuple[Path, Path]:
        return self.folder / f"mean-{num_samples:05d}.npy", self.folder / f"m2-{num_samples:05d}.npy"
