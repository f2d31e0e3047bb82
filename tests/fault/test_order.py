"""Tomorrow's tables in another order, and with columns of another type: what stays the same to the last bit, and what
is said where it does not.
"""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import planted_graph, small_config

from hcm_scale.config import TablesGraph
from hcm_scale.ingest.policy import InputError
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, as_trained

SCORES = ("ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual", "cohesion")
WARNING = "the rows of the node table stand in another order than in trained="


def tables() -> tuple[pa.Table, pa.Table]:
    """Edges and nodes, with ids that are in order."""
    graph = planted_graph()
    ids = np.array([f"n{k:04d}" for k in range(graph.num_nodes)])
    u, v = np.repeat(np.arange(graph.num_nodes), graph.degrees), np.asarray(graph.indices)
    edges = pa.table({"source": ids[u[u < v]], "target": ids[v[u < v]]})
    x = {f"c{k}": np.asarray(graph.x)[:, k].astype(np.float64) for k in range(graph.num_attributes)}
    sides = {"side": np.arange(graph.num_nodes) % 2 == 0, "zero_one": np.arange(graph.num_nodes) % 2}
    return edges, pa.table({"id": ids, **x, **sides})


def score(folder: Path, edges: pa.Table, nodes: pa.Table, trained: Path | None = None) -> pa.Table:
    """The scores by id, of the nodes of `tables`."""
    for name, table in (("edges", edges), ("nodes", nodes)):
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")
    config = small_config(folder / "run", **{"score.views": ["purified"]})
    if trained is not None:
        config.trained = str(trained / "run")
        config = as_trained(config)
    config.graph = TablesGraph(path=str(folder / "edges.parquet"), nodes=str(folder / "nodes.parquet"))
    pipeline.run(config, until="score")
    found = FinishedRun(folder / "run").table.sort_by("id")
    return found.filter(pa.array([name.startswith("n") for name in found["id"].to_pylist()]))


@pytest.fixture(scope="module")
def monday(tmp_path_factory) -> tuple[Path, pa.Table]:
    folder = tmp_path_factory.mktemp("order") / "monday"
    return folder, score(folder, *tables())


def column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy()


def test_unchanged_nodes__have_the_same_scores_whatever_rows_come_between_and_however_edges_come(
    monday, tmp_path, caplog
):
    (edges, nodes), (trained, before) = tables(), monday
    new = nodes.slice(0, 2).set_column(0, "id", pa.array(["a", "b"]))
    nodes = pa.concat_tables([nodes.slice(0, 100), new, nodes.slice(100)])
    edges = pa.concat_tables([edges, pa.table({"source": ["a"], "target": ["b"]})])
    edges = edges.take(pa.array(np.random.default_rng(0).permutation(len(edges))))
    after = score(tmp_path / "tuesday", edges, nodes, trained)
    for name in (*SCORES, "score", "p"):
        np.testing.assert_array_equal(column(after, name), column(before, name), name)
    assert WARNING not in caplog.text


def test_edge__that_is_new_changes_scores_up_to_three_steps_away(monday, tmp_path):
    (edges, nodes), (trained, before) = tables(), monday
    apart = nx.Graph(list(zip(*(edges[name].to_pylist() for name in ("source", "target")), strict=True)))
    end = min(apart, key=lambda node: (apart.degree(node), node))
    steps = nx.single_source_shortest_path_length(apart, end)
    nodes = pa.concat_tables([nodes, nodes.slice(0, 1).set_column(0, "id", pa.array(["a"]))])
    edges = pa.concat_tables([edges, pa.table({"source": ["a"], "target": [end]})])
    after = score(tmp_path / "tuesday", edges, nodes, trained)
    is_far = np.array([steps.get(node, 9) > 3 for node in before["id"].to_pylist()])
    assert is_far.sum() > 5
    changed = column(after, "score") != column(before, "score")
    assert changed[~is_far].any()
    assert not changed[is_far].any()


def test_rows_in_another_order__are_warned_of_and_differ_by_rounding_alone(monday, tmp_path, caplog):
    (edges, nodes), (trained, before) = tables(), monday
    shuffled = nodes.take(pa.array(np.random.default_rng(0).permutation(len(nodes))))
    after = score(tmp_path / "tuesday", edges, shuffled, trained)
    assert caplog.text.count(WARNING) == 1
    for name in SCORES:
        np.testing.assert_allclose(column(after, name), column(before, name), 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(("name", "is_legal"), [("c0", False), ("zero_one", True), ("side", True)])
def test_boolean_for_a_number__is_refused_unless_it_was_0_and_1(monday, tmp_path, name, is_legal):
    edges, nodes = tables()
    truths = pa.array(np.arange(len(nodes)) % 2 == (name == "zero_one"))
    other = nodes.set_column(nodes.schema.get_field_index(name), name, truths)
    if is_legal:
        score(tmp_path / "tuesday", edges, other, monday[0])
        return
    with pytest.raises(InputError, match=r"column 'c0' is of type bool, and was a number in the trained graph"):
        score(tmp_path / "tuesday", edges, other, monday[0])
