"""The parameters are the options of the command line under short names, checked when they are set."""

import dataclasses
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid, cross_val_score

from hcm_scale import HCM, plugins
from hcm_scale.config import Config

OWN = {"options", "contamination", "run_dir", "verbose", "callback"}  # that no key of the configuration stands for
OTHER_TYPES = {
    "views": list[str],
    "device": str,
    "encoder": str,
    "similarity": str,
    "evidence": list[str],
}  # a keyword may be given more types than the option has


VALUES = {name: 3 for name in HCM().get_params() if name not in OWN} | {
    "drop_ratio": 0.3,
    "similarity": "cosine",
    "scale": "none",
    "views": ["original"],
    "encoder": "sage",
    "evidence": ["many_neighbors"],
    "rank_by": "ahp",
    "fdr": 0.3,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def registered():
    plugins.register("evidence", lambda graph, features: graph.degrees, "many_neighbors")


def flat_options(given: dict[str, Any]) -> dict[str, Any]:
    sections = dataclasses.asdict(HCM(**given).config)
    alone = {key: value for key, value in sections.items() if not isinstance(value, dict)}
    return alone | {f"{key}.{n}": v for key, inner in sections.items() if key not in alone for n, v in inner.items()}


def option_of(name: str) -> str:
    """The one option that a keyword changes, to the value that it is given."""
    before, after = (flat_options(given) for given in ({}, {name: VALUES[name]}))
    (key,) = [key for key, value in after.items() if value != before[key]]
    assert after[key] == VALUES[name]
    return key


def field_of(key: str) -> tuple[Any, dataclasses.Field]:
    section, *names = Config(), *key.split(".")
    for name in names[:-1]:
        section = getattr(section, name)
    return getattr(section, names[-1]), next(e for e in dataclasses.fields(section) if e.name == names[-1])


@pytest.mark.parametrize("name", VALUES)
def test_keyword__sets_one_option_and_has_its_default_and_type(name):
    keyword = inspect.signature(HCM).parameters[name]
    default, entry = field_of(option_of(name))
    assert keyword.default == (tuple(default) if isinstance(default, list) else default)
    assert OTHER_TYPES.get(name, keyword.annotation) == entry.type


def test_keywords__are_all_described():
    names = HCM().get_params().keys()
    described = re.findall(r"^(\w[\w, ]*) : ", inspect.getdoc(HCM), re.MULTILINE)
    assert ", ".join(described).split(", ") == list(names)
    assert HCM().config.hops == Config().hops


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"purify.rato": 0.1}, r"'purify\.rato' is not an option; did you mean 'purify\.ratio'\?"),
        ({"purify": {"rato": 0.1}}, r"'purify\.rato' is not an option"),
        ({"purify.ratio.low": 0.1}, r"'purify\.ratio\.low' is not an option"),
        ({"anything": 1}, "'anything' is not an option; hcm-scale options lists all"),
        ({"hops.classes": 99}, r"hops\.classes=99 is out of range: at least 2"),
        ({"hops.classes": 3.5}, r"hops\.classes=3\.5 is not legal: int or None, at least 2 and at most 16"),
        ({"hops.classes": "many"}, r"hops\.classes='many' is not legal: int or None, at least 2"),
        ({"purify": 0.1}, r"purify=0\.1 is not legal: a section with similarity, ratio, attributes"),
        ({"purify": "nothing"}, r"purify=nothing is not known; .*legal are cosine, euclidean, jaccard"),
        ({"score.rank_by": None}, r"score\.rank_by=None is not legal: str, of score, strange, ahp, hav"),
        ({"sampling.fan_out": "10"}, r"sampling\.fan_out='10' is not legal: list\[str\]"),
        ({"sampling.fan_out": [10, 10]}, r"has 2 entries, and 1 of the model's layers are sampled \(of a GCN"),
        ({"graph.path": "a.csv"}, r"options\['graph\.path'\]='a\.csv' is not an option here: use fit\(data\)"),
        ({"run_dir": "here"}, r"not an option here: use HCM\(run_dir=\.\.\.\)"),
        ({"graph.exclud": ["a"]}, r"'graph\.exclud' is not an option; did you mean 'graph\.exclude'\?"),
        ({"graph.nonfinite": "ignore"}, r"graph\.nonfinite=ignore is not known; legal are error, zero, mean"),
    ],
)
def test_mistake__is_named_with_what_is_legal(options, said):
    with pytest.raises(ValueError, match=said):
        HCM(options)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"classes": 1}, r"hops\.classes=1 is out of range: .* \(in Python: HCM\(classes=\.\.\.\)\)$"),
        ({"options": {"score.trim": 2}}, r' \(in Python: HCM\(options=\{"score\.trim": \.\.\.\}\)\)$'),
        ({"contamination": 0.7}, r"contamination=0\.7 is out of range: above 0 and at most 0\.5"),
        ({"contamination": "some"}, "contamination='some' is out of range"),
        ({"device": torch.device("meta")}, r"world\.device=meta is not known; legal are auto, cpu, cuda"),
        ({"verbose": "yes"}, "verbose='yes' is not legal: 0, 1, which 2 and 3 are too, or None"),
        ({"run_dir": ""}, "run_dir='' is not legal: the path of a folder"),
        ({"run_dir": 3}, "run_dir=3 is not legal: the path of a folder"),
        ({"options": 64}, "options=64 is not legal: options by name, such as"),
        ({"callback": 3}, "callback=3 is not legal: a function of a Step, or None"),
        (
            {"classes": 3, "options": {"hops.classes": 5}},
            r"classes=3 and options\['hops\.classes'\]=5 differ",
        ),
    ],
)
def test_wrong_keyword__is_named_with_what_is_legal(keywords, said):
    with pytest.raises(ValueError, match=said):
        HCM(**keywords)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        (
            {"gpu": 0, "lr": 1},
            'gpu=0 is not a parameter of HCM: use device="cuda" .*; lr=1 is not .*step_size',
        ),
        ({"random_state": 1}, "random_state=1 is not a parameter of HCM: use seed"),
        ({"burn_in_steps": 9}, 'burn_in_steps=9 .*: use options={"posterior.burn_in_steps": 9}'),
        ({"purify.ratio": 0.1}, 'purify.ratio=0.1 .*: use options={"purify.ratio": 0.1}'),
        ({"num_layer": 3}, r"num_layer=3 is not a parameter of HCM: legal are .*did you mean 'num_layers'\?"),
        ({"zzz": 3}, "zzz=3 is not a parameter of HCM: legal are options, classes, "),
    ],
)
def test_unknown_keyword__is_refused_with_the_one_to_use(keywords, said):
    with pytest.raises(TypeError, match=said):
        HCM(**keywords)
    with pytest.raises(ValueError, match=said):
        HCM().set_params(**keywords)


