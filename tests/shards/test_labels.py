"""Claims about the plan of a folder, and about reading: all that was written, and nothing that was damaged."""

import dataclasses
import json
import threading

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.base.files import FolderError, read_sealed, write_sealed
from hcm_scale.shards import LabelPlan, open_labels


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_read__gives_back_every_pair_by_class(labels, plan, make_pairs):
    assert labels.plan == plan
    for hop in range(1, plan.classes + 1):
        read = [labels.read(group) for group in labels.row_groups(hop)]
        found = sorted((int(u), int(v)) for us, vs in read for u, v in zip(us, vs, strict=True))
        written = []
        for index in range(plan.num_shards):
            u, v, klass, _ = make_pairs(plan, index)
            written += zip(u[klass == hop].tolist(), v[klass == hop].tolist(), strict=True)
        assert found == sorted(written)
        assert labels.stored[hop - 1] == len(written)
        assert labels.counts[hop - 1] == 2 * len(written)
    assert read[0][0].dtype == np.int32


def test_read__from_several_threads_at_once(labels):
    groups = labels.row_groups(3) * 5
    expected = {group: labels.read(group)[1] for group in groups}
    wrong = []

    def work():
        wrong.extend(group for group in groups if not np.array_equal(labels.read(group)[1], expected[group]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_programs__count_pairs_by_hop(labels):
    expected = dict(enumerate(labels.stored, 1))
    table = ds.dataset(labels.folder, format="parquet", exclude_invalid_files=True).to_table()
    counted = pc.value_counts(table["hop"]).to_pylist()
    assert {entry["values"]: entry["counts"] for entry in counted} == expected
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql(f"select hop, count(*) from '{labels.folder}/*.parquet' group by hop").fetchall()
    assert dict(rows) == expected


def test_other_programs__skip_the_row_groups_of_other_classes(labels):
    fragment = next(ds.dataset(labels.folder / "shard-00000.parquet").get_fragments())
    groups = fragment.subset(pc.field("hop") == 2).row_groups
    assert [group.id for group in groups] == [
        index for index, (hop, _) in enumerate(labels.shards[0].row_groups) if hop == 2
    ]


def test_open_labels__refuses_another_graph(labels):
    assert open_labels(labels.folder, "f00d").shards == labels.shards
    with pytest.raises(FolderError, match="another graph"):
        open_labels(labels.folder, "beef")


def test_open_labels__refuses_what_is_absent_unfinished_or_newer(labels, tmp_path):
    with pytest.raises(FolderError, match="missing"):
        open_labels(tmp_path / "nowhere")
    (tmp_path / "begun").mkdir()
    with pytest.raises(FolderError, match="unfinished"):
        open_labels(tmp_path / "begun")
    path = labels.folder / "manifest.json"
    write_sealed(path, read_sealed(path) | {"format": 2})
    with pytest.raises(FolderError, match="has format 2"):
        open_labels(labels.folder)


def test_open_labels__refuses_a_manifest_with_one_digit_changed(labels):
    path = labels.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["counts"][0] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="seal"):
        open_labels(labels.folder)


def test_open_labels__refuses_a_shard_outside_the_folder(labels):
    path = labels.folder / "manifest.json"
    body = read_sealed(path)
    (labels.folder / body["shards"][0]["file"]).rename(labels.folder.parent / "shard")
    body["shards"][0]["file"] = "../shard"
    write_sealed(path, body)
    with pytest.raises(FolderError, match=r"'\.\./shard' is not legal as a name"):
        open_labels(labels.folder)


def test_open_labels__refuses_torn_and_missing_shards(labels):
    path = labels.folder / "shard-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(FolderError, match="torn"):
        open_labels(labels.folder)
    path.unlink()
    with pytest.raises(FolderError, match="missing"):
        open_labels(labels.folder)


def test_open_labels__verify_finds_any_flipped_bit(labels):
    shard = labels.shards[2]
    damage(labels.folder / shard.file, shard.num_bytes // 3)
    open_labels(labels.folder)
    with pytest.raises(FolderError, match="hash differs"):
        open_labels(labels.folder, verify=True)


def test_read__refuses_every_flipped_byte(labels):
    """Of a whole file: each flip is either refused by a read or changes nothing that is read."""
    shard = labels.shards[0]
    path = labels.folder / shard.file
    whole = path.read_bytes()
    groups = [group for hop in (1, 2, 3) for group in labels.row_groups(hop) if group.shard == 0]
    expected = [labels.read(group) for group in groups]
    footer_start = shard.num_bytes - shard.footer_bytes
    rng = np.random.default_rng(0)
    spots = np.r_[rng.integers(4, footer_start, 60), rng.integers(footer_start, shard.num_bytes, 30)]
    refused = 0
    for number, at in enumerate(spots.tolist()):
        damage(path, at)
        # a fresh name of the same bytes, so that no footer is remembered
        fresh = path.with_name(f"shard-1{number:04d}.parquet")
        path.rename(fresh)
        damaged = dataclasses.replace(labels, shards=(dataclasses.replace(shard, file=fresh.name), *labels.shards[1:]))
        for group, (u, v) in zip(groups, expected, strict=True):
            try:
                found = damaged.read(group)
            except FolderError:
                refused += 1
                continue
            assert np.array_equal(found[0], u)
            assert np.array_equal(found[1], v)
        fresh.unlink()
        path.write_bytes(whole)
    assert refused >= 60


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
