"""Every option composes, every mistake is named, and nothing that a configuration names is called."""

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from hcm_scale import config as schema
from hcm_scale.base import names as tables
from hcm_scale.cli.overrides import compose_config, composing
from hcm_scale.features import purify
from hcm_scale.posterior import sgld

ROOT = schema.conf_dir()
PACKAGE = Path(schema.__file__).parent
WORDS = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "=", 1)
    for path in ROOT.rglob("*.yaml")
    if path.parent != ROOT
)


def composed(*overrides: str) -> schema.Config:
    with composing():
        return compose_config(overrides)


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
    for option in schema.options().values():
        if option.field.type in (int, float, int | None, float | None):
            assert option.field.metadata.get("low") is not None, option.key


def test_fan_out__is_checked():
    assert schema.parse_fan_out(["all"], 2) == [None, None]
    with pytest.raises(ValueError, match="fan_out=0"):
        schema.parse_fan_out(["0"], 1)
    with pytest.raises(ValueError, match="has 2 entries"):
        schema.parse_fan_out(["5", "5"], 3)


def test_run_dir__is_a_folder_name_however_long_the_name_of_the_graph():
    found = {composed(f"graph.name='a/{'y' * length}'").run_dir for length in (1000, 1001)}
    assert len(found) == 2
    assert all(run_dir.count("/") == 1 and len(run_dir) <= 155 for run_dir in found)


def test_group_without_its_file__has_the_defaults_again():
    assert composed("sampling=exact").sampling.batch_pairs == 8192
    assert composed("experiment=paper/acm", "~sampling").sampling == schema.SamplingConfig()


def test_seed__moves_injection_and_training_together():
    config = composed("inject=paper", "seed=3")
    assert config.inject.seed == config.seed == 3


def test_defaults__are_those_of_the_schema(monkeypatch):
    monkeypatch.delenv("HCM_DATA", raising=False)
    assert composed() == schema.Config(graph=schema.DefaultGraph())


NAMED_AFTER = {  # an option that is named after a value says it, so that it outlives a change of the default
    "model=gcn2": {"model.num_layers"},
    "posterior=psgld": {"posterior.kernel"},
    "purify=euclidean": {"purify.similarity"},
}


@pytest.mark.parametrize("word", WORDS)
def test_option__is_legal_and_says_only_what_it_changes(word):
    group, _, option = word.partition("=")
    path = ROOT / group / f"{option}.yaml"
    body = OmegaConf.to_container(OmegaConf.load(path))
    said = {key: value for key, value in body.items() if key not in ("defaults", "hydra")}
    default = schema.Config(graph=type(composed(word).graph)())
    known = dict(schema.flatten(asdict(default)))
    is_whole = path.read_text().startswith("# @package _global_")
    stated = dict(schema.flatten(said if is_whole or not said else {group: said}))
    assert stated.keys() <= known.keys()
    assert {key for key, value in stated.items() if value == known[key]} == NAMED_AFTER.get(word, set())


@pytest.mark.parametrize(
    ("known", "table"),
    [
        (sgld.KERNELS, tables.KERNELS),
        (purify._DENSE_KERNELS, tables.SIMILARITIES),
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
    sections = ("attributes", "purify", "hops", "shards", "model", "posterior", "score", "inject", "graph")
    options = [o for o in schema.options().values() if o.key.split(".")[0] in sections]
    known = {o.key.partition(".")[2]: o.default for o in options if not o.sources or "tables" in o.sources}
    for neutral in ("name", "path", "nodes", "seed", "scale"):  # of something else, or of nothing in particular
        del known[neutral]
    found = [entry for entry in signature_defaults() if entry[1] in known]
    guesses = ("hcm.py fit", "results.py score_edges")  # where a column that is not named is guessed
    found = [entry for entry in found if entry[0] not in guesses]
    assert len(found) > 10
    assert [entry for entry in found if entry[2] != known[entry[1]]] == []


FORBIDDEN = {"eval", "exec", "instantiate", "import_module", "__import__", "torch.load"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
MAY = {
    "jit.py": PICKLES,  # reads compiled kernels, from folders that nobody else can write
    "ahead.py": {"import_module"},  # imports the modules of the package's own list of kernels
}


def called_names(path: Path) -> set[str]:
    """What a file calls, as it is written and without its dots, and the modules that it imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found |= {called, called.rpartition(".")[2]}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [entry.name for entry in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found |= {module.partition(".")[0] for module in modules}
    return found


def test_code__calls_nothing_by_name_and_reads_no_pickles():
    for path in PACKAGE.rglob("*.py"):
        may = MAY.get(path.name, set()) if path.parent == PACKAGE / "base" else set()
        assert not called_names(path) & ((FORBIDDEN | PICKLES) - may), path
        assert "allow_pickle=True" not in path.read_text(), path
    named = re.findall(r'"([\w.]+)[":]', (PACKAGE / "base" / "first_kernels.jsonl").read_text())
    assert {name.partition(".")[0] for name in named if "." in name} == {"hcm_scale"}


@pytest.mark.parametrize("key", ["graph._target_", "purify._target_", "_target_", "own._target_", "purify.own"])
def test_command_line__takes_no_target(key):
    with pytest.raises(ValueError, match=f"'{key.replace('own._target_', 'own')}' is not an option"):
        composed(f"+{key}=os.getcwd")


def test_inert_options__name_no_place_no_address_and_no_command():
    others = schema.options().keys() - {*schema.inert_options()}
    assert others == {
        *(f"graph.{name}" for name in ("name", "path", "nodes", "edges", "reader")),
        *(f"graph.{name}" for name in ("family", "edges_per_node", "num_attributes")),  # of made graphs
        "graph.attributes_dtype",
        *("run_dir", "share_dir", "trained", "fail_on", "since"),
    }


def test_options__take_no_target():
    with pytest.raises(ValueError, match="_target_"):
        schema.with_options(schema.Config(), {"purify": {"_target_": "os.getcwd"}})
