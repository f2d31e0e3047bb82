"""Bars are for a person at a terminal, and one process draws them; a watcher is told whether they are drawn or not."""

import pytest

from hcm_scale.base import progress


@pytest.mark.parametrize("terminal", [False, True])
def test_bar__is_drawn_on_a_terminal_until_told_to_be_quiet(monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(progress, "_draws", None)
    with progress.bar(3, "row", "rows") as bar:
        assert bar.disable is not terminal
    progress.be_quiet()
    with progress.bar(3, "row", "rows") as bar:
        assert bar.disable
    assert ("rows" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize("draws", [False, True])
def test_shown__tells_every_step_and_ends_with_its_block(capsys, draws):
    steps = []
    with progress.shown(draws, steps.append), progress.bar(5, "row", "rows", initial=1) as bar:
        bar.update(3)
        bar.update()
    with progress.bar(5, "row", "rows") as bar:
        bar.update(5)
        assert bar.disable
    assert steps == [progress.Step("rows", 4, 5, "row"), progress.Step("rows", 5, 5, "row")]
    assert ("rows" in capsys.readouterr().err) is draws
