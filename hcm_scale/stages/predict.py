"""What the parameter samples of all views say about every edge of the original graph, and about its nodes by that.

For each sample of each view the whole graph is embedded layer by layer on the view's structure (the purified or the
original graph), and every edge of the original graph is predicted. Views come one after the other; ranks share the
nodes and edges of each.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.progress import bar
from hcm_scale.base.threads import in_slices
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.posterior.samples import Samples
from hcm_scale.ranks.world import World
from hcm_scale.score import nodes
from hcm_scale.score.edges import EdgeHops, Hop, new_moments
from hcm_scale.score.numbering import EdgeIndex
from hcm_scale.stages.embed_device import columns_for, fits_device
from hcm_scale.stages.embedding import embed_samples
from hcm_scale.stages.shared_edges import Sharing, predict_shared


class View(NamedTuple):
    """One encoder: the graph it runs on, its (n, q) input, Â X or X, and the samples of its parameters."""

    structure: Graph
    x: NDArray[np.float32]
    samples: Samples


class Predicted(NamedTuple):
    """The hop of every edge, averaged over the views; AHP and IV of every node, (n,), and the AHP of each view."""

    hops: EdgeHops
    ahp: NDArray[np.float64]
    iv: NDArray[np.float64]
    apart: Sequence[NDArray[np.float64]]  # empty where there is one view


def has_room(views: Sequence[View], device: str, propagated: bool, world: World) -> bool:
    """Whether every view fits the device of every rank; True of cores, and of models that no kernel serves."""
    if torch.device(device).type == "cpu":
        return True
    num_lacking = 0
    for structure, _, samples in views:
        net = HopModel(**samples.model)
        columns = columns_for(net, torch.device(device), propagated=propagated) if structure.weights is None else None
        width = int(net.encoder[-1].weight.shape[1])
        num_lacking += columns is not None and not fits_device(structure, columns, width, device)
    return world.sum(torch.tensor([float(num_lacking)], device=device)).item() == 0


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


def predict_views(
    edges: EdgeIndex,
    views: Sequence[View],
    sharings: Sequence[Sharing],
    hop: Hop,
    trim: float,
    precision: str,
    embed: dict[str, Any],
) -> Predicted | None:
    """What the samples of all views say; None but on rank 0. `embed` are options of `embed_samples`."""
    found = []
    num_own = sharings[0].num_own(edges.num_edges)
    with bar(num_own * sum(len(view.samples) for view in views), "edge", "score", unit_scale=True) as shown:
        predict = {"hop": hop, "device": embed["device"], "precision": precision, "on_edges": shown.update}
        for view, sharing in zip(views, sharings, strict=True):
            begun = sharing.begin(edges.num_edges)
            shown.update(begun * num_own)
            left = islice(view.samples, begun, None)
            where = embed | {"folder": sharing.layers}
            embedded = embed_samples(view.samples.model, left, view.structure, view.x, **where)
            found.append(predict_shared(edges, embedded, sharing, begun=begun, **predict))
    parts = [hops for hops in found if hops is not None]
    if not parts:
        return None
    if len(views) == 1:
        (ahp,), iv = nodes.average_hops(edges, [parts[0].mean], parts[0].var, trim, embed["device"])
        return Predicted(parts[0], ahp, iv, [])
    is_mapped = sharings[0].layers is not None
    hops = new_moments(edges.num_edges, sharings[0].folder.parent if is_mapped else None)
    for whole, *of_views in zip(hops, *parts, strict=True):
        in_slices(len(whole), partial(_average, of_views, whole))
    means = [hops.mean, *(part.mean for part in parts)]
    (ahp, *apart), iv = nodes.average_hops(edges, means, hops.var, trim, embed["device"])
    return Predicted(hops, ahp, iv, apart)


def _average(parts: Sequence[NDArray[np.float32]], out: NDArray[np.float32], which: slice) -> None:
    total = parts[0][which] + parts[1][which]
    for part in parts[2:]:
        total += part[which]
    np.divide(total, len(parts), out=out[which])
