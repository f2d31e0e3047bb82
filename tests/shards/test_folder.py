"""Claims about the life of a labels folder."""

import json

import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.shards import writer
from hcm_scale.shards.writer import write_shard


def fill(out, plan, make_pairs, shards):
    for index in shards:
        write_shard(out, plan, index, *make_pairs(plan, index))


def test_seal__leaves_the_shards_and_the_manifest_alone(labels):
    names = sorted(path.name for path in labels.folder.iterdir())
    assert names == ["manifest.json", *(f"shard-{index:05d}.parquet" for index in range(labels.plan.num_shards))]
    assert writer.is_sealed(labels.folder)


def test_collect__names_the_first_unfinished_shard(tmp_path, plan, make_pairs):
    fill(tmp_path, plan, make_pairs, [0, 2])
    with pytest.raises(FolderError, match="shard-00001"):
        writer.collect_shards(tmp_path, plan)


def test_done__believes_only_a_whole_shard(tmp_path, plan, make_pairs):
    fill(tmp_path, plan, make_pairs, [0, 1, 2])
    assert writer.finished_shards(tmp_path, plan, 0) is not None
    assert writer.finished_shards(tmp_path, plan, 3) is None
    data = bytearray((tmp_path / "shard-00001.parquet").read_bytes())
    data[1000] ^= 1
    (tmp_path / "shard-00001.parquet").write_bytes(data)
    assert writer.finished_shards(tmp_path, plan, 1) is None
    note = tmp_path / "shard-00002.json"
    counts = json.loads(note.read_text())["counts"]
    for text in (json.dumps(json.loads(note.read_text()) | {"counts": counts[::-1]}), '{"file": ', "[" * 100_000):
        note.write_text(text)
        assert writer.finished_shards(tmp_path, plan, 2) is None
