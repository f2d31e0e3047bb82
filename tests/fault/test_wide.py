"""Node tables of very many columns: the work for a column does not grow with their number."""

import cProfile
import pstats
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hcm_scale.ingest import table_files
from hcm_scale.ingest.tables import read_tables

NUM_ROWS, FEW, MANY = 300, 400, 1600


class Watched:
    """A schema or a batch that counts the names it is asked for: Arrow makes a list of all of them each time."""

    num_names = 0

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._held, name)
        if name == "names":
            Watched.num_names += len(found)
        return Watched(found) if isinstance(found, pa.Schema) else found

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __getitem__(self, name: str) -> Any:
        return self._held[name]


def nodes_of(num_columns: int) -> pa.Table:
    rng = np.random.default_rng(0)
    kinds = [
        lambda: pa.array(rng.standard_normal(NUM_ROWS)),
        lambda: pa.array(rng.choice(["low", "high"], NUM_ROWS)),
        lambda: pa.array(rng.standard_normal(NUM_ROWS), mask=rng.random(NUM_ROWS) < 0.1),
        lambda: pa.array(rng.random(NUM_ROWS) < 0.5),
    ]
    columns = {f"column {k}": kinds[k % len(kinds)]() for k in range(num_columns)}
    return pa.table({"id": [f"n{k}" for k in range(NUM_ROWS)], **columns})


def work(folder: Path, num_columns: int, ending: str) -> tuple[int, int]:
    """The number of calls of functions, and of names that were asked for, of reading a table of so many columns."""
    table, nodes = nodes_of(num_columns), folder / f"nodes-{num_columns}{ending}"
    (pq.write_table if ending == ".parquet" else pyarrow.csv.write_csv)(table, nodes)
    edges = pa.table({"source": table["id"], "target": table["id"].take(pa.array(np.roll(np.arange(NUM_ROWS), 1)))})
    Watched.num_names, profile = 0, cProfile.Profile()
    profile.enable()
    try:
        graph = read_tables(folder / "graph", edges, str(nodes))
    finally:
        profile.disable()
    assert graph.num_attributes == num_columns * 6 // 4  # a column for each word, and one for gaps
    return pstats.Stats(profile).total_calls, Watched.num_names


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_reading__takes_as_much_work_a_column_whether_there_are_few_or_many(tmp_path, ending, monkeypatch):
    schema_of, batches = table_files._schema_of, table_files.TableFiles.batches
    monkeypatch.setattr(table_files, "_schema_of", lambda path: Watched(schema_of(path)))
    monkeypatch.setattr(table_files.TableFiles, "batches", lambda *of: map(Watched, batches(*of)))
    monkeypatch.setattr(table_files, "_CSV_BLOCK_BYTES", 1 << 19)  # else the table is within one
    work(tmp_path, 4, ending)  # kernels are compiled
    few, many = (work(tmp_path, count, ending) for count in (FEW, MANY))
    assert many[0] < 1.3 * MANY / FEW * few[0]
    assert many[1] < 1.3 * MANY / FEW * few[1]
    assert many[1] < 40 * MANY
