"""Errors name options as a command line has them; those that leave the detector also say how Python names them."""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Self

from hcm_scale import config as schema
from hcm_scale.base.console import legal_names
from hcm_scale.config import Config, GraphConfig, MatrixGraph, TablesGraph, plain, walk, with_options
from hcm_scale.run.stages import num_blocks

# ----------------------------------------------------------------------------
# What PyGOD, PyOD and scikit-learn call things: our word for each of theirs, or why there is none.
#
# `unknown` speaks of keywords that `HCM` does not have, `MISSING` of methods and attributes.


_NO_EMBEDDING = "every sample of the posterior has an embedding of its own, and none is kept"
KEYWORDS = {
    "act": "there is no choice: the encoder is a GCN with ReLU",
    "backbone": "there is no choice: the encoder is a GCN with ReLU",
    "batch_size": 'options={"sampling.batch_pairs": ...} says how many pairs of nodes a step has',
    "compile_model": "there is nothing to switch on: kernels are compiled, and kept",
    "dropout": "there is none: samples of the posterior are averaged",
    "epoch": 'options={"posterior.burn_in_steps": ...} and num_samples say how long a chain is',
    "epochs": 'options={"posterior.burn_in_steps": ...} and num_samples say how long a chain is',
    "gan": "there is none: nothing is trained against an adversary",
    "gpu": 'device="cuda" or device="cpu" says it, and CUDA_VISIBLE_DEVICES which of several GPUs',
    "hid_dim": "width says it",
    "lr": 'options={"posterior.step_size": ...} says it',
    "n_jobs": "threads says it",
    "num_neigh": 'options={"sampling.fan_out": [...]} says it',
    "random_state": "seed says it",
    "save_emb": f"there is none: {_NO_EMBEDDING}",
    "weight_decay": 'options={"posterior.prior": ...} says it',
}
MISSING = {
    "compute_rejection_stats": "predict_confidence(data) has the numbers to reject by",
    "emb": _NO_EMBEDDING,
    "fit_predict_score": "fit(data, label), then sklearn.metrics.roc_auc_score(label, scores)",
    "forward_model": "its model is not made by subclassing",
    "init_model": "its model is not made by subclassing",
    "offset_": "threshold_ is the score above which nodes are labelled",
    "predict_with_rejection": "predict_confidence(data) has the numbers to reject by",
    "process_graph": "fit(data) reads the graph",
    "score_samples": "decision_function(data) is larger for stranger nodes, where scikit-learn's is smaller",
}


def unknown_keywords_text(others: Mapping[str, Any], known: Iterable[str]) -> str:
    """Says of keywords that are none of ours what to write in their place.

    >>> unknown_keywords_text({"hid_dim": 64, "trim": 0.1}, ["width"])
    'hid_dim=64 is no parameter of HCM: width says it; trim=0.1 is none: options={"score.trim": 0.1} says it'
    """
    told = [f"{name}={value!r} is none: {_hint(name, value, list(known))}" for name, value in others.items()]
    return "; ".join(told).replace("is none", "is no parameter of HCM", 1)


def _hint(name: str, value: Any, known: list[str]) -> str:
    if name in KEYWORDS:
        return KEYWORDS[name]
    keys = [key for key, _, _ in walk(Config(graph=TablesGraph())) if name in (key, key.split(".")[-1])]
    if keys:
        return " or ".join(f'options={{"{key}": {value!r}}}' for key in keys) + " says it"
    return legal_names(name, known)


# ----------------------------------------------------------------------------
# The parameters of the detector, as scikit-learn knows them, and the configuration that they make.
#
# A keyword stands for one key of the configuration (`KEYS`); `options` holds any other key. Parameters are kept as
# they were given, so that `clone` finds them again, and are checked when they are set.


KEYS = {  # keyword -> key of the configuration, whose default is the keyword's
    "classes": "hops.classes",
    "num_sources": "hops.num_sources",
    "drop_ratio": "purify.ratio",
    "similarity": "purify.similarity",
    "scale": "attributes.scale",
    "pca": "attributes.pca",
    "num_layers": "model.num_layers",
    "width": "model.width",
    "num_samples": "posterior.num_samples",
    "views": "score.views",
    "rank_by": "score.rank_by",
    "fdr": "score.fdr",
    "seed": "seed",
    "device": "world.device",
    "threads": "world.threads",
}
SECTIONS = {entry.name for entry in dataclasses.fields(Config) if dataclasses.is_dataclass(entry.type)}
ELSEWHERE = {
    "run_dir": "HCM(run_dir=...) says it",
    "node": "explain(node) says it",
    "overwrite": "fit always does",
    **{f"graph.{name}": "fit(data) says it" for name in ("source", "path", "nodes", "dataset")},
}


