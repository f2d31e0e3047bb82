"""Kinds of evidence of plug-ins: the object that a plug-in is, or becomes, and what a ranked table stores of it.

A plug-in is a `Kind`, or a function of (graph, features) to one number a node, larger is stranger, which may have
`words`, a sentence. It ranks all nodes and weighs 1 then. A table stores what is no code, so that whoever reads or
serves it does not need the plug-in: there its reason is its sentence and its number.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hcm_scale.base.files import check_types
from hcm_scale.base.npy import read_only
from hcm_scale.base.text import clip, sentence
from hcm_scale.score.kinds.inputs import KindInputs
from hcm_scale.score.kinds.kind import Column, Kind, Values

_STORED = ("title", "short", "help", "words", "identity", "ranks_all_nodes", "zero_says_nothing")
_TYPES: dict[str, Any] = dict.fromkeys(_STORED[:5], str) | dict.fromkeys(_STORED[5:], bool)
_TYPES |= {"columns": dict[str, str]}
_WIDTH = 500  # characters, all of them printable: a stranger may have written them


def kind_of_plugin(identity: str, plugin: Any) -> Kind:
    """The kind of a plug-in with this identity, `NAME@...`."""
    name = identity.partition("@")[0]
    if isinstance(plugin, Kind):
        return replace(plugin, name=name, identity=identity, numbers=partial(_checked, name, plugin.numbers))
    title, words = name.replace("_", " "), str(getattr(plugin, "words", ""))

    def numbers(inputs: KindInputs) -> list[Values]:
        return [plugin(inputs.graph, read_only(inputs.features))]

    return Kind(
        name=name,
        columns={name: Column(title)},
        title=title,
        short=sentence(title),
        help=words or "Its number is that of a plug-in.",
        words=words,
        identity=identity,
        numbers=partial(_checked, name, numbers),
        ranks_all_nodes=True,
    )


def _checked(name: str, numbers: Callable[[KindInputs], Any], inputs: KindInputs) -> list[Values]:
    """Numbers as float64; ValueError where there is not one finite number a node."""
    made, num_nodes = [np.array(values, np.float64) for values in numbers(inputs)], inputs.edges.num_nodes
    for values in made:
        num_bad = np.count_nonzero(~np.isfinite(values))
        if values.shape != (num_nodes,) or num_bad:
            of = f"{num_bad:,} NaN or infinite ones" if values.shape == (num_nodes,) else values.shape
            wanted = f"a finite number of each node, ({num_nodes},), not {of}"
            raise ValueError(
                f"score.evidence={name} must return {wanted}; the median is one that says nothing of a node"
            )
    return made


def stored_parts(kind: Kind) -> dict[str, Any]:
    """What a table says of a plug-in's kind, in plain JSON types."""
    columns = {name: column.axis for name, column in kind.columns.items()}
    return {name: getattr(kind, name) for name in _STORED} | {"columns": columns}


def stored_kind(path: Path, name: str, parts: Mapping[str, Any]) -> Kind:
    """The kind that a table says this of; FolderError where no kind is so."""
    check_types(path, parts, _TYPES)
    columns = {column: Column(clip(axis, _WIDTH)) for column, axis in parts["columns"].items()} or {name: Column(name)}
    stored: Any = {part: clip(value, _WIDTH) if isinstance(value := parts[part], str) else value for part in _STORED}
    return Kind(name=name, columns=columns, numbers=lambda inputs: [], **stored)
