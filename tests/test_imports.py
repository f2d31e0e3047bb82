"""The walls of the house: who may import whom, and what importing the package does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hcm_scale"
ROOMS = {"graph", "hops", "shards", "sampling", "model", "posterior", "score"}
MAY_IMPORT = {
    "base": set(),
    "graph": {"base"},
    "shards": {"base"},
    "model": {"base", "aggregate"},
    "aggregate": {"base"},
    "config": set(),
    "hops": {"base", "graph"},
    "sampling": {"base", "shards", "graph"},
    "posterior": {"base", "model", "sampling"},
    "score": {"base", "model", "graph"},
    "stages": {"base", "workspace"} | ROOMS,
    "workspace": {"base", "posterior"},
    "sources": {"config", "stages", "graph"},
    "pipeline": {"base", "config", "sources", "stages", "workspace", "graph", "score", "posterior"},
    "launch": {"base", "config", "pipeline", "posterior", "rank"},
    "rank": {"base", "config", "pipeline", "posterior"},
    "detector": {"pipeline", "config", "graph", "score"},
    "cli": {"base", "config", "pipeline", "stages", "launch", "sweeps", "tune"},
    "sweeps": set(),
    "tune": {"base", "config", "pipeline", "graph", "score", "sweeps"},
    "__main__": {"cli"},
    "__init__": {"detector"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "hcm_scale" else [f"hcm_scale.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("hcm_scale.")}
    return {name for name in found if not name.startswith("__")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports__keep_to_the_plan(path):
    room = room_of(path)
    assert imported_rooms(path) - {room} <= MAY_IMPORT[room]


def test_import__prints_nothing_and_compiles_nothing():
    code = (
        "import hcm_scale, hcm_scale.cli, hcm_scale.graph.store, hcm_scale.base.spmm as s;"
        "assert not s.gcn_rows.signatures; import sys; assert 'hydra' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
