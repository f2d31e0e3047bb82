"""Encoders other than the GCN: blocks of torch_geometric's layers, whole graphs in parts, samples, errors."""

import numpy as np
import pytest
import torch
from helpers import FAST, planted_graph, small_detector, small_run

from hcm_scale import HCM, plugins
from hcm_scale.base.files import FolderError
from hcm_scale.base.spmm import gcn_scale, gcn_weights
from hcm_scale.base.threads import torch_threads
from hcm_scale.encoders import Encoder
from hcm_scale.graph import Graph
from hcm_scale.model import HopModel, block_of_rows, embed_graph
from hcm_scale.posterior.samples import open_samples, seal_samples, write_sample
from hcm_scale.sampling.device.graph import draw_blocks, graph_to
from hcm_scale.sampling.neighbors import NeighborSampler
from hcm_scale.score.metrics import roc_auc

SIZES = {"num_attributes": 5, "width": 8, "head_width": 8}


class Gin(Encoder):
    """A graph isomorphism network; `eps` of its layers is a buffer."""

    def make_layer(self, num_inputs, num_outputs):
        from torch_geometric.nn import GINConv

        return GINConv(torch.nn.Sequential(torch.nn.Linear(num_inputs, num_outputs), torch.nn.Dropout(0.5)))


ENCODERS = ["sage", "gat", "Gin"]


@pytest.fixture(autouse=True)
def registered():
    plugins.register("encoders", Gin)


@pytest.fixture
def graph(random_csr) -> Graph:
    return Graph(*random_csr(90, 300))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)


def whole_graph_twin(name: str, model: HopModel, graph: Graph, x: np.ndarray) -> torch.Tensor:
    """The layers of torch_geometric on the whole graph, in its own format and with its own self loops."""
    from torch_geometric.utils import add_self_loops

    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))
    edges = add_self_loops(edges, num_nodes=graph.num_nodes)[0] if name == "gat" else edges
    h = torch.from_numpy(x)
    for depth, layer in enumerate(model.encoder.layers):
        h = layer(h, edges)
        h = h.relu() if depth < len(model.encoder.layers) - 1 else h
    return h


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("name", ENCODERS)
def test_embed_graph__is_that_of_torch_geometric_in_any_parts_and_threads(name, num_layers, graph, x, monkeypatch):
    monkeypatch.setattr("hcm_scale.model._PIECE_ENTRIES", 50)
    model = HopModel(**SIZES, num_layers=num_layers, encoder=name, seed=3)
    found = []
    for chunk_rows, threads in ((16, 1), (90, 2), (7, 2)):
        with torch_threads(threads):
            found.append(embed_graph(model, graph.indptr, graph.indices, x, propagated=False, chunk_rows=chunk_rows))
    with torch.no_grad():
        wanted = whole_graph_twin(name, model, graph, x)
    for z in found:
        torch.testing.assert_close(z, wanted, rtol=1e-5, atol=1e-5)
    again = HopModel(**SIZES, num_layers=num_layers, encoder=name, seed=3)
    assert torch.equal(embed_graph(again, graph.indptr, graph.indices, x, propagated=False, chunk_rows=16), found[0])


@pytest.mark.parametrize("name", ENCODERS)
def test_encode__of_all_neighbours_is_the_embedding_of_the_whole_graph(name, graph, x):
    model = HopModel(**SIZES, num_layers=2, encoder=name)
    sample = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), [None, None], seed=0)
    seeds = np.array([4, 80, 17])
    nodes, blocks = sample(seeds, 0)
    wanted = embed_graph(model, graph.indptr, graph.indices, x, propagated=False)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode(torch.from_numpy(x[nodes]), blocks), wanted[seeds], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_block_of_rows__is_the_block_that_the_sampler_draws_of_all_neighbours(graph, weighted):
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(graph.indices)).astype(np.float32) if weighted else None
    nodes, block = block_of_rows(graph.indptr, graph.indices, gcn_weights(graph.indptr, weights), slice(20, 33))
    scale = gcn_scale(graph.indptr, weights)
    sampler = NeighborSampler(graph.indptr, graph.indices, scale, [None], seed=0, weights=weights)
    others, (wanted,) = sampler(np.arange(20, 33), 0)
    assert torch.equal(block.indptr, wanted.indptr)
    assert np.array_equal(nodes[block.indices.numpy()], others[wanted.indices.numpy()])
    torch.testing.assert_close(block.weights, wanted.weights)


