"""The walls of the house: who may import whom, and what importing the package does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hcm_scale"
ROOMS = {
    "graph",
    "ingest",
    "synthetic",
    "features",
    "hops",
    "shards",
    "sampling",
    "model",
    "posterior",
    "score",
    "report",
}
MAY_IMPORT = {
    "base": set(),
    "graph": {"base"},
    "ingest": {"base", "graph"},
    "synthetic": {"base", "graph"},
    "features": {"base", "graph"},
    "hops": {"base", "graph"},
    "shards": {"base"},
    "sampling": {"base", "shards", "graph"},
    "model": {"base", "aggregate"},
    "aggregate": {"base"},
    "posterior": {"base", "model", "sampling"},
    "score": {"base", "model", "graph"},
    "report": {"base", "graph", "score"},
    "config": {"base"},
    "options": {"base", "config"},
    "ranks": {"base"},
    "stages": {"base", "listed", "ranks", "report"} | ROOMS,
    "records": {"base"},
    "listed": {"base", "records"},
    "workspace": {"base", "listed", "ranks", "records"},
    "sources": {"base", "config", "options", "stages", "graph", "ingest"},
    "arguments": {"config", "stages"},
    "foresight": {"base", "config", "stages"} | ROOMS,
    "trained": {"base", "config", "listed", "options"},
    "walk": {"base", "config", "foresight", "stages", "trained", "workspace"} | ROOMS,
    "blueprint": {"arguments", "base", "config", "foresight", "sources", "stages", "trained", "walk", "workspace"}
    | ROOMS,
    "pipeline": {
        "arguments",
        "base",
        "blueprint",
        "config",
        "graph",
        "listed",
        "options",
        "plan",
        "ranks",
        "report",
        "sources",
        "stages",
        "tracking",
        "trained",
        "walk",
        "workspace",
    },
    "ranks.launch": {"base", "config", "pipeline", "ranks"},  # start whole runs, and so know the pipeline
    "ranks.rank": {"base", "config", "options", "pipeline", "ranks"},
    "detector": {
        "arguments",
        "base",
        "config",
        "graph",
        "ingest",
        "listed",
        "options",
        "pipeline",
        "report",
        "sources",
    },
    "warm": {"arguments", "base", "config", "options", "sources", "stages"} | ROOMS,
    "tracking": {"config", "options"},
    "commands": {
        "base",
        "config",
        "failures",
        "graph",
        "listed",
        "manual",
        "option_words",
        "options",
        "posterior",
        "records",
        "score",
        "serve",
        "shards",
        "stages",
        "sweep",
        "warm",
        "words",
    },
    "manual": {"options"},
    "option_words": set(),
    "own_options": {"options"},
    "brought": {"base", "config", "ingest"},
    "plan": {"blueprint", "config", "listed", "options", "trained", "walk", "workspace"},
    "words": {"base", "config", "options"},
    "failures": {"base"},
    "serve": {"base", "graph", "listed", "report", "score", "stages"},
    "cli": {
        "base",
        "brought",
        "commands",
        "config",
        "failures",
        "manual",
        "options",
        "own_options",
        "pipeline",
        "ranks",
        "sweep",
        "trained",
        "words",
    },
    "sweep": {"base", "config", "options", "pipeline", "graph", "ingest", "listed", "score", "stages"},
    "__main__": {"cli"},
    "__init__": {"detector"},
}


def room_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    return name if name in MAY_IMPORT else name.split(".")[0]


def imported_modules(path: Path) -> set[str]:
    """Every name that an import statement mentions, whether it is a module or something inside one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def imported_rooms(path: Path) -> set[str]:
    ours = [name.split(".")[1] for name in imported_modules(path) if name.startswith("hcm_scale.")]
    return {room for room in ours if not room.startswith("__")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports__keep_to_the_plan(path):
    room = room_of(path)
    assert imported_rooms(path) - {room.split(".")[0]} <= MAY_IMPORT[room]


@pytest.mark.parametrize("folder", ["hcm_scale", "bench"])
def test_files__import_each_other_in_no_circle(folder):
    root, imports = PACKAGE.parent, {}
    for path in sorted((root / folder).rglob("*.py")):
        if path.name != "__init__.py":  # a face for its own room's files, which do not look at it
            imports[path.relative_to(root).with_suffix("").as_posix().replace("/", ".")] = imported_modules(path)

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        for other in sorted(imports[name] & imports.keys() - finished):
            visit(other, (*way, name))
        finished.add(name)

    finished: set[str] = set()
    for name in imports:
        visit(name, ())


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
from hcm_scale import cli, manual
for command in (*manual.STAGES, *manual.COMMANDS):
    sys.argv = ["hcm-scale", command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main() == 0
    assert not {"numba", "pyarrow", "torch"} & sys.modules.keys(), command
"""
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)


def test_pipeline__loads_no_more_than_runs_need():
    rare = {"hydra", "matplotlib", "optuna", "scipy.stats", "torch_geometric", "triton"}
    code = f"import hcm_scale.run.pipeline, sys; print(*sorted({rare!r} & sys.modules.keys()))"
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
from hcm_scale.base import ahead, cores, files, free_memory, kept, stopping
assert cores.num_cores() == os.cpu_count()
assert free_memory.free_memory().address is None
assert [signum.name for signum in stopping.SIGNALS] == ["SIGINT", "SIGTERM"]
with files.locked(Path(sys.argv[1]) / "lock"), kept.alone(Path(sys.argv[1]) / "kernel") as waited:
    assert not waited
"""


def test_imports__need_nothing_that_windows_has_not(tmp_path):
    done = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
