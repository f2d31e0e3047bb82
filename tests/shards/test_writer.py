"""Claims about a shard (its bytes, its row groups, its order), and about the folder until it is sealed."""

import dataclasses
import json
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from hcm_scale import shards
from hcm_scale.base.files import FolderError, hash_file


def as_set(u, v):
    return set(zip(u.tolist(), v.tolist(), strict=True))


def test_write_shard__same_pairs_same_bytes(tmp_path, plan, make_pairs):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = shards.write_shard(tmp_path / "a", plan, 1, *make_pairs(plan, 1))
    two = shards.write_shard(tmp_path / "b", plan, 1, *make_pairs(plan, 1))
    assert one == two
    assert (tmp_path / "a" / one.file).read_bytes() == (tmp_path / "b" / one.file).read_bytes()
    assert hash_file(tmp_path / "a" / one.file) == one.hash
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["shard-00001.json", "shard-00001.parquet"]


def test_write_shard__one_class_a_row_group_and_nothing_lost(tmp_path, plan, make_pairs):
    u, v, hop, counts = make_pairs(plan, 0)
    shard = shards.write_shard(tmp_path, plan, 0, u, v, hop, counts)
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
    shard = shards.write_shard(tmp_path, wide, 0, u, v, hop, np.array([0, 1, 0]))
    assert shard.row_groups == ((2, 1),)
    assert pq.read_table(tmp_path / shard.file).to_pydict() == {"u": [2**32], "v": [5], "hop": [2]}


def test_write_shard__takes_no_pairs_at_all(tmp_path, plan):
    none = np.empty(0, np.int32)
    shard = shards.write_shard(tmp_path, plan, 0, none, none, np.empty(0, np.uint8), np.zeros(3, np.int64))
    assert shard.num_rows == 0
    assert pq.read_table(tmp_path / shard.file).num_rows == 0


def test_write_shard__a_row_group_is_a_uniform_sample_of_the_shards_sources(tmp_path, plan):
    u = np.repeat(np.arange(64, dtype=np.int32), 500)
    options = dataclasses.replace(plan, row_group_rows=6400)
    shard = shards.write_shard(tmp_path, options, 0, u, u, np.ones(len(u), np.uint8), np.array([len(u), 0, 0]))
    observed = np.bincount(pq.ParquetFile(tmp_path / shard.file).read_row_group(0)["u"].to_numpy(), minlength=64)
    # without replacement the statistic is smaller than chi-square by the share left out
    statistic = ((observed - 100) ** 2 / 100).sum() / (1 - 6400 / len(u))
    assert 1e-3 < stats.chi2(63).sf(statistic) < 0.999


def test_shuffle_pairs__keeps_pairs_together_and_depends_on_the_key_alone():
    u, v = np.arange(1000), np.arange(1000) + 5
    again_u, again_v = u.copy(), v.copy()
    shards.shuffle_pairs(3, u, v)
    shards.shuffle_pairs(3, again_u, again_v)
    assert np.array_equal(v, u + 5)
    assert np.array_equal(np.sort(u), np.arange(1000))
    assert np.array_equal(u, again_u)
    assert not np.array_equal(u, np.arange(1000))


def test_shuffle_pairs__makes_all_permutations_alike():
    seen = Counter()
    for trial in range(4800):
        u = np.arange(4)
        shards.shuffle_pairs(trial, u, u.copy())
        seen[tuple(u.tolist())] += 1
    observed = [seen[p] for p in permutations(range(4))]
    assert len(observed) == math.factorial(4)
    assert stats.chisquare(observed).pvalue > 1e-3


def fill(out, plan, make_pairs, indices):
    for index in indices:
        shards.write_shard(out, plan, index, *make_pairs(plan, index))


def test_seal_labels__leaves_the_shards_and_the_manifest_alone(labels):
    names = sorted(path.name for path in labels.folder.iterdir())
    assert names == ["manifest.json", *(f"shard-{index:05d}.parquet" for index in range(labels.plan.num_shards))]


def test_collect_shards__names_the_first_unfinished_shard(tmp_path, plan, make_pairs):
    fill(tmp_path, plan, make_pairs, [0, 2])
    with pytest.raises(FolderError, match="shard-00001"):
        shards.collect_shards(tmp_path, plan)


def test_read_finished_shard__believes_only_a_whole_shard(tmp_path, plan, make_pairs):
    fill(tmp_path, plan, make_pairs, [0, 1, 2])
    assert shards.read_finished_shard(tmp_path, plan, 0) is not None
    assert shards.read_finished_shard(tmp_path, plan, 3) is None
    data = bytearray((tmp_path / "shard-00001.parquet").read_bytes())
    data[1000] ^= 1
    (tmp_path / "shard-00001.parquet").write_bytes(data)
    assert shards.read_finished_shard(tmp_path, plan, 1) is None
    note = tmp_path / "shard-00002.json"
    counts = json.loads(note.read_text())["counts"]
    for text in (json.dumps(json.loads(note.read_text()) | {"counts": counts[::-1]}), '{"file": ', "[" * 100_000):
        note.write_text(text)
        assert shards.read_finished_shard(tmp_path, plan, 2) is None
