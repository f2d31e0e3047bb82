"""The AUC trend: how well each new parameter sample alone would rank the nodes, where the anomalies are known.

What the paper draws over training. A number depends on its sample and nothing else, so a resumed run logs the same.
Costs one scoring pass a call.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.graph import Graph
from hcm_scale.posterior.samples import load_sample
from hcm_scale.score.closure import far_cut
from hcm_scale.score.edges import predict_edges
from hcm_scale.score.metrics import roc_auc
from hcm_scale.score.nodes import score_nodes, with_closure, with_strange
from hcm_scale.score.numbering import edge_index
from hcm_scale.stages.embedding import embed_samples
from hcm_scale.stages.score import Scoring

Trend = Callable[[Path, int], dict[str, float]]


def auc_trend(
    graph: Graph,
    structure: Graph,
    x: NDArray[np.float32],
    model: dict[str, Any],
    *,
    how: Scoring,
    propagated: bool,
    device: str,
) -> Trend | None:
    """A function of (samples folder, samples so far) that scores the newest sample; None where labels are unknown.

    `model` holds the arguments of `HopModel`; the other arguments are those of the score stage.
    """
    if graph.y is None or not 0 < np.count_nonzero(graph.y) < graph.num_nodes:
        return None
    y, edges = graph.y, edge_index(graph.indptr, graph.indices, directed=graph.directed)

    def newest(folder: Path, num_samples: int) -> dict[str, float]:
        sample = load_sample(folder, num_samples - 1)
        embedded = embed_samples(model, [sample], structure, x, propagated=propagated, device=device)
        hops = predict_edges(edges, embedded, hop=how.hop, device=device)
        scores = score_nodes(edges, hops, trim=how.trim)
        scores, _ = with_strange(with_closure(scores, edges, hops.mean, far_cut(hops.mean, how.far_share)))
        return {"ahp_auc": roc_auc(y, scores.ahp), "strange_auc": roc_auc(y, scores.strange)}

    return newest
