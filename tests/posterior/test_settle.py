"""The rule that ends a chain: repeated samples settle it, wandering ones do not, and edges rank as they should."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from hcm_scale.posterior.loop import RankingConvergence, rank_correlation


class Line(nn.Module):
    """Logits of two classes: 0, and x w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, batch):
        score = batch.x @ self.w
        return torch.stack([torch.zeros_like(score), score], 1)


def settling(settled: float) -> RankingConvergence:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return RankingConvergence(Line(), SimpleNamespace(x=x, hop=torch.zeros(200, dtype=torch.long)), settled)


def test_settling__ends_at_the_fourth_of_equal_samples():
    watched = settling(1.0)
    found = []
    for _ in range(5):
        watched.add({"w": torch.tensor([1.0, 2.0, 3.0])})
        found.append(watched.has_settled)
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize(("settled", "ends"), [(0.999, False), (0.2, True)])
def test_settling__hears_how_far_the_newest_sample_moves_the_mean(settled, ends):
    """The fourth sample ranks the edges the other way round, with the weight of all three before."""
    watched = settling(settled)
    for _ in range(3):
        watched.add({"w": torch.tensor([0.1, 0.0, 0.0])})
    watched.add({"w": torch.tensor([0.0, 0.4, 0.0])})
    assert watched.has_settled is ends


def test_rank_correlation__is_spearman_s():
    draw = torch.Generator().manual_seed(1)
    a = torch.randn(300, generator=draw)
    b = a + torch.randn(300, generator=draw)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize("length", [0, 1])
def test_rank_correlation__of_next_to_nothing_agrees(length):
    assert rank_correlation(torch.zeros(length), torch.ones(length)) == 1.0
