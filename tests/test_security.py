"""What docs/security.md promises of configurations and of this code: nothing that they name is called."""

import ast
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import hcm_scale
from hcm_scale.cli.commands import all_options
from hcm_scale.cli.main import conf_dir, register
from hcm_scale.config import Config, inert_options
from hcm_scale.options import to_config, with_options

ROOT = Path(hcm_scale.__file__).parent
FORBIDDEN = {"eval", "exec", "instantiate", "import_module", "__import__", "torch.load"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
COMPILED = ROOT / "base" / "jit.py"  # reads compiled kernels, which are code, from folders that nobody else can write


def names(path: Path) -> set[str]:
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
    for path in ROOT.rglob("*.py"):
        assert not names(path) & (FORBIDDEN if path == COMPILED else FORBIDDEN | PICKLES), path
        assert "allow_pickle=True" not in path.read_text(), path


@pytest.mark.parametrize("key", ["graph._target_", "purify._target_", "_target_", "own._target_", "purify.own"])
def test_command_line__takes_no_target(key):
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("config", overrides=[f"+{key}=os.getcwd"])
    with pytest.raises(ValueError, match=f"'{key.replace('own._target_', 'own')}' is not an option"):
        to_config(composed)


def test_inert_options__name_no_place_no_address_and_no_command():
    others = {option.key for option in all_options()} - set(inert_options())
    assert others == {
        *(f"graph.{name}" for name in ("source", "name", "path", "nodes", "uri", "edges", "dataset", "trust_pickle")),
        *(f"graph.{name}" for name in ("seed", "family", "edges_per_node", "num_attributes")),  # of made graphs
        *(f"graph.{name}" for name in ("num_communities", "homophily")),
        *(f"track.{name}" for name in ("to", "uri", "project")),
        *("score.copy_to", "world.rendezvous", "data_dir", "run_dir", "share_dir", "node", "trained"),
    }


def test_options__take_no_target():
    with pytest.raises(ValueError, match="_target_"):
        with_options(Config(), {"purify": {"_target_": "os.getcwd"}})
