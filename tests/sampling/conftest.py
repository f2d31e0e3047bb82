"""Labelled pairs made up for tests, without a graph or a search."""

import dataclasses
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from hcm_scale import shards
from hcm_scale.shards import LabelPlan, Labels, open_labels


def _make_labels(
    out: Path, rows_per_class: list[int], num_shards: int, row_group_rows: int, num_links: int = 1
) -> Labels:
    """Sealed labels: pairs (class, 0), (class, 1), .. dealt to the shards in turn; a file has `num_links` names."""
    classes = len(rows_per_class)
    plan = LabelPlan("f00d", 10**9, False, classes, num_shards, None, 0, shard_pairs=1, row_group_rows=row_group_rows)
    out.mkdir(parents=True)
    for index in range(num_shards):
        parts = [np.arange(index, rows, num_shards, dtype=np.int32) for rows in rows_per_class]
        counts = np.array([len(part) for part in parts])
        hop = np.repeat(np.arange(1, classes + 1, dtype=np.uint8), counts)
        shards.write_shard(out, plan, index, hop.astype(np.int32), np.concatenate(parts), hop, counts)
    listed = []
    for shard, copy in itertools.product(shards.collect_shards(out, plan), range(num_links)):
        name = f"shard-{len(listed):05d}-{copy}.parquet"
        os.link(out / shard.file, out / name)
        listed.append(dataclasses.replace(shard, file=name))
    shards.seal_labels(out, plan, listed)
    return open_labels(out)


@pytest.fixture(scope="session")
def make_labels():
    return _make_labels
