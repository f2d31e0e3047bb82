"""One table of all graphs: ranks by hand, what did not finish, which variant is named, and the figure."""

import json

import numpy as np
import pytest

from bench.accuracy.critical import draw
from bench.accuracy.ranks import critical_difference, groups, mean_ranks
from bench.accuracy.summary import cell, main, markdown, summarise

NAN = np.nan


def line(row: str, data: str, auc: float | None, seed: int = 0) -> dict:
    said = {"status": "ok", "auc": auc} if auc is not None else {"status": "time", "reason": "over 9 s"}
    return {"row": row, "data": data, "seed": seed, "method": row.lower().replace(", ", "-"), **said}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.9], [0.8], [0.7]], [1, 2, 3]),
        ([[0.7], [0.9], [0.7]], [2.5, 1, 2.5]),
        ([[0.9, 0.1], [0.8, 0.2]], [1.5, 1.5]),
        ([[0.1], [NAN], [0.2]], [2, 3, 1]),
        ([[0.5], [NAN], [NAN], [NAN]], [1, 3, 3, 3]),
    ],
    ids=["plain", "tie", "two graphs", "unfinished is last", "unfinished share"],
)
def test_mean_ranks__by_hand(values, expected):
    assert mean_ranks(np.array(values)).tolist() == expected


def test_mean_ranks__sum_to_the_same_whatever_happened():
    values = np.random.default_rng(0).choice([0.5, 0.6, 0.7, NAN], size=(9, 4))
    assert mean_ranks(values).sum() == pytest.approx(9 * 10 / 2)


@pytest.mark.parametrize(("num_methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_difference__has_the_quantiles_that_demsar_prints(num_methods, q):
    expected = q * np.sqrt(num_methods * (num_methods + 1) / 6 / 14)
    assert critical_difference(num_methods, 14) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("num_methods", "num_graphs"), [(1, 5), (4, 0)])
def test_critical_difference__names_too_few(num_methods, num_graphs):
    with pytest.raises(ValueError, match=f"{num_methods} methods on {num_graphs} graphs"):
        critical_difference(num_methods, num_graphs)


@pytest.mark.parametrize("seed", range(5))
def test_groups__join_a_pair_exactly_when_it_does_not_differ(seed):
    ranks = np.sort(np.random.default_rng(seed).uniform(1, 12, 12))
    found = groups(ranks, 3.0)
    for i in range(12):
        for j in range(i + 1, 12):
            assert any(first <= i and j <= last for first, last in found) == (ranks[j] - ranks[i] < 3.0)


def test_summarise__keeps_the_better_variant_and_ranks_again():
    lines = [line("LOF", "Enron", 0.5), line("GAE", "Enron", 0.4), line("GAE, raw", "Enron", 0.7)]
    found = summarise(lines)
    assert found.ranks == {"GAE, raw": 1, "LOF": 2}
    assert summarise(lines, both=True).ranks == {"GAE, raw": 1, "LOF": 2, "GAE": 3}


def test_summarise__equal_variants_leave_one():
    lines = [line("LOF", "Enron", 0.5), line("GAE", "Enron", 0.4), line("GAE, raw", "Enron", 0.4)]
    assert summarise(lines).rows == ["LOF", "GAE"]


def test_markdown__sorts_by_mean_rank_and_says_what_did_not_finish():
    lines = [line("LOF", "Enron", 0.6), line("LOF", "Enron", 0.8, seed=1), line("LOF", "Amazon", 0.4)]
    lines += [line("GAE", "Enron", 0.9), line("GAE", "Amazon", None), line("degree", "Amazon", 0.3)]
    page = markdown(summarise(lines)).splitlines()
    assert page[0] == "| method | Amazon | Enron | mean AUC | mean rank |"
    assert page[2] == "| LOF | .400 | .700 <sub>± .141</sub> | .550 | 1.50 |"
    assert page[3] == "| GAE, features | out of time | .900 | .900 <sub>of 1</sub> | 2.00 |"
    assert page[4] == "| degree | .300 | not run | .300 <sub>of 1</sub> | 2.50 |"


def test_cell__says_how_many_seeds_finished():
    lines = [line("LOF", "Enron", 0.5), line("LOF", "Enron", 0.7, 1), line("LOF", "Enron", None, 2)]
    assert cell(lines) == ".600 <sub>± .141 2 of 3</sub>"
    assert cell([line("LOF", "Enron", 0.5), line("LOF", "Enron", 0.5, 1)]) == ".500"


@pytest.mark.parametrize("num_methods", [2, 15, 40])
def test_draw__no_name_lies_on_another_or_outside(num_methods):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [f"distance to neighbours {i}" for i in range(num_methods)]
    figure = draw(dict(zip(names, np.linspace(1, num_methods, num_methods), strict=True)), 5.0)
    canvas = FigureCanvasAgg(figure)
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.axes[0].texts if text.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= figure.bbox.y0 for box in boxes)


def test_main__writes_table_and_figure(tmp_path, capsys):
    lines = [line(row, data, auc) for row, auc in (("LOF", 0.5), ("GAE", 0.6)) for data in ("Enron", "Amazon")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(found) + "\n" for found in lines))
    assert main([str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "all")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "all.md", "all.svg", "all.png"}
    assert "| GAE, features |" in capsys.readouterr().out
    assert main([str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "none"), "--methods", "madan"]) == 1
