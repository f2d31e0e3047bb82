"""The benchmarks still run, on tiny data; and the harness judges, interleaves and names what is absent.

No test looks at a speed: a smoke run checks every contender's result and throws its rate away.
"""

import importlib
import json
import math
import sys
import types

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench import __main__ as command
from bench import apart, bfs, page
from bench.__main__ import REPEATS, run_theme
from bench.harness import Case, Contender, Floor, Table, as_table, at_least, at_most, judge, measure
from hcm_scale.graph import Graph


def contender(name, calls=None, *, amount=1.0, verify=lambda result: None):
    calls = [] if calls is None else calls
    return Contender(name, lambda: calls.append(name) or len(calls), amount, verify)


@pytest.fixture
def theme(monkeypatch):
    """Puts a theme of given cases where the harness looks for one."""

    def install(*items):
        module = types.ModuleType("bench.made_up")
        module.cases = lambda size: iter(items)
        monkeypatch.setitem(sys.modules, "bench.made_up", module)
        return "made_up"

    return install


QUICK = ("labels", "train", "score")  # the other themes are slow tests


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gate if name in QUICK else pytest.mark.slow)
        for name in (*command.THEMES, *command.NEEDS_GPU)
    ],
)
def test_theme__runs_on_tiny_data(name, capsys, tmp_path):
    assert run_theme(name, "smoke", 1, tmp_path)
    assert f"# {name}, smoke" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_measure__interleaves_and_drops_the_first_round():
    calls = []
    case = Case("case", "runs/s", [contender("a", calls), contender("b", calls)])
    rates = measure(case, 3)
    assert calls == ["a", "b"] + ["a", "b"] * 3
    assert [(rate.contender, rate.repeats) for rate in rates] == [("a", 3), ("b", 3)]
    assert all(rate.low <= rate.median <= rate.high for rate in rates)


def test_measure__a_wrong_result_does_not_count():
    def verify(result):
        raise AssertionError("wrong")

    calls = []
    with pytest.raises(AssertionError, match="wrong"):
        measure(Case("case", "runs/s", [contender("a", calls, verify=verify), contender("b", calls)]), 3)
    assert calls == ["a"]


def test_measure__amount_may_depend_on_the_result():
    seen = []
    measure(Case("case", "runs/s", [contender("a", amount=lambda result: seen.append(result) or 1.0)]), 2)
    assert seen == [2, 3]


def test_judge__compares_medians_with_floors():
    case = Case("case", "x/s", [], [Floor("a", "b", 2.0), Floor("a", "b", 4.0)])
    rates = [types.SimpleNamespace(contender="a", median=6.0), types.SimpleNamespace(contender="b", median=2.0)]
    assert [verdict.holds for verdict in judge(case, rates)] == [True, False]
    assert judge(case, rates)[1].measured == "3 x"


def test_at_most__what_was_not_measured_does_not_hold():
    assert not at_most("claim", math.nan, 1, "s").holds
    assert not at_least("claim", math.nan, 1, "s").holds


@pytest.mark.parametrize(("ratio", "code"), [(1e-9, 0), (1e9, 1)])
def test_main__exits_1_where_a_floor_fails(ratio, code, theme, tmp_path, monkeypatch, capsys):
    case = Case("case", "runs/s", [contender("a"), contender("b")], [Floor("a", "b", ratio)])
    monkeypatch.setattr(command, "THEMES", {theme(case): "made up"})
    monkeypatch.setattr(command, "run_theme", lambda name, size, repeats: run_theme(name, size, repeats, tmp_path))
    assert command.main(["made_up"]) == code
    assert ("FAILS" in capsys.readouterr().out) == bool(code)


def test_main__a_broken_theme_fails_and_lets_the_others_run(theme, tmp_path, monkeypatch, capsys):
    themes = {"not_there": "missing", theme(Case("case", "runs/s", [contender("a")])): "made up"}
    monkeypatch.setattr(command, "THEMES", themes)
    monkeypatch.setattr(command, "run_theme", lambda name, size, repeats: run_theme(name, size, repeats, tmp_path))
    assert command.main(["all"]) == 1
    seen = capsys.readouterr()
    assert "not_there" in seen.err
    assert "# made_up, quick" in seen.out


@pytest.mark.parametrize("arguments", [["nothing"], ["bfs", "--full", "--smoke"], ["bfs", "--repeats", "0"]])
def test_main__refuses_what_it_does_not_know(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)


