"""Small files that once broke a reader, or that ask for far more than they hold: each an error that says what to do."""

import gzip
import io
import zipfile
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import io as scipy_io
from scipy import sparse

from hcm_scale import config
from hcm_scale.cli import main
from hcm_scale.ingest.readers import Columns, InputError, Policy, column_report, read_matrix, read_tables
from hcm_scale.ingest.table_files import open_table

BARE = Policy(featureless="degree")
EDGES = [[0, 1], [1, 2]]


def table(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


def archive(path, arrays, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, array in arrays:
            stream = io.BytesIO()
            np.save(stream, np.asarray(array))
            file.writestr(f"{name}.npy", stream.getvalue())
    return path


def test_columns_of_one_name__are_refused_and_numbered_in_a_csv(tmp_path, caplog):
    columns = [pa.array([0]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, ["source", "target", "target"]), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=r"e.parquet has 2 columns named 'target'; legal is one of a name"):
        read_tables(tmp_path / "g", tmp_path / "e.parquet", policy=BARE)
    (tmp_path / "e.csv").write_text('\ufeff"x","y","x.1","x","y"\r\n1,2.5,3,4,5.5\r\n2,,1,2,\r\n')
    table = open_table("graph.path", tmp_path / "e.csv")
    assert table.schema.names == ["x", "y", "x.1", "x.2", "y.1"]
    batch = table.first_batch(["x.2", "y", "x"])
    assert batch.to_pydict() == {"x.2": [4, 2], "y": [2.5, None], "x": [1, 2]}
    assert "e.csv has 2 columns named 'x'; after the first they are ('x.2',)" in caplog.text


def test_later_file_without_a_column_or_of_another_type__is_named(tmp_path):
    (tmp_path / "e").mkdir()
    table(tmp_path / "e" / "a.parquet", {"source": [0], "target": [1]})
    table(tmp_path / "e" / "b.parquet", {"source": [0]})
    with pytest.raises(InputError, match=r"b\.parquet has 0 columns 'target', legal is one"):
        read_tables(tmp_path / "g", tmp_path / "e", policy=BARE)
    table(tmp_path / "e" / "b.parquet", {"source": [[0]], "target": [1]})
    with pytest.raises(
        InputError, match=r"b\.parquet column 'source', rows 0 \.\. 0 \(from 0\), cannot be read as int64: "
    ):
        read_tables(tmp_path / "g", tmp_path / "e", policy=BARE)


@pytest.mark.parametrize("id_type", ["auto", "text", "integer"])
@pytest.mark.parametrize(
    "column",
    [pa.array([[1], [2]]), pa.array([{"a": 1}] * 2), pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int64()))],
    ids=["list", "struct", "map"],
)
def test_nested_ids__are_refused(tmp_path, column, id_type):
    edges = table(tmp_path / "e.parquet", {"source": column, "target": column})
    with pytest.raises(
        InputError, match=r"'e\.parquet:source' of type .* cannot hold ids; legal are text and integers"
    ):
        read_tables(tmp_path / "g", edges, columns=Columns(id_type=id_type), policy=BARE)


def test_binary_ids__are_text_on_request(tmp_path):
    edges = table(tmp_path / "e.parquet", {"source": [b"a"], "target": ["ü".encode()]})
    g = read_tables(tmp_path / "g", edges, columns=Columns(id_type="text"), policy=BARE)
    assert g.ids.to_pylist() == ["a", "ü"]


def test_ids_that_are_not_utf8__are_refused(tmp_path):
    buffers = [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    names = pa.Array.from_buffers(pa.string(), 2, buffers)
    edges = table(tmp_path / "e.parquet", {"source": names, "target": ["c", "d"]})
    with pytest.raises(InputError, match=r"e\.parquet column 'source', rows 0 \.\. 1 \(from 0\), .*: Invalid UTF8"):
        read_tables(tmp_path / "g", edges, policy=BARE)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"source,target\n", b"source,target\n0\n", b"\x1f\x8b\x08"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "npy", "npz", "mat"])
