"""When to stop drawing samples: once one more no longer moves the ranking. A rule without labels.

A probe of edges is predicted under every sample; their mean hop over the samples so far ranks them. The chain has
settled when the rankings without and with the newest sample agree, by Spearman's correlation, and four samples are the
least. Means of more samples move less, so this bounds what one more sample would change, no more than that
(docs/detector.md has the figures). All of it is a function of the samples: a resumed chain shows it those it kept.

Memory: the probe's batch and one number a probed edge.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_LEAST_SAMPLES = 4  # means of fewer agree too easily by chance, and a variance of fewer says little


class Settling:
    """Hears of one sample after the other, and says whether the ranking has settled."""

    def __init__(self, model: nn.Module, probe: Any, settled: float) -> None:
        self._model, self._probe, self._settled = model, probe, settled
        self._num_samples = 0
        self.has_settled = False
        self._mean = torch.zeros(len(probe.hop), dtype=torch.float64)

    @torch.no_grad()
    def add(self, sample: Mapping[str, Tensor]) -> None:
        """Takes the newest sample in; `has_settled` says whether it hardly moved the ranking of the probed edges."""
        device = self._probe.hop.device
        placed = {name: value.to(device) for name, value in sample.items()}
        chances = torch.func.functional_call(self._model, placed, (self._probe,)).softmax(1).double().cpu()
        hop = chances @ torch.arange(1.0, chances.shape[1] + 1, dtype=torch.float64)
        self._num_samples += 1
        before, self._mean = self._mean, torch.lerp(self._mean, hop, 1 / self._num_samples)
        if self._num_samples >= _LEAST_SAMPLES:
            self.has_settled = rank_correlation(before, self._mean) >= self._settled


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of two vectors; equal values keep their order, and a vector without a spread agrees.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 9.0, 5.0]))
    0.8
    """
    ranks = torch.stack([vector.argsort(stable=True).argsort().double() for vector in (a, b)])
    return 1.0 if len(a) < 2 else round(float(torch.corrcoef(ranks)[0, 1]), 12)
