"""Weights of edges from every source: what rows add up to, against a loop, and what is refused."""

from collections import defaultdict
from decimal import Decimal

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import io, sparse
from torch_geometric.data import Data

from hcm_scale.detector import inputs as givens
from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import (
    Columns,
    InputError,
    Policy,
    column_report,
    read_data,
    read_matrix,
    read_sparse,
    read_tables,
)

DEGREE = {"featureless": "degree"}


def weights_of(graph: Graph) -> dict[tuple[int, int], float]:
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    return dict(zip(zip(rows.tolist(), graph.indices.tolist(), strict=True), graph.weights.tolist(), strict=True))


def added_up(u, v, w, directed):
    """The slow twin: rows of two nodes add up, in both directions together unless directed; loops go."""
    sums = defaultdict(float)
    for row in zip(u, v, w, strict=True):
        for a, b in {row[:2]} if directed else {row[:2], row[1::-1]}:
            if a != b:
                sums[int(a), int(b)] += row[2]
    return sums


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_tables__add_up_the_rows_of_two_nodes(tmp_path, directed, text):
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, 30, (2, 400))
    amount = rng.lognormal(0, 3, 400)
    named = [f"n{i:02d}" for i in range(30)] if text else list(range(30))
    table = {"source": [named[i] for i in u], "target": [named[i] for i in v], "amount": amount}
    policy = Policy(directed=directed, **DEGREE)
    graph = read_tables(tmp_path / "g", pa.table(table), columns=Columns(weight="amount"), policy=policy)
    Graph.open(graph.path)
    found, wanted = weights_of(graph), added_up(u, v, amount, directed)
    assert found.keys() == wanted.keys()
    for arc, weight in found.items():
        assert weight == pytest.approx(wanted[arc], rel=1e-6)
    assert graph.info["weights"] == "amount"
    said = "the amount of each row; weight of edges, added up over the rows of two nodes"
    assert f"amount  double  -         0     {said}" in column_report(graph)


def test_tables__pass_over_the_rows_that_are_dropped(tmp_path):
    edges = pa.table({"source": [1, 1, 9, 2], "target": [2, 1, 1, 1], "amount": [1.5, 7.0, 7.0, 2.5]})
    nodes = pa.table({"id": [1, 2], "size": [1.0, 2.0]})
    columns, policy = Columns(weight="amount"), Policy(unknown="drop")
    assert read_tables(tmp_path / "g", edges, nodes, columns=columns, policy=policy).weights.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        (
            [1.0, None, 0.0, -2.0],
            r"3 weights are .* in graph\.weight_column=amount: row 1: nan; row 2: 0\.0; row 3: -2\.0",
        ),
        ([1.0, float("nan"), float("inf"), 1e-40], r"row 1: nan; row 2: inf; row 3: 1e-40"),
        ([3e38, 3e38, 1.0, 1.0], r"the weights of an edge in graph\.weight_column=amount add up to 6e\+38"),
        (["1", "2", "3", "4"], r"graph\.weight_column='amount' of the edge table is of type string; legal .* numbers"),
    ],
)
def test_tables__refuse_what_is_no_weight_by_row_and_column(tmp_path, amounts, message):
    edges = pa.table({"source": [1, 2, 1, 2], "target": [2, 1, 3, 3], "amount": amounts})
    with pytest.raises(InputError, match=message):
        read_tables(tmp_path / "g", edges, columns=Columns(weight="amount"), policy=Policy(**DEGREE))
    assert not (tmp_path / "g").exists()


def test_tables__refuse_a_column_that_is_not_there_or_an_end(tmp_path):
    edges = pa.table({"source": [1], "target": [2]})
    for name, message in {"amount": "is not a column of", "target": "names an end of the edges"}.items():
        with pytest.raises(InputError, match=rf"graph\.weight_column='{name}' {message}"):
            read_tables(tmp_path / "g", edges, columns=Columns(weight=name), policy=Policy(**DEGREE))


def test_tables__take_whole_numbers_in_csv_and_decimals_in_parquet(tmp_path):
    (tmp_path / "e.csv").write_text("source,target,amount\n1,2,3\n2,3,4.5\n")
    pq.write_table(
        pa.table({"source": [1, 2], "target": [2, 3], "amount": [Decimal("3.00"), Decimal("4.50")]}),
        tmp_path / "e.parquet",
    )
    for path in ("e.csv", "e.parquet"):
        graph = read_tables(tmp_path / "g", tmp_path / path, columns=Columns(weight="amount"), policy=Policy(**DEGREE))
        assert graph.weights.tolist() == [3, 3, 4.5, 4.5]


TOLD_TWICE = sparse.csr_array(np.array([[0, 2.5, 0], [2.5, 9, 4], [0, 1, 0]]))  # 1 - 2 differs: the larger counts


