"""Claims about the life of a labels folder."""

import dataclasses
import json

import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.shards import folder, open_labels
from hcm_scale.shards.writer import write_shard


def fill(out, plan, make_pairs, shards):
    for index in shards:
        write_shard(out, plan, index, *make_pairs(plan, index))


def test_seal__leaves_the_shards_and_the_manifest_alone(labels):
    names = sorted(path.name for path in labels.folder.iterdir())
    assert names == ["manifest.json", *(f"shard-{index:05d}.parquet" for index in range(labels.plan.num_shards))]


def test_collect__names_the_first_unfinished_shard(tmp_path, plan, make_pairs):
    folder.begin(tmp_path, plan)
    fill(tmp_path, plan, make_pairs, [0, 2])
    with pytest.raises(FolderError, match="shard-00001"):
        folder.collect(tmp_path, plan)


def test_done__believes_only_a_whole_shard(tmp_path, plan, make_pairs):
    folder.begin(tmp_path, plan)
    fill(tmp_path, plan, make_pairs, [0, 1, 2])
    assert folder.done(tmp_path, plan, 0) is not None
    assert folder.done(tmp_path, plan, 3) is None
    data = bytearray((tmp_path / "shard-00001.parquet").read_bytes())
    data[1000] ^= 1
    (tmp_path / "shard-00001.parquet").write_bytes(data)
    assert folder.done(tmp_path, plan, 1) is None
    (tmp_path / "shard-00002.json").write_text('{"file": ')
    assert folder.done(tmp_path, plan, 2) is None


def test_begin__keeps_finished_shards_and_removes_what_was_torn(tmp_path, plan, make_pairs):
    folder.begin(tmp_path, plan)
    fill(tmp_path, plan, make_pairs, [0])
    (tmp_path / ".shard-00001.parquet.77.tmp").write_bytes(b"half")
    assert not folder.finished(tmp_path, plan)
    folder.begin(tmp_path, plan)
    assert not list(tmp_path.glob(".*.tmp"))
    assert folder.done(tmp_path, plan, 0) is not None


def test_finished__knows_its_own_plan(labels, plan):
    assert folder.finished(labels.folder, plan)
    with pytest.raises(FolderError, match="seed is 5, not 6"):
        folder.finished(labels.folder, dataclasses.replace(plan, seed=6))
    assert not folder.finished(labels.folder, dataclasses.replace(plan, seed=6), overwrite=True)


def test_finished__refuses_unfinished_work_of_another_graph(tmp_path, plan):
    folder.begin(tmp_path, plan)
    with pytest.raises(FolderError, match="fingerprint is f00d, not beef"):
        folder.finished(tmp_path, dataclasses.replace(plan, fingerprint="beef"))


def test_finished__refuses_shards_that_no_plan_explains(tmp_path, plan):
    (tmp_path / "shard-00000.parquet").write_text("whose?")
    with pytest.raises(FolderError, match=r"shard-00000\.parquet and no plan"):
        folder.finished(tmp_path, plan)
    assert not folder.finished(tmp_path, plan, overwrite=True)


def test_folder__never_touches_files_of_other_names(labels, plan):
    (labels.folder / "thesis.tex").write_text("mine")
    assert folder.finished(labels.folder, plan)
    folder.begin(labels.folder, dataclasses.replace(plan, seed=6))
    folder.clear(labels.folder)
    folder.tidy(labels.folder)
    assert [path.name for path in labels.folder.iterdir()] == ["thesis.tex"]


def test_finished__refuses_another_kind_of_folder(tmp_path, plan):
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "hcm_scale graph", "format": 1}))
    with pytest.raises(FolderError, match="hcm_scale graph"):
        folder.finished(tmp_path, plan)


def test_finished__names_a_damaged_plan(tmp_path, plan):
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(FolderError, match="damaged"):
        folder.finished(tmp_path, plan)


def test_begin__replaces_another_plan(labels, plan, make_pairs):
    other = dataclasses.replace(plan, seed=6)
    folder.begin(labels.folder, other)
    assert sorted(path.name for path in labels.folder.iterdir()) == ["unfinished.json"]
    fill(labels.folder, other, make_pairs, range(other.num_shards))
    folder.seal(labels.folder, other, folder.collect(labels.folder, other))
    assert open_labels(labels.folder).plan == other