class Parameters:
    """What scikit-learn expects of an estimator's parameters: the arguments of its constructor, under their names."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, as they were given."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **parameters: Any) -> Self:
        """Changes parameters; what was fitted stays until the next fit."""
        before, known = self.get_params(), self._defaults()
        others = {name: value for name, value in parameters.items() if name not in known}
        if others:
            raise ValueError(unknown_keywords_text(others, known))
        try:
            self.__dict__.update(parameters)
            self._check()
        except ValueError:
            self.__dict__.update(before)
            raise
        return self

    def __repr__(self) -> str:
        defaults = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _check(self) -> None:
        """Refuses parameters that no fit could use."""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        arguments = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {argument.name: argument.default for argument in arguments if argument.kind != argument.VAR_KEYWORD}


def make_config(
    keywords: Mapping[str, Any],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    graph: GraphConfig | None = None,
    what: str = "",
) -> Config:
    """The configuration of a run over the section `graph`; without one, the options of `graph.` are only checked.

    The files of groups come first, then the keywords that are not at their defaults, then single options.
    """
    said = dotted(options)
    for key in said:
        if key in ELSEWHERE:
            raise ValueError(f"options[{key!r}]={said[key]!r} is no option here: {ELSEWHERE[key]}")
    changed = {name: value for name, value in keywords.items() if plain(value) != plain(defaults[name])}
    for name, value in changed.items():
        if plain(said.get(KEYS[name], value)) != plain(value):
            told = f"options[{KEYS[name]!r}]={said[KEYS[name]]!r}"
            raise ValueError(f"{name}={value!r} and {told} differ: leave out one")
    of_graph = {key: value for key, value in said.items() if key.startswith("graph.")}
    config = Config(graph=graph or _section_for(of_graph))
    _refuse_foreign(of_graph, config.graph, what)
    groups = {key: value for key, value in said.items() if key in SECTIONS}
    made = with_options(config, groups | {KEYS[name]: value for name, value in changed.items()} | said)
    schema.parse_fan_out(made.sampling.fan_out, num_blocks(made))
    return made


def dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Sections in sections as dotted keys.

    >>> dotted({"purify": {"ratio": 0.1}, "graph.keys": {"x": "attrb"}, "hops": "all"})
    {'purify.ratio': 0.1, 'graph.keys': {'x': 'attrb'}, 'hops': 'all'}
    """
    flat: dict[str, Any] = {}
    for key, value in options.items():
        is_section = key in SECTIONS and isinstance(value, Mapping)
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if is_section else {str(key): value}
    return flat


def _section_for(keys: Iterable[str]) -> GraphConfig:
    """A section that knows these options, to check them before it is known what will be fitted."""
    known = {f"graph.{entry.name}" for entry in dataclasses.fields(TablesGraph)}
    return TablesGraph() if set(keys) <= known else MatrixGraph()


def _refuse_foreign(of_graph: Mapping[str, Any], graph: GraphConfig, what: str) -> None:
    """Refuses an option of the graph that means nothing for what is being read."""
    legal = [f"graph.{e.name}" for e in dataclasses.fields(graph) if f"graph.{e.name}" not in ELSEWHERE]
    for key, value in of_graph.items():
        if what and key not in legal:
            raise ValueError(f"{key}={value!r} means nothing for {what}; legal there are {', '.join(legal)}")


def check_contamination(share: float | None) -> None:
    """Refuses a share of anomalies that PyGOD would refuse."""
    if share is not None and not (isinstance(share, Real) and 0.0 < share <= 0.5):
        raise ValueError(f"contamination={share!r} is out of range: above 0 and at most 0.5, or None")


def check_place(run_dir: Path | str | None) -> None:
    """Refuses what is no name for the folder of the run."""
    if run_dir is not None and not (isinstance(run_dir, str | Path) and str(run_dir)):
        raise ValueError(f"run_dir={run_dir!r} is not legal: it names a folder, or is None for a temporary one")


def check_options(options: Any) -> None:
    """Refuses options that are not named: a number, say, that was meant for the first of another detector's."""
    if not isinstance(options, Mapping | None):
        raise ValueError(f'options={options!r} is not legal: options by name, such as {{"purify.ratio": 0.1}}, or None')


_OPTION = re.compile(r"\b([a-z]+)\.([a-z_]+)=")
_KEYWORDS = {key: f"HCM({name}=...)" for name, key in KEYS.items()}


@contextlib.contextmanager
def naming_python_options() -> Iterator[None]:
    """Around all that the detector calls; also a decorator."""
    try:
        yield
    except (ValueError, MemoryError) as error:
        if len(error.args) == 1:
            error.args = (with_python_names(str(error.args[0])),)
        raise


def with_python_names(text: str) -> str:
    """A message with the Python word for every option that it names.

    >>> with_python_names("hops.classes=1 is out of range")
    'hops.classes=1 is out of range (in Python: HCM(classes=...))'
    >>> with_python_names("data has no attributes; graph.featureless=degree gives it one")
    'data has no attributes; graph.featureless=degree gives it one (in Python: HCM(options={"graph.featureless": ...}))'
    """
    keys = [f"{section}.{name}" for section, name in _OPTION.findall(text) if section in SECTIONS]
    ways = dict.fromkeys(_way(key) for key in keys)
    return f"{text} (in Python: {', '.join(ways)})" if ways and "(in Python: " not in text else text


def _way(key: str) -> str:
    return _KEYWORDS.get(key) or ELSEWHERE.get(key) or f'HCM(options={{"{key}": ...}})'
