"""The door: policy, summary, dispatch, and the memory that reading takes."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import IngestSummary, Policy, ingest_summary, read_matrix


def test_faults__are_all_counted_and_the_first_are_shown(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=[[0, *range(-9, 0)], [1] * 10], x=np.ones((4, 2)))
    rows = "; ".join(f"row {i}: {i - 10} -> 1" for i in range(1, 6))
    with pytest.raises(ValueError, match=rf"9 negative node numbers in the edges: {rows}; \.\.\."):
        read_matrix(tmp_path / "g", tmp_path / "g.npz")


def test_summary__is_kept_in_the_manifest_and_adds_up(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1, 1, 2, 0, 9], [1, 0, 1, 0, 1, 0]], x=np.ones((4, 2)))
    g = read_matrix(tmp_path / "g", tmp_path / "g.npz", policy=Policy(unknown="drop"))
    s = ingest_summary(Graph.open(tmp_path / "g"))
    assert s == ingest_summary(g)
    parts = s.unknown_edges, s.self_loops, s.repeated_edges, s.reversed_edges, s.num_edges
    assert parts == (1, 1, 1, 1, 2)
    assert sum(parts) == s.edge_rows
    manifest = json.loads((tmp_path / "g" / "manifest.json").read_text())
    assert IngestSummary(**manifest["info"]["ingest"]["counts"]) == s
    assert manifest["info"]["ingest"]["policy"]["unknown"] == "drop"


def test_table__has_a_line_for_every_count_of_something():
    s = IngestSummary("here", 1_000, 2, 3, 4, 5, 6, 7, num_anomalies=8)
    lines = s.table().splitlines()
    assert lines[0] == "read here"
    assert lines[1].split() == ["nodes", "1,000"]
    assert "self loops                      5  dropped" in lines
    assert len(lines) == 9


def test_summary__refuses_graphs_that_were_not_read(random_csr):
    with pytest.raises(ValueError, match="was not read by ingest"):
        ingest_summary(Graph(*random_csr(4, 6)))


def test_read_matrix__refuses_other_files(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_matrix(tmp_path / "g", tmp_path / "nowhere.npz")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.mat, \.npz or \.npy"):
        read_matrix(tmp_path / "g", tmp_path / "a.txt")


_MEASURE = """
import sys
from pathlib import Path
from hcm_scale.base.memory import peak_rss_bytes
from hcm_scale.ingest.readers import Policy, read_tables
here, policy = Path(sys.argv[1]), Policy(featureless="degree")

def read(size):
    edges, nodes = here / f"{size}_edges.parquet", here / f"{size}_nodes.parquet"
    read_tables(here / f"{size}_graph", edges, nodes if nodes.exists() else None, policy=policy)

read("small")  # imports and compiles: not what is measured
before = peak_rss_bytes()
read("large")
final = sum(p.stat().st_size for p in (here / "large_graph").glob("*.npy") if not p.name.startswith("ids"))
print((peak_rss_bytes() - before) / final)
"""


@pytest.mark.slow
@pytest.mark.parametrize("text_ids", [False, True])
@pytest.mark.parametrize("with_nodes", [False, True])
def test_read_tables__peaks_at_three_times_the_finished_graph(tmp_path, text_ids, with_nodes):
    rng = np.random.default_rng(0)
    for size, num_nodes, num_edges in (("small", 10, 20), ("large", 1_000_000, 8_000_000)):
        numbers = pa.array(np.arange(num_nodes))
        names = pa.array([f"node-{i:07d}" for i in range(num_nodes)]) if text_ids else numbers
        u, v = (names.take(pa.array(rng.integers(0, num_nodes, num_edges))) for _ in range(2))
        pq.write_table(pa.table({"source": u, "target": v}), tmp_path / f"{size}_edges.parquet")
        if with_nodes:
            columns = {f"a{i}": rng.normal(size=num_nodes).astype(np.float32) for i in range(4)}
            categories = pa.array(["x", "y", None]).take(pa.array(rng.integers(0, 3, num_nodes)))
            pq.write_table(pa.table({"id": names, "c": categories, **columns}), tmp_path / f"{size}_nodes.parquet")
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 3.0
