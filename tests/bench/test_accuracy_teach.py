"""The benchmark of verdicts: every learner on one small problem, by the command that the docs name."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from bench.accuracy.__main__ import main
from bench.accuracy.teach import LEARNERS, RULES, organic


@pytest.mark.gate
def test_every_learner_has_a_line_and_a_second_run_adds_none(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "teach.jsonl"
    words = ["--teach", "--data", "Planted", "--seeds", "0", "--out", str(out)]
    assert main(words) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["learner"] for line in lines] == list(LEARNERS)
    by_name = {line["learner"]: line for line in lines}
    assert by_name["taught head"]["found"] >= 0.9 * by_name["untaught"]["found"] > 10
    assert 0.5 <= by_name["taught"]["inside"] <= 1.0
    assert "Planted (60)" in capsys.readouterr().out
    main(words)
    assert len(out.read_text().splitlines()) == len(lines)


@pytest.mark.parametrize("rule", RULES)
def test_one_node_in_twenty_is_bad_by_every_rule(rule: str) -> None:
    graph, again = organic("follow", rule, 0, 1_000), organic("follow", rule, 0, 1_000)
    assert np.count_nonzero(graph.y) == 50
    assert np.array_equal(graph.x, again.x)
    assert np.array_equal(graph.y, again.y)


def test_unknown_names_are_told(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--teach", "--data", "follow:greed"])
    assert "'follow:greed' is unknown; it is one of follow:copy" in capsys.readouterr().err
    with pytest.raises(ValueError, match="rule='greed' is unknown"):
        organic("follow", "greed", 0, 1_000)
