"""Claims about one shard: its bytes, its row groups, its order."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from hcm_scale.base.files import hash_file
from hcm_scale.shards.writer import in_order, write_shard


def as_set(u, v):
    return set(zip(u.tolist(), v.tolist(), strict=True))


def test_write_shard__same_pairs_same_bytes(tmp_path, plan, make_pairs):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = write_shard(tmp_path / "a", plan, 1, *make_pairs(plan, 1))
    two = write_shard(tmp_path / "b", plan, 1, *make_pairs(plan, 1))
    assert one == two
    assert (tmp_path / "a" / one.file).read_bytes() == (tmp_path / "b" / one.file).read_bytes()
    assert hash_file(tmp_path / "a" / one.file) == one.hash
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["shard-00001.json", "shard-00001.parquet"]


def test_write_shard__one_class_a_row_group_and_nothing_lost(tmp_path, plan, make_pairs):
    u, v, hop, counts = make_pairs(plan, 0)
    shard = write_shard(tmp_path, plan, 0, u, v, hop, counts)
    parquet = pq.ParquetFile(tmp_path / shard.file, page_checksum_verification=True)
    assert parquet.schema_arrow.names == ["u", "v", "hop"]
    assert parquet.num_row_groups == len(shard.row_groups)
    found = [set() for _ in range(plan.classes)]
    for index, (klass, rows) in enumerate(shard.row_groups):
        table = parquet.read_row_group(index)
        assert rows == table.num_rows <= plan.row_group_rows
        assert set(table["hop"].to_pylist()) == {klass}
        found[klass - 1] |= as_set(table["u"].to_numpy(), table["v"].to_numpy())
    for klass in range(1, plan.classes + 1):
        assert found[klass - 1] == as_set(u[hop == klass], v[hop == klass])
    assert shard.counts == tuple(counts)


def test_write_shard__takes_empty_classes_and_wide_indices(tmp_path, plan):
    wide = dataclasses.replace(plan, num_nodes=2**33)
    u, v, hop = np.array([2**32]), np.array([5]), np.array([2], np.uint8)
    shard = write_shard(tmp_path, wide, 0, u, v, hop, np.array([0, 1, 0]))
    assert shard.row_groups == ((2, 1),)
    assert pq.read_table(tmp_path / shard.file).to_pydict() == {"u": [2**32], "v": [5], "hop": [2]}


def test_write_shard__takes_no_pairs_at_all(tmp_path, plan):
    none = np.empty(0, np.int32)
    shard = write_shard(tmp_path, plan, 0, none, none, np.empty(0, np.uint8), np.zeros(3, np.int64))
    assert shard.num_rows == 0
    assert pq.read_table(tmp_path / shard.file).num_rows == 0


def test_in_order__a_row_group_is_a_uniform_sample_of_the_shards_sources(plan):
    u = np.repeat(np.arange(64, dtype=np.int32), 500)
    hop = np.ones(len(u), np.uint8)
    shuffled, _, _ = in_order(plan, 0, u, u, hop)
    observed = np.bincount(shuffled[:6400], minlength=64)
    # without replacement the statistic is smaller than chi-square by the share left out
    statistic = ((observed - 100) ** 2 / 100).sum() / (1 - 6400 / len(u))
    assert 1e-3 < stats.chi2(63).sf(statistic) < 0.999
