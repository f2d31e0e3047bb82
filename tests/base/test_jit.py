"""The cache of compiled kernels: never stale, never in the way. Every run is a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "__init__.py": "",
    "constants.py": "STEP = 1\n",
    "callee.py": """
from hcm_scale.base.jit import kernel
from rooms.constants import STEP

@kernel
def forward(x):
    return x + STEP
""",
    "caller.py": """
from hcm_scale.base.jit import kernel
from . import callee
from .callee import forward

@kernel(nogil=True)
def gap(pair):
    return forward(pair.first) - pair.second
""",
    "pairs.py": """
from typing import NamedTuple

class Pair(NamedTuple):
    first: int
    second: int
""",
}
CALL = """
from rooms.caller import gap
from rooms.pairs import Pair
{first}
print(gap(Pair(first=10, second=3)), sum(gap.stats.cache_hits.values()))
"""
CHANGE = "from pathlib import Path; import rooms.{0} as m; Path(m.__file__).write_text({1!r})"


@pytest.fixture
def rooms(tmp_path) -> Path:
    folder = tmp_path / "rooms"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def call(rooms: Path, first: str = "", **environment: str) -> tuple[int, int]:
    """What `gap` returns in a new process, and how often its compiled code was found."""
    paths = os.pathsep.join([str(rooms.parent), str(Path(__file__).resolve().parents[2])])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-W", "error", "-c", CALL.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return int(value), int(hits)


def compiled(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


@pytest.mark.gate
def test_kernel__is_compiled_once_and_again_where_its_code_cannot_be_read(rooms):
    assert call(rooms) == (8, 0)
    assert call(rooms) == (8, 1)
    for path in compiled(rooms):
        path.write_bytes(path.read_bytes()[:100])
    assert call(rooms) == (8, 0)
    assert call(rooms) == (8, 1)


@pytest.mark.parametrize(
    ("name", "old", "new", "value"),
    [
        ("callee.py", "x + STEP", "x - STEP", 6),
        ("constants.py", "STEP = 1", "STEP = 5", 12),
        ("pairs.py", "first: int\n    second: int", "second: int\n    first: int", 8),
    ],
)
def test_kernel__sees_a_change_in_another_file_and_leaves_nothing_old(rooms, name, old, new, value):
    assert call(rooms) == (8, 0)
    before = compiled(rooms)
    (rooms / name).write_text(FILES[name].replace(old, new))
    assert call(rooms) == (value, 0)
    assert call(rooms) == (value, 1)
    if name != "pairs.py":  # the same sources, called with another type
        assert len(compiled(rooms)) == len(before)
        assert not set(compiled(rooms)) & set(before)


@pytest.mark.gate
def test_kernel__whose_source_changes_while_it_runs_is_not_kept(rooms):
    changed = FILES["callee.py"].replace("x + STEP", "x - STEP")
    assert call(rooms, CHANGE.format("callee", changed)) == (8, 0)
    assert call(rooms) == (6, 0)


@pytest.mark.gate
def test_kernel__is_kept_elsewhere_where_its_folder_cannot_be_written(rooms, tmp_path):
    (rooms / "__pycache__").write_text("not a folder")
    for variable in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        elsewhere = {variable: str(tmp_path / variable)}
        assert call(rooms, **elsewhere) == (8, 0)
        assert call(rooms, **elsewhere) == (8, 1)
        assert compiled(tmp_path / variable)


def test_kernel__runs_where_no_folder_can_be_written(rooms, tmp_path):
    (rooms / "__pycache__").write_text("not a folder")
    (tmp_path / "file").write_text("not a folder either")
    assert call(rooms, XDG_CACHE_HOME=str(tmp_path / "file")) == (8, 0)
