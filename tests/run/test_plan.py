"""The plan of a run against what the run then does."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from helpers import small_config

from hcm_scale.config import Config, SyntheticGraph, TablesGraph
from hcm_scale.run import pipeline
from hcm_scale.run.workspace import read_stages


def small(run_dir: Path, **options: object) -> Config:
    config = small_config(run_dir, **{"score.views": ["purified"], "hops.num_sources": 20} | options)
    config.graph = SyntheticGraph(num_nodes=100, num_attributes=3)
    return config


def states(text: str) -> dict[str, str]:
    """The stages of a plan, and whether each is kept."""
    rows = [line.split() for line in text.splitlines()[2:] if not line.startswith(("in all", "since", "sizes"))]
    return {row[0]: row[1] for row in rows}


def test_plan__of_a_new_run_makes_everything_and_writes_nothing(tmp_path):
    text = pipeline.plan_text(small(tmp_path / "run"))
    assert set(states(text).values()) == {"made"}
    assert not (tmp_path / "run").exists()


def test_plan__says_what_is_kept_and_what_changed(tmp_path):
    pipeline.run(small(tmp_path))
    assert set(states(pipeline.plan_text(small(tmp_path))).values()) == {"kept"}
    changed = small(tmp_path, **{"hops.pairs_per_class": 6})
    text = pipeline.plan_text(changed)
    assert "hops.pairs_per_class: 30 -> 6" in text
    planned = states(text)
    pipeline.run(changed)
    done = {stage["name"]: "kept" if stage["skipped"] else "made" for stage in read_stages(tmp_path)}
    assert planned == done
    assert planned["purified"] == "kept"
    assert planned["labels"] == "made"


def test_plan__foresees_memory_and_disk_of_what_can_be_known(tmp_path):
    pipeline.run(small(tmp_path), until="purify")
    lines = {line.split()[0]: line for line in pipeline.plan_text(small(tmp_path)).splitlines()}
    assert lines["labels"].count("iB") == 2  # what the searches hold, and the shards
    assert "kept" in lines["purified"]


def test_plan__knows_the_rows_of_parquet_files_before_they_are_read(tmp_path):
    for part in range(2):
        ends = pa.table({"source": range(part, 500 + part), "target": range(1 + part, 501 + part)})
        pq.write_table(ends, tmp_path / f"edges{part}.parquet")
    pq.write_table(pa.table({"id": range(502), "size": [i % 7 for i in range(502)]}), tmp_path / "nodes.parquet")
    config = small(tmp_path / "run")
    config.graph = TablesGraph(path=str(tmp_path / "edges*.parquet"), nodes=str(tmp_path / "nodes.parquet"))
    text = pipeline.plan_text(config)
    assert "sizes by 1,000 rows of edges, 502 of nodes" in text
    assert "?" not in text
    config.graph.nodes = None
    assert "sizes by 1,000 rows of edges; nodes are not known, and taken to be as many" in pipeline.plan_text(config)
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    config.graph.path = str(tmp_path / "edges.csv")
    assert "sizes are not known before the graph is read" in pipeline.plan_text(config)
