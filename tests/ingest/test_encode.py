"""Claims about counting distinct values in bounded memory."""

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.ingest.readers import Columns, read_tables


def distinct_counts(folder, texts, numbers):
    """The distinct values of a text column and of a column of numbers, as the column report has them."""
    nodes = pa.table({"id": np.arange(len(texts)), "text": texts, "number": numbers})
    edges = pa.table({"source": [0], "target": [1]})
    graph = read_tables(folder, edges, nodes, columns=Columns(categorical=("text",)))
    found = {line["column"]: line["distinct"] for line in graph.info["ingest"]["told"]}
    return found["text"], found["number"]


def test_distinct__is_exact_while_they_are_few(tmp_path):
    rng = np.random.default_rng(0)
    for num_distinct in (1, 3, 70, 900):
        values = rng.integers(0, num_distinct, 200_000)
        values[:num_distinct] = np.arange(num_distinct)
        found = distinct_counts(tmp_path / str(num_distinct), [f"{v}-x" for v in values], values / 7)
        assert found == (num_distinct, num_distinct)
    assert distinct_counts(tmp_path / "zeros", ["", "a"], [0.0, -0.0]) == (2, 1)


@pytest.mark.parametrize("num_distinct", [70_000, 200_000])
def test_distinct__is_near_where_they_are_many_whatever_their_order(tmp_path, num_distinct):
    values = np.r_[np.arange(num_distinct), np.arange(0, num_distinct, 3)]
    counts = []
    for name, order in (("a", np.arange(len(values))), ("b", np.random.default_rng(0).permutation(len(values)))):
        counts.append(distinct_counts(tmp_path / name, [f"{v}-x" for v in values[order]], values[order] / 7))
    assert counts[0] == counts[1]
    for count in counts[0]:
        assert abs(count - num_distinct) < 0.02 * num_distinct
