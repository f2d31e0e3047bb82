"""Whatever form a graph comes in, it is the same graph; what means nothing for a form is refused by name."""

import dataclasses

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from helpers import FAST, small_detector
from scipy import sparse
from torch_geometric.data import Data, HeteroData, TemporalData

from hcm_scale import HCM, InputError
from hcm_scale.detector import inputs
from hcm_scale.graph import Graph


def read(data, out, options=None, **columns):
    """The graph and the columns that `fit` would use."""
    given = inputs.read_input(data)
    config, columns = HCM(options)._configure(given, columns)
    return given.read(out / "graph", config.graph, None), columns


def as_scipy(world):
    entries = world.ends()
    return sparse.csr_matrix((np.ones(entries.shape[1]), entries), shape=(200, 200)), world.graph.x


def as_data(world):
    edge_index = torch.from_numpy(world.ends().astype(np.int64))
    return Data(edge_index=edge_index, x=torch.from_numpy(world.graph.x))


def as_npz(world, tmp_path):
    np.savez(tmp_path / "graph.npz", edge_index=world.ends(), x=world.graph.x)
    return tmp_path / "graph.npz"


def as_folder(world, tmp_path):
    return str(world.graph.save(tmp_path / "kept").path)


def as_sparse_tensor(source, target, size=200, **more):
    made = pytest.importorskip("torch_sparse").SparseTensor
    return made(row=torch.as_tensor(target), col=torch.as_tensor(source), sparse_sizes=(size, size), **more)


def as_torch_sparse(source, target):
    return torch.sparse_coo_tensor(torch.stack([target, source]), torch.ones(len(source)), (200, 200))


@pytest.mark.filterwarnings("ignore:Sparse")  # of torch
@pytest.mark.parametrize(
    "form", [as_sparse_tensor, as_torch_sparse, lambda *ends: as_torch_sparse(*ends).to_sparse_csr()]
)
def test_take__adj_t_points_as_edge_index_does(world, tmp_path, form):
    data = as_data(world)
    ends = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    wanted, _ = read(Data(edge_index=ends, x=data.x), tmp_path / "wanted", {"graph.directed": True})
    found, _ = read(Data(adj_t=form(*ends), x=data.x), tmp_path, {"graph.directed": True})
    np.testing.assert_array_equal(found.indptr, wanted.indptr)
    np.testing.assert_array_equal(found.indices, wanted.indices)


def test_take__values_of_adj_t_are_weights_on_request(tmp_path):
    adj_t = as_sparse_tensor([0, 1], [1, 2], 3, value=torch.tensor([5.0, 7.0]))
    data = Data(adj_t=adj_t, x=torch.eye(3))
    assert read(data, tmp_path)[0].weights is None
    assert read(data, tmp_path, {"graph.weights": True})[0].weights.tolist() == [5, 5, 7, 7]


def told(data) -> dict[tuple[str, str], str]:
    return {(line.table, line.column): line.use for line in inputs.read_input(data).lines}


def test_fields__of_a_data_that_are_not_read_have_a_line(world, caplog):
    data = as_data(world)
    assert told(data) == {}
    num_edges = data.edge_index.shape[1]
    data.edge_attr, data.edge_weight = torch.ones(num_edges, 4), torch.ones(num_edges)
    data.time, data.train_mask, data.name = torch.arange(num_edges), torch.zeros(200, dtype=torch.bool), "mine"
    lines = {name: use for (_, name), use in told(data).items()}
    assert lines.keys() == {"edge_attr", "edge_weight", "time", "train_mask", "name"}
    assert lines["edge_attr"] == lines["time"] == "not used: columns of edges are read from tables, fit((edges, nodes))"
    assert lines["edge_weight"] == "weight of edges with graph.weights=true, else not used"
    assert "torch.cat([x, train_mask], 1)" in lines["train_mask"]
    assert lines["name"] == "not used"
    with caplog.at_level("INFO", "hcm_scale"):
        found = small_detector(data)
    assert len(Graph.open(found._require_fitted().run.folder / "graph").info["ingest"]["told"]) == 5
    assert "float32 (" in caplog.text
    assert "columns of edges are read from tables" in caplog.text


