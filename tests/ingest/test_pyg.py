"""torch_geometric objects."""

import warnings

import numpy as np
import pytest
import torch

from hcm_scale.ingest.readers import Policy, ingest_summary, read_data

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric and what it imports warn about each other
    from torch_geometric.data import Data


@pytest.fixture
def data():
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 0, 3, 2]])
    return Data(x=torch.eye(5)[:, :3], edge_index=edge_index, y=torch.tensor([0, 0, 1, 0, 0]))


def test_read_data__symmetrises_and_keeps_isolated_nodes(data, tmp_path):
    g = read_data(tmp_path / "g", data)
    assert g.indptr.tolist() == [0, 1, 2, 3, 4, 4]
    assert g.indices.tolist() == [1, 0, 3, 2]
    np.testing.assert_array_equal(g.x, np.eye(5, 3))
    assert g.y is None
    assert (ingest_summary(g).self_loops, ingest_summary(g).reversed_edges, ingest_summary(g).isolated_nodes) == (
        1,
        1,
        1,
    )


@pytest.mark.parametrize("kind", ["coo", "half", "double"])
def test_read_data__takes_other_tensors(data, tmp_path, kind):
    dense = data.x
    data.x = {"coo": dense.to_sparse_coo, "half": dense.half, "double": dense.double}[kind]()
    g = read_data(tmp_path / "g", data)
    found = g.x.csr().toarray() if kind == "coo" else g.x
    np.testing.assert_array_equal(found, dense)


def test_read_data__refuses(data, tmp_path):
    with pytest.raises(ValueError, match="data has no edge_index"):
        read_data(tmp_path / "g", Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match=r"edge_index of shape \(3, 2\)"):
        read_data(tmp_path / "g", Data(x=torch.ones(3, 1), edge_index=torch.zeros(3, 2, dtype=torch.long)))
    with pytest.raises(ValueError, match="zero attributes"):
        read_data(tmp_path / "g", Data(edge_index=data.edge_index, num_nodes=9))
    with pytest.raises(ValueError, match=r"outside 0 \.\. 1"):
        read_data(tmp_path / "g", Data(x=torch.ones(2, 1), edge_index=data.edge_index))
    data.x[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"1 attribute value is not finite .* row 1 column 2"):
        read_data(tmp_path / "g", data)


def test_read_data__takes_a_featureless_graph_of_known_size(data, tmp_path):
    bare = Data(edge_index=data.edge_index, num_nodes=9)
    g = read_data(tmp_path / "g", bare, policy=Policy(featureless="degree"))
    assert (g.num_nodes, g.columns) == (9, ("log1p(degree)",))
