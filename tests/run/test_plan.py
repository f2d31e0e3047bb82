"""The plan of a run against what the run then does."""

import re
from pathlib import Path

from helpers import small_config

from hcm_scale.config import Config, SyntheticGraph
from hcm_scale.run import pipeline
from hcm_scale.run.workspace import read_stages


def small(run_dir: Path, **options: object) -> Config:
    config = small_config(run_dir, **{"score.views": ["purified"], "hops.num_sources": 20} | options)
    config.graph = SyntheticGraph(num_nodes=100, num_attributes=3)
    return config


def states(text: str) -> dict[str, str]:
    """The stages of a plan, and whether each is kept."""
    rows = [line.split() for line in text.splitlines()[2:] if not line.startswith("since")]
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


def test_plan__foresees_memory_of_what_can_be_known_and_says_what_was_measured(tmp_path):
    pipeline.run(small(tmp_path), until="purify")
    lines = {line.split()[0]: line for line in pipeline.plan_text(small(tmp_path)).splitlines()}
    assert lines["labels"].count("iB") == 1  # what the searches hold
    assert "?" in lines["labels"]
    assert "kept" in lines["purified"]
    pipeline.run(small(tmp_path))
    text = pipeline.plan_text(small(tmp_path, **{"hops.pairs_per_class": 6}))
    assert re.search(r"labels +made +\d+ s", text)