def test_file_without_content__is_named(tmp_path, content, suffix):
    path = tmp_path / f"e.{suffix}"
    path.write_bytes(content)
    read = read_tables if suffix.startswith(("csv", "parquet")) else read_matrix
    with pytest.raises(InputError, match=rf"e\.{suffix}"):
        read(tmp_path / "g", path, policy=BARE)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_indices": [2**40]}, r"x_indices run from 1099511627776 .* legal are 0 \.\. 2147483646"),
        ({"x_indices": [1.5]}, r"x_indices is float64 of shape \(1,\); legal are integers"),
        ({"x_indices": ["a"]}, r"g\.npz:x_indices is <U1"),
        ({"x_indices": [[0]]}, r"g\.npz:x_indices is int64 of shape \(1, 1\)"),
        ({"x_indices": [0], "x_shape": [3, -1]}, r"x_indices run from 0 to 0 of -1 columns"),
        ({"x_indices": [0], "x_shape": [9, 1]}, r"g\.npz:x_shape is \[9, 1\]; legal is \[3, d\]"),
        ({"x_indices": [0], "x_indptr": np.array([0, 2**64 - 1, 1, 1], np.uint64)}, "x_indptr must rise"),
        ({"x_indices": [0], "x_indptr": [0.0, 1.0, 1.0, 1.0]}, r"g\.npz:x_indptr is float64"),
        ({"x_indices": [0], "y": ["a", "b", "c"]}, "y is <U1; legal are the numbers 0 and 1"),
    ],
)
def test_sparse_attributes__are_believed_nothing(tmp_path, arrays, message):
    np.savez(tmp_path / "g.npz", **{"edge_index": EDGES, "x_indptr": [0, 1, 1, 1], **arrays})
    with pytest.raises(InputError, match=message) as refused:
        read_matrix(tmp_path / "g", tmp_path / "g.npz")
    assert "g.npz" in str(refused.value)


def test_node_number_far_beyond_the_edges__must_be_meant(tmp_path):
    np.save(tmp_path / "e.npy", [[0, 1], [1, 2**31 - 2]])
    with pytest.raises(
        InputError,
        match=r"e\.npy: 2 edge rows, .* would make a graph of 2,147,483,647, .*graph\.num_nodes=2147483647 says",
    ):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=BARE)
    np.save(tmp_path / "e.npy", [[0, 1], [1, 1_200_000]])
    with pytest.raises(InputError, match=r"graph\.num_nodes=1200001"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=BARE)
    meant = Policy(featureless="degree", num_nodes=1_200_001)
    assert read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=meant).num_nodes == 1_200_001
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2**64 - 1]], np.uint64))
    with pytest.raises(InputError, match=r"and 2,147,483,648 are the most that can be$"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=BARE)


def test_num_nodes__is_held_against_what_the_file_says(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=EDGES, x=np.ones((3, 1)))
    with pytest.raises(InputError, match=r"x has 3 rows; graph\.num_nodes=4 must be equal or left out"):
        read_matrix(tmp_path / "g", tmp_path / "g.npz", policy=Policy(num_nodes=4))
    np.save(tmp_path / "e.npy", EDGES)
    with pytest.raises(InputError, match=r"outside 0 \.\. 1"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=Policy(featureless="degree", num_nodes=2))
    assert (
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=Policy(featureless="degree", num_nodes=9)).num_nodes == 9
    )


def test_shape_of_a_scipy_file__must_be_meant_too(tmp_path):
    sparse.save_npz(tmp_path / "a.npz", sparse.coo_array((np.ones(2), EDGES), shape=(2**31 - 1, 2**31 - 1)))
    with pytest.raises(InputError, match=r"a\.npz: .* would make a graph of 2,147,483,647"):
        read_matrix(tmp_path / "g", tmp_path / "a.npz", policy=BARE)


def refused_as_a_bomb(read, path, tmp_path):
    with pytest.raises(InputError, match=rf"{path.name} has [\d,]+ bytes and unpacks to .*10,000,000 are the most"):
        read(tmp_path / "g", path, policy=Policy(featureless="degree", max_bytes=10_000_000))


def test_bombs__are_refused_before_they_are_unpacked(tmp_path):
    zeros = np.zeros((20_000_000, 1), np.uint8)
    path = archive(tmp_path / "g.npz", [("edge_index", EDGES), ("x", zeros)], zipfile.ZIP_DEFLATED)
    refused_as_a_bomb(read_matrix, path, tmp_path)
    rows = np.zeros(2_000_000, np.int64)
    refused_as_a_bomb(read_tables, table(tmp_path / "e.parquet", {"source": rows, "target": rows + 1}), tmp_path)
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"source,target\n" + b"0,1\n" * 4_000_000))
    refused_as_a_bomb(read_tables, tmp_path / "e.csv.gz", tmp_path)


