"""torch_geometric objects and data sets."""

import os
import pickle
import warnings
import zipfile
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy import sparse

from hcm_scale.ingest.readers import InputError, Policy, ingest_summary, read_data, read_dataset

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


def test_read_dataset__knows_torch_geometric_by_name(tmp_path):
    g = read_dataset(tmp_path / "g", "KarateClub", tmp_path)
    assert (g.num_nodes, g.num_edges, g.num_attributes) == (34, 78, 34)
    assert ingest_summary(g).origin == "KarateClub"


def test_read_dataset__refuses_unknown_names_and_parts(tmp_path):
    for name in ("os", "Dataset", "Kora"):
        with pytest.raises(ValueError, match=f"dataset='{name}' is not known; legal are .*KarateClub"):
            read_dataset(tmp_path / "g", name, tmp_path)
    with pytest.raises(ValueError, match="Planetoid takes root, name"):
        read_dataset(tmp_path / "g", "Planetoid", tmp_path)
    with pytest.raises(ValueError, match="KarateClub takes no part"):
        read_dataset(tmp_path / "g", "KarateClub/x", tmp_path)


def test_read_dataset__says_when_it_cannot_download(tmp_path, monkeypatch):
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(ValueError, match=r"dataset='Cora' is not under .* and could not be downloaded"):
        read_dataset(tmp_path / "g", "Cora", tmp_path)


@pytest.fixture
def cora(tmp_path, data):
    """The file of a data set that was downloaded and prepared before; its raw files are there by name alone."""
    folder = tmp_path / "Planetoid" / "Cora"
    for part in ("raw", "processed"):
        (folder / part).mkdir(parents=True)
    for name in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        (folder / "raw" / f"ind.cora.{name}").touch()
    path = folder / "processed" / "data.pt"
    torch.save((data.to_dict(), None, Data), path)
    torch.save("None", path.with_name("pre_transform.pt"))
    torch.save("None", path.with_name("pre_filter.pt"))
    return path


def test_read_dataset__takes_a_prepared_one_without_the_network(cora, tmp_path):
    assert read_dataset(tmp_path / "g", "Cora", tmp_path).num_edges == 2


@pytest.mark.parametrize("way", ["empty", "torn", "foreign", "zeros"])
def test_read_dataset__refuses_a_damaged_file(cora, tmp_path, way):
    data = cora.read_bytes()
    half = len(data) // 2
    cora.write_bytes({"empty": b"", "torn": data[:half], "foreign": b"<html>", "zeros": data[:half] + bytes(half)}[way])
    with pytest.raises(
        InputError, match=r"graph\.dataset='Cora' cannot be read; .*Planetoid is fetched anew if removed: "
    ):
        read_dataset(tmp_path / "g", "Cora", tmp_path)


def test_read_dataset__refuses_a_tensor_that_is_not_as_it_was_written(cora, tmp_path, data):
    stored, tensor = cora.read_bytes(), data.edge_index.numpy().tobytes()
    assert stored.count(tensor) == 1
    cora.write_bytes(stored.replace(tensor, b"\1" + tensor[1:]))
    with pytest.raises(InputError, match=r"processed/data\.pt is damaged: data/data/\d+ in it is not as it was"):
        read_dataset(tmp_path / "g", "Cora", tmp_path)


def test_read_dataset__runs_nothing_that_a_file_says(cora, tmp_path):
    torch.save(Trap(tmp_path / "sprung"), cora)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch_geometric, which is about to try again
        with pytest.raises(InputError, match=r"graph\.dataset='Cora' cannot be read"):
            read_dataset(tmp_path / "g", "Cora", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_read_dataset__refuses_a_bomb(cora, tmp_path):
    with zipfile.ZipFile(cora, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/0", bytes(3_000_000))
    with pytest.raises(InputError, match=r"data\.pt has .* unpacks to 3,000,000 or more; 1,000,000 are the most"):
        read_dataset(tmp_path / "g", "Cora", tmp_path, policy=Policy(max_bytes=1_000_000))


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def raw_cora(tmp_path):
    """The pickles that torch_geometric downloads for Cora and reads once: a ring of 600 nodes, two for the test."""
    folder = tmp_path / "Planetoid" / "Cora" / "raw"
    folder.mkdir(parents=True)
    x, y = sparse.csr_matrix(np.eye(600, 3, dtype=np.float32)), np.eye(600, 2, dtype=np.int32)
    graph = defaultdict(list, {node: [(node + 1) % 600] for node in range(600)})
    parts = {"x": x[:1], "allx": x[:598], "tx": x[598:], "y": y[:1], "ally": y[:598], "ty": y[598:], "graph": graph}
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.cora.test.index").write_text("598\n599\n")
    return folder


def test_read_dataset__takes_raw_pickles_of_arrays(raw_cora, tmp_path):
    g = read_dataset(tmp_path / "g", "Cora", tmp_path)
    assert (g.num_nodes, g.num_edges, g.num_attributes) == (600, 600, 3)


def test_read_dataset__runs_no_raw_pickle(raw_cora, tmp_path):
    (raw_cora / "ind.cora.graph").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(InputError, match=r"'Cora' holds a pickle that asks for \w+\.mkdir, .*HCM\(\)\.fit"):
        read_dataset(tmp_path / "g", "Cora", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_pickles__of_other_readers_are_not_looked_at(tmp_path):
    read_dataset(tmp_path / "g", "KarateClub", tmp_path)
    assert pickle.loads(pickle.dumps(Policy())) == Policy()
