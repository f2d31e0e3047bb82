"""What the plug-ins return, and that a run uses them. Needs the package installed: pip install ."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
from hcm_example.evidence import hub_share
from hcm_example.reader import read_adjlist
from hcm_example.similarity import overlap

from hcm_scale import Graph


def test_overlap__is_one_of_equal_rows_and_less_of_others():
    rows = np.array([[0.0, 1.0], [3.0, -2.0]])
    assert np.allclose(overlap(rows, rows), 1.0)
    assert (overlap(rows, rows[::-1]) < 1.0).all()


def test_hub_share__is_largest_at_the_leaves_of_a_star():
    star = Graph(np.array([0, 3, 4, 5, 6]), np.array([1, 2, 3, 0, 0, 0], np.int32))
    assert np.allclose(hub_share(star, np.zeros((4, 1))), np.log1p([1, 3, 3, 3]))


def test_read_adjlist__has_an_edge_a_neighbour(tmp_path):
    (tmp_path / "a.adjlist").write_text("# friends\na b c\nd\nb d # and no other\n")
    assert read_adjlist(tmp_path / "a.adjlist").to_pydict() == {"source": ["a", "a", "b"], "target": ["b", "c", "d"]}


def test_run__uses_all_of_them(tmp_path):
    rng, lines = np.random.default_rng(0), []
    for node in range(120):
        lines.append(" ".join(f"n{each}" for each in (node, (node + 1) % 120, *rng.integers(0, 120, 3))))
    (tmp_path / "friends.adjlist").write_text("\n".join(lines))
    words = ["model.encoder=graphconv", "purify.similarity=overlap", "score.evidence=[hub_share]", "world.device=cpu"]
    words += ["graph.featureless=degree", "posterior.burn_in_steps=5", "posterior.num_samples=2", "model.width=8"]
    command = [sys.executable, "-m", "hcm_scale", "run", "friends.adjlist", "run_dir=run", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    samples = json.loads((tmp_path / "run/train-purified/samples/manifest.json").read_text())
    assert samples["model"]["encoder"] == "graphconv@hcm-example 0.1.0"
    purified = json.loads((tmp_path / "run/purified/manifest.json").read_text())
    assert purified["purified"]["similarity"] == "overlap@hcm-example 0.1.0"
    table = pq.read_table(tmp_path / "run/scores/scores.parquet")
    assert {"hub_share", "hub_share_rank"} <= {*table.column_names}
    assert sorted(table["id"].to_pylist()) == sorted(f"n{node}" for node in range(120))
    assert "Its neighbours are hubs" in (tmp_path / "run/report/report.html").read_text()
