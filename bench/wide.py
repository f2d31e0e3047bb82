"""Node tables of many columns: `python -m bench.wide [COLUMNS ...]` writes tables of a thousand rows and so many
columns (2,000, 8,000 and 32,000 unless said) of numbers, numbers with gaps, whole numbers, truth values, dates and
words, and times how long each is read, as CSV and as Parquet.

Not a theme: it has no peer. `tests/fault/test_wide.py` counts the work for a column, whatever their number.
"""

import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench.verify import timed
from hcm_scale.ingest.tables import read_tables

NUM_ROWS = 1_000
WRITERS = {"csv": pyarrow.csv.write_csv, "parquet": pq.write_table}


def nodes_of(num_columns: int) -> pa.Table:
    """A node table, its columns of six types in turn."""
    rng = np.random.default_rng(0)
    kinds = [
        lambda: pa.array(rng.standard_normal(NUM_ROWS)),
        lambda: pa.array(rng.integers(0, 1000, NUM_ROWS)),
        lambda: pa.array(rng.choice(["low", "middle", "high"], NUM_ROWS)),
        lambda: pa.array(rng.standard_normal(NUM_ROWS), mask=rng.random(NUM_ROWS) < 0.1),
        lambda: pa.array(rng.random(NUM_ROWS) < 0.5),
        lambda: pa.array(np.datetime64("2024-01-01", "D") + rng.integers(0, 300, NUM_ROWS)),
    ]
    ids = pa.array([f"n{k}" for k in range(NUM_ROWS)])
    return pa.table({"id": ids, **{f"column {k}": kinds[k % len(kinds)]() for k in range(num_columns)}})


def main() -> int:
    logging.disable(logging.WARNING)
    counts = [int(word) for word in sys.argv[1:]] or [2_000, 8_000, 32_000]
    with tempfile.TemporaryDirectory(prefix="bench-wide-") as name:
        folder = Path(name)
        for count in (12, *counts):  # the first compiles
            nodes = nodes_of(count)
            edges = pa.table({"source": nodes["id"], "target": nodes["id"].take(pa.array(np.arange(1, 1001) % 1000))})
            for ending, write in WRITERS.items():
                path = folder / f"nodes.{ending}"
                write(nodes, path)
                timed(
                    f"{count:>7,} columns x {NUM_ROWS:,} rows, {ending}, {path.stat().st_size / 1e6:,.0f} MB",
                    lambda path=path, edges=edges: read_tables(folder / "graph", edges, str(path)),
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
