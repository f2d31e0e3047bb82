"""Every option with its default, what is legal and what it is for: `hcm-scale options [BEGINNING] [--markdown]`.

`hcm-scale options purify` lists those that begin so. Options of a graph's source are told for every source that has
them; their defaults are those of `graph=tables` where it has them.
"""

from hcm_scale.base.near import suggest
from hcm_scale.commands.arguments import parser
from hcm_scale.config import Option, describe, options
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


def main(arguments: list[str]) -> str:
    """The table as text."""
    words = parser("options", __doc__)
    words.add_argument("beginning", nargs="?", default="", metavar="BEGINNING", help="of the keys to list")
    words.add_argument("--markdown", action="store_true", help="as a page")
    given = words.parse_args(arguments)
    found = [option for option in options().values() if option.key.startswith(given.beginning)]
    if not found:
        raise ValueError(f"no option begins with {given.beginning!r}{suggest(given.beginning, WORDS)}")
    found.sort(key=lambda option: list(_SECTIONS).index(option.key.rpartition(".")[0]))
    if given.markdown:
        return markdown(found)
    return "\n".join(f"{o.key}={default(o)}\n    {WORDS[o.key]} ({legal(o)})" for o in found)


def legal(option: Option) -> str:
    """What the option takes, and which sources have it."""
    return describe(option.field) + (f"; of graph={', '.join(option.sources)}" if option.sources else "")


def default(option: Option) -> str:
    """The default as a command line would have it."""
    value = option.default
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("'", "")


def markdown(found: list[Option]) -> str:
    """The options as a page of tables."""
    said = "Made by `hcm-scale options --markdown`. `KEY=VALUE` on the command line, `options={KEY: VALUE}` in Python."
    lines = ["# Options", "", said, ""]
    for section, title in _SECTIONS.items():
        inside = [option for option in found if option.key.rpartition(".")[0] == section]
        if inside:
            lines += [f"## {title}", "", "| option | default | legal | |", "|---|---|---|---|"]
            row = "| `{}` | `{}` | {} | {} |"
            lines += [row.format(o.key, default(o) or " ", legal(o).replace("|", "or"), WORDS[o.key]) for o in inside]
            lines.append("")
    return "\n".join(lines).rstrip()