@pytest.mark.parametrize("where", ["cores", "device", "rows"])
def test_edges__without_loops_are_those_of_the_graph(graph, x, where):
    seeds = np.array([7, 30, 31])
    if where == "rows":
        nodes, block = block_of_rows(graph.indptr, graph.indices, gcn_weights(graph.indptr), slice(30, 32))
        seeds = seeds[1:]
    elif where == "device":
        given = graph_to("cpu", graph.indptr, graph.indices, x)
        found, (block,) = draw_blocks(given, torch.from_numpy(seeds), [1_000], 5)
        nodes = found.numpy()
    else:
        nodes, (block,) = NeighborSampler(graph.indptr, graph.indices, gcn_scale(graph.indptr), [None], seed=0)(
            seeds, 0
        )
    near, targets = nodes[block.edges(False).numpy()]
    wanted = [(v, u) for u in seeds for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]]]
    assert sorted(zip(near.tolist(), targets.tolist(), strict=True)) == sorted(wanted)
    with_loops = nodes[block.edges(True).numpy()]
    assert sorted(with_loops[0][with_loops[0] == with_loops[1]]) == seeds.tolist()


def test_encoder__may_embed_the_graph_itself(graph, x):
    class Itself(Encoder):
        def make_layer(self, num_inputs, num_outputs):
            return torch.nn.Linear(num_inputs, num_outputs)

        def embed(self, indptr, indices, x):
            return self.layers[0](x)

    plugins.register("encoders", Itself)
    model = HopModel(**SIZES, num_layers=1, encoder="Itself")
    z = embed_graph(model, graph.indptr, graph.indices, x, propagated=False)
    assert torch.equal(z, model.encoder.layers[0](torch.from_numpy(x)))


def test_initial_weights__are_a_function_of_the_seed_and_leave_torchs_generator_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first, same, other = (HopModel(**SIZES, encoder="sage", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), wanted)
    weights = [model.encoder.layers[0].lin_l.weight for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", ENCODERS)
def test_samples__carry_the_encoder_and_open_without_taking_its_memory(name, tmp_path):
    made = {"num_classes": 4, "num_layers": 2, "directed": False, "encoder": plugins.identity("encoders", name)}
    model = HopModel(**SIZES, **made)
    digest = write_sample(tmp_path, 0, dict(model.named_parameters()))
    samples = seal_samples(tmp_path, [digest], SIZES | made)
    assert samples.model["encoder"].partition("@")[0] == name
    assert samples[0].keys() == dict(HopModel(**samples.model).named_parameters()).keys()


def test_samples__of_a_plug_in_that_is_missing_or_another_are_refused(tmp_path):
    def make(factor):
        class Passing(Encoder):
            def make_layer(self, num_inputs, num_outputs):
                return torch.nn.Linear(num_inputs, num_outputs * factor)

        return Passing

    plugins.register("encoders", make(1), "Passing")
    model = SIZES | {"num_classes": 4, "num_layers": 1, "directed": False}
    model |= {"encoder": plugins.identity("encoders", "Passing")}
    digest = write_sample(tmp_path, 0, dict(HopModel(**model).named_parameters()))
    seal_samples(tmp_path, [digest], model)

    class Passing(Encoder):
        """Something else."""

    plugins.register("encoders", Passing)
    with pytest.raises(
        FolderError, match=r"model.encoder=Passing: this was made with source \w+, and here it is source"
    ):
        open_samples(tmp_path)
    del plugins._registered["encoders"]["Passing"]
    with pytest.raises(
        FolderError, match=r"model.encoder=Passing is not known in this process.*legal are gcn, sage, gat"
    ):
        open_samples(tmp_path)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda a, b: torch.nn.LazyLinear(b), "is not a float32 of known shape"),
        (lambda a, b: torch.nn.Linear(a, b, dtype=torch.float64), "is not a float32"),
        (lambda a, b: torch.nn.Linear(a, b).requires_grad_(False), "takes gradients"),
    ],
)
def test_encoder__whose_parameters_cannot_be_sampled_is_refused(layer, said):
    class Odd(Encoder):
        def make_layer(self, num_inputs, num_outputs):
            return layer(num_inputs, num_outputs)

    plugins.register("encoders", Odd)
    with pytest.raises(ValueError, match=f"model.encoder=Odd: its parameter layers.0.weight {said}|{said}"):
        HopModel(**SIZES, encoder="Odd")


