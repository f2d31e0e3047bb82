"""Embeddings in mapped files, by one rank or several: the bits of one process with everything in memory."""

import numpy as np
import pytest

from hcm_scale.graph import Graph
from hcm_scale.model import HopModel
from hcm_scale.ranks.world import World
from hcm_scale.stages.embedding import embed_samples

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