def saved(folder, name):
    """The same matrix in a file of each kind."""
    entries = TOLD_TWICE.tocoo()
    path = folder / name
    if name in ("csr.npz", "csc.npz", "coo.npz"):
        sparse.save_npz(path, TOLD_TWICE.asformat(path.stem))
    elif name == "index.npz":
        np.savez(path, edge_index=np.stack([entries.row, entries.col]), edge_weight=entries.data)
    elif name == "arrays.npz":
        np.savez(path, indptr=TOLD_TWICE.indptr, indices=TOLD_TWICE.indices, edge_weight=TOLD_TWICE.data)
    else:
        io.savemat(path, {"A": sparse.csc_matrix(TOLD_TWICE) if name == "sparse.mat" else TOLD_TWICE.toarray()})
    return path


KINDS = ["csr.npz", "csc.npz", "coo.npz", "index.npz", "arrays.npz", "sparse.mat", "dense.mat"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("directed", [False, True])
def test_matrices__tell_an_edge_once_or_twice(tmp_path, name, directed):
    path, policy = saved(tmp_path, name), Policy(weights=True, directed=directed, **DEGREE)
    found = weights_of(read_matrix(tmp_path / "g", path, policy=policy))
    there_and_back = {(1, 2): 4, (2, 1): 1 if directed else 4}
    assert found == {(0, 1): 2.5, (1, 0): 2.5} | there_and_back
    assert weights_of(read_sparse(tmp_path / "s", TOLD_TWICE, None, policy)) == found
    upper = read_sparse(tmp_path / "u", sparse.triu(TOLD_TWICE), None, Policy(weights=True, **DEGREE))
    assert weights_of(upper) == {(0, 1): 2.5, (1, 0): 2.5, (1, 2): 4, (2, 1): 4}
    assert read_matrix(tmp_path / "p", path, policy=Policy(**DEGREE)).weights is None


def test_matrices__refuse_what_is_no_weight(tmp_path):
    policy = Policy(weights=True, **DEGREE)
    with pytest.raises(InputError, match=r"1 weights are .* in the edges: row 0: -1\.0"):
        read_sparse(tmp_path / "g", -1 * sparse.eye_array(3, k=1, format="csr").tocsr()[[0, 2, 2]], None, policy)
    np.savez(tmp_path / "e.npz", edge_index=np.array([[0], [1]]))
    with pytest.raises(InputError, match=r"e\.npz: graph\.weights=true and there are no weights; legal are"):
        read_matrix(tmp_path / "g", tmp_path / "e.npz", policy=policy)
    np.savez(tmp_path / "e.npz", edge_index=np.array([[0], [1]]), edge_weight=np.ones(2))
    with pytest.raises(
        InputError, match=r"e\.npz:edge_weight has 2 entries and e\.npz:edge_index 1; they must be equal"
    ):
        read_matrix(tmp_path / "g", tmp_path / "e.npz", policy=policy)


def test_torch_geometric__takes_edge_weight_or_one_column_of_edge_attr(tmp_path):
    ends, values = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([3.0, 3.0, 5.0, 5.0])
    policy = Policy(weights=True, **DEGREE)
    for more in ({"edge_weight": values}, {"edge_attr": values}, {"edge_attr": values[:, None]}):
        graph = read_data(tmp_path / "g", Data(edge_index=ends, num_nodes=3, **more), policy=policy)
        assert graph.weights.tolist() == [3, 3, 5, 5]
    wide = Data(edge_index=ends, num_nodes=3, edge_attr=torch.ones(4, 2))
    with pytest.raises(InputError, match=r"graph\.weights=true and there are no weights"):
        read_data(tmp_path / "g", wide, policy=policy)
    with pytest.raises(InputError, match="data has 2 weights for 4 edges; legal is one each"):
        read_data(tmp_path / "g", Data(edge_index=ends, edge_weight=values[:2], num_nodes=3), policy=policy)


def test_networkx__has_its_weights_as_a_column(tmp_path):
    graph = nx.MultiGraph([(0, 1, {"weight": 2}), (0, 1, {"weight": 0.5}), (1, 2, {"weight": 4})])
    given = givens.read_input(graph)
    given.section.weight_column, given.section.featureless = "weight", "degree"
    assert given.read(tmp_path / "g", given.section, None).weights.tolist() == [2.5, 2.5, 4, 4]
    graph.add_edge(0, 2)
    given = givens.read_input(graph)
    given.section.weight_column, given.section.featureless = "weight", "degree"
    with pytest.raises(InputError, match=r"1 weights are missing.* in graph\.weight_column=weight: row 2: nan"):
        given.read(tmp_path / "h", given.section, None)
    graph.add_edge(0, 2, weight="heavy")
    assert givens.read_input(graph).tables[0].column_names == ["source", "target"]
