"""Bars are for a person at a terminal, and one process draws them."""

import pytest

from hcm_scale.base import progress


@pytest.mark.parametrize("terminal", [False, True])
def test_bar__is_drawn_on_a_terminal_until_told_to_be_quiet(monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(progress, "_draws", True)
    with progress.bar(3, "row", "rows") as bar:
        assert bar.disable is not terminal
    progress.be_quiet()
    with progress.bar(3, "row", "rows") as bar:
        assert bar.disable
    assert ("rows" in capsys.readouterr().err) is terminal
