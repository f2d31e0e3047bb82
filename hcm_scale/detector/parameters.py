"""The parameters of `HCM`: scikit-learn's protocol, the configuration they make, and messages about wrong ones.

A keyword stands for one key of the configuration (`KEYS`) and has its default; `options` holds any other key, as the
command line spells it. Parameters are stored as they were given, so that scikit-learn's `clone` finds them again, and
are checked by making the configuration whenever they are set.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Self

from hcm_scale import plugins
from hcm_scale.base.console import legal_names
from hcm_scale.config import (
    Config,
    GraphConfig,
    MatrixGraph,
    TablesGraph,
    as_plain,
    iter_options,
    parse_fan_out,
    with_options,
)
from hcm_scale.run.stages import num_blocks

KEYS = {  # keyword -> key of the configuration
    "classes": "hops.classes",
    "num_sources": "hops.num_sources",
    "drop_ratio": "purify.ratio",
    "similarity": "purify.similarity",
    "scale": "attributes.scale",
    "pca": "attributes.pca",
    "encoder": "model.encoder",
    "num_layers": "model.num_layers",
    "width": "model.width",
    "num_samples": "posterior.num_samples",
    "views": "score.views",
    "evidence": "score.evidence",
    "rank_by": "score.rank_by",
    "fdr": "score.fdr",
    "seed": "seed",
    "device": "world.device",
    "threads": "world.threads",
}
SECTIONS = {entry.name for entry in dataclasses.fields(Config) if dataclasses.is_dataclass(entry.type)}
SET_ELSEWHERE = {  # keys that are not options in Python -> what sets them
    "run_dir": "HCM(run_dir=...)",
    "node": "explain(node)",
    "overwrite": "fit(data), which always overwrites",
    **{f"graph.{name}": "fit(data)" for name in ("source", "path", "nodes")},
}
NO_EMBEDDING = "every sample of the posterior has an embedding of its own; embedding_ is their mean"
_CHAIN_LENGTH = 'use options={"posterior.burn_in_steps": ...} and num_samples, the length of a chain'
FOREIGN_KEYWORDS = {  # keywords of PyGOD, PyOD and scikit-learn -> ours, or why there is none
    "act": "ReLU stands between layers; encoder=... takes a class with layers of your own",
    "backbone": "use encoder: gcn, sage, gat or a class of your own",
    "batch_size": 'use options={"sampling.batch_pairs": ...}, the pairs of nodes in a step',
    "compile_model": "kernels are always compiled and cached",
    "dropout": "samples of the posterior are averaged instead",
    "epoch": _CHAIN_LENGTH,
    "epochs": _CHAIN_LENGTH,
    "gan": "nothing is trained against an adversary",
    "gpu": 'use device="cuda" or device="cpu", and CUDA_VISIBLE_DEVICES to choose among GPUs',
    "hid_dim": "use width",
    "lr": 'use options={"posterior.step_size": ...}',
    "n_jobs": "use threads",
    "num_neigh": 'use options={"sampling.fan_out": [...]}',
    "random_state": "use seed",
    "save_emb": NO_EMBEDDING,
    "weight_decay": 'use options={"posterior.prior": ...}',
}
NO_SCORE = (  # GridSearchCV and cross_val_score ask for it
    "HCM has no score: GridSearchCV and cross_val_score fit to some rows and score others, and no node of a graph can "
    "be left out; what settings can be chosen by, and a loop that does it: docs/python.md, Choose settings"
)


def not_searched(fit: Callable[..., Any]) -> Callable[..., Any]:
    """The method; told from a search of scikit-learn, which fits to some rows whatever its scoring, TypeError."""

    @functools.wraps(fit)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("sklearn.model_selection."):
            raise TypeError(NO_SCORE)
        return fit(*arguments, **keywords)

    return checked


@contextlib.contextmanager
def with_python_names() -> Iterator[None]:
    """Adds the Python spelling to an error that names options as the command line does, `section.option=`.

    >>> with with_python_names():
    ...     raise ValueError("hops.classes=1 is out of range")
    Traceback (most recent call last):
    ValueError: hops.classes=1 is out of range (in Python: HCM(classes=...))
    """
    try:
        yield
    except (ValueError, MemoryError) as error:
        spelled = {key: f"HCM({name}=...)" for name, key in KEYS.items()} | SET_ELSEWHERE
        keys = [key for key in re.findall(r"\b[a-z]+\.[a-z_]+(?==)", str(error)) if key.split(".")[0] in SECTIONS]
        names = dict.fromkeys(spelled.get(key, f'HCM(options={{"{key}": ...}})') for key in keys)
        if names and "(in Python: " not in str(error):
            error.args = (f"{error} (in Python: {', '.join(names)})",)
        raise


class Parameters:
    """Base of `HCM`: the arguments of the constructor are attributes of the same names, as scikit-learn expects."""

    options: Mapping[str, Any] | None

    @property
    def config(self) -> Config:
        """Configuration made by the parameters, without the data."""
        return self._make_config()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, as they were given."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **parameters: Any) -> Self:
        """Changes parameters, all or none; results stay until the next fit."""
        before = self.get_params()
        unknown = {name: value for name, value in parameters.items() if name not in before}
        if unknown:
            raise ValueError(self._unknown_text(unknown))
        try:
            self.__dict__.update(parameters)
            self._check()
        except ValueError:
            self.__dict__.update(before)
            raise
        return self

    def _plain(self, name: str) -> Any:
        """A parameter in types of JSON; a class or function becomes the name of the plug-in that it is from now on."""
        value, group = getattr(self, name), next((g for g, key in plugins.OPTIONS.items() if key == KEYS.get(name)), "")
        named = lambda item: plugins.register(group, item) if group and callable(item) else item  # noqa: E731
        return as_plain([named(item) for item in value] if isinstance(value, list | tuple) else named(value))

    def __repr__(self) -> str:
        defaults = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {argument.name: argument.default for argument in arguments if argument.kind != argument.VAR_KEYWORD}

    @classmethod
    def _unknown_text(cls, unknown: Mapping[str, Any]) -> str:
        """Message for keywords that HCM does not have: what to write instead of each, or why there is nothing."""
        messages = []
        for name, value in unknown.items():
            keys = [key for key, _, _ in iter_options(Config(graph=TablesGraph())) if name in (key, key.split(".")[-1])]
            options = " or ".join(f'options={{"{key}": {value!r}}}' for key in keys)
            instead = f"use {options}" if options else legal_names(name, list(cls._defaults()))
            messages.append(f"{name}={value!r} is not a parameter of HCM: {FOREIGN_KEYWORDS.get(name, instead)}")
        return "; ".join(messages)

    @with_python_names()
    def _check(self) -> None:
        """Raises ValueError for parameters that no fit could use."""
        given = self.get_params()
        share, folder, callback = given["contamination"], given["run_dir"], given["callback"]
        if not (share is None or (isinstance(share, Real) and 0.0 < float(share) <= 0.5)):
            raise ValueError(f"contamination={share!r} is out of range: above 0 and at most 0.5, or None")
        checks = {
            "options": (isinstance(self.options, Mapping | None), 'options by name, such as {"purify.ratio": 0.1}'),
            "run_dir": (folder is None or (isinstance(folder, str | Path) and str(folder)), "the path of a folder"),
            "callback": (callback is None or callable(callback), "a function of a Step"),
            "verbose": (given["verbose"] in (None, 0, 1, 2, 3), "0, 1, which 2 and 3 are too"),
        }
        for name, (is_legal, legal) in checks.items():
            if not is_legal:
                raise ValueError(f"{name}={given[name]!r} is not legal: {legal}, or None")
        self._make_config()

    def _make_config(
        self, section: GraphConfig | None = None, what: str = "", columns: Mapping[str, str] | None = None
    ) -> Config:
        """Configuration of a run over `section`, the input `what`; without one, options of `graph.` are only checked.

        Option files of groups come first, then keywords that are not at their defaults, then single options.
        """
        defaults, named = self._defaults(), {f"graph.{name}": value for name, value in (columns or {}).items()}
        options = dotted({**(self.options or {}), **named})
        for key in [key for key in options if key in SET_ELSEWHERE]:
            raise ValueError(f"options[{key!r}]={options[key]!r} is not an option here: use {SET_ELSEWHERE[key]}")
        keywords = {}
        for name, key in KEYS.items():
            value = self._plain(name)
            if value != as_plain(defaults[name]):
                keywords[key] = value
                if as_plain(options.get(key, value)) != value:
                    raise ValueError(f"{name}={value!r} and options[{key!r}]={options[key]!r} differ: leave out one")
        asked = {key: value for key, value in options.items() if key.startswith("graph.")}
        if section is None:
            of_tables = {f"graph.{entry.name}" for entry in dataclasses.fields(TablesGraph)}
            section = TablesGraph() if asked.keys() <= of_tables else MatrixGraph()
        legal = [f"graph.{entry.name}" for entry in dataclasses.fields(section)]
        for key, value in asked.items():
            if what and key not in legal:
                names = ", ".join(name for name in legal if name not in SET_ELSEWHERE)
                raise ValueError(f"{key}={value!r} means nothing for {what}; legal there are {names}")
        files = {key: value for key, value in options.items() if key in SECTIONS}
        config = with_options(Config(graph=section), files | keywords | options)
        parse_fan_out(config.sampling.fan_out, num_blocks(config))
        return config


def dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with nested sections as dotted keys.

    >>> dotted({"purify": {"ratio": 0.1}, "graph.keys": {"x": "attrb"}, "hops": "all"})
    {'purify.ratio': 0.1, 'graph.keys': {'x': 'attrb'}, 'hops': 'all'}
    """
    flat = []
    for key, value in options.items():
        is_section = key in SECTIONS and isinstance(value, Mapping)
        flat += [(f"{key}.{name}", inner) for name, inner in value.items()] if is_section else [(str(key), value)]
    return dict(flat)
