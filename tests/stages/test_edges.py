"""Ranks that share the edges end in the bits of one process."""

import sys
from functools import partial
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.ranks.world import World
from hcm_scale.score.edge_index import PairHead, edge_index
from hcm_scale.score.edges import predict_edges
from hcm_scale.stages import edges as shared_edges

WIDTH, HIDDEN, CLASSES, CHUNK = 8, 16, 4, 32
KEY = "of these samples"


def make_samples(num_nodes: int, num_samples: int = 3):
    """(z, head) of each sample, made as they are asked for."""
    for seed in range(num_samples):
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        yield draw(num_nodes, WIDTH), PairHead(draw(WIDTH, HIDDEN), draw(HIDDEN), draw(HIDDEN, CLASSES), draw(CLASSES))


@pytest.fixture
def predict_by_ranks(together, tmp_path):
    """What rank 0 returns; each rank predicts with samples that `watch` sees pass: (rank, samples of this call)."""

    def predict(edges, num_ranks: int, on_disk: bool = False, watch=lambda rank, number: None):
        def of_rank(world: World):
            sharing = shared_edges.Sharing(world, tmp_path, CHUNK, on_disk, "cpu", 3, KEY)
            begun = sharing.begin(edges.num_edges)
            left = islice(make_samples(edges.num_nodes), begun, None)

            def embedded():
                for number, sample in enumerate(left):
                    world.barrier()
                    yield sample
                    watch(world.rank, begun + number)

            return shared_edges.predict_shared(edges, embedded(), sharing, begun=begun)

        first, *others = together(num_ranks, of_rank)
        assert others == [None] * (num_ranks - 1)
        return first

    return predict


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("num_ranks", [1, 2, 5, 40])
def test_predict_shared__any_number_of_ranks_gives_the_same_bits(
    random_csr, tmp_path, predict_by_ranks, num_ranks, on_disk
):
    edges = edge_index(*random_csr(100, 400))
    alone = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    shared = predict_by_ranks(edges, num_ranks, on_disk)
    for got, wanted in zip(shared, alone, strict=True):
        assert got.tobytes() == wanted.tobytes()
    assert shared.mean.flags.owndata != (on_disk or num_ranks > 1)
    assert not list((tmp_path / "parts").glob("*/layers"))


def test_predict_shared__a_graph_without_edges(predict_by_ranks):
    edges = edge_index(np.zeros(6, np.int64), np.empty(0, np.int32))
    assert predict_by_ranks(edges, 2, True).mean.shape == (0,)


def test_predict_shared__clears_what_a_killed_run_left(random_csr, tmp_path, predict_by_ranks):
    sharing = shared_edges.Sharing(World(), tmp_path, CHUNK, False, "cpu", 3, KEY)
    for name in ("rank-0", "rank-7", "layers"):
        (sharing.parts / name).mkdir(parents=True)
    edges = edge_index(*random_csr(50, 100))
    assert len(predict_by_ranks(edges, 2).mean) == edges.num_edges
    assert {path.name for path in sharing.parts.iterdir()} == {"rank-0", "rank-1"}
    sharing.clear()
    assert not (tmp_path / "parts").exists()


class DiedError(Exception):
    """Of a rank, in a test."""


def die(dying: int, at: int):
    """A watch that has one rank die when it has predicted a sample."""

    def watch(rank: int, number: int) -> None:
        if (rank, number) == (dying, at):
            raise DiedError

    return watch


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_predict_shared__goes_on_after_the_samples_that_all_ranks_have_seen(
    random_csr, monkeypatch, predict_by_ranks, num_ranks, on_disk
):
    monkeypatch.setattr(shared_edges, "SAVE_SECONDS", 0.0)
    edges = edge_index(*random_csr(100, 400))
    wanted = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    with pytest.raises(DiedError):
        predict_by_ranks(edges, num_ranks, on_disk, die(0, 1))
    seen = []
    found = predict_by_ranks(edges, num_ranks, on_disk, lambda rank, number: seen.append(number))
    assert set(seen) <= {1, 2}  # a rank that came to sample 1 has kept sample 0
    assert 2 in seen
    again = predict_by_ranks(edges, num_ranks, on_disk, lambda rank, number: seen.append(-1))
    assert -1 not in seen  # all was kept until somebody clears it
    assert [part.tobytes() for part in again] == [part.tobytes() for part in wanted]
    assert [part.tobytes() for part in found] == [part.tobytes() for part in wanted]


def test_predict_shared__a_rank_that_is_ahead_counts_no_sample_twice(
    random_csr, tmp_path, monkeypatch, predict_by_ranks
):
    monkeypatch.setattr(shared_edges, "SAVE_SECONDS", 0.0)
    edges = edge_index(*random_csr(100, 400))
    wanted = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    with pytest.raises(DiedError):
        predict_by_ranks(edges, 3, watch=die(0, 1))
    (index,) = (tmp_path / "parts").glob("*/rank-0/progress.json")
    text = index.read_text()
    index.write_text(text.replace('"num_samples": ', '"num_samples": 1'))
    assert index.read_text() != text
    found = predict_by_ranks(edges, 3)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in wanted]


def test_predict_shared__keeps_the_ranges_that_are_finished(random_csr, tmp_path, predict_by_ranks):
    edges = edge_index(*random_csr(100, 400))
    wanted = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    with pytest.raises(DiedError):
        predict_by_ranks(edges, 3, watch=die(1, 2))
    (folder,) = (tmp_path / "parts").iterdir()
    parts = [folder / f"rank-{rank}" / "progress.json" for rank in range(3)]
    parts[2].unlink()
    before = parts[1].stat().st_mtime_ns
    with pytest.raises(DiedError):
        predict_by_ranks(edges, 3, watch=die(2, 2))
    assert parts[2].exists()
    assert parts[1].stat().st_mtime_ns == before
    seen = []
    found = predict_by_ranks(edges, 3, watch=lambda rank, number: seen.append(rank))
    assert seen == []
    assert [part.tobytes() for part in found] == [part.tobytes() for part in wanted]


@pytest.mark.parametrize("change", ["damaged", "ranks", "samples"])
def test_predict_shared__believes_nothing_that_was_kept_of_something_else(
    random_csr, tmp_path, monkeypatch, predict_by_ranks, change
):
    edges = edge_index(*random_csr(100, 400))
    wanted = predict_edges(edges, make_samples(100), chunk_edges=CHUNK)
    with pytest.raises(DiedError):
        predict_by_ranks(edges, 3, watch=die(1, 2))
    for path in (tmp_path / "parts").glob("*/rank-*/mean-*"):
        path.write_bytes(path.read_bytes()[:-4] + b"torn" if change == "damaged" else path.read_bytes())
    if change == "samples":
        monkeypatch.setattr(sys.modules[__name__], "KEY", "of others")
    seen = []
    found = predict_by_ranks(edges, 2 if change == "ranks" else 3, watch=lambda rank, number: seen.append(number))
    assert min(seen) == 0
    assert [part.tobytes() for part in found] == [part.tobytes() for part in wanted]


@given(st.integers(0, 500), st.integers(1, 60), st.integers(1, 20))
def test_share__covers_every_item_once_in_whole_chunks(num_items, chunk, num_ranks):
    ranges = [World(size=num_ranks).share(num_items, chunk, rank) for rank in range(num_ranks)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_items
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(first % chunk == 0 or first == num_items for first, _ in ranges)
    sizes = [-(-(last - first) // chunk) for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1
