"""Tables in memory become the graph that the same tables become as files, whichever library holds them."""

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from hcm_scale.ingest import libraries
from hcm_scale.ingest.readers import Columns, InputError, Policy, read_sparse, read_tables
from hcm_scale.ingest.table_files import as_arrow

EDGES = pd.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "a"]})
NODES = pd.DataFrame(
    {
        "id": ["a", "b", "c", "d"],
        "age": [1.5, np.nan, 3.0, 4.0],
        "town": pd.Categorical(["x", "y", "x", "x"]),
        "day": pd.to_datetime(["2024-01-01", "2024-02-01", "2024-03-01", "2024-01-05"]),
        "member": [True, False, True, True],
    }
)
OF = {
    "pandas": lambda frame: frame,
    "pandas, indexed": lambda frame: frame.set_index(frame.columns[0]),
    "pandas, filtered": lambda frame: pd.concat([frame, frame]).iloc[: len(frame)].set_axis(range(5, 5 + len(frame))),
    "polars": pl.from_pandas,
    "arrow": pa.Table.from_pandas,
    "record batch": pa.RecordBatch.from_pandas,
}


@pytest.mark.parametrize("library", OF)
def test_read_tables__in_memory_equals_the_same_in_files(tmp_path, library):
    for name, frame in (("edges", EDGES), ("nodes", NODES)):
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / f"{name}.parquet")
    files = read_tables(tmp_path / "of_files", tmp_path / "edges.parquet", tmp_path / "nodes.parquet")
    edges, nodes = (as_arrow(OF[library](frame), "the table") for frame in (EDGES, NODES))
    held = read_tables(tmp_path / "held", edges, nodes)
    assert held.fingerprint == files.fingerprint


def test_read_tables__names_the_table_in_memory_where_something_is_wrong(tmp_path):
    edges, nodes = pa.Table.from_pandas(EDGES), pa.Table.from_pandas(NODES)
    with pytest.raises(InputError, match=r"graph\.id_column='key' is not a column of the node table; it has \['id'"):
        read_tables(tmp_path / "out", edges, nodes, columns=Columns(id="key"))
    with pytest.raises(InputError, match="the edge table has 2 columns named 'source'"):
        read_tables(tmp_path / "out", pa.Table.from_arrays([*edges.columns], ["source", "source"]), nodes)
    with pytest.raises(InputError, match="edges cannot be read as an Arrow table"):
        as_arrow(pd.DataFrame({"source": [1, "b", []]}), "edges")


def test_as_arrow__names_the_repeated_columns_of_pandas_alone():
    frame = pd.DataFrame([[1, 2, 3, 4, 5]], columns=["id", "a", "b", "a", "a"])
    said = r"^the node table has 3 columns named 'a'; legal is one of a name: rename or drop the others$"
    with pytest.raises(InputError, match=said):
        as_arrow(frame, "the node table")
    many = pd.DataFrame([[0] * 14], columns=[*"aabbccddeeffgg"])
    with pytest.raises(InputError, match=r"2 columns named 'e' and 2 more; legal"):
        as_arrow(many, "the node table")


def test_read_sparse__takes_both_kinds_of_attributes_and_no_stored_zeros(tmp_path):
    x = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    adjacency = sparse.coo_array((np.array([1, 1, 0]), ([0, 1, 0], [1, 2, 2])), shape=(3, 3))
    dense = read_sparse(tmp_path / "dense", adjacency.tocsr(), x, Policy())
    few = read_sparse(tmp_path / "sparse", adjacency, sparse.csr_matrix(x), Policy())
    assert dense.indptr.tolist() == few.indptr.tolist() == [0, 1, 3, 4]
    assert dense.indices.tolist() == few.indices.tolist() == [1, 0, 2, 1]
    np.testing.assert_array_equal(dense.x, few.x.csr().toarray())
    one_way = read_sparse(tmp_path / "directed", adjacency, x, Policy(directed=True))
    assert one_way.directed
    assert one_way.num_edges == 2


@pytest.mark.parametrize(
    ("shape", "x", "said"),
    [
        ((3, 2), np.ones((3, 1)), r"shape \(3, 2\); legal is \(n, n\)"),
        ((3, 3), np.ones(3), r"attributes have shape \(3,\)"),
        ((3, 3), np.full((3, 1), "a"), "type <U1; legal are numbers"),
        ((3, 3), np.ones((2, 1)), "x has 2 rows for 3 nodes"),
    ],
)
def test_read_sparse__refuses_what_is_no_graph(tmp_path, shape, x, said):
    with pytest.raises(InputError, match=said):
        read_sparse(tmp_path / "out", sparse.csr_array(shape), x, Policy())


