"""Ids to node numbers: the hash tables against a dict."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.ingest.ids import IdReader, NumberIds, TextIds, id_kind

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
    check_against_a_dict(TextIds(), batches, queries, pa.string())


@given(st.lists(NUMBERS, max_size=4), NUMBERS)
def test_number_ids__are_a_dict(batches, queries):
    check_against_a_dict(NumberIds(), batches, queries, pa.int64())


@pytest.mark.parametrize("make", [lambda i: f"package-{i}", lambda i: (i * 2**40) % (2**61 - 1)])
def test_ids__grow_past_their_first_table(make):
    names = [make(i) for i in range(5_000)]
    ids = TextIds() if isinstance(names[0], str) else NumberIds()
    for start in range(0, 5_000, 700):
        ids.add(pa.array(names[start : start + 700]))
    assert ids.add(pa.array(names)).tolist() == list(range(5_000))


def test_find__does_not_depend_on_the_number_of_threads(all_threads):
    ids = TextIds()
    ids.add(pa.array([str(i) for i in range(3_000)]))
    queries = pa.array([str(i) for i in range(0, 9_000, 2)])
    alone = ids.find(queries)
    with all_threads():
        np.testing.assert_array_equal(ids.find(queries), alone)


def test_text_ids__take_slices_of_longer_arrays():
    ids = TextIds()
    assert ids.add(pa.array(["x", "a", "b", "a", "y"]).slice(1, 3)).tolist() == [0, 1, 0]


def test_id_kind__refuses_two_types():
    with pytest.raises(ValueError, match="ids are of two types: 'a' is string, 'b' is int64"):
        id_kind([("a", pa.string()), ("b", pa.int64())])
    assert id_kind([("a", pa.string()), ("b", pa.int64())], "text") == "text"
    with pytest.raises(ValueError, match="cannot hold ids"):
        id_kind([("a", pa.date32())])
    with pytest.raises(ValueError, match="id_type='words' must be one of"):
        id_kind([], "words")


def test_id_reader__takes_whole_floats_and_counts_faults():
    reader = IdReader("integer", "a table")
    assert reader.read(pa.array([1.0, 2.0]), 0).to_pylist() == [1, 2]
    reader.check()
    assert reader.read(pa.array([1.5, None, -2.0]), 10).to_pylist() == [None, None, -2]
    assert [o.count for o in (reader.fractional, reader.null, reader.negative)] == [1, 1, 1]
    with pytest.raises(ValueError, match=r"1 fractional ids in a table: row 10: 1\.5"):
        reader.check()


@pytest.mark.parametrize(("kind", "digits"), [(pa.float64(), 53), (pa.float32(), 24), (pa.float16(), 11)])
def test_id_reader__refuses_floats_that_stand_for_several_numbers(kind, digits):
    floats = pa.array(np.array([2.0**digits - 1, 2.0**digits], kind.to_pandas_dtype()))
    reader = IdReader("integer", "a table")
    assert reader.read(floats, 0).to_pylist() == [2**digits - 1, None]
    with pytest.raises(ValueError, match=r"1 ids are floats so large .* in a table: row 1: .*graph\.id_type=text"):
        reader.check()


def test_id_reader__tells_numbers_that_only_text_can_hold():
    reader = IdReader("integer", "a table")
    assert reader.read(pa.array([1, 2**63, None], pa.uint64()), 0).to_pylist() == [1, None, None]
    with pytest.raises(ValueError, match=r"1 ids above 9223372036854775807 in a table: row 1: .*graph\.id_type=text"):
        reader.check()


def test_id_reader__takes_text_that_is_plain_numbers_and_counts_other():
    reader = IdReader("integer", "a table")
    assert reader.read(pa.array(["0", None, "9223372036854775807"]), 0).to_pylist() == [0, None, 2**63 - 1]
    assert reader.read(pa.array([" 1", None, "3.0", "9007199254740993.", "0"]), 0).to_pylist() == [
        *(1, None, 3, 2**53 + 1, 0)
    ]
    assert (reader.null.count, reader.odd.count) == (2, 0)
    odd = ["07", "0x1", "1e3", "+1", "-1.0", "1.5", "", "a", "nan", "9223372036854775808", "99999999999999999999"]
    for name in odd:
        assert reader.read(pa.array(["5", name]), 0).to_pylist() == [5, None]
    assert reader.odd.count == len(odd)
    with pytest.raises(ValueError, match=r"11 ids are no plain .*: row 1: 07; row 1: 0x1; .*graph\.id_type=text"):
        reader.check()
