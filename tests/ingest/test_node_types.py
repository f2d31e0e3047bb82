"""Types of nodes from tables: a column, several node tables, columns that only one type has, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers import FAST, small_detector

from hcm_scale import HCM
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph
from hcm_scale.ingest.guess import guess_columns
from hcm_scale.ingest.policy import Columns, InputError, Policy
from hcm_scale.ingest.readers import read_tables

NUM_USERS, NUM_SHOPS = 60, 40


def write_tables(folder: Path, *, in_one: bool = False) -> tuple[str, str]:
    """Edges between users and shops; users have an age, some of it missing, and shops a heavy-tailed turnover."""
    rng = np.random.default_rng(0)
    pairs = zip(rng.integers(0, NUM_USERS, 400), rng.integers(0, NUM_SHOPS, 400), strict=True)
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"u{u},s{s}\n" for u, s in pairs))
    ages = [f"{rng.integers(18, 80)}" if i % 10 else "" for i in range(NUM_USERS)]
    sizes = [f"{np.exp(3 * rng.normal()):.3f}" for _ in range(NUM_SHOPS)]
    joined = [rng.integers(0, 9) for _ in range(NUM_USERS + NUM_SHOPS)]
    if in_one:
        rows = [f"u{i},{ages[i]},,{joined[i]},user" for i in range(NUM_USERS)]
        rows += [f"s{i},,{sizes[i]},{joined[NUM_USERS + i]},shop" for i in range(NUM_SHOPS)]
        (folder / "nodes.csv").write_text("id,age,turnover,joined,type\n" + "\n".join(rows) + "\n")
        return str(folder / "edges.csv"), str(folder / "nodes.csv")
    users = [f"u{i},{ages[i]},{joined[i]}" for i in range(NUM_USERS)]
    shops = [f"s{i},{sizes[i]},{joined[NUM_USERS + i]}" for i in range(NUM_SHOPS)]
    (folder / "user.csv").write_text("id,age,joined\n" + "\n".join(users) + "\n")
    (folder / "shop.csv").write_text("id,turnover,joined\n" + "\n".join(shops) + "\n")
    return str(folder / "edges.csv"), f"{folder}/user.csv,{folder}/shop.csv"


def names_of(graph: Graph) -> list[str | None]:
    return graph.node_types.encode(graph.node_types.codes).to_pylist()


def test_several_tables__are_one_table_with_types(tmp_path):
    several = read_tables(tmp_path / "several", *write_tables(tmp_path))
    one = read_tables(tmp_path / "one", *write_tables(tmp_path, in_one=True), columns=Columns(node_type="type"))
    assert names_of(several) == names_of(one) == ["user"] * NUM_USERS + ["shop"] * NUM_SHOPS
    assert {*several.columns} == {*one.columns}
    for k, name in enumerate(one.columns):
        np.testing.assert_array_equal(several.x[:, several.columns.index(name)], one.x[:, k])
    told = {line["column"]: line["use"] for line in one.info["ingest"]["told"] if line["table"] == "nodes"}
    assert told["type"] == "the type of each node, which is compared with its own type"


def test_column__without_a_value_in_one_of_several_tables_is_told_and_left_out(tmp_path):
    edges, nodes = write_tables(tmp_path)
    shop = tmp_path / "shop.csv"
    head, *rows = shop.read_text().splitlines()
    shop.write_text("\n".join([f"{head},note", *(f"{row}," for row in rows)]))
    graph = read_tables(tmp_path / "graph", edges, nodes)
    assert "note" not in graph.columns
    assert "note" in {line["column"] for line in graph.info["ingest"]["told"]}


def test_columns_of_one_type__are_no_gap_of_the_others(tmp_path):
    graph = read_tables(tmp_path / "graph", *write_tables(tmp_path))
    column = {name: graph.x[:, k] for k, name in enumerate(graph.columns)}
    is_user = np.arange(graph.num_nodes) < NUM_USERS
    assert np.unique(column["age is null"][is_user]).tolist() == [0.0, 1.0]  # these are gaps
    assert (column["age is null"][~is_user] == 2.0).all()
    assert (column["turnover is null"] == np.where(is_user, 2.0, 0.0)).all()
    made = transform(graph.x, scale="auto", pca=None, columns=graph.columns)
    assert made.columns == ("age", "age is null", "joined", "turnover")
    features = dict(zip(made.columns, made.x.T, strict=True))
    users = np.ascontiguousarray(graph.x[is_user][:, :2])
    alone = transform(users, scale="auto", pca=None, columns=graph.columns[:2])
    np.testing.assert_array_equal(features["age"][is_user], alone.x[:, 0])  # as if there were no shops
    np.testing.assert_array_equal(features["age is null"][is_user], alone.x[:, 1])
    for name in ("age", "age is null"):
        assert not features[name][~is_user].any()
    assert not features["turnover"][is_user].any()
    assert abs(features["turnover"][~is_user].std() - 1.0) < 0.01
    again = made.fitted.apply(graph.x, graph.columns)
    np.testing.assert_array_equal(again, made.x)


def test_guess__finds_the_column_of_types(tmp_path, caplog):
    caplog.set_level("INFO")
    edges, nodes = write_tables(tmp_path, in_one=True)
    assert guess_columns((edges, nodes), {})["node_type_column"] == "type"
    many = pa.table({"id": [f"u{i}" for i in range(NUM_USERS)] + [f"s{i}" for i in range(NUM_SHOPS)]})
    many = many.append_column("type", many["id"]).append_column("size", pa.array(range(len(many))))
    assert "node_type_column" not in guess_columns((edges, many), {})
    assert "column 'type' has 100 values and is taken as an attribute" in caplog.text
    assert "node_type_column" not in guess_columns((edges, many.drop_columns(["size"])), {})


def test_types__that_are_too_many_or_missing_or_twice(tmp_path):
    edges, nodes = write_tables(tmp_path, in_one=True)
    with pytest.raises(InputError, match=r"graph.node_type_column='id' has 100 values, 'u0', 'u1', 'u2', ...; legal"):
        read_tables(tmp_path / "a", edges, nodes, columns=Columns(node_type="id"))
    with pytest.raises(InputError, match=r"graph.node_type_column='kind' is not a column of nodes.csv"):
        read_tables(tmp_path / "a", edges, nodes, columns=Columns(node_type="kind"))
    edges, both = write_tables(tmp_path)
    (tmp_path / "shop.csv").write_text((tmp_path / "shop.csv").read_text() + "u7,1.0,3\n")
    with pytest.raises(InputError, match=r"1 rows repeat an id in the node table: line 42 of .*shop.csv: u7"):
        read_tables(tmp_path / "a", edges, both)
    text = (tmp_path / "nodes.csv").read_text().replace("user\n", "\n", 1)
    (tmp_path / "nodes.csv").write_text(text)
    graph = read_tables(tmp_path / "b", edges, nodes, columns=Columns(node_type="type"))
    assert names_of(graph)[:2] == [None, "user"]
    more = Policy(unknown="add")
    (tmp_path / "edges.csv").write_text(Path(edges).read_text() + "u1,new\n")
    graph = read_tables(tmp_path / "c", edges, nodes, columns=Columns(node_type="type"), policy=more)
    assert names_of(graph)[-1] is None
    assert graph.x[-1, graph.columns.index("age is null")] == 2.0


def test_one_type__is_none(tmp_path):
    edges, nodes = write_tables(tmp_path, in_one=True)
    Path(nodes).write_text(Path(nodes).read_text().replace(",shop", ",user"))
    typed = read_tables(tmp_path / "typed", edges, nodes, columns=Columns(node_type="type"))
    plain = read_tables(tmp_path / "plain", edges, nodes, columns=Columns(exclude=("type",)))
    assert typed.node_types is None
    assert typed.fingerprint == plain.fingerprint


def hetero_data():
    torch, data = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data").HeteroData()
    rng = np.random.default_rng(0)
    data["user"].x = torch.tensor(rng.normal(size=(NUM_USERS, 2)), dtype=torch.float32)
    data["shop"].x = torch.tensor(rng.normal(size=(NUM_SHOPS, 3)), dtype=torch.float32)
    ends = np.stack([rng.integers(0, NUM_USERS, 300), rng.integers(0, NUM_SHOPS, 300)])
    data["user", "buys", "shop"].edge_index = torch.tensor(ends)
    data["shop", "sold", "user"].edge_index = torch.tensor(ends[::-1].copy())
    data["user", "knows", "user"].edge_index = torch.tensor(rng.integers(0, NUM_USERS, (2, 50)))
    return data, ends


def test_hetero_data__has_types_and_columns_of_its_own():
    data, ends = hetero_data()
    found = small_detector(data)
    assert found.columns_["node_type_column"] == "type"
    assert sorted(found.table["type"].unique().to_pylist()) == ["shop", "user"]
    graph = Graph.open(found._require_fitted().run.folder / "graph")
    assert graph.num_nodes == NUM_USERS + NUM_SHOPS
    assert {name for name in graph.columns if not name.endswith("null")} == {
        *("user_0", "user_1", "shop_0", "shop_1", "shop_2")
    }
    np.testing.assert_array_equal(graph.x[:NUM_USERS, graph.columns.index("user_1")], data["user"].x[:, 1])
    assert (graph.x[:NUM_USERS, graph.columns.index("shop_1 is null")] == 2.0).all()
    buyer, shop = graph.node_of(f"user:{ends[0, 0]}"), graph.node_of(f"shop:{ends[1, 0]}")
    assert shop in graph.indices[graph.indptr[buyer] : graph.indptr[buyer + 1]]
    data["user", "buys", "shop"].edge_index[1, 0] = NUM_SHOPS
    with pytest.raises(InputError, match="HeteroData cannot be read"):
        HCM(FAST).fit(data)


def test_fit__takes_tables_by_type_and_types_of_arrays(tmp_path):
    pd = pytest.importorskip("pandas")
    edges, several = write_tables(tmp_path)
    users, shops = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("user", "shop"))
    by_files = small_detector((edges, several))
    in_memory = small_detector((pd.read_csv(edges), {"user": users, "shop": shops}))
    assert in_memory.table["type"].to_pylist() == by_files.table["type"].to_pylist()
    graph = Graph.open(by_files._require_fitted().run.folder / "graph")
    arrays = HCM(FAST).fit(Graph(graph.indptr, graph.indices, x=graph.x), node_type=names_of(graph))
    assert {*arrays.table["type"].to_pylist()} == {"user", "shop"}
    with pytest.raises(InputError, match="node_type has 3 entries for 100 nodes"):
        HCM(FAST).fit(graph, node_type=["user", "user", "shop"])