@pytest.mark.parametrize("size", REPEATS)
def test_markdown__gives_the_command_of_every_size(size):
    given = page.markdown("gpu", size, []).partition("Command: `python -m bench ")[2].partition("`")[0]
    assert given.split() == ["gpu", *([] if size == "quick" else [f"--{size}"])]


def test_run_theme__writes_page_and_lines_with_their_context(theme, tmp_path, capsys):
    case = Case("a case", "runs/s", [contender("a"), contender("b")], [Floor("a", "b", 0.0)], ["c (not installed)"])
    assert run_theme(theme(case, Table("a table", [{"size": 1}], notes=["a note"])), "quick", 1, tmp_path)
    (text,) = [path.read_text() for path in tmp_path.glob("*.md")]
    for part in ("Command: `python -m bench made_up`", "Commit: ", "cores", "numba ", "| c (not installed) | absent"):
        assert part in text
    assert "- a note" in text
    (lines,) = [path.read_text().splitlines() for path in tmp_path.glob("*.jsonl")]
    context, *rows = map(json.loads, lines)
    assert {"hardware", "versions", "command", "commit", "date"} <= set(context)
    assert [row.get("contender") for row in rows[:2]] == ["a", "b"]
    assert {"table": "a case", "peer": "c (not installed)", "state": "absent"} in rows
    assert rows[-1] == {"table": "a table", "size": 1}


def test_markdown__every_row_has_the_columns_of_its_table():
    case = Case("case", "runs/s", [contender("a")], (), ["b"])
    rows = [line for line in page.markdown("t", "quick", [as_table(case, 1)]).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1


def test_write__puts_figures_beside_the_page(tmp_path):
    text = page.write("quality", "quick", [Table("table", [{"edges": 1}], figure=Figure())], tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".jsonl", ".png", ".svg"}
    assert f"![quality]({next(tmp_path.glob('*.svg')).name})" in text


def test_gather__names_a_missing_peer(random_csr):
    def missing(graph, sources, levels):
        importlib.import_module("a_package_that_nobody_has")

    def present(graph, sources, levels):
        return contender("present")

    found, absent = bfs.gather([missing, present], None, None)
    assert [peer.name for peer in found] == ["present"]
    assert absent[0].startswith("a_package_that_nobody_has")


JOBS = """
import time

def count(to):
    return lambda: {"sum": sum(range(to))}

def fill(num_bytes):
    return lambda: {"filled": len(bytearray(num_bytes))}

def sleep(seconds):
    return lambda: time.sleep(seconds) or {}

def fail(message):
    print("something said on the way")
    raise RuntimeError(message)
"""


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """Jobs in a module that other processes can import too."""
    (tmp_path / "made_up_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_up_jobs", raising=False)
    return importlib.import_module("made_up_jobs")


def test_run_apart__measures_only_the_run(jobs):
    outcome = apart.run_apart(jobs.count, {"to": 10}, limit_seconds=60)
    assert outcome.done
    assert outcome.facts == {"sum": 45}
    assert 0 <= outcome.seconds < 60
    assert outcome.peak_rss_bytes > 0


def test_run_apart__running_out_of_memory_is_a_result(jobs):
    outcome = apart.run_apart(jobs.fill, {"num_bytes": 64 << 30}, limit_seconds=60, cap_bytes=16 << 30)
    assert outcome.state == "out of memory"
    assert math.isnan(outcome.seconds)


def test_run_apart__running_out_of_time_is_a_result(jobs):
    assert apart.run_apart(jobs.sleep, {"seconds": 600}, limit_seconds=0.2).state == "over 0.2 s"


def test_run_apart__a_broken_job_tells_why(jobs):
    assert (
        apart.run_apart(jobs.fail, {"message": "the reason"}, limit_seconds=60).state
        == "failed: RuntimeError: the reason"
    )


def test_run_apart__the_same_in_this_process(jobs):
    assert apart.run_apart(jobs.count, {"to": 4}, limit_seconds=60, apart=False).facts == {"sum": 6}


@pytest.mark.parametrize("classes", [2, 4])
def test_plain_searches__agree_with_scipy(classes, random_csr):
    graph = Graph(*random_csr(200, 300, seed=4))
    sources = np.flatnonzero(graph.degrees)[:20]
    for peer in (bfs.plain(graph, sources, classes), bfs.once(graph, sources, classes)):
        peer.verify(peer.run())


def test_wanted__leaves_pairs_to_their_earlier_source():
    path = Graph(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32))
    assert bfs.wanted(path, np.array([0, 1, 2]), 0, 3).tolist() == [1, 1, 0]
    assert bfs.wanted(path, np.array([0, 1, 2]), 1, 3).tolist() == [1, 0, 0]
