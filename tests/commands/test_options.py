"""Every option has words, and the page of options is the one that the schema gives."""

from pathlib import Path

import pytest

from hcm_scale.cli import commands
from hcm_scale.cli.help import WORDS
from hcm_scale.config import options as known

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


def test_words__are_there_for_every_option_and_no_other():
    assert WORDS.keys() == known().keys()


def test_page__is_what_the_schema_gives():
    assert PAGE.read_text() == commands.list_options(["--markdown"]) + "\n", (
        "hcm-scale options --markdown > docs/options.md"
    )


def test_options__lists_those_that_begin_so():
    said = commands.list_options(["purify"])
    assert said.startswith("purify.similarity=euclidean\n")
    assert "at least 0.0 and at most 0.99" in said
    assert "hops" not in said


def test_options__unknown_beginning_names_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'purify.ratio'"):
        commands.list_options(["purify.ratoi"])
