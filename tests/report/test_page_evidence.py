"""The page shows which evidence speaks: ranking sentence, kinds, p and flags where a table has them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcm_scale.report import page
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS

World = Callable[..., Any]
HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def report(scored_world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world = scored_world(300, rank_by="score", first_ids=(HOSTILE,))
    return world.report(tmp_path_factory.mktemp("page"), run={"num_samples": 2}, top=5)


def ranking_data(text: str) -> dict[str, Any]:
    found = re.search(r'id="ranking-data"[^>]*>(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def test_page__first_sentence_names_the_score_that_ranks(scored_world: World, tmp_path: Path):
    for by, words in (
        (
            "score",
            "Ranked by score (all kinds of evidence): a node stands high where one kind of evidence finds it very",
        ),
        ("strange", "Ranked by hops and far triangles: the higher a node stands, the farther"),
        (
            "ahp",
            "Ranked by average hop prediction (AHP): the higher a node stands, the farther its own neighbours seem",
        ),
        ("hav", "Ranked by hops and their uncertainty (HAV): the higher a node stands, the farther"),
    ):
        text = page.render(scored_world(rank_by=by).report(tmp_path))
        assert words in " ".join(text.split())


def test_page__shows_the_first_of_every_kind(report: dict[str, Any]):
    assert list(report["kinds"]) == list(KINDS)
    assert all(rows for rows in report["kinds"].values())
    text = page.render(report)
    assert all(f"<small>({kind})</small>" in text for kind in KINDS)
    assert HOSTILE not in text


def test_page__table_tells_the_strongest_kind_and_the_rank_by_each(report: dict[str, Any]):
    table = ranking_data(page.render(report))
    names = [column["name"] for column in table["columns"]]
    assert names[2:10] == ["Score", "Stands out by", "Why", "Far", "Strangers", "Unlike", "Unlike group", "Odd"]
    assert "p" not in names


def test_page__draws_the_score_that_ranks_and_those_of_the_kinds(report: dict[str, Any]):
    assert report["scores"] == ["score", *(kind.column for kind in KINDS.values())]
    assert list(report["accuracy"]["scores"]) == report["scores"]


def test_page__cards_tell_their_reasons(report: dict[str, Any]):
    for node in report["top"]:
        assert node["told"][0]["kind"] == node["reasons"][0]["kind"]
    assert page.render(report).count('<ul class="reasons">') == len(report["top"]) >= 5


def test_page__shows_p_and_flags_and_how_many_stand_out(scored_world: World, tmp_path: Path):
    world = scored_world(rank_by="score")
    p, flagged = np.linspace(1e-9, 1, 60), np.arange(60) < 4
    scores = world.scores.append_column("p", [p]).append_column("flagged", [flagged])
    found = {"num_flagged": 4, "fdr": 0.1, "stability": 0.61, "files": {}}
    report = world._replace(scores=scores).report(tmp_path, found=found)
    assert "p" not in report["scores"]
    assert report["found"] == {"num_flagged": 4, "fdr": 0.1, "stability": 0.61}
    text = " ".join(page.render(report).split())
    assert "<h1>4 of 60 nodes stand out</h1>" in text
    assert "4 nodes stand out at a false-discovery rate of 10%, up to p 0.051." in text
    assert "61% of the first nodes stay so by either encoder alone." in text
    assert report["flagged"]["num"] == sum(report["flagged"]["by_kind"].values()) == 4
    shown = ranking_data(text)["values"]
    assert shown["flagged"][:5] == [True] * 4 + [False]
    assert shown["p"][0] == pytest.approx(1e-9)
    assert 'id="ranking-flagged"' in text


def test_page__spells_out_every_heading_and_short_name(report: dict[str, Any]):
    text = page.render(report)
    for column in ranking_data(text)["columns"]:
        assert column["help"], column["key"]
    for term in ("AHP", "IV", "HAV", "False-discovery rate", "Group of strangers (closure)", "ROC-AUC"):
        assert f"<dt>{term}</dt>" in text


def test_page__says_whom_the_outermost_bars_count(report: dict[str, Any]):
    folded = report | {"distributions": dict(report["distributions"])}
    folded["distributions"]["score"] = report["distributions"]["score"] | {"folded": [0, 4]}
    assert "The last bar counts 4 nodes farther out." in page.render(folded)


def test_page__tiles_are_findings_and_not_settings(report: dict[str, Any]):
    tiles = re.search(r'<dl class="numbers">(.*?)</dl>', page.render(report | {"stages": []}), re.S)
    assert tiles is not None
    assert "ROC-AUC" in tiles[1]
    assert "memory" not in tiles[1]
    assert "dropped" not in tiles[1]


def test_page__shows_ids_that_are_all_nothing(scored_world: World, tmp_path: Path):
    report = scored_world().report(tmp_path)
    report["table"]["id"] = [0] * len(report["table"]["id"])
    assert "<h1" in page.render(report)
