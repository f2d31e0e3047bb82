"""Columns of vectors, and nodes that have no attributes: one block of attributes, and nothing said where none are."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import FAST

from hcm_scale import HCM
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import InputError, Policy, column_encodings, column_report, read_tables
from hcm_scale.ingest.table_files import as_arrow

EDGES = pa.table({"source": [0, 1, 2], "target": [1, 2, 3]})
VECTORS = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
FORMS = {
    "fixed": lambda: pa.table({"id": range(4), "bio": pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), 3)}),
    "list": lambda: pa.table({"id": range(4), "bio": VECTORS.astype(np.float32).tolist()}),
    "pandas": lambda: as_arrow(pd.DataFrame({"id": range(4), "bio": list(VECTORS)}), "nodes"),
    "polars": lambda: as_arrow(
        pl.DataFrame({"id": range(4), "bio": VECTORS.tolist()}, schema_overrides={"bio": pl.Array(pl.Float64, 3)}), "n"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors__are_divided_by_their_length_whatever_holds_them(tmp_path, form):
    pq.write_table(FORMS[form](), tmp_path / "nodes.parquet")
    for nodes in (FORMS[form](), tmp_path / "nodes.parquet"):
        graph = read_tables(tmp_path / "g", EDGES, nodes)
        assert graph.columns == ("bio[0]", "bio[1]", "bio[2]")
        np.testing.assert_allclose(graph.x, VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True), rtol=1e-6)
        assert "one attribute, the direction of vectors of 3" in column_report(graph)


def test_gaps_of_vectors__get_the_mean_and_a_flag(tmp_path):
    nodes = pa.table({"id": range(4), "bio": [[0.0, 2.0], None, [2.0, 0.0], [0.0, 1.0]]})
    graph = read_tables(tmp_path / "g", EDGES, nodes)
    assert graph.columns == ("bio[0]", "bio[1]", "bio is null")
    np.testing.assert_allclose(graph.x[1], [1 / 3, 2 / 3, 1])
    later = read_tables(tmp_path / "later", EDGES, nodes.slice(0, 4), trained=column_encodings(graph))
    np.testing.assert_array_equal(later.x, graph.x)
    short = pa.table({"id": range(4), "bio": [[0.0]] * 4})
    with pytest.raises(InputError, match=r"4 vectors are not as many .*: row 0 column 'bio' = \[0\.0\]"):
        read_tables(tmp_path / "h", EDGES, short, trained=column_encodings(graph))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [[1.0, 2.0], [1.0], [3.0, 1.0], [1.0]],
            r"2 vectors are not as many finite numbers as the first .*: row 1 column",
        ),
        (
            [[1.0, 2.0], [1.0, np.nan], [3.0, 1.0], None],
            r"1 vectors are not as many .*: row 1 column 'bio' = \[1\.0, nan\]",
        ),
        ([[1.0, 2.0], [None, 1.0], [3.0, 1.0], None], r"row 1 column 'bio' = \[None, 1\.0\]"),
    ],
)
def test_bad_vectors__are_said_by_row(tmp_path, values, said):
    nodes = pa.table({"id": range(4), "bio": pa.array(values, pa.list_(pa.float64()))})
    with pytest.raises(InputError, match=said):
        read_tables(tmp_path / "g", EDGES, nodes)


def test_vectors__are_reduced_apart_from_other_columns():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(500, 2)), 0.01 * rng.normal(size=(500, 3)) @ rng.normal(size=(3, 90))], axis=1)
    names = ("age", "size", *(f"bio[{k}]" for k in range(90)))
    made = transform(x.astype(np.float32), scale="auto", columns=names)
    assert made.columns == ("age", "size", "pc0", "pc1", "pc2")
    assert made.x[:, 2:].var(axis=0).mean() == pytest.approx(1.0, rel=1e-3)
    assert [row["rule"] for row in made.record["columns"]] == ["standard", "embedding of bio"]


def test_explanation__names_a_vector_as_one_thing(tmp_path):
    rng = np.random.default_rng(0)
    bio = rng.normal(size=(200, 16)) + 6 * np.eye(16)[0]
    bio[7] = 8 * np.eye(16)[3] + rng.normal(size=16)
    edges = pa.table({"source": rng.integers(0, 200, 900), "target": rng.integers(0, 200, 900)})
    found = HCM(FAST, run_dir=tmp_path / "run").fit((edges, pa.table({"id": range(200), "bio": list(bio)})))
    assert "vector `bio` unlike that around it" in found.explain(7).text


def test_large_whole_numbers__keep_their_differences(tmp_path):
    stamps = 1_700_000_000_000_000_000 + np.array([0, 1, 2, 3]) * 3_600_000_000_000
    nodes = pa.table({"id": range(4), "stamp": stamps, "amount": [5, 40_000_000, 7, 9]})
    graph = read_tables(tmp_path / "g", EDGES, nodes)
    np.testing.assert_allclose(graph.x[:, 0], np.arange(4) * 3.6e12, rtol=1e-6)
    assert graph.x[:, 1].tolist() == [5, 40_000_000, 7, 9]
    assert "a number: less 1,700,000,000,000,000,000, the least" in column_report(graph)


def test_nodes_that_edges_alone_name__are_usual_by_their_attributes(tmp_path):
    rng = np.random.default_rng(1)
    group = np.arange(400) // 100
    x = rng.normal(size=(400, 4)) + 4 * rng.normal(size=(4, 4))[group]
    source = rng.integers(0, 400, 2400)
    target = group[source] * 100 + rng.integers(0, 100, 2400)
    edges = pa.table({"source": source, "target": np.where(rng.random(2400) < 0.05, 400 + source % 12, target)})
    nodes = pa.table({"id": range(400), **{f"a{k}": x[:, k] for k in range(4)}})
    run = tmp_path / "run"
    found = HCM(FAST | {"graph.unknown": "add"}, run_dir=run).fit((edges, nodes))
    assert Graph.open(run / "graph").num_nodes == 412
    scores = {row["id"]: row for row in pq.read_table(run / "scores" / "scores.parquet").to_pylist()}
    ranks = np.array([[scores[node][f"{kind}_rank"] for kind in ("context", "attributes")] for node in range(400, 412)])
    assert ((ranks > 100) & (ranks < 312)).all()
    assert "is null" not in found.explain(405).text


def test_added_nodes__lack_nothing(tmp_path):
    nodes = pa.table({"id": [0, 1], "age": [1.0, 3.0]})
    graph = read_tables(tmp_path / "g", EDGES, nodes, policy=Policy(unknown="add"))
    assert graph.columns == ("age", "age is null")
    assert graph.x.tolist() == [[1, 0], [3, 0], [2, 2], [2, 2]]
