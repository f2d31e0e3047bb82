"""Ids to node numbers: the hash tables against a dict, and what cannot be an id."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.ingest.ids import GrowingIds
from hcm_scale.ingest.readers import Columns, Policy, read_tables

TEXTS = st.lists(st.text(max_size=4), max_size=60)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30), max_size=60)


def check_against_a_dict(ids, batches, queries, kind):
    known: dict = {}
    for batch in batches:
        expected = [known.setdefault(name, len(known)) for name in batch]
        assert ids.add(pa.array(batch, kind)).tolist() == expected
    assert ids.column().to_pylist() == list(known)
    assert ids.find(pa.array(queries, kind)).tolist() == [known.get(name, -1) for name in queries]


@given(st.lists(TEXTS, max_size=4), TEXTS)
def test_text_ids__are_a_dict(batches, queries):
    check_against_a_dict(GrowingIds("text"), batches, queries, pa.string())


@given(st.lists(NUMBERS, max_size=4), NUMBERS)
def test_number_ids__are_a_dict(batches, queries):
    check_against_a_dict(GrowingIds("integer"), batches, queries, pa.int64())


@pytest.mark.parametrize("make", [lambda i: f"package-{i}", lambda i: (i * 2**40) % (2**61 - 1)])
def test_ids__grow_past_their_first_table(make):
    names = [make(i) for i in range(5_000)]
    ids = GrowingIds("text" if isinstance(names[0], str) else "integer")
    for start in range(0, 5_000, 700):
        ids.add(pa.array(names[start : start + 700]))
    assert ids.add(pa.array(names)).tolist() == list(range(5_000))


def test_find__does_not_depend_on_the_number_of_threads(all_threads):
    ids = GrowingIds("text")
    ids.add(pa.array([str(i) for i in range(3_000)]))
    queries = pa.array([str(i) for i in range(0, 9_000, 2)])
    alone = ids.find(queries)
    with all_threads():
        np.testing.assert_array_equal(ids.find(queries), alone)


def test_text_ids__take_slices_of_longer_arrays():
    ids = GrowingIds("text")
    assert ids.add(pa.array(["x", "a", "b", "a", "y"]).slice(1, 3)).tolist() == [0, 1, 0]


def read_edges(folder, source, target, **columns):
    """The graph of an edge table in memory."""
    edges = pa.table({"source": source, "target": target})
    return read_tables(folder, edges, columns=Columns(**columns), policy=Policy(featureless="degree"))


def test_id_types__must_agree_unless_one_is_named(tmp_path):
    text, numbers, dates = pa.array(["7"]), pa.array([8]), pa.array([9], pa.date32())
    nodes = pa.table({"id": [7, 8], "age": [1.0, 2.0]})
    edges = pa.table({"source": text, "target": numbers})
    with pytest.raises(ValueError, match=r"ids are of two types: 'the edge table:source' is string, .*' is int64"):
        read_tables(tmp_path / "g", edges, nodes)
    for chosen in ({"id_type": "text"}, {}):  # of edges alone, such as those of cards and shops, both are text
        assert read_edges(tmp_path / "g", text, numbers, **chosen).ids.to_pylist() == ["7", "8"]
    with pytest.raises(ValueError, match="cannot hold ids"):
        read_edges(tmp_path / "g", dates, dates)


def test_ids__may_be_whole_floats_and_faults_are_counted(tmp_path):
    assert read_edges(tmp_path / "g", [4.0, 2.0], [2.0, 3.0]).ids.to_pylist() == [2, 3, 4]
    with pytest.raises(ValueError, match=r"1 fractional ids in the edge table \(rows from 0\): row 1: 1\.5"):
        read_edges(tmp_path / "g", [1.0, 1.5, -2.0], [1.0, None, 2.0])
    with pytest.raises(ValueError, match=r"1 negative ids in .*: row 0: -2\. graph\.id_type=text"):
        read_edges(tmp_path / "g", [-2.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"1 missing ids in .*: row 0\. graph\.unknown=drop"):
        read_edges(tmp_path / "g", [None, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(("kind", "digits"), [(pa.float64(), 53), (pa.float32(), 24), (pa.float16(), 11)])
def test_ids__that_are_floats_and_stand_for_several_numbers_are_refused(tmp_path, kind, digits):
    last, first_lost = (pa.array(np.array([value], kind.to_pandas_dtype())) for value in (2.0**digits - 1, 2.0**digits))
    assert read_edges(tmp_path / "g", last, [1.0]).ids.to_pylist() == [1, 2**digits - 1]
    with pytest.raises(ValueError, match=r"1 ids are floats so large .*: row 0: .*graph\.id_type=text"):
        read_edges(tmp_path / "g", first_lost, [1.0])


def test_ids__that_only_text_can_hold_are_refused_as_integers(tmp_path):
    edges = tmp_path / "edges"
    edges.mkdir()
    (edges / "a.csv").write_text("source,target\n1,2\n")  # its first block says that ids are integers
    (edges / "b.csv").write_text("source,target\n 1,3.0\n9007199254740993.,0\n0,9223372036854775807\n")
    graph = read_tables(tmp_path / "g", edges, policy=Policy(featureless="degree"))
    assert graph.ids.to_pylist() == [0, 1, 2, 3, 2**53 + 1, 2**63 - 1]
    for name in ("07", "0x1", "1e3", "+1", "-1.0", "1.5", "a", "nan", "9223372036854775808", "99999999999999999999"):
        (edges / "b.csv").write_text(f"source,target\n5,{name}\n")
        fault = rf"1 ids are no plain whole numbers in .*: line 2 of .*b\.csv: {re.escape(name)}\. graph\.id_type=text"
        with pytest.raises(ValueError, match=fault):
            read_tables(tmp_path / "g", edges, policy=Policy(featureless="degree"))
