"""Every option composes, every mistake is named."""

from dataclasses import fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from hcm_scale import config as schema
from hcm_scale.cli import conf_dir, help_text, register, slug, to_config

ROOT = conf_dir()
OPTIONS = [
    (path.parent.relative_to(ROOT).as_posix(), path.stem)
    for path in sorted(ROOT.rglob("*.yaml"))
    if path.parent != ROOT and path.parts[len(ROOT.parts)] not in ("experiment", "sweep")
]
EXPERIMENTS = sorted(str(path.relative_to(ROOT / "experiment"))[:-5] for path in (ROOT / "experiment").rglob("*.yaml"))
SWEEPS = sorted(path.stem for path in (ROOT / "sweep").glob("*.yaml"))


def composed(*overrides: str) -> schema.Config:
    register()
    with initialize_config_dir(str(ROOT), version_base="1.3"):
        return to_config(compose("config", list(overrides)))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option__composes_and_is_legal(group, option):
    assert isinstance(composed(f"{group}={option}"), schema.Config)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment__composes_and_is_legal(name):
    assert isinstance(composed(f"experiment={name}"), schema.Config)


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep__composes_and_is_legal(name):
    assert isinstance(composed(f"sweep={name}"), schema.Config)


def test_defaults__are_the_embedded_data_set():
    config = composed()
    assert isinstance(config.graph, schema.DefaultGraph)
    assert config.inject.num_cliques == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("purify.ratio=1.5", r"purify\.ratio=1\.5 .*at least 0\.0 and at most 0\.99"),
        ("hops.classes=1", r"hops\.classes=1 .*at least 2 and at most 16"),
        ("hops.num_sources=0", r"hops\.num_sources=0 .*at least 1"),
        ("purify.similarity=cosinus", r"purify\.similarity=cosinus .*jaccard, cosine, euclidean"),
        ("score.views=[purifed]", r"score\.views=purifed .*purified, original"),
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


def test_help__names_every_group():
    text = help_text()
    for path in ROOT.iterdir():
        if path.is_dir():
            assert path.name in text


def test_seed__moves_injection_and_training_together():
    config = composed("inject=paper", "seed=3")
    assert config.inject.seed == config.seed == 3


def test_schema_and_yaml__agree_on_the_default(tmp_path: Path):
    raw = OmegaConf.to_container(OmegaConf.structured(schema.Config()))
    assert set(raw) >= {"graph", "purify", "hops", "sampling", "model", "posterior", "score", "world"}
