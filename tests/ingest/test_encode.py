"""Claims about counting distinct values in bounded memory."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest

from hcm_scale.ingest.policy import Policy
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
        values = rng.integers(0, num_distinct, 40_000)
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


DAYS = [f"{day}.{month}.{year}" for day in (1, 9, 12) for month in (2, 10, 12) for year in (1999, 2024)]


def read_column(folder, values, **options):
    """The column as it was read, in days, and what is said of it."""
    n = len(values)
    edges = pa.table({"source": [*range(n)], "target": [(i + 1) % n for i in range(n)]})
    nodes = pa.table({"id": [*range(n)], "size": [i % 3 for i in range(n)], "at": values})
    graph = read_tables(folder, edges, nodes, columns=Columns(**options))
    use = next(line["use"] for line in graph.info["ingest"]["told"] if line["column"] == "at")
    return (np.asarray(graph.x)[:, graph.columns.index("at")] if "at" in graph.columns else None), use


@pytest.mark.parametrize(
    ("written", "form", "options"),
    [
        ([*DAYS, "31.1.2022"], "%d.%m.%Y", {}),
        (DAYS, "%d.%m.%Y", {}),  # points are of days that stand first
        ([day.replace(".", "/") for day in (*DAYS, "13.01.2022")], "%d/%m/%Y", {}),
        ([day.replace(".", "/") for day in (*DAYS, "1.31.2022")], "%m/%d/%Y", {}),
        ([day.replace(".", "-") for day in (*DAYS, "31.01.2022")], "%d-%m-%Y", {}),
        ([f"{day} 18:{i:02}" for i, day in enumerate((*DAYS, "29.02.2024"))], "%d.%m.%Y %H:%M", {}),
        (
            ["01/31/2024 04:46 AM", "12/05/2024 12:30 AM", "2/29/2024 12:00 PM", "1/3/2024 1:07 pm"],
            "%m/%d/%Y %I:%M %p",
            {},
        ),
        (["1/31/24 9:05", "2/1/24 23:59", "12/31/24 0:00"], "%m/%d/%y %H:%M", {}),
        (["31.01.24", "01.02.69", "01.02.71"], "%d.%m.%y", {}),
        (["Jan 31, 2024 9:05 AM", "Mar 1, 2024 12:05 PM"], "%b %d, %Y %I:%M %p", {}),
        (["2024-01-31 9:05", "2024-02-01 10:05"], "%Y-%m-%d %H:%M", {}),
        ([day.replace(".", "/") for day in DAYS], "%d/%m/%Y", {"dates": "day-first"}),
        ([day.replace(".", "/") for day in DAYS], "%m/%d/%Y", {"dates": "month-first"}),
    ],
)
def test_dates__are_read_as_their_column_shows_or_an_option_says(tmp_path, written, form, options):
    found, use = read_column(tmp_path / "graph", written, **options)
    slow = [datetime.strptime(text, form) for text in written]
    slow = [day.replace(year=2069) if day.year == 1969 else day for day in slow]
    np.testing.assert_allclose(found, [(day - min(slow)).total_seconds() / 86_400 for day in slow], rtol=1e-6)
    assert ("its months stand before the days" in use) == form.startswith("%m")


def test_versions__are_no_dates(tmp_path):
    assert read_column(tmp_path / "graph", ["1.2.10", "1.3.11", "2.0.12"])[0] is None


@pytest.mark.parametrize("more", [[], ["13/13/2022"], ["31/01/2022", "01/31/2022"], ["31/02/2022"], ["unknown"]])
def test_dates__that_may_be_two_things_stay_text(tmp_path, more):
    found, use = read_column(tmp_path / "graph", [day.replace(".", "/") for day in DAYS] + more)
    assert found is None
    assert ("graph.dates=day-first or graph.dates=month-first says it" in use) == (not more)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["0012", "12", "7", "007", "0"], "2 ids differ from others by zeros before them alone"),
        (["0012", "13", "0a", "a", "00", "0"], ""),
        (["12", "13", "b"], ""),
    ],
)
def test_ids__that_differ_by_zeros_alone_are_said(tmp_path, caplog, names, told):
    edges = pa.table({"source": names, "target": names[1:] + names[:1]})
    graph = read_tables(tmp_path / "graph", edges, pa.table({"id": names, "size": [*range(len(names))]}))
    assert graph.num_nodes == len(names)
    assert told in caplog.text
    assert ("graph.id_type=integer reads both as one, such as 0012 and 12" in caplog.text) == bool(told)


def test_rows__dropped_for_zeros_before_their_ids_alone_are_said(tmp_path, caplog):
    nodes = pa.table({"id": ["0012", "0013", "0014"], "size": [1, 2, 4]})
    ends = {"source": ["0012", "12", "0013"], "target": ["0013", "0014", "0014"]}
    assert read_tables(tmp_path / "graph", pa.table(ends), nodes, policy=Policy(unknown="drop")).num_edges == 2
    assert "(row 1: 12 -> 0014 ...) some name nodes but for zeros before the id; graph.id_type=integer" in caplog.text
    other = pa.table({"source": ["12"], "target": ["13"]})
    with pytest.raises(ValueError, match=r"no edges.*graph\.id_type=integer reads 0042 and 42 as one id"):
        read_tables(tmp_path / "none", other, nodes, policy=Policy(unknown="drop"))
    caplog.clear()
    ends["source"][1] = "elsewhere"
    read_tables(tmp_path / "other", pa.table(ends), nodes, policy=Policy(unknown="drop"))
    assert "zeros" not in caplog.text
