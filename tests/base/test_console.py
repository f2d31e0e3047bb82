"""Progress, log formats and texts for a terminal."""

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
    monkeypatch.setattr(console, "writes_json", False)  # a run with log=json, before in this process
    with console.Progress(3, "row", "rows"):
        pass
    assert ("rows" in capsys.readouterr().err) is terminal
    console.disable_progress()
    with console.Progress(3, "row", "rows") as bar:
        bar.update()
    assert "rows" not in capsys.readouterr().err


@pytest.mark.parametrize(("every", "lines"), [(30.0, 0), (0.0, 2)])
def test_lines__are_as_rare_as_promised_and_tell_how_far_it_is(monkeypatch, caplog, every, lines):
    monkeypatch.setattr(console, "_LINE_EVERY_SECONDS", every)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    monkeypatch.setattr(console, "_draws", None)
    with caplog.at_level(logging.INFO), console.Progress(2_000, "row", "rows", initial=500) as bar:
        bar.set_postfix(pairs=7)
        bar.update(500)
        bar.update(500)
    assert len(caplog.messages) == lines
    if lines:
        assert re.fullmatch(r"rows +1,500 of 2,000 rows in 0 s, about 0 s left   pairs=7", caplog.messages[-1])


@pytest.mark.parametrize("setup_seconds", [0, 50, 400])
@pytest.mark.parametrize("num_done", [0, 300, 1_500])
def test_time_left__is_within_a_factor_of_two_thirds_whatever_came_before(monkeypatch, setup_seconds, num_done):
    """A fake clock: set-up, what an earlier run has done, then work in steps of an uneven length."""
    now = 1_000.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.Progress(2_000, "row", "rows") as bar:
        bar.skip(num_done)
        now += setup_seconds
        lengths = [1.0 + 0.5 * (step % 3) for step in range(20)]
        for step, length in enumerate(lengths):
            now += length
            bar.update((2_000 - num_done) // 20)
            truth = sum(lengths[step + 1 :])
            if step >= 4:
                (text,) = re.findall(r"about ([\d,]+) s left", str(bar))
                assert truth / 1.5 - 0.5 <= float(text) <= 1.5 * truth + 0.5  # it is shown in whole seconds
        assert bar.n == 2_000


def test_time_left__does_not_count_a_first_piece_that_waits_for_a_compiler(monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.Progress(100, "step", "train", initial=10) as bar:
        for seconds in (40.0, *[1.0] * 8):
            now += seconds
            bar.update(10)
            if bar.n == 20:
                assert "left" not in str(bar)  # nobody knows yet
            else:
                (text,) = re.findall(r"about ([\d,]+) s left", str(bar))
                assert float(text) == (100 - bar.n) / 10


def test_bar__fits_the_terminal():
    code = "from hcm_scale.base.console import Progress\n"
    code += "with Progress(9, 'source', 'labels of pairs') as b: b.set_postfix(pairs='1' * 60); b.update(3)"
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
        console.Progress(3, "row", "first"),
        console.Progress(3, "row", "second"),
    ):
        pass
    with console.showing_progress(True), console.Progress(3, "row", "third"):
        pass
    drawn = capsys.readouterr().err
    assert [name in drawn for name in ("first", "second", "third")] == [True, terminal, True]
    assert ("\x1b[A" in drawn) is terminal


@pytest.mark.parametrize("draws", [False, True])
def test_shown__tells_every_step_and_ends_with_its_block(capsys, draws):
    steps = []
    with console.showing_progress(draws, steps.append), console.Progress(5, "row", "rows", initial=1) as bar:
        bar.update(3)
        bar.update()
    with console.Progress(5, "row", "rows") as bar:
        bar.update(5)
    assert steps == [console.Step("rows", 4, 5, "row"), console.Step("rows", 5, 5, "row")]
    assert ("rows" in capsys.readouterr().err) is draws


@pytest.mark.parametrize("text", ["plain", "ü 漢 😀 a\u200db", "a\tb\nc"])
def test_printable__keeps_letters_and_line_breaks(text):
    assert console.printable(text) == text


@pytest.mark.parametrize("control", ["\0", "\x1b", "\r", "\b", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066"])
def test_printable__spells_out_what_a_terminal_obeys(control):
    assert console.printable(f"a{control}b") == f"a{ascii(control)[1:-1]}b"


def test_in_short__keeps_the_beginning_and_the_end():
    line = console.shorten("first" + "x" * 10**6 + "\nlast", 100)
    assert line.startswith("firstxxx")
    assert line.endswith("xxx\\nlast")
    assert len(line) == 105


def test_formatter__is_printable_line_by_line():
    record = logging.makeLogRecord({"msg": "a\x1b\n%s", "args": ("\x9b",)})
    assert console.Printable("> %(message)s").format(record) == "> a\\x1b\n\\x9b"


def test_keeping_warnings__has_those_of_some_loggers_each_once():
    with console.keeping_warnings("hcm_scale.ingest") as kept:
        for _ in range(2):
            logging.getLogger("hcm_scale.ingest.tables").warning("%d gaps", 3)
        logging.getLogger("hcm_scale.ingest").info("read")
        logging.getLogger("hcm_scale.other").warning("elsewhere")
    logging.getLogger("hcm_scale.ingest").warning("later")
    assert kept == ["3 gaps"]
