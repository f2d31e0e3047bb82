"""Bars are for a person at a terminal, lines for whoever reads a log; a watcher is told either way."""

import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from hcm_scale.base import console


@pytest.mark.parametrize("terminal", [False, True])
def test_bar__is_drawn_on_a_terminal_until_told_to_be_quiet(monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(console, "_draws", None)
    monkeypatch.setattr(console, "_as_lines", False)  # a run with log=json, before in this process
    with console.bar(3, "row", "rows") as bar:
        assert isinstance(bar, console.Lines) is not terminal
    console.disable_progress()
    with console.bar(3, "row", "rows") as bar:
        assert bar.disable
    assert ("rows" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize(("every", "lines"), [(30.0, 0), (0.0, 2)])
def test_lines__are_as_rare_as_promised_and_tell_how_far_it_is(monkeypatch, caplog, every, lines):
    monkeypatch.setattr(console, "_LINE_EVERY_SECONDS", every)
    with caplog.at_level(logging.INFO), console.Lines(2_000, "row", "rows", initial=500) as told:
        told.set_postfix(pairs=7)
        told.update(500)
        told.update(500)
    assert len(caplog.messages) == lines
    if lines:
        assert re.fullmatch(r"rows +1,500 of 2,000 rows in 0 s, about 0 s left   pairs=7", caplog.messages[-1])


def test_bar__fits_the_terminal():
    code = "from hcm_scale.base.console import bar\n"
    code += "with bar(9, 'source', 'labels of pairs') as b: b.set_postfix(pairs='1' * 60); b.update(3)"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True)
    os.close(theirs)
    drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "labels of pairs" in drawn
    assert max(len(line) for line in re.split(r"[\r\n]", drawn)) <= 40


@pytest.mark.parametrize("terminal", [False, True])
def test_bar__is_the_only_one_where_the_cursor_cannot_go_up(monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    with (
        console.showing_progress(True),
        console.bar(3, "row", "first") as first,
        console.bar(3, "row", "second") as second,
    ):
        assert isinstance(first, console.Bar)
        assert isinstance(second, console.Bar) is terminal
    with console.showing_progress(True), console.bar(3, "row", "third") as third:
        assert isinstance(third, console.Bar)
    assert ("\x1b[A" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize("draws", [False, True])
def test_shown__tells_every_step_and_ends_with_its_block(capsys, draws):
    steps = []
    with console.showing_progress(draws, steps.append), console.bar(5, "row", "rows", initial=1) as bar:
        bar.update(3)
        bar.update()
    with console.bar(5, "row", "rows") as bar:
        bar.update(5)
    assert steps == [console.Step("rows", 4, 5, "row"), console.Step("rows", 5, 5, "row")]
    assert ("rows" in capsys.readouterr().err) is draws