def test_fields__of_a_hetero_data_that_are_not_read_have_a_line(tmp_path):
    data = HeteroData()
    data["user"].x, data["user"].y = torch.rand(9, 2), torch.zeros(9)
    data["user", "pays", "user"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data["user", "pays", "user"].time = torch.arange(3)
    graph, _ = read(data, tmp_path)
    lines = told(data)
    assert lines["user", "y"] == "not used: fit(data, label) takes known anomalies, 0 or 1 for each node"
    assert "read from tables" in lines["user pays user", "time"]
    adj_t = as_sparse_tensor([0, 1, 2], [1, 2, 3], 9)
    del data["user", "pays", "user"].edge_index
    data["user", "pays", "user"].adj_t = adj_t
    assert read(data, tmp_path)[0].fingerprint == graph.fingerprint


def test_temporal_data__is_a_table_of_events(tmp_path):
    rng = np.random.default_rng(0)
    ends, t = torch.from_numpy(rng.integers(0, 60, (2, 900))), torch.arange(900) * 3600 + 1_600_000_000
    graph, columns = read(TemporalData(src=ends[0], dst=ends[1], t=t, msg=torch.rand(900, 2)), tmp_path)
    assert columns == {"source_column": "source", "target_column": "target"}
    assert any("Monday" in name for name in graph.columns)
    np.testing.assert_array_equal(graph.rows.time, t.numpy())


@pytest.mark.parametrize("how", ["numpy", "torch", "table"])
def test_take__edge_index_and_x(world, tmp_path, how):
    ends, x = world.ends().astype(np.int64), world.graph.x
    pair = {
        "numpy": (ends, x),
        "torch": (torch.from_numpy(ends), torch.from_numpy(x)),
        "table": (ends, pd.DataFrame(x, columns=["a", "b", "c"])),
    }[how]
    graph, _ = read(pair, tmp_path)
    np.testing.assert_array_equal(graph.indices, world.graph.indices)
    np.testing.assert_array_equal(graph.x, x)
    assert graph.columns == (("a", "b", "c") if how == "table" else ())


def test_arrays__that_are_no_edge_index_are_answered_with_the_call_that_works(world, tmp_path):
    ends, x = world.ends().astype(np.int64), world.graph.x
    for edges in (ends.T, np.zeros((200, 200)), ends.astype(float), torch.zeros(2, 3, 4)):
        with pytest.raises(TypeError, match=r"is not taken for edges; legal are .* edge_index \(2, E\).*csr_array"):
            read((edges, x), tmp_path)
    with pytest.raises(InputError, match=r"edge_index and x, which is of 9 nodes, do not go together"):
        read((ends, x[:9]), tmp_path)


@pytest.mark.parametrize("form", ["Graph", "Data", "scipy", "npz", "folder"])
def test_take__arrays_of_all_forms_are_one_graph(world, tmp_path, form):
    forms = {"Graph": lambda: world.graph, "Data": lambda: as_data(world), "scipy": lambda: as_scipy(world)}
    forms |= {"npz": lambda: as_npz(world, tmp_path), "folder": lambda: as_folder(world, tmp_path)}
    graph, columns = read(forms[form](), tmp_path)
    assert columns == {}
    np.testing.assert_array_equal(graph.indices, world.graph.indices)
    np.testing.assert_array_equal(graph.x, world.graph.x)


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow", "parquet", "mixed"])
def test_take__tables_of_all_forms_are_one_graph_with_guessed_columns(world, tmp_path, form):
    paths = tmp_path / "edges.parquet", tmp_path / "nodes.parquet"
    world.edges.to_parquet(paths[0])
    world.nodes.to_parquet(paths[1])
    pair = {
        "pandas": world[1:],
        "polars": tuple(map(pl.from_pandas, world[1:])),
        "arrow": [pa.Table.from_pandas(frame) for frame in world[1:]],
        "parquet": paths,
        "mixed": (str(paths[0]), world.nodes),
    }[form]
    graph, columns = read(pair, tmp_path)
    assert columns == {"source_column": "from", "target_column": "to", "id_column": "account"}
    np.testing.assert_array_equal(graph.indices, world.graph.indices)
    np.testing.assert_array_equal(graph.x[:, -3:], world.graph.x)
    assert graph.external_id(7) == "n007"
    assert graph.columns[:2] == ("town=x", "town=y")


def test_take__networkx_nodes_and_attributes(world, tmp_path):
    named = nx.from_pandas_edgelist(world.edges, "from", "to", create_using=nx.DiGraph)
    for name, value in zip(world.nodes["account"], world.nodes["a0"], strict=True):
        named.add_node(name, a0=value, odd=name == "n003")
    graph, columns = read(named, tmp_path, label_column="odd")
    assert columns == {"label_column": "odd"}
    assert graph.directed
    assert graph.columns == ("a0",)
    assert [graph.external_id(int(node)) for node in np.flatnonzero(graph.y)] == ["n003"]
    assert not read(named, tmp_path, {"graph.directed": False}, label_column="odd")[0].directed


def test_options_of_the_graph__reach_its_reader(world, tmp_path):
    graph, _ = read(world[1:], tmp_path, {"graph": {"exclude": ["town"]}, "graph.directed": True})
    assert (graph.columns, graph.directed) == (("a0", "a1", "a2"), True)
    with pytest.raises(ValueError, match=r"graph\.featureless=degree gives it"):
        read(world.edges, tmp_path)
    assert read(world.edges, tmp_path, {"graph.featureless": "degree"})[0].num_attributes == 1
    adjacency, x = as_scipy(world)
    holed = np.where(x == x[0, 0], np.nan, x)
    with pytest.raises(ValueError, match=r"graph\.nonfinite=zero or mean"):
        read((adjacency, holed), tmp_path)
    assert read((adjacency, holed), tmp_path, {"graph.nonfinite": "zero"})[0].x[0, 0] == 0


@pytest.mark.parametrize("form", ["Graph", "folder"])
def test_graph_without_attributes__is_refused_or_takes_its_degrees(world, tmp_path, form):
    bare = dataclasses.replace(world.graph, x=None, columns=())
    data = bare if form == "Graph" else str(bare.save(tmp_path / "kept").path)
    with pytest.raises(ValueError, match=r"zero attributes; graph\.featureless=degree"):
        small_detector().fit(data)
    fitted = HCM(FAST | {"graph.featureless": "degree"}, run_dir=tmp_path / "run").fit(data)
    made = Graph.open(tmp_path / "run" / "graph")
    assert made.columns == ("log1p(degree)",)
    np.testing.assert_allclose(made.x[:, 0], np.log1p(bare.degrees), rtol=1e-6)
    assert np.array_equal(fitted.decision_function(data), fitted.decision_scores_)


def test_columns__said_to_fit_go_before_options_and_guesses(world, tmp_path):
    nodes = world.nodes.assign(key=world.nodes["account"])
    _, columns = read((world.edges, nodes), tmp_path, {"graph.id_column": "key", "graph.exclude": ["account"]})
    assert columns["id_column"] == "key"
    _, columns = read(
        (world.edges, nodes), tmp_path, {"graph.id_column": "key"}, id_column="account", source_column="to"
    )
    assert columns == {"id_column": "account", "source_column": "to", "target_column": "from"}


def test_mistakes__are_named(world, tmp_path):
    with pytest.raises(ValueError, match=r"graph\.exclude=\['a'\] means nothing for a Graph; legal there are"):
        read(world.graph, tmp_path, {"graph.exclude": ["a"]})
    with pytest.raises(ValueError, match="id_column='a' means nothing for a scipy matrix"):
        read(as_scipy(world), tmp_path, id_column="a")
    with pytest.raises(ValueError, match="source_column='a' means nothing for a networkx graph"):
        read(nx.path_graph(3), tmp_path, source_column="a")
    with pytest.raises(ValueError, match="source_column='u' is not a column of the edge table; it has"):
        read(world[1:], tmp_path, source_column="u")
    with pytest.raises(TypeError, match=r"data is of type \(DataFrame, int\); legal are a torch_geometric Data"):
        read((world.edges, 3), tmp_path)
    for nothing, name in ((None, "NoneType"), ((None, None), r"\(NoneType, NoneType\)"), ([1, 2, 3], "list")):
        with pytest.raises(TypeError, match=rf"data is of type {name}; legal are a torch_geometric"):
            read(nothing, tmp_path)
    with pytest.raises(TypeError, match=r"data is of type \(DataFrame, DataFrame, DataFrame\); legal are"):
        read((world.edges, world.nodes, world.nodes), tmp_path)
    with pytest.raises(TypeError, match="files are named 'users"):
        read((world.edges, {"user": "users.csv", "shop": "shops.csv"}), tmp_path)


@pytest.mark.parametrize("pair", [False, True])
def test_path__that_is_not_there_is_told_with_names_that_are_alike(world, tmp_path, pair):
    world.edges.to_csv(tmp_path / "edges.csv", index=False)
    missing = tmp_path / "edge.csv"
    said = rf"^{missing} is not there; did you mean 'edges.csv'\?$"
    with pytest.raises(ValueError, match=said):
        HCM().fit((missing, world.nodes) if pair else str(missing))
    with pytest.raises(ValueError, match=r"graph\.mat is not there: there is no folder"):
        HCM().fit(tmp_path / "none" / "graph.mat")
    with pytest.raises(ValueError, match="names no Parquet or CSV file"):
        HCM().fit(f"{tmp_path}/none*.csv")


def test_networkx__of_too_few_nodes_or_names_that_collide_is_told(tmp_path):
    graph = nx.Graph()
    with pytest.raises(ValueError, match=r"^the networkx graph has no nodes; legal are two or more"):
        HCM().fit(graph)
    graph.add_node(7, a=1.0)
    with pytest.raises(ValueError, match=r"^the networkx graph has one node; legal"):
        HCM().fit(graph)
    graph.add_edge(7, "7")
    with pytest.raises(ValueError, match=r"^2 nodes of the networkx graph are called '7': its ids are of mixed type"):
        HCM().fit(graph)


def test_index__without_a_name_that_may_hold_the_ids_is_told(world, tmp_path):
    nodes = world.nodes.set_index("account").rename_axis(None)
    with pytest.raises(ValueError, match=r"no column of the node table .* nodes\.rename_axis\('id'\) makes it one$"):
        HCM().fit((world.edges, nodes))
    _, columns = read((world.edges, nodes.rename_axis("id")), tmp_path)
    assert columns["id_column"] == "id"
    with pytest.raises(ValueError, match=r"of nodes \['a0', 'a1', 'a2'\]$"):
        HCM().fit((world.edges, world.nodes[["a0", "a1", "a2"]]))


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_y__of_zeros_and_ones_is_the_label(world, kind):
    data = as_data(world)
    assert inputs.find_label(data) is None
    data.y = (torch.arange(200) < 3).to(kind)
    assert inputs.with_label(world.graph, inputs.find_label(data)).y.sum() == 3


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (torch.arange(200) % 7, r"int64 of shape \(200,\) from 0 to 6; legal is 0 or 1 for each node"),
        (torch.full((200,), 0.5), r"float32 of shape \(200,\) from 0\.5 to 0\.5"),
        (torch.ones(200, 3), r"float32 of shape \(200, 3\) from 1\.0 to 1\.0"),
        (["a"] * 200, r"<U1 of shape \(200,\); legal"),
    ],
)
def test_y__of_other_values_is_told(world, y, said):
    data = as_data(world)
    data.y = y
    with pytest.warns(UserWarning, match=f"data.y is not taken as known anomalies: it is {said}"):
        assert inputs.find_label(data) is None


