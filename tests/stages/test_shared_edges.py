"""Ranks that share the edges end in the bits of one process."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.ranks.world import World
from hcm_scale.score import edges as edges_module
from hcm_scale.score.edges import predict_edges
from hcm_scale.score.head import Head
from hcm_scale.score.numbering import edge_index
from hcm_scale.stages.shared_edges import EdgeRange, Sharing, predict_shared

WIDTH, HIDDEN, CLASSES, CHUNK = 8, 16, 4, 32
SAMPLES = ("one", "two", "three")  # hashes


def make_samples(num_nodes: int, num_samples: int = 3):
    """(z, head) of each sample, made as they are asked for."""
    for seed in range(num_samples):
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        yield draw(num_nodes, WIDTH), Head(draw(WIDTH, HIDDEN), draw(HIDDEN), draw(HIDDEN, CLASSES), draw(CLASSES))


class Meeting(World):
    """A rank that meets the others as `meet` says."""

    def __init__(self, rank: int, size: int, meet=lambda: None) -> None:
        super().__init__(rank, size)
        self.__dict__.update(meet=meet)

    def barrier(self) -> None:
        self.meet()


def predict_by_ranks(edges, num_ranks: int, folder, on_disk: bool):
    """All ranks in one thread: at rank 0's second meeting the others do their part."""
    meetings = []

    def predict(world: World):
        sharing = Sharing(world, folder, CHUNK, on_disk, "cpu", SAMPLES)
        begun = sharing.begin(edges.num_edges)
        return predict_shared(edges, make_samples(edges.num_nodes), sharing, begun=begun)

    def meet() -> None:
        meetings.append(0)
        if len(meetings) == 2:
            assert [predict(Meeting(rank, num_ranks)) for rank in range(1, num_ranks)] == [None] * (num_ranks - 1)

    return predict(Meeting(0, num_ranks, meet))


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("max_neighbors", [None, 3])
@pytest.mark.parametrize("num_ranks", [1, 2, 5, 40])
def test_predict_shared__any_number_of_ranks_gives_the_same_bits(
    random_csr, tmp_path, num_ranks, max_neighbors, on_disk
):
    edges = edge_index(*random_csr(100, 400), max_neighbors=max_neighbors)
    alone = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    shared = predict_by_ranks(edges, num_ranks, tmp_path, on_disk)
    for got, wanted in zip(shared, alone, strict=True):
        assert got.tobytes() == wanted.tobytes()
    assert isinstance(shared.mean, np.memmap) == on_disk
    assert not (tmp_path / "parts").exists()


def test_predict_shared__a_graph_without_edges(tmp_path):
    edges = edge_index(np.zeros(6, np.int64), np.empty(0, np.int32))
    assert predict_by_ranks(edges, 2, tmp_path, True).mean.shape == (0,)


def test_predict_shared__clears_what_a_killed_run_left(random_csr, tmp_path):
    (tmp_path / "parts" / "rank-0").mkdir(parents=True)
    edges = edge_index(*random_csr(50, 100))
    assert len(predict_by_ranks(edges, 2, tmp_path, False).mean) == edges.num_edges


def test_edge_range__lists_the_edges_of_its_window(random_csr):
    edges = edge_index(*random_csr(60, 150))
    window = EdgeRange.of(edges, 20, 70)
    got, wanted = window.edges(5, 30), edges.edges(25, 50)
    assert all(np.array_equal(a, b) for a, b in zip(got[:2], wanted[:2], strict=True))
    assert got[2].tolist() == list(range(5, 30))
    assert window.num_edges == 50


@given(st.integers(0, 500), st.integers(1, 60), st.integers(1, 20))
def test_sharing__covers_every_edge_once_in_whole_chunks(num_edges, chunk, num_ranks):
    sharing = Sharing(World(size=num_ranks), Path("scores"), chunk, False, "cpu", SAMPLES)
    ranges = [sharing.edge_range(num_edges, rank) for rank in range(num_ranks)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_edges
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(first % chunk == 0 or first == num_edges for first, _ in ranges)
    sizes = [-(-(last - first) // chunk) for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_predict_edges__variance_is_over_the_samples_in_every_stretch(random_csr, monkeypatch):
    edges = edge_index(*random_csr(50, 100))
    whole = predict_edges(edges, make_samples(50)).var
    monkeypatch.setattr(edges_module, "_SEAL_EDGES", 7)
    np.testing.assert_array_equal(predict_edges(edges, make_samples(50)).var, whole)