def test_networkx__attributes_become_columns_and_names_stay():
    graph = nx.Graph([("a", "b"), ("b", "c")])
    nx.set_node_attributes(graph, {"a": 1, "c": 2}, "age")
    nx.set_node_attributes(graph, {"a": [0.0, 1.0], "b": (1.0, 1.0), "c": np.array([2.0, 1.0])}, "place")
    edges, nodes = libraries.tables_of(graph)
    assert edges.to_pydict() == {"source": ["a", "b"], "target": ["b", "c"]}
    expected = {"age": [1, None, 2], "place_0": [0.0, 1.0, 2.0], "place_1": [1.0, 1.0, 1.0]}
    assert nodes.to_pydict() == {libraries.ID_COLUMN: ["a", "b", "c"], **expected}


def test_networkx__numbers_of_numpy_are_numbers():
    graph = nx.path_graph(2)
    for name, values in {"x": np.array([0.5, 1.5]), "n": np.array([1, 2]), "is": np.array([True, False])}.items():
        nx.set_node_attributes(graph, dict(enumerate(values)), name)
    _, nodes = libraries.tables_of(graph)
    assert nodes.to_pydict() == {libraries.ID_COLUMN: [0, 1], "x": [0.5, 1.5], "n": [1, 2], "is": [True, False]}


def test_networkx__gaps_of_a_pandas_table_are_gaps():
    frame = pd.DataFrame({"age": [1.0, np.nan], "day": [pd.Timestamp("2024-01-01"), pd.NaT], "size": [pd.NA, 4]})
    frame["town"] = np.array([np.nan, "x"], object)
    graph = nx.path_graph(2)
    nx.set_node_attributes(graph, frame.astype(object).to_dict("index"))
    _, nodes = libraries.tables_of(graph)
    assert [column.null_count for column in nodes.columns] == [0, 1, 1, 1, 1]
    assert [str(kind) for kind in nodes.schema.types[1:]] == ["double", "timestamp[us]", "int64", "string"]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_read_tables__takes_nan_as_a_gap_whichever_library_holds_it(tmp_path, make):
    nodes = as_arrow(make({"id": ["a", "b", "c"], "age": [1.0, np.nan, 3.0], "none": [np.nan] * 3}), "nodes")
    graph = read_tables(tmp_path / "graph", as_arrow(EDGES, "edges"), nodes)
    assert graph.columns == ("age", "age is null")
    assert graph.x.tolist() == [[1, 0], [2, 1], [3, 0]]


def test_networkx__names_are_numbers_where_all_are_and_text_where_not():
    assert libraries.tables_of(nx.path_graph(3))[1].to_pydict() == {libraries.ID_COLUMN: [0, 1, 2]}
    edges, _ = libraries.tables_of(nx.grid_2d_graph(1, 2))
    assert edges.to_pydict() == {"source": ["(0, 0)"], "target": ["(0, 1)"]}
    mixed = nx.Graph()
    mixed.add_node(0, age="old")
    mixed.add_node(1, age=3)
    with pytest.raises(InputError, match="attribute 'age' of the networkx graph is of several types"):
        libraries.tables_of(mixed)


def test_frame__with_text_of_numbers_and_dates_gives_the_columns_of_the_same_csv(tmp_path):
    edges = pa.table({"source": [0, 1], "target": [1, 2]})
    frame = pd.DataFrame({"id": [0, 1, 2], "day": ["2008-10-01", None, "2008-10-03"], "s": ["7.123", "8", "1.5-"]})
    frame.to_csv(tmp_path / "n.csv", index=False)
    held = read_tables(tmp_path / "held", edges, as_arrow(frame, "nodes"))
    read = read_tables(tmp_path / "read", edges, tmp_path / "n.csv")
    assert held.columns == read.columns == ("day", "day is null", "s")
    np.testing.assert_array_equal(held.x, read.x)
    coded = read_tables(tmp_path / "coded", edges, as_arrow(frame.astype({"day": "category"}), "nodes"))
    assert coded.columns[:2] == ("day=2008-10-01", "day=2008-10-03")
