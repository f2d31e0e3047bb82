"""Claims about the plan of a labels folder."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.shards import LabelPlan
from hcm_scale.shards.labels import Shard

PLAN = LabelPlan("f00d", 100, False, classes=4, num_sources=50, pairs_per_class=None, seed=0,
                 shard_pairs=4_000_000, row_group_rows=65_536)  # fmt: skip


@given(
    num_nodes=st.integers(1, 10**7),
    num_sources=st.integers(1, 10**6),
    classes=st.integers(2, 16),
    pairs_per_class=st.none() | st.integers(1, 10**5),
    shard_pairs=st.integers(1, 10**7),
)
def test_plan__cuts_the_sources_into_whole_shards_of_bounded_size(
    num_nodes, num_sources, classes, pairs_per_class, shard_pairs
):
    plan = LabelPlan("f", num_nodes, False, classes, num_sources, pairs_per_class, 0, shard_pairs, 100)
    per_source = min(num_nodes - 1, classes * (pairs_per_class or num_nodes)) or 1
    assert plan.sources_per_shard == 1 or plan.sources_per_shard * per_source <= shard_pairs
    assert plan.source_range(0)[0] == 0
    assert plan.source_range(plan.num_shards - 1)[1] == num_sources
    first, last = plan.source_range(plan.num_shards - 1)
    assert first < last
    if plan.num_shards > 1:
        assert plan.source_range(plan.num_shards - 2)[1] == first


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", 1),
        ("classes", 17),
        ("pairs_per_class", 0),
        ("num_sources", 0),
        ("shard_pairs", 0),
        ("row_group_rows", 0),
    ],
)
def test_plan__refuses_what_is_out_of_range_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field}={value}"):
        dataclasses.replace(PLAN, **{field: value})


def test_plan__takes_the_index_type_that_fits():
    assert PLAN.index_type == np.int32
    assert dataclasses.replace(PLAN, num_nodes=2**31).index_type == np.int64


def test_plan__json_and_back():
    assert LabelPlan(**PLAN.to_json()) == PLAN


def test_shard__json_and_back():
    shard = Shard("a.parquet", 0, 64, 100, "ab", 10, "cd", (3, 4), ((1, 3), (2, 2), (2, 2)))
    assert Shard.from_json(shard.to_json()) == shard
    assert (shard.num_rows, shard.stored(1), shard.stored(2)) == (7, 3, 4)
