"""Every option with its default, what is legal and what it is for: `hcm-scale options [BEGINNING] [--markdown]`.

`hcm-scale options purify` lists those that begin so. Options of a graph's source are told for every source that has
them; their defaults are those of `graph=tables` where it has them.
"""

import dataclasses
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

from hcm_scale.commands.arguments import parser
from hcm_scale.config import SOURCES, Config, GraphConfig, TablesGraph, describe
from hcm_scale.option_words import WORDS

_SECTIONS = {
    "graph": "Where the graph comes from",
    "inject": "Anomalies planted for an experiment",
    "attributes": "Attributes to features",
    "purify": "Which edges are dropped before labelling",
    "hops": "Hop labels",
    "shards": "Labels on disk",
    "sampling": "Mini-batches",
    "model": "The network",
    "posterior": "Training: the chain of weights",
    "score": "Scores and report",
    "world": "Where a run computes",
    "track": "Experiment trackers",
    "": "The run",
}


class Option(NamedTuple):
    """One option as it is told."""

    key: str
    default: str
    legal: str
    words: str
    sources: tuple[str, ...]  # that have it; empty for options that are not a graph's


def main(arguments: list[str]) -> str:
    """The table as text."""
    words = parser("options", __doc__)
    words.add_argument("beginning", nargs="?", default="", metavar="BEGINNING", help="of the keys to list")
    words.add_argument("--markdown", action="store_true", help="as a page")
    given = words.parse_args(arguments)
    found = [option for option in all_options() if option.key.startswith(given.beginning)]
    if not found:
        near = get_close_matches(given.beginning, list(WORDS), 1)
        raise ValueError(
            f"no option begins with {given.beginning!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    if given.markdown:
        return markdown(found)
    return "\n".join(f"{option.key}={option.default}\n    {option.words} ({legal(option)})" for option in found)


def legal(option: Option) -> str:
    """What the option takes, and which sources have it."""
    return option.legal + (f"; of graph={', '.join(option.sources)}" if option.sources else "")


def all_options() -> Iterator[Option]:
    """Every option, section by section, those of the run itself last."""
    plain = []
    for entry in dataclasses.fields(Config):
        section = getattr(Config(), entry.name)
        if entry.name == "graph":
            yield from _of_graphs()
        elif dataclasses.is_dataclass(section):
            yield from (_option(f"{entry.name}.{inner.name}", section, inner) for inner in dataclasses.fields(section))
        else:
            plain.append(_option(entry.name, Config(), entry))
    yield from plain


def _of_graphs() -> Iterator[Option]:
    having: dict[str, list[str]] = {}
    sources: dict[str, type[GraphConfig]] = {"tables": TablesGraph, **SOURCES}  # tables first: their defaults are told
    fields: dict[str, tuple[GraphConfig, dataclasses.Field[Any]]] = {}
    for name, source in sources.items():
        for entry in dataclasses.fields(source):
            having.setdefault(entry.name, []).append(name)
            fields.setdefault(entry.name, (source(), entry))
    for name, (section, entry) in fields.items():
        yield _option(f"graph.{name}", section, entry)._replace(sources=tuple(having[name]))


def _option(key: str, section: Any, entry: dataclasses.Field[Any]) -> Option:
    value = getattr(section, entry.name)
    default = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return Option(key, default.replace("'", ""), describe(entry), WORDS[key], ())


def markdown(options: list[Option]) -> str:
    """The options as a page of tables."""
    said = "Made by `hcm-scale options --markdown`. `KEY=VALUE` on the command line, `options={KEY: VALUE}` in Python."
    lines = ["# Options", "", said, ""]
    for section, title in _SECTIONS.items():
        inside = [option for option in options if option.key.rpartition(".")[0] == section]
        if inside:
            lines += [f"## {title}", "", "| option | default | legal | |", "|---|---|---|---|"]
            lines += [
                f"| `{o.key}` | `{o.default or ' '}` | {legal(o).replace('|', 'or')} | {o.words} |" for o in inside
            ]
            lines.append("")
    return "\n".join(lines).rstrip()