def test_long_text_that_every_row_means__is_refused_or_read_in_small_batches(tmp_path):
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200, np.int32)), pa.array(["x" * 100_000]))
    edges = table(tmp_path / "e.parquet", {"source": long, "target": ["a"] * 200}, store_schema=False)
    refused_as_a_bomb(read_tables, edges, tmp_path)
    assert read_tables(tmp_path / "g", edges, policy=BARE).num_nodes == 2


def test_archive_of_many_members__is_read_once(tmp_path, monkeypatch):
    path = archive(tmp_path / "g.npz", [("edge_index", EDGES), *((f"a{i}", [0]) for i in range(300))])
    opened = []
    plain = zipfile.ZipFile.__init__
    monkeypatch.setattr(zipfile.ZipFile, "__init__", lambda *a, **k: opened.append(a) or plain(*a, **k))
    assert read_matrix(tmp_path / "g", path, policy=BARE).num_edges == 2
    assert len(opened) == 1


def test_member_twice__is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(tmp_path / "g.npz", [("edge_index", EDGES), ("edge_index", [[0], [1]])])
    with pytest.raises(InputError, match=r"g\.npz holds 'edge_index' twice"):
        read_matrix(tmp_path / "g", path, policy=BARE)


@pytest.mark.parametrize("shape", ["(-2, 2)", "(2, 4611686018427387904)", "(2, 1)", "((((2", "2"])
def test_npy_header__must_say_what_the_file_holds(tmp_path, shape):
    np.save(tmp_path / "e.npy", EDGES)
    data = (tmp_path / "e.npy").read_bytes()
    header = data[10:128].replace(b"(2, 2)", shape.encode())[:117].rstrip().ljust(117) + b"\n"
    (tmp_path / "e.npy").write_bytes(data[:10] + header + data[128:])
    with pytest.raises(InputError, match=r"e\.npy is (torn|not a \.npy array)"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=BARE)


def test_pickle__is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.save(tmp_path / "e.npy", np.array([[Trap()], [0]], object), allow_pickle=True)
    with pytest.raises(InputError, match="holds Python objects"):
        read_matrix(tmp_path / "g", tmp_path / "e.npy", policy=BARE)
    assert not (tmp_path / "sprung").exists()


def test_mat_with_rows_out_of_range__is_refused(tmp_path):
    matrix = sparse.csc_array(([1.0, 1.0], ([1, 2], [0, 1])), shape=(3, 3))
    scipy_io.savemat(tmp_path / "a.mat", {"A": matrix, "X": sparse.csc_array(np.eye(3))})
    data = (tmp_path / "a.mat").read_bytes()
    rows, other = (np.array(ends, "<i4").tobytes() for ends in ([5, 8, 1, 2], [5, 8, 1, 2**30]))  # with their tag
    assert data.count(rows) == 1
    (tmp_path / "a.mat").write_bytes(data.replace(rows, other))
    with pytest.raises(InputError, match=r"a\.mat:A names the rows 1 \.\. 1073741824; legal are 0 \.\. 2"):
        read_matrix(tmp_path / "g", tmp_path / "a.mat")


@pytest.mark.parametrize("name", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "UTF-32BE"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf16__is_named_and_how_to_convert_it(tmp_path, name, pack):
    path = tmp_path / ("e.csv.gz" if pack is gzip.compress else "e.csv")
    path.write_bytes(pack("source,target\n0,1\n".encode(name)))
    told = "UTF-32" if name.startswith("UTF-32") else name
    with pytest.raises(
        InputError, match=rf"{path.name} is {told} text; legal is UTF-8, which `iconv -f {told} -t UTF-8 "
    ):
        read_tables(tmp_path / "g", path, policy=BARE)


def test_control_characters__are_spelled_out_in_faults_and_tables(tmp_path):
    edges = table(tmp_path / "e.parquet", {"source": ["\x1b[2J\n" + "x" * 10**6], "target": ["a"]})
    nodes = table(tmp_path / "n.parquet", {"id": ["a"], "s": [1.0]})
    with pytest.raises(
        InputError, match=r"1 rows name an id that is not a node in .*: row 0: \\x1b\[2J\\nxxx"
    ) as fault:
        read_tables(tmp_path / "g", edges, nodes)
    assert len(str(fault.value)) < 400
    edges = table(tmp_path / "e.parquet", {"source": [0], "target": [1], "\x1b[31m\nred": [2]})
    assert "edges  \\x1b[31m\\nred " in column_report(read_tables(tmp_path / "g", edges, policy=BARE))


def test_command__shows_no_control_characters_and_no_endless_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "a.npz", [("format", "csr" + "x" * 10**6), ("shape", [6, 6]), ("data", [1.0])])
    (tmp_path / "e.csv").write_text("source,target\na,\x1b[31mb\n")
    (tmp_path / "n.csv").write_text("id,\x9b2J\na,1\n")
    tables = ["graph=tables", "graph.path=e.csv", "graph.nodes=n.csv"]
    for words, message in (
        (["graph=matrix", "graph.path=a.npz"], "a.npz holds a 'csrxxx"),
        (tables, "1 rows name an id that is not a node in the edge table: line 2: a -> \\x1b[31mb"),
        ([*tables, "graph.label_column=\x1b[31m"], "\\x1b[31m"),
        ([*tables, "graph.unknown=add"], "nodes  \\x9b2J "),
    ):
        monkeypatch.setattr("sys.argv", ["hcm-scale", "run", "until=ingest", *words])
        main.main()
        shown = "".join(capsys.readouterr())
        assert message in shown
        assert not {"\x1b", "\x9b"} & set(shown)
        assert max(map(len, shown.splitlines())) < 5_000


