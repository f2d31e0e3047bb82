"""Mini-batches: labelled pairs and sampled neighbourhoods.

    sample = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), [None], seed=0, hub_cap=512)
    for batch in prefetch(pair_batches(...), lambda pairs: make_batch(pairs, x, sample), depth=4, workers=1):
        ...

`pairs` decides which pairs a step sees, `neighbors` draws the rows of Â that they need and joins both with the
attributes, `prefetch` keeps that ahead of the model.
"""

from hcm_scale.base.threads import prefetch
from hcm_scale.sampling.neighbors import BACKENDS, NeighborSampler, make_batch

__all__ = ["BACKENDS", "NeighborSampler", "make_batch", "prefetch"]
