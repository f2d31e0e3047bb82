"""A small sealed folder of labelled pairs, made by the real writer."""

from pathlib import Path

import numpy as np
import pytest

from hcm_scale import shards
from hcm_scale.shards import LabelPlan, Labels, open_labels

PLAN = LabelPlan("f00d", num_nodes=5000, directed=False, classes=3, num_sources=300, pairs_per_class=40, seed=5,
            shard_pairs=64 * 120, row_group_rows=700)  # fmt: skip


def pairs_of(plan: LabelPlan, index: int) -> tuple[np.ndarray, ...]:
    """u, v, hop, counts of a shard: distinct pairs, classes of unequal sizes."""
    rng = np.random.default_rng(index)
    first, last = plan.source_range(index)
    rows = (last - first) * 60
    hop = rng.choice([1, 2, 2, 3, 3, 3], rows).astype(np.uint8)
    u = np.repeat(np.arange(first, last, dtype=np.int32), 60)
    v = np.tile(np.arange(60, dtype=np.int32), last - first) + 1000
    return u, v, hop, 2 * np.bincount(hop, minlength=plan.classes + 1)[1:]


@pytest.fixture
def plan() -> LabelPlan:
    return PLAN


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    """Five shards of three classes, two to three row groups each."""
    out = tmp_path / "labels"
    out.mkdir()
    for index in range(PLAN.num_shards):
        shards.write_shard(out, PLAN, index, *pairs_of(PLAN, index))
    shards.seal_labels(out, PLAN, shards.collect_shards(out, PLAN))
    return open_labels(out)


@pytest.fixture
def make_pairs():
    return pairs_of