def test_label__is_one_for_each_node(world):
    assert inputs.with_label(world.graph, torch.arange(200) < 3).y.sum() == 3
    with pytest.raises(ValueError, match="label has 3 entries for 200 nodes"):
        inputs.with_label(world.graph, [0, 1, 0])
    with pytest.raises(ValueError, match="label holds 2 as number 2; legal are 0 and 1, and in y= also -1"):
        inputs.with_label(world.graph, np.arange(200))


def test_label__with_ids_for_its_index_is_taken_by_id(world, tmp_path):
    graph, _ = read(world[1:], tmp_path)
    odd = pd.Series(np.arange(200) < 3, world.nodes["account"])
    np.testing.assert_array_equal(inputs.with_label(graph, odd.sample(frac=1, random_state=0)).y, odd)
    plain = odd.reset_index(drop=True)
    np.testing.assert_array_equal(inputs.with_label(graph, plain).y, odd)
    np.testing.assert_array_equal(inputs.with_label(world.graph, plain[::-1]).y, odd)


@pytest.mark.parametrize("index", [np.arange(200) + 1, [f"n{k // 2:03}" for k in range(200)], np.arange(200) / 2])
def test_label__with_another_index_is_refused(world, tmp_path, index):
    graph, _ = read(world[1:], tmp_path)
    said = r"^the pandas index of label has no 'n\d+', which is the id of a node; it begins with .* label\.to_numpy\(\)"
    with pytest.raises(ValueError, match=said):
        inputs.with_label(graph, pd.Series(0, index))