def test_encoder__that_takes_other_arguments_is_refused_by_name():
    class Wide(torch.nn.Module):
        def __init__(self, num_attributes, width):
            super().__init__()

    plugins.register("encoders", Wide)
    with pytest.raises(
        ValueError, match=r"model\.encoder=Wide: .* takes 3 positional .*called with num_attributes, width"
    ):
        HopModel(**SIZES, encoder="Wide")


def test_encoder__that_is_none_is_refused():
    plugins.register("encoders", lambda *sizes: torch.nn.Linear(2, 2), "NoEncoder")
    with pytest.raises(
        ValueError, match=r"model.encoder=NoEncoder makes a Linear that is no hcm_scale.encoders.Encoder"
    ):
        HopModel(**SIZES, encoder="NoEncoder")
    with pytest.raises(ValueError, match=r"model.width=10: the 4 heads"):
        HopModel(5, 4, width=10, encoder="gat")


def test_hcm__takes_a_class_as_its_encoder(tmp_path):
    class Mean(Encoder):
        def make_layer(self, num_inputs, num_outputs):
            from torch_geometric.nn import SAGEConv

            return SAGEConv(num_inputs, num_outputs)

    graph = planted_graph()
    own = small_detector(graph, encoder=Mean, seed=1)
    assert np.array_equal(own.decision_scores_, small_detector(graph, encoder="sage", seed=1).decision_scores_)
    assert not np.array_equal(own.embedding_, small_detector(graph, seed=1).embedding_)
    assert HCM(encoder=Mean).config.model.encoder == "Mean"
    own.save(tmp_path / "saved")
    loaded = HCM.load(tmp_path / "saved")
    assert loaded.encoder == "Mean"
    assert np.array_equal(loaded.apply(graph).decision_scores_, own.decision_scores_)
    del plugins._registered["encoders"]["Mean"]
    with pytest.raises(FolderError, match="the saved detector has encoder=Mean, a plug-in that is not known in this"):
        HCM.load(tmp_path / "saved")


def test_run__another_encoder_makes_training_and_scores_again_and_no_more(tmp_path):
    def stamps():
        return {p.name: p.stat().st_mtime_ns for p in (tmp_path / "records").glob("*.json")}

    small_run(tmp_path, planted_graph(), until="score")
    before = stamps()
    small_run(tmp_path, planted_graph(), until="score", **{"model.encoder": "sage"})
    after = stamps()
    same = {name for name in before if before[name] == after.get(name)}
    assert same >= {"graph.json", "purified.json", "labels.json"}
    assert not same & {"train-purified.json", "train-original.json", "scores.json"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENCODERS)
def test_gpu__embeds_as_the_cores_do(name, graph, x, monkeypatch):
    monkeypatch.setattr("hcm_scale.model._PIECE_ENTRIES", 50)
    model = HopModel(**SIZES, encoder=name, seed=3)
    wanted = embed_graph(model, graph.indptr, graph.indices, x, propagated=False)
    found = embed_graph(model.cuda(), graph.indptr, graph.indices, x, propagated=False)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENCODERS)
def test_gpu__trains_and_scores(name):
    """Devices draw other numbers: with dropout the difference of means of three areas varies by .012."""
    graph, auc = planted_graph(), {}
    for device in ("cpu", "cuda"):
        options = FAST | {"world.device": device, "posterior.burn_in_steps": 60}
        fitted = (HCM(options | {"seed": seed}, encoder=name).fit(graph) for seed in range(3))
        auc[device] = np.mean([roc_auc(graph.y, own.decision_scores_) for own in fitted])
    assert abs(auc["cpu"] - auc["cuda"]) < 0.035


def test_layer__that_takes_other_arguments_is_named(graph, x):
    class Plain(Encoder):
        def make_layer(self, num_inputs, num_outputs):
            return torch.nn.Linear(num_inputs, num_outputs)

    plugins.register("encoders", Plain)
    model = HopModel(**SIZES, num_layers=1, encoder="Plain")
    with pytest.raises(ValueError, match=r"layer 1 of the encoder Plain, a Linear: .*run_layer may call it otherwise"):
        embed_graph(model, graph.indptr, graph.indices, x, propagated=False)
