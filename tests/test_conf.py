"""Every option composes, every mistake is named."""

import ast
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from hcm_scale import config as schema
from hcm_scale.base import names as tables
from hcm_scale.base.files import slug
from hcm_scale.cli.help import full_page
from hcm_scale.cli.main import conf_dir, register, to_config
from hcm_scale.features import parts, purify
from hcm_scale.options import flat
from hcm_scale.posterior import sgld
from hcm_scale.sampling import batches
from hcm_scale.sweep import study

ROOT = conf_dir()
PACKAGE = Path(schema.__file__).parent
WORDS = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "=", 1)
    for path in ROOT.rglob("*.yaml")
    if path.parent != ROOT
)


def composed(*overrides: str) -> schema.Config:
    register()
    with initialize_config_dir(str(ROOT), version_base="1.3"):
        return to_config(compose("config", list(overrides)))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("purify.ratio=1.5", r"purify\.ratio=1\.5 .*at least 0\.0 and at most 0\.99"),
        ("hops.classes=1", r"hops\.classes=1 .*at least 2 and at most 16"),
        ("hops.num_sources=0", r"hops\.num_sources=0 .*at least 1"),
        ("purify.similarity=cosinus", r"purify\.similarity=cosinus .*jaccard, cosine, euclidean"),
        ("score.views=[purifed]", r"score\.views=purifed .*purified, original"),
        ("score.fdr=0", r"score\.fdr=0.* at least 1e-06 and at most 0\.999"),
        ("score.views=[]", r"score\.views=\[\] is empty"),
        ("posterior.step_size=nan", r"posterior\.step_size=nan is out of range"),
    ],
)
def test_value_out_of_range__is_named_with_its_range(override, said):
    with pytest.raises(ValueError, match=said):
        composed(override)


@pytest.mark.parametrize(
    "override", ["purify.rato=0.1", "nothing=1", "graph=tabels", "purify.ratio=much", "hops.classes=2.5"]
)
def test_unknown_key_or_wrong_type__fails_at_composition(override):
    with pytest.raises(ConfigCompositionException):
        composed(override)


def test_yaml__names_no_code_to_run():
    for path in ROOT.rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


def test_every_number__states_its_range():
    for name in ("HopsConfig", "PurifyConfig", "SamplingConfig", "ModelConfig", "PosteriorConfig", "ScoreConfig"):
        for entry in fields(getattr(schema, name)):
            if entry.type in (int, float) or entry.type in (int | None, float | None):
                assert entry.metadata.get("low") is not None, f"{name}.{entry.name}"


def test_fan_out__is_checked():
    assert schema.parse_fan_out(["all"], 2) == [None, None]
    with pytest.raises(ValueError, match="fan_out=0"):
        schema.parse_fan_out(["0"], 1)
    with pytest.raises(ValueError, match="has 2 entries"):
        schema.parse_fan_out(["5", "5"], 3)


def test_slug__is_a_folder_name_however_long_the_overrides():
    assert "/" not in slug("graph.path=/a/b")
    assert len(slug("x=" + "y" * 1000)) <= 150
    assert slug("x=" + "y" * 1000) != slug("x=" + "y" * 1001)


def test_group_without_its_file__has_the_defaults_again():
    assert composed("sampling=exact").sampling.batch_pairs == 8192
    assert composed("experiment=paper/acm", "~sampling").sampling == schema.SamplingConfig()


def test_help__names_every_group():
    text = full_page()
    for path in ROOT.iterdir():
        if path.is_dir():
            assert path.name in text


def test_seed__moves_injection_and_training_together():
    config = composed("inject=paper", "seed=3")
    assert config.inject.seed == config.seed == 3


def test_defaults__are_those_of_the_schema(monkeypatch):
    monkeypatch.delenv("HCM_DATA", raising=False)
    assert composed() == schema.Config(graph=schema.DefaultGraph())


NAMED_AFTER = {  # an option that is named after a value says it, so that it outlives a change of the default
    "attributes=auto": {"attributes.scale"},
    "attributes=standardise": {"attributes.standardise"},
    "model=gcn2": {"model.num_layers"},
    "posterior=psgld": {"posterior.kernel"},
    "purify=euclidean": {"purify.similarity"},
    "world=auto": {"world.device"},
}


@pytest.mark.parametrize("word", WORDS)
def test_option__is_legal_and_says_only_what_it_changes(word):
    group, _, option = word.partition("=")
    path = ROOT / group / f"{option}.yaml"
    body = OmegaConf.to_container(OmegaConf.load(path))
    said = {key: value for key, value in body.items() if key not in ("defaults", "hydra")}
    default = schema.Config(graph=type(composed(word).graph)())
    known = dict(flat(asdict(default)))
    is_whole = path.read_text().startswith("# @package _global_")
    stated = dict(flat(said if is_whole or not said else {group: said}))
    assert stated.keys() <= known.keys()
    assert {key for key, value in stated.items() if value == known[key]} == NAMED_AFTER.get(word, set())


@pytest.mark.parametrize(
    ("known", "table"),
    [
        (sgld.KERNELS, tables.KERNELS),
        (batches.BACKENDS, tables.BACKENDS),
        (purify._DENSE_KERNELS, tables.SIMILARITIES),
        ((*parts._VALUEWISE, "row", parts.NORMAL, parts.AUTO), tables.SCALINGS),
        (study.OBJECTIVES, tables.OBJECTIVES),
    ],
)
def test_room__knows_exactly_the_names_that_the_configuration_accepts(known, table):
    assert tuple(known) == table


def signature_defaults() -> Iterator[tuple[str, str, object]]:
    """(place, parameter, default) of every function of the package whose default is a plain value."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                by_position = [*node.args.posonlyargs, *node.args.args]
                late = by_position[len(by_position) - len(node.args.defaults) :]
                pairs = [*zip(late, node.args.defaults, strict=True)]
                pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                for argument, default in pairs:
                    if isinstance(default, ast.Constant):
                        yield f"{path.name} {node.name}", argument.arg, default.value


def test_default_in_a_signature__is_that_of_the_schema():
    """A room may be called alone with fewer words, but never with another default than a run has."""
    sections = [
        schema.AttributesConfig,
        schema.PurifyConfig,
        schema.HopsConfig,
        schema.ShardsConfig,
        schema.ModelConfig,
    ]
    sections += [schema.PosteriorConfig, schema.ScoreConfig, schema.InjectConfig, schema.TablesGraph]
    known = {entry.name: entry.default for section in sections for entry in fields(section)}
    for neutral in (
        "name",
        "source",
        "path",
        "nodes",
        "seed",
        "scale",
    ):  # of something else, or of nothing in particular
        known.pop(neutral, None)
    found = [entry for entry in signature_defaults() if entry[1] in known]
    found = [entry for entry in found if entry[0] != "hcm.py fit"]  # where a column that is not named is guessed
    assert len(found) > 10
    assert [entry for entry in found if entry[2] != known[entry[1]]] == []