def test_matrix__with_a_table_of_attributes_keeps_its_names_and_its_index(world, tmp_path):
    adjacency, x = as_scipy(world)
    frame = pd.DataFrame(x, world.nodes["account"], ["income", "age", "debt"])
    graph, _ = read((adjacency, frame), tmp_path)
    assert (graph.columns, graph.external_id(7)) == (("income", "age", "debt"), "n007")
    np.testing.assert_array_equal(graph.x, x)
    assert read((adjacency, frame.set_index(np.arange(200) + 5)), tmp_path)[0].external_id(7) == 12
    gap = pd.Index([None, *world.nodes["account"][1:]])
    for index in (pd.RangeIndex(200), np.arange(200) // 2, x[:, 0], gap):
        graph, _ = read((adjacency, frame.set_index(index)), tmp_path)
        assert (graph.columns, graph.ids) == (("income", "age", "debt"), None)
    for table in (pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        assert read((adjacency, table), tmp_path)[0].columns == ("income", "age", "debt")
    assert read((adjacency, pd.DataFrame(x)), tmp_path)[0].columns == ()


def test_matrix__with_a_table_in_another_order_or_of_repeated_names_is_refused(world, tmp_path):
    adjacency, x = as_scipy(world)
    with pytest.raises(ValueError, match=r"index of the table of attributes holds 0 \.\. 199 in another order than"):
        read((adjacency, pd.DataFrame(x).sample(frac=1, random_state=0)), tmp_path)
    with pytest.raises(ValueError, match=r"^the table of attributes has 2 columns named 'a'; legal is one of a name"):
        read((adjacency, pd.DataFrame(x, columns=["a", "b", "a"])), tmp_path)


def test_apply__finds_the_columns_of_a_table_beside_a_matrix_by_name(world):
    adjacency, x = as_scipy(world)
    frame = pd.DataFrame(x, world.nodes["account"], ["income", "age", "debt"])
    found = small_detector((adjacency, frame))
    again = found.apply((adjacency, frame[["debt", "income", "age"]]))
    np.testing.assert_allclose(again.scores, found.apply((adjacency, frame)).scores)
    assert "income" in found.explain("n007")


def test_networkx__an_attribute_of_edges_that_holds_numbers_may_be_the_weight(tmp_path):
    named = nx.path_graph(3)
    nx.set_node_attributes(named, {0: 1.0, 1: 2.0, 2: 4.0}, "a")
    nx.set_edge_attributes(named, {(0, 1): 900, (1, 2): np.float32(150)}, "combined_score")
    nx.set_edge_attributes(named, "bind", "mode")
    graph, _ = read(named, tmp_path, {"graph.weight_column": "combined_score"})
    assert graph.weights.tolist() == [900, 900, 150, 150]
    with pytest.raises(ValueError, match=r"graph\.weight_column='?mode.*combined_score"):
        read(named, tmp_path, {"graph.weight_column": "mode"})
    assert read(named, tmp_path)[0].weights is None


def test_label__that_is_a_table_is_told_to_be_half_of_a_pair(world):
    adjacency, x = as_scipy(world)
    said = r"^a table was given as y; the tables of edges and nodes are one argument: fit\(\(edges, nodes\)\)"
    for table in (world.nodes, pl.from_pandas(world.nodes), pa.Table.from_pandas(world.nodes), "nodes.csv"):
        with pytest.raises(TypeError, match=said):
            HCM().fit(world.edges, table)
    for table in (x, torch.from_numpy(x), sparse.csr_array(x)):
        with pytest.raises(TypeError, match=said):
            HCM().fit(adjacency, y=table)
    for column in (np.zeros((200, 1)), pd.Series(0, world.nodes["account"])):
        assert inputs.find_label(adjacency, column) is column
    with pytest.raises(TypeError, match="label and y are two names"):
        inputs.find_label(adjacency, x[:, 0], x[:, 0])
