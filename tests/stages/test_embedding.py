"""Embeddings in mapped files, by one rank or several: the bits of one process with everything in memory."""

from pathlib import Path

import numpy as np
import pytest

from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.ranks.world import World
from hcm_scale.stages.embedding import embed_samples, new_rows

N = 90


@pytest.fixture
def structure(random_csr) -> Graph:
    return Graph(*random_csr(N, 300))


def embed(structure, num_layers, num_attributes, propagated, **where):
    """The embeddings of three samples, copied."""
    x = np.random.default_rng(0).standard_normal((N, num_attributes)).astype(np.float32)
    model = {"num_attributes": num_attributes, "width": 8, "num_layers": num_layers}
    samples = [dict(HopModel(**model, seed=seed).state_dict()) for seed in range(3)]
    options = {"propagated": propagated, "chunk_rows": 16, "device": "cpu"} | where
    return [z.numpy().copy() for z, _ in embed_samples(model, samples, structure, x, **options)]


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
@pytest.mark.parametrize(("num_attributes", "propagated"), [(5, True), (5, False), (40, False)])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_embed_samples__in_files_by_any_number_of_ranks_are_those_in_memory(
    structure, together, tmp_path, num_layers, num_attributes, propagated, num_ranks
):
    wanted = embed(structure, num_layers, num_attributes, propagated)

    def of_rank(world: World):
        return embed(structure, num_layers, num_attributes, propagated, folder=tmp_path / "layers", world=world)

    for found in together(num_ranks, of_rank):
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not np.array_equal(wanted[0], wanted[2])


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 3), (1 << 16, 64)])
def test_new_rows__begin_with_a_cache_line_and_are_apart(shape):
    rows, others = new_rows(*shape), new_rows(*shape)
    assert rows.shape == shape
    assert rows.is_contiguous()
    assert rows.numel() == 0 or rows.data_ptr() % 64 == 0
    rows[:], others[:] = 1.0, 2.0
    assert rows.sum() == rows.numel()


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="needs large pages")
def test_new_rows__are_in_memory_that_may_have_large_pages():
    rows = new_rows(5 << 20, 64)  # torch has large pages up to some size; none is written, so none is taken
    assert "hg" in flags_of(rows.data_ptr() + rows.nbytes // 2)


def flags_of(address: int) -> list[str]:
    """What the system was asked about the memory around an address."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            is_there = begin <= address < end
        elif is_there and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("no memory is there")
