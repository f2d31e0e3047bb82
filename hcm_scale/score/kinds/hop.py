"""Neighbours seem far: the model predicts the node's neighbours to be several hops away.

    AHP(v) = mean over v's neighbours of the edge's mean hop        average hop prediction
    IV(v)  = mean over v's neighbours of the edge's variance        inference variance
    HAV(v) = AHP(v) / max AHP + IV(v) / max IV                      (a term whose maximum is 0 is 0)

Of several encoders the hops of each edge are averaged. A node without neighbours has 0, the least anomalous value: a
hop is at least 1.

A model that has learnt nothing predicts the middle of all hops for every pair, (C + 1) / 2 of C, one that has learnt
all predicts 1 for edges. Where the mean over edges has gone less than two fifths of that way, hops weigh less
(`learnt`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base.threads import map_slices, run_in_slices
from hcm_scale.score.kinds.around import Around, hops_of_edges
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import Column, Kind, Reason, Values
from hcm_scale.score.kinds.phrases import held_against, like_text, some_neighbors

_FAR_ENOUGH = 0.4  # of the way from knowing nothing to knowing all


def learnt(mean: NDArray[np.float32], num_classes: int) -> float:
    """How far the model tells edges from other pairs, 0 to 1, from the mean hop of every edge, NaN where it has none.

    >>> learnt(np.array([1.3, 2.5, np.nan], np.float32), 4), learnt(np.array([2.5, 2.2], np.float32), 4)
    (1.0, 0.25)
    """
    sums = map_slices(len(mean), lambda part: [np.nansum(mean[part], dtype=float), np.isfinite(mean[part]).sum()])
    total, count = np.reshape(sums, (-1, 2)).sum(axis=0)
    middle = (num_classes + 1) / 2.0
    way = (middle - total / max(1.0, count)) / (middle - 1.0)
    return round(float(np.clip(way / _FAR_ENOUGH, 0.0, 1.0)), 6)


def _numbers(inputs: KindInputs) -> list[Values]:
    assert inputs.hops is not None
    both, mean, num_classes = (inputs.hops.ahp, inputs.hops.iv), inputs.hops.mean, inputs.hops.num_classes
    inputs.measured(lambda: [learnt(mean, num_classes)], "learnt")
    (maxima,) = inputs.measured(lambda: [_maxima(*both)], "maxima")
    hav = np.zeros(len(both[0]))

    def add(part: slice) -> None:
        for value, maximum in zip(both, maxima, strict=True):
            if maximum > 0:
                hav[part] += value[part] / maximum

    run_in_slices(len(hav), add)
    return [*both, hav]


def _maxima(*values: Values) -> Values:
    of_slices = map_slices(len(values[0]), lambda part: [each[part].max() for each in values])
    maxima: Values = np.reshape(of_slices, (-1, len(values))).max(axis=0, initial=0.0)
    return maxima


def _reason(around: Around) -> dict[str, Any]:
    return around.mean_length(HOP.name, hops_of_edges)


def _sentence(e: Any, r: Reason) -> str:
    if r.value is None:
        return "none of its edges was scored"
    own, usual, _ = held_against(r.value, r.usual, 1, like_text(e))
    look, average = ("looks", "") if r.count == 1 else ("look", ", on average")
    return f"{some_neighbors(r.count, e.degree)} {look} {own} hops away to the model{average}{usual}"


_FARTHER = "the higher a node stands, the farther its own neighbours seem to be from it"
HOP = Kind(
    name="hop",
    columns={
        "ahp": Column(
            "average hop prediction (AHP)",
            "AHP, average hop prediction: how far away its neighbours look, on average.",
            means=_FARTHER,
        ),
        "iv": Column(
            "inference variance (IV)",
            "IV, inference variance: how much that answer changes from one sample of the model to the next.",
        ),
        "hav": Column(
            "hops and their uncertainty (HAV)",
            "HAV, hops and variance: AHP and IV added up, each on its own scale.",
            means=f"{_FARTHER} and the less sure that is",
        ),
    },
    title="neighbours seem far",
    short="Far",
    help="Its direct neighbours look several hops away to the model.",
    numbers=_numbers,
    needs_hops=True,
    weight=lambda facts: facts.of_hops,
    by_encoder=lambda inputs: inputs.hops.views,
    stored={
        "maxima": lambda array: array is not None and array.shape == (2,) and bool(np.isfinite(array).all()),
        "learnt": lambda array: array is not None and array.shape == (1,) and 0.0 <= array[0] <= 1.0,
    },
    follows_differences=True,
    reason=_reason,
    sentence=_sentence,
)
