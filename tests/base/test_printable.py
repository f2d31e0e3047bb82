"""Texts for a terminal."""

import logging

import pytest

from hcm_scale.base.console import Printable, printable, shorten


@pytest.mark.parametrize("text", ["plain", "ü 漢 😀 a\u200db", "a\tb\nc"])
def test_printable__keeps_letters_and_line_breaks(text):
    assert printable(text) == text


@pytest.mark.parametrize("control", ["\0", "\x1b", "\r", "\b", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066"])
def test_printable__spells_out_what_a_terminal_obeys(control):
    assert printable(f"a{control}b") == f"a{ascii(control)[1:-1]}b"


def test_in_short__keeps_the_beginning_and_the_end():
    line = shorten("first" + "x" * 10**6 + "\nlast", 100)
    assert line.startswith("firstxxx")
    assert line.endswith("xxx\\nlast")
    assert len(line) == 105


def test_formatter__is_printable_line_by_line():
    record = logging.makeLogRecord({"msg": "a\x1b\n%s", "args": ("\x9b",)})
    assert Printable("> %(message)s").format(record) == "> a\\x1b\n\\x9b"
