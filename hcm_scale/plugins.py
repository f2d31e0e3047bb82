"""Plug-ins: encoders, similarities, evidence and readers of others.

| group          | what it is                                                        | option              |
|----------------|-------------------------------------------------------------------|---------------------|
| `encoders`     | a class of graph network (`encoders.Encoder`)                     | `model.encoder`     |
| `similarities` | a function of both ends of edges, (k, q) each, to (k,) numbers    | `purify.similarity` |
| `evidence`     | a function of (graph, features) to one number a node, or a `Kind` | `score.evidence`    |
| `readers`      | a function of a path to a table of edges and one of nodes or None | `graph.reader`      |

A plug-in has a name. It is an entry point of an installed distribution, in the group `hcm_scale.GROUP`, or was
registered in this process, by a decorator (`@similarity`) or because it was handed to `HCM`. Entry points are listed by
the metadata of distributions; the module of a plug-in is imported when it is used, and no earlier.

`identity` says which code a name stands for: `NAME@DISTRIBUTION VERSION`, or `NAME@source HASH` of one that was
registered. It is among the options that decide a stage, and stands in what the stage writes, so that another version
makes the stage again, and is refused where it would read what this one wrote. What the package has itself is its name:
there the version of the stage counts. `load` takes a name or an identity.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from numbers import Number
from typing import Any

from hcm_scale.base.console import legal_names
from hcm_scale.base.names import SIMILARITIES

OPTIONS = {"encoders": "model.encoder", "similarities": "purify.similarity"}
OPTIONS |= {"evidence": "score.evidence", "readers": "graph.reader"}
_OWN: dict[str, dict[str, str | None]] = {  # of the package: where they are, None for what is no plug-in
    "encoders": {"gcn": None, "sage": "hcm_scale.encoders:Sage", "gat": "hcm_scale.encoders:Gat"},
    "similarities": dict.fromkeys(SIMILARITIES),
    "evidence": {},
    "readers": {},
}
_registered: dict[str, dict[str, Any]] = {group: {} for group in OPTIONS}


def names(group: str) -> list[str]:
    """Names that the option of a group takes, those of the package first."""
    return list(dict.fromkeys([*_OWN[group], *sorted({*_registered[group], *_entry_points(group)})]))


def is_known(group: str, name: str) -> bool:
    """Whether the option takes this name; distributions are looked at only where nothing else has it."""
    if name not in _OWN[group] and name not in _registered[group] and name not in _entry_points(group):
        _listed.cache_clear()  # it may have been installed since
        return name in _entry_points(group)
    return True


def register(group: str, plugin: Any, name: str | None = None) -> str:
    """Name by which the plug-in is known in this process from now on, by default its own; the last of a name counts."""
    is_kind = group == "evidence" and hasattr(plugin, "numbers")  # score/kinds/kind.py
    name = str(name or getattr(plugin, "name" if is_kind else "__name__", ""))
    if not (callable(plugin) or is_kind) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        what = f"{OPTIONS[group]}: {plugin!r:.60} under the name {name!r} is no plug-in"
        raise ValueError(f"{what}: a function or class with a name of letters, digits and _ is one")
    if name in _OWN[group]:
        raise ValueError(f"{OPTIONS[group]}={name} is a name of the package itself; give the plug-in another")
    _registered[group][name] = plugin
    return name


def _decorator(group: str) -> Callable[..., Any]:
    def decorate(name: Any = None, **about: str) -> Any:
        if callable(name):  # @similarity without a name
            register(group, name)
            return name

        def named(plugin: Any) -> Any:
            for key, value in about.items():
                setattr(plugin, key, value)
            register(group, plugin, name)
            return plugin

        return named

    decorate.__doc__ = f"Registers a plug-in of the group {group}: `@decorator` or `@decorator(NAME)`."
    return decorate


encoder, similarity, reader = (_decorator(group) for group in ("encoders", "similarities", "readers"))
evidence = _decorator("evidence")  # words="A sentence for explanations." may be given too


def identity(group: str, name: str) -> str:
    """Which code a name stands for; ValueError if there is none."""
    if name in _OWN[group]:
        return name
    if name in _entry_points(group):
        package = _entry_points(group)[name].dist
        return f"{name}@{package.name} {package.version}"
    return f"{name}@source {_source_hash(_find(group, name))}"


def load(group: str, name: str) -> Any:
    """The plug-in of a name, or of an identity, which it must still have; ValueError if there is none."""
    name, sign, made_by = name.partition("@")
    if sign and not made_by == (now := identity(group, name).partition("@")[2]) != "":
        what = f"{OPTIONS[group]}={name}: this was made with {made_by}, and here it is {now}"
        raise ValueError(f"{what}; install or define it as it was, or run again from the start in another run_dir")
    return _find(group, name)


def _find(group: str, name: str) -> Any:
    """The plug-in of a name; imports it, where that was not done before."""
    from importlib.metadata import EntryPoint

    if where := _OWN[group].get(name):
        return EntryPoint(name, where, group).load()
    if not is_known(group, name):
        legal = legal_names(name, names(group))
        raise ValueError(f"{OPTIONS[group]}={name} is not known in this process (packages, decorators); {legal}")
    if name not in _entry_points(group):
        return _registered[group][name]
    point = _entry_points(group)[name]
    try:
        plugin = point.load()
    except Exception as error:  # whatever its module raises
        of = f"{point.dist.name} {point.dist.version}"
        what = f"{OPTIONS[group]}={name}: the plug-in {point.value} of {of} cannot be imported"
        raise ValueError(f"{what}: {type(error).__name__}: {error}") from error
    if _registered[group].get(name, plugin) is not plugin:
        raise ValueError(f"{OPTIONS[group]}={name} is a plug-in of {point.dist.name} too; give yours another name")
    return plugin


def _entry_points(group: str) -> Any:
    return _listed(tuple(sys.path))[group]


@functools.cache
def _listed(path: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Entry points by group and name; of distributions on `path`, which is sys.path."""
    from importlib.metadata import entry_points

    return {group: {point.name: point for point in entry_points(group=f"hcm_scale.{group}")} for group in OPTIONS}


