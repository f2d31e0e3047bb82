"""Joined row groups are the bytes of one writer."""

import io
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcm_scale.base.parquet import Group, join

CHECKED = {"compression": "zstd", "write_page_checksum": True}
SPLIT = {"column_encoding": {"f": "BYTE_STREAM_SPLIT", "i": "DELTA_BINARY_PACKED"}, "use_dictionary": ["text", "few"]}
OPTIONS: list[dict[str, Any]] = [
    {},
    CHECKED | SPLIT,
    CHECKED | {"write_statistics": ["i"], "store_schema": False},
    CHECKED | {"data_page_version": "2.0", "data_page_size": 256, "compression": "lz4"},
    {"compression": "none", "use_dictionary": False, "sorting_columns": [pq.SortingColumn(1)]},
]
UNKNOWN = {  # a field 1000 of each kind of value, as its first byte says, or one further
    "true": b"\x01\xd0\x0f",
    "false": b"\x02\xd0\x0f",
    "byte": b"\x03\xd0\x0f\xff",
    "i16": b"\x04\xd0\x0f\xff\x01",
    "i64 and a second field": b"\x06\xd0\x0f\x80\x80\x80\x01\x15\x02",
    "double": b"\x07\xd0\x0f" + bytes(range(8)),
    "text": b"\x08\xd0\x0f\x03a\x00b",
    "list of flags": b"\x09\xd0\x0f\x21\x01\x02",
    "list of 16 texts": b"\x09\xd0\x0f\xf8\x10" + b"\x01a" * 16,
    "set of doubles": b"\x0a\xd0\x0f\x17" + bytes(8),
    "empty map": b"\x0b\xd0\x0f\x00",
    "map of texts to structs": b"\x0b\xd0\x0f\x02\x8c\x01a\x15\x02\x00\x01b\x00",
    "map of bytes to flags": b"\x0b\xd0\x0f\x01\x31\x07\x01",
    "struct": b"\x0c\xd0\x0f\x15\x02\x11\x00",
}


def rows(num_rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    texts = [None if i % 7 == 3 else f"node {i * seed}" for i in range(num_rows)]
    few = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 2, num_rows).astype(np.int8)), pa.array(["a", "b"]))
    columns = {"text": pa.array(texts, pa.string()), "i": rng.permutation(num_rows), "f": rng.random(num_rows)}
    return pa.table({**columns, "few": few, "flag": rng.random(num_rows) < 0.5}).replace_schema_metadata({"by": "f"})


def written(tables: list[pa.Table], **options: Any) -> bytes:
    """By one writer."""
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table, max(1, len(table)))
    return stream.getvalue()


def joined(files: list[bytes]) -> bytes:
    stream = io.BytesIO()
    join(stream, [Group.of(memoryview(file)) for file in files])
    return stream.getvalue()


@pytest.mark.parametrize("options", OPTIONS)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=20))
@settings(max_examples=25, deadline=None)
def test_join__gives_the_bytes_of_one_writer(options, sizes):
    tables = [rows(size, seed) for seed, size in enumerate(sizes)]
    assert joined([written([table], **options) for table in tables]) == written(tables, **options)


@pytest.mark.parametrize("num_groups", [1, 14, 15, 16, 127, 128, 200])
def test_join__lists_any_number_of_groups(num_groups):
    tables = [rows(3, seed) for seed in range(num_groups)]
    assert joined([written([table]) for table in tables]) == written(tables)


def test_join__other_programs_read_it(tmp_path):
    tables = [rows(size, size) for size in (1000, 0, 1, 2500)]
    whole, path = pa.concat_tables(tables), tmp_path / "joined.parquet"
    path.write_bytes(joined([written([table], **CHECKED, **SPLIT) for table in tables]))
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        assert file.read().equals(whole, check_metadata=True)
    plain = whole.set_column(3, "few", whole["few"].cast(pa.string())).to_pylist()
    assert duckdb.sql(f"from '{path}'").to_arrow_table().to_pylist() == plain
    assert pl.read_parquet(path).to_dicts() == plain


def test_join__bloom_filters_are_found(tmp_path):
    tables, path = [rows(100, seed) for seed in (1, 2, 3)], tmp_path / "joined.parquet"
    options = {"bloom_filter_options": {"i": {"ndv": 100}}, "use_dictionary": False}
    path.write_bytes(joined([written([table], **options) for table in tables]))
    for value, is_excluded in ((7, False), (10**9 + 7, True)):
        probed = duckdb.sql(f"from parquet_bloom_probe('{path}', 'i', {value})").fetchall()
        assert [row[-1] for row in probed] == [is_excluded] * 3


@pytest.mark.parametrize("field", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_join__fields_that_nobody_knows_are_copied(field):
    tables = [rows(300, 1), rows(200, 2)]
    files = []
    for file in (written([table], **CHECKED) for table in tables):
        group = Group.of(memoryview(file))
        end = group.field((4,)).stop - 1  # the zero byte of the row group, the last of the list
        footer = group.footer[:end] + field + group.footer[end:-1] + field + b"\0"
        files.append(b"PAR1" + group.pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    file = joined(files)
    assert file.count(field + b"\0") == 3  # of both groups and of the file
    assert pq.ParquetFile(io.BytesIO(file), page_checksum_verification=True).read().equals(pa.concat_tables(tables))


def test_group__refuses_page_indexes():
    with pytest.raises(ValueError, match="write_page_index=False"):
        Group.of(memoryview(written([rows(10)], write_page_index=True)))


def test_join__refuses_files_of_several_groups():
    with pytest.raises(ValueError, match="this has 2"):
        joined([written([rows(10), rows(10)])])


def test_join__refuses_other_columns():
    with pytest.raises(ValueError, match="row group 1 has other columns"):
        joined([written([rows(10)]), written([rows(10).drop(["f"])])])
