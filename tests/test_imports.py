"""The layers of the package: who may import whom, and what importing it does."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hcm_scale"
LAYERS = (  # from the ground up: a module imports its own folder and the layers below
    ("base",),
    ("plugins",),
    ("graph", "model", "ranks", "shards"),
    ("ingest", "synthetic", "features", "hops", "rows", "sampling", "encoders"),
    ("posterior", "score"),
    ("report",),
    ("edges",),
    ("cases",),
    ("stages",),
    ("review",),
    ("config",),
    ("run",),
    ("serve", "sweep", "detector"),
    ("cli",),
    ("__init__", "__main__"),
)
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}
UPWARD: set[tuple[str, str]] = set()


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")


def imported_modules(path: Path) -> set[str]:
    """Every name that an import statement mentions, whether it is a module or something inside one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def rooms_of(names: set[str]) -> set[str]:
    rooms = {name.split(".")[1] for name in names if name.startswith("hcm_scale.")}
    return {room for room in rooms if not room.startswith("__")} & HEIGHT.keys()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports__point_downwards(path):
    own = name_of(path).split(".")[1]
    others = rooms_of(imported_modules(path)) - {own}
    assert {room for room in others if HEIGHT[room] >= HEIGHT[own]} == {up for who, up in UPWARD if who == own}


def test_layers__name_every_folder_and_module():
    assert {name_of(path).split(".")[1] for path in PACKAGE.rglob("*.py")} == HEIGHT.keys()


@pytest.mark.parametrize("folder", ["hcm_scale", "bench"])
def test_files__import_each_other_in_no_circle(folder):
    root, imports = PACKAGE.parent, {}
    for path in sorted((root / folder).rglob("*.py")):
        if path.name != "__init__.py":  # a face for its own room's files, which do not look at it
            imports[name_of(path)] = imported_modules(path)

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        for other in sorted(imports[name] & imports.keys() - finished):
            visit(other, (*way, name))
        finished.add(name)

    finished: set[str] = set()
    for name in imports:
        visit(name, ())


def test_kernels__are_compiled_again_after_an_edit_of_all_that_they_import_from_other_rooms():
    from hcm_scale.base.kernel_cache import kernel_sources

    counted = set(kernel_sources())
    for name in counted:
        path = PACKAGE / name
        rooms = rooms_of(imported_modules(path)) if "base.jit import" in path.read_text() else set()
        for room in rooms - {Path(name).parts[0]}:
            of_room = [room + ".py"] if (PACKAGE / f"{room}.py").is_file() else (PACKAGE / room).rglob("*.py")
            assert {file if isinstance(file, str) else str(file.relative_to(PACKAGE)) for file in of_room} <= counted


def test_help__loads_nothing_heavy():
    heavy = {"hydra", "jinja2", "numba", "numpy", "omegaconf", "pyarrow", "scipy", "torch", "tqdm", "yaml"}
    code = f"import hcm_scale, sys; assert not {heavy!r} & sys.modules.keys();"
    code += "from hcm_scale.cli.main import main; sys.argv = ['hcm-scale', '--help']; main();"
    code += f"assert not {heavy!r} & sys.modules.keys(), {heavy!r} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_of_every_command__loads_no_torch():
    code = """
import contextlib, io, sys
from hcm_scale.cli import help
from hcm_scale.cli.main import main
for command in (*help.STAGES, *help.COMMANDS):
    sys.argv = ["hcm-scale", command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main() == 0
    assert not {"numba", "pyarrow", "torch"} & sys.modules.keys(), command
"""
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)


def test_pipeline__loads_no_more_than_runs_need_and_looks_for_no_plug_in():
    rare = {"hcm_scale.encoders", "hydra", "matplotlib", "scipy.stats", "torch_geometric", "triton"}
    code = "import hcm_scale.run.pipeline, sys, hcm_scale.plugins as p; from hcm_scale.config import Config, check;"
    code += "check(Config()); assert p._listed.cache_info().currsize == 0;"
    code += f"print(*sorted({rare!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_import__prints_nothing_and_compiles_nothing():
    code = (
        "import hcm_scale, hcm_scale.cli.main, sys; assert not {'hydra', 'numba', 'torch'} & sys.modules.keys();"
        "import hcm_scale.graph.store, hcm_scale.base.spmm as s; assert not s.gcn_rows.signatures"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


AS_ON_WINDOWS = """
import importlib, os, pkgutil, signal, sys, hcm_scale

def import_all():
    for found in pkgutil.walk_packages(hcm_scale.__path__, "hcm_scale."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)

import_all()  # what others import is there from now on
for name in [name for name in sys.modules if name.split(".")[0] == "hcm_scale"]:
    del sys.modules[name]
sys.modules.update(fcntl=None, resource=None)
for owner, name in (os, "sched_getaffinity"), (os, "getuid"), (os, "fork"), (signal, "SIGHUP"), (signal, "SIGUSR1"):
    delattr(owner, name)
import hcm_scale
import_all()

from pathlib import Path
from hcm_scale.base import files, memory, signals, threads
assert threads.num_cores() == os.cpu_count()
assert memory.Budget().free().address is None
assert [signum.name for signum in signals.SIGNALS] == ["SIGINT", "SIGTERM"]
with files.file_lock(Path(sys.argv[1]) / "lock") as is_held:
    assert is_held
"""


def test_imports__need_nothing_that_windows_has_not(tmp_path):
    done = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_picture_of_the_architecture__is_drawn_from_the_imports():
    script = PACKAGE.parent / "docs" / "figures" / "architecture.py"
    drawn = runpy.run_path(str(script))["draw"]()
    assert script.with_suffix(".svg").read_text() == drawn, "python docs/figures/architecture.py"
