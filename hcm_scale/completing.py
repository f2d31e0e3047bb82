"""What may come next on a command line: behind `hcm-scale --complete WORDS...`, which shells call at every TAB.

The last word is the one that is being typed, or empty. Nothing but the schema and the names of option files is read.
"""

import dataclasses
from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args

from hcm_scale import manual
from hcm_scale.options import group_folders, groups, option_names
from hcm_scale.words import options

SHELLS = ("bash", "zsh", "fish")
_FLAGS = ("--help", "--cfg", "-m", "--multirun")


def candidates(words: Sequence[str]) -> list[str]:
    """The words that the last one may become; none where it is a file's turn.

    >>> candidates(["ex"]), candidates(["run", "purify=j"]), candidates(["run", "purify.r"])
    (['explain', 'export'], ['purify=jaccard'], ['purify.ratio='])
    """
    word = words[-1] if words else ""
    return sorted(found for found in _possible(list(words[:-1]), word) if found.startswith(word))


def _possible(before: list[str], word: str) -> Sequence[str]:
    if not before:
        return [*manual.STAGES, *manual.COMMANDS, "help", "--help", "--version"]
    command = before[0]
    if command == "completion":
        return SHELLS
    if command == "help":
        return [*manual.STAGES, *manual.COMMANDS]
    if command == "options":
        return list(options())
    if command not in manual.STAGES:
        return ["--help"] if word.startswith("-") else []
    if word.startswith("-"):
        return _FLAGS
    key, equals, _ = word.partition("=")
    return _values(key) if equals else _keys(word)


def _keys(word: str) -> list[str]:
    """Groups, sections and the options of a section that has been typed."""
    keys = list(options())
    if "." in word:
        return [f"{key}=" for key in keys]
    sections = {f"{key.partition('.')[0]}." for key in keys if "." in key}
    return [*(f"{group}=" for group in groups()), *sections, *(f"{key}=" for key in keys if "." not in key)]


def _values(key: str) -> list[str]:
    """The legal values of a group or an option, each with its key."""
    if group_folders(key):
        return [f"{key}={name}" for name in option_names(key)]
    entry = options().get(key)
    return [] if entry is None else [f"{key}={value}" for value in _legal(entry)]


def _legal(entry: dataclasses.Field[Any]) -> list[str]:
    """What is legal for an option, as far as that is a list."""
    named = list(entry.metadata.get("names") or ()) + [f"[{name}]" for name in entry.metadata.get("each") or ()]
    if entry.type is bool:
        named = ["true", "false"]
    return named + ["null"] * (NoneType in get_args(entry.type))
