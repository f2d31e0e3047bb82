"""Rows found in a file batch by batch are those of the obvious computation on the whole table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.score import table as ranked_table
from hcm_scale.serve.search import Filter, find_rows, passing_rows

NUM_ROWS = 1000


def a_table(ids: list[Any]) -> pa.Table:
    rng = np.random.default_rng(0)
    kinds = pa.array(["hop", "closure", "context"]).take(pa.array(rng.integers(0, 3, NUM_ROWS)))
    columns = {
        "id": ids,
        "node": rng.permutation(NUM_ROWS),
        "evidence": kinds.dictionary_encode(),
        "flagged": rng.random(NUM_ROWS) < 0.2,
        "degree": rng.integers(0, 9, NUM_ROWS),
        "score": np.where(rng.random(NUM_ROWS) < 0.1, np.nan, rng.normal(size=NUM_ROWS)),
        "rank": np.arange(1, NUM_ROWS + 1),
    }
    return pa.table(columns).replace_schema_metadata({"rank_by": "score"})


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[pa.Table], ranked_table.RankedFile]:
    monkeypatch.setattr(ranked_table, "_BATCH_ROWS", 64)

    def write(table: pa.Table) -> ranked_table.RankedFile:
        pq.write_table(table, tmp_path / "scores.parquet", row_group_size=300)
        return ranked_table.RankedFile(tmp_path / "scores.parquet")

    return write


def obvious(table: pa.Table, wanted: Filter, sort: str, down: bool) -> list[int]:
    """The numbers of all rows that pass, in order."""
    rows = table.to_pylist()
    passing = [
        i
        for i, row in enumerate(rows)
        if wanted.kind in ("", row["evidence"])
        and (not wanted.flagged or row["flagged"])
        and str(row["id"]).startswith(wanted.prefix)
    ]

    def key(i: int) -> tuple[bool, bool, float, int]:
        value = float(rows[i][sort])
        is_missing = np.isnan(value)
        return str(rows[i]["id"]) != wanted.prefix, is_missing, 0.0 if is_missing else -value if down else value, i

    return sorted(passing, key=key)


@pytest.mark.parametrize("wanted", [Filter(), Filter("hop"), Filter("", True), Filter("closure", True, "1")])
@pytest.mark.parametrize("sort", ["rank", "degree", "score", "flagged"])
@pytest.mark.parametrize("down", [False, True])
def test_find_rows__pages_are_those_of_the_sorted_table(ranked, wanted: Filter, sort: str, down: bool):
    table = a_table(list(range(NUM_ROWS)))
    file, order = ranked(table), obvious(table, wanted, sort, down)
    for first in (0, 15, len(order) - 3, len(order) + 5):
        rows, total = find_rows(file, wanted, sort, down, first, 15)
        assert rows.tolist() == order[first : first + 15]
        assert total == len(order)


@pytest.mark.parametrize("wanted", [Filter(), Filter("hop"), Filter("", True, "1")])
@pytest.mark.parametrize("down", [False, True])
def test_find_rows__by_numbers_of_the_caller_as_by_a_column(ranked, wanted: Filter, down: bool):
    table = a_table(list(range(NUM_ROWS)))
    numbers = np.random.default_rng(1).permutation(NUM_ROWS)
    order = obvious(table.append_column("numbers", pa.array(numbers)), wanted, "numbers", down)
    for first in (0, 15, len(order) - 3):
        rows, total = find_rows(ranked(table), wanted, numbers, down, first, 15)
        assert (rows.tolist(), total) == (order[first : first + 15], len(order))


@pytest.mark.parametrize("ids", [[f"n{i}" for i in range(NUM_ROWS)], list(range(NUM_ROWS))])
def test_find_rows__of_some_ids_or_of_all_others(ranked, ids: list[Any]):
    file, some = ranked(a_table(ids)), pa.chunked_array([[str(ids[i]) for i in (3, 5, 700)] + ["unknown"]])
    assert find_rows(file, Filter(only=some), "rank", False, 0, 15)[0].tolist() == [3, 5, 700]
    rows, total = find_rows(file, Filter(but=some), "rank", True, 0, NUM_ROWS)
    assert rows.tolist() == [i for i in range(NUM_ROWS - 1, -1, -1) if i not in (3, 5, 700)]
    assert total == NUM_ROWS - 3


def test_find_rows__the_very_id_comes_first_and_ids_are_text(ranked):
    names = [f"a%_{i}" for i in range(NUM_ROWS)]
    file = ranked(a_table(names))
    rows, total = find_rows(file, Filter(prefix="a%_77"), "score", True, 0, 15)
    assert (rows[0], total) == (77, 11)
    assert find_rows(file, Filter(prefix="A%"), "rank", False, 0, 15)[1] == 0


def test_ranked_file__rows_come_in_the_order_asked_for_over_row_groups(ranked):
    table = a_table(list(range(NUM_ROWS)))
    file = ranked(table)
    rows = np.array([999, 0, 301, 300, 63, 64, 640])
    taken = file.take(rows, ["rank", "evidence"])
    assert taken.to_pylist() == table.take(rows).select(["rank", "evidence"]).to_pylist()
    assert taken.schema.metadata == table.schema.metadata
    assert file.take(rows[:0], ["rank"]).num_rows == 0
    assert file.slice(998, 5)["rank"].to_pylist() == [999, 1000]


def test_passing_rows__is_every_row_that_passes(ranked):
    table = a_table(list(range(NUM_ROWS)))
    file, wanted = ranked(table), Filter("context", True)
    found = pa.Table.from_batches(passing_rows(file, wanted))
    assert found["rank"].to_pylist() == [i + 1 for i in obvious(table, wanted, "rank", False)]