def test_policy__has_the_defaults_of_the_schema():
    for section in (config.TablesGraph, config.MatrixGraph, config.PygGraph):
        shared = {f.name for f in fields(section)} & {f.name for f in fields(Policy)}
        assert {name: getattr(section(), name) for name in shared} == {name: getattr(Policy(), name) for name in shared}
        assert "nonfinite" in shared


@pytest.mark.parametrize("rows", [4, 1_200_000])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_quote_that_is_never_closed__loses_no_rows_silently(tmp_path, rows, pack):
    path = tmp_path / ("e.csv.gz" if pack is gzip.compress else "e.csv")
    start = b'source,target,note\n0,1,"sound ""one"" \n of two lines"\n1,2,"open\n'
    path.write_bytes(pack(start + b"2,3,more\n" * rows))
    told = "ends inside of quotes: one that begins near line 3," if rows == 4 else "a row goes on for over 4 MiB; a"
    with pytest.raises(InputError, match=rf"{path.name} .*{told}"):
        read_tables(tmp_path / "g", path, policy=BARE)


@pytest.mark.parametrize("head", ["", "\n", '"source"'])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_quotes_that_are_closed_or_within_a_value__are_read(tmp_path, head, end):
    first = head + ",target" if head.endswith('"') else head + "source,target"
    (tmp_path / "e.csv").write_text(f'{first}\n"a","b\nc"\n5" pipe,a\na,"x ""y"""{end}')
    graph = read_tables(tmp_path / "g", tmp_path / "e.csv", policy=BARE)
    assert sorted(graph.ids.to_pylist()) == ['5" pipe', "a", "b\nc", 'x "y"']
    assert graph.num_edges == 3


def test_line_breaks_in_values__are_read_across_the_blocks_of_a_file(tmp_path):
    rows = b"".join(b'%d,%d,"one\n%d,0,two"\n' % (i, i + 1, i) for i in range(200_000))
    assert len(rows) > 4 << 20
    (tmp_path / "e.csv").write_bytes(b"source,target,note\n" + rows)
    graph = read_tables(tmp_path / "g", tmp_path / "e.csv", policy=BARE)
    assert (graph.num_nodes, graph.num_edges) == (200_001, 200_000)


def test_first_line_for_excel__is_refused(tmp_path):
    (tmp_path / "e.csv").write_text("sep=;\nsource;target\n0;1\n")
    with pytest.raises(InputError, match=r"e\.csv begins with 'sep=;', which is for Excel; remove this line"):
        read_tables(tmp_path / "g", tmp_path / "e.csv", policy=BARE)


def test_checksums_of_parquet_pages__are_looked_at(tmp_path):
    path = table(
        tmp_path / "e.parquet",
        {"source": np.arange(50), "target": np.arange(50) + 1},
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    data, row = path.read_bytes(), np.arange(20, 30).tobytes()
    path.write_bytes(data.replace(row, row[:-8] + np.array([7]).tobytes(), 1))
    with pytest.raises(InputError, match=r"e\.parquet cannot be read as Parquet: .*[Cc][Rr][Cc]"):
        read_tables(tmp_path / "g", path, policy=BARE)


def test_name_of_a_column_that_is_not_utf8__is_refused_with_its_line(tmp_path):
    (tmp_path / "e.csv").write_bytes(b"source,\x8etarget\n0,1\n")
    with pytest.raises(InputError, match=r"e\.csv is not UTF-8 text: line 1 has the byte 0x8E"):
        read_tables(tmp_path / "g", tmp_path / "e.csv", policy=BARE)