def _source_hash(plugin: Any) -> str:
    """Hash of the source, or of the code where nobody has that, and of the numbers and text around it.

    Those are the attributes of a class, and of every function its defaults, and what it closes over or finds in its
    module: a notebook changes them in another cell.
    """
    from hcm_scale.base.files import hash_value

    held = sorted(getattr(plugin, "__dict__", {}).items())
    functions = [plugin, *(getattr(value, "__func__", value) for _, value in held)]
    functions = [function for function in functions if hasattr(function, "__code__")]
    around = [(name, value) for name, value in held if not name.startswith("__")]
    for function in functions:
        inside = inspect.getclosurevars(function)
        around += [*inside.nonlocals.items(), *inside.globals.items(), *(function.__kwdefaults__ or {}).items()]
        around += [("", value) for value in function.__defaults__ or ()]
    try:
        text = _source(plugin)
    except (OSError, TypeError):  # typed into an interpreter
        text = repr([_code(function.__code__) for function in functions])
    return hash_value([text, [[name, repr(value)] for name, value in around if _is_plain(value)]])[:16]


_source = functools.lru_cache(256)(inspect.getsource)  # threads ask again, and Python 3.11 cannot parse in two of them


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text or a tuple of such."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, Number | str)


def _code(code: Any) -> list[Any]:
    """What a function does, as Python has compiled it, without what differs from process to process."""
    consts = [_code(value) if inspect.iscode(value) else value for value in code.co_consts]
    consts = [sorted(map(repr, value)) if isinstance(value, frozenset) else value for value in consts]
    return [code.co_code, code.co_names, code.co_varnames, consts]
