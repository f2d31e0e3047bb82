"""The first propagation by ranks: the bytes of one process, whatever a killed run left."""

import numpy as np
import pytest

from hcm_scale.features import propagate as features
from hcm_scale.graph import Graph
from hcm_scale.stages import purify as stage


@pytest.mark.parametrize("num_ranks", [1, 2, 5, 12])
def test_propagate_shared__any_number_of_ranks_writes_the_same(random_csr, together, tmp_path, monkeypatch, num_ranks):
    for module in (features, stage):
        monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    graph = Graph(*random_csr(60, 150))
    x = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    features.propagate_features(graph, x, tmp_path / "alone")
    (tmp_path / "shared" / "parts").mkdir(parents=True)
    (tmp_path / "shared" / "parts" / "rows-20.npy").write_bytes(b"of a killed run")
    made = together(num_ranks, lambda world: stage.propagate_shared(graph, x, tmp_path / "shared", world))
    assert all(np.array_equal(found, made[0]) for found in made)
    for path in (tmp_path / "alone").iterdir():
        assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "shared" / "parts").exists()


def test_propagate_shared__features_of_another_graph_are_refused_by_all(random_csr, together, tmp_path):
    graph, x = Graph(*random_csr(60, 150)), np.zeros((59, 5), np.float32)
    with pytest.raises(ValueError, match="60 rows"):
        together(2, lambda world: stage.propagate_shared(graph, x, tmp_path, world))