def test_grid__of_scikit_learn_sets_parameters():
    grid = ParameterGrid({"classes": [2, 3], "options": [None, {"score.trim": 0.1}]})
    made = [clone(HCM(seed=1)).set_params(**point).config for point in grid]
    assert [(config.hops.classes, config.score.trim, config.seed) for config in made] == [
        *((2, 0.2, 1), (2, 0.1, 1), (3, 0.2, 1), (3, 0.1, 1))
    ]


@pytest.mark.parametrize(
    "search",
    [
        lambda found, data: GridSearchCV(found, {"classes": [2, 3]}).fit(data),
        lambda found, data: cross_val_score(found, data),
        lambda found, data: GridSearchCV(found, {"classes": [2, 3]}, scoring="roc_auc", cv=2, error_score="raise").fit(
            data, np.arange(9) % 2
        ),
    ],
)
def test_search_of_scikit_learn__is_told_what_to_search_by(search):
    with pytest.raises(TypeError, match=r"HCM has no score: GridSearchCV .* docs/python\.md, Choose settings"):
        search(HCM(), np.zeros((9, 2)))


def test_options__are_those_of_the_command_line_and_become_its_types():
    given = {"purify": {"ratio": np.float64(0.5)}, "hops.classes": np.int64(3), "sampling.fan_out": (10,)}
    config = HCM(given, seed=np.int32(7), device=torch.device("cpu"), width="32").config
    expected = Config(seed=7)
    expected.purify.ratio, expected.hops.classes, expected.world.device = 0.5, 3, "cpu"
    expected.sampling.fan_out, expected.model.width = ["10"], 32
    expected.graph = config.graph
    assert config == expected
    assert {type(config.purify.ratio), type(config.hops.classes), type(config.seed)} == {float, int}


def test_options__may_name_a_file_of_a_group_as_on_the_command_line():
    config = HCM({"purify": "jaccard", "sampling": "exact", "score.trim": 0.1, "inject": "paper"}, seed=3).config
    assert (config.purify.similarity, config.sampling.batch_pairs, config.score.trim) == ("jaccard", 8192, 0.1)
    assert (config.inject.num_cliques, config.inject.seed) == (10, 3)
    assert HCM({"hops": "all"}).config.hops.num_sources is None
    assert HCM({"hops": "all"}, num_sources=7).config.hops.num_sources == 7
    assert HCM({"hops.classes": 5, "hops": "all"}, classes=5).config.hops.classes == 5


def test_params__are_kept_as_given_and_cloned(tmp_path):
    given = {"options": {"score.trim": 0.1}, "classes": 3, "run_dir": tmp_path, "contamination": 0.2}
    detector = HCM(**given)
    assert detector.get_params() == HCM().get_params() | given
    assert clone(detector).get_params() == detector.get_params()
    assert repr(HCM(num_sources=None, seed=1)) == "HCM(num_sources=None, seed=1)"


def test_set_params__changes_all_or_nothing():
    detector = HCM(classes=3)
    assert detector.set_params(classes=5, drop_ratio=0.0).config.hops.classes == 5
    with pytest.raises(ValueError, match=r"hops\.classes=1 is out of range"):
        detector.set_params(classes=1, drop_ratio=0.5)
    assert (detector.classes, detector.drop_ratio) == (5, 0.0)


def test_pickle__carries_a_detector_that_is_not_fitted():
    detector = HCM({"score.trim": 0.1}, classes=3)
    assert pickle.loads(pickle.dumps(detector)).get_params() == detector.get_params()
