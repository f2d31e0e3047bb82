"""Flags end to end: next to none where nothing is planted, mostly right where something is, and said in the summary."""

import json

import numpy as np
import pytest

from hcm_scale import HCM
from hcm_scale.score.table import FILE
from hcm_scale.stages.report import summary
from hcm_scale.stages.score import open_scores
from hcm_scale.synthetic.families import community
from hcm_scale.synthetic.inject import inject

SHORT = {"posterior.burn_in_steps": 30, "posterior.num_samples": 4, "posterior.thin_steps": 5}


@pytest.mark.gate
def test_clean_graphs__have_hardly_a_flag():
    flags = [HCM(SHORT, seed=seed).fit(community(2000, seed=seed)).table["flagged"].to_numpy() for seed in range(3)]
    assert np.mean(flags) <= 0.001


@pytest.mark.gate
def test_planted_cliques__are_flagged_and_little_else(tmp_path):
    graph = inject(community(2000, seed=1), num_cliques=3, clique_size=15, num_attribute_anomalies=0, seed=1)
    found = HCM(SHORT, seed=1, run_dir=tmp_path).fit(graph)
    flagged, y = found.table["flagged"].to_numpy(), found.table["y"].to_numpy() == 1
    assert flagged[y].mean() > 0.5
    assert (flagged & ~y).sum() <= 0.15 * flagged.sum()
    made = open_scores(tmp_path / "scores")
    assert made.num_flagged == flagged.sum()
    assert 0.0 <= made.stability <= 1.0
    said = summary(tmp_path, {"scores": tmp_path / "scores", "graph": tmp_path / "graph"}, [], 0.0)
    assert f"{flagged.sum()} nodes stand out at a false-discovery rate of 10%" in said
    facts = {stage["name"]: stage["detail"] for stage in json.loads((tmp_path / "stages.json").read_text())["stages"]}
    assert facts["scores"]["num_flagged"] == flagged.sum()
    assert (tmp_path / "scores" / FILE).is_file()
