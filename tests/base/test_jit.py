"""The cache of compiled kernels: never stale, never in the way. Every run is a process of its own."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcm_scale.base.jit import KERNELS, compiling_alone

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
    return result(start(rooms, first, **environment))


def start(rooms: Path, first: str = "", **environment: str) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(rooms.parent), str(Path(__file__).resolve().parents[2])])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-W", "error", "-c", CALL.format(first=first)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> tuple[int, int]:
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    value, hits = out.split()[-2:]
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


def test_kernel__whose_machine_code_is_damaged_is_compiled_again(rooms):
    assert call(rooms) == (8, 0)
    for path in compiled(rooms):
        data = bytearray(path.read_bytes())
        at = data.index(b"\x7fELF") + 1000 if b"\x7fELF" in data else len(data) // 2
        data[at : at + 40] = bytes(40)
        path.write_bytes(data)
    assert call(rooms) == (8, 0)


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


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("callee.py", "    return x + STEP", '    """Moves on."""\n\n    # one step\n    return x + STEP'),
        ("callee.py", "@kernel\ndef forward", "def unrelated(x):\n    return 2 * x\n\n@kernel\ndef forward"),
        ("constants.py", "STEP = 1\n", "STEP = 1\nOTHER = 2\n"),
    ],
)
@pytest.mark.gate
def test_kernel__is_kept_where_the_change_does_not_reach_it(rooms, name, old, new):
    assert call(rooms) == (8, 0)
    (rooms / name).write_text(FILES[name].replace(old, new))
    assert call(rooms) == (8, 1)


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
    nowhere = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'file')!r}"
    assert call(rooms, nowhere, XDG_CACHE_HOME=str(tmp_path / "file")) == (8, 0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter and read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def read_only_rooms(folder: Path) -> Path:
    rooms = folder / "rooms"
    rooms.mkdir()
    for name, text in FILES.items():
        (rooms / name).write_text(text)
    return rooms


AS_ANOTHER = """
import os, numba
numba.njit(lambda x: x + 1)(1)  # loads what another user may not be able to read
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
"""
LOGGED = "import logging; logging.basicConfig(level=logging.INFO, stream=__import__('sys').stdout)\n"


@pytest.mark.gate
def test_kernel__of_a_package_that_cannot_be_written_is_kept_in_a_private_folder(shared):
    rooms, temporary = read_only_rooms(shared), shared / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    home = shared / "home"
    for closed in (home, rooms / "__pycache__"):
        closed.mkdir()
        closed.chmod(0o555)
    rooms.chmod(0o555)
    try:
        where = {"HOME": str(home), "XDG_CACHE_HOME": "", "TMPDIR": str(temporary)}
        process = start(rooms, AS_ANOTHER + LOGGED, **where)
        out, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        assert out.split()[-2:] == ["8", "0"]
        assert out.count(f"compiled kernels are kept in {temporary}/hcm_scale-") == 1
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert compiled(folder)
        assert call(rooms, AS_ANOTHER, **where) == (8, 1)
    finally:
        rooms.chmod(0o755)


@pytest.mark.gate
def test_kernel__compiled_by_the_owner_of_the_package_serves_those_who_cannot_write_there(shared):
    rooms = read_only_rooms(shared)
    assert call(rooms, HOME="/nonexistent", XDG_CACHE_HOME="") == (8, 0)
    assert call(rooms, AS_ANOTHER, HOME="/nonexistent", XDG_CACHE_HOME="") == (8, 1)


@pytest.mark.gate
def test_kernel__is_never_loaded_from_a_folder_that_others_can_write(rooms, tmp_path):
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert call(rooms, **elsewhere) == (8, 0)
    (rooms / "__pycache__").chmod(0o777)
    assert call(rooms, **elsewhere) == (8, 0)
    (tmp_path / "cache" / "hcm_scale").chmod(0o775)
    assert call(rooms, **(elsewhere | {"TMPDIR": str(tmp_path)})) == (8, 0)
    assert call(rooms, **(elsewhere | {"TMPDIR": str(tmp_path)})) == (8, 1)


@pytest.mark.gate
def test_kernel__compiled_by_two_processes_at_once_is_right_in_both(rooms):
    found = [result(process) for process in [start(rooms) for _ in range(2)]]
    assert [value for value, _ in found] == [8, 8]
    assert len(compiled(rooms)) == 2
    assert {path.suffix for path in (rooms / "__pycache__").iterdir()} == {".nbc", ".lock"}
    assert call(rooms) == (8, 1)


def test_alone__keeps_others_out_until_its_process_is_gone(tmp_path):
    hold = "import sys, time\nfrom pathlib import Path\nfrom hcm_scale.base.jit import alone\n"
    hold += "with alone(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    command = [sys.executable, "-c", hold, str(tmp_path / "a.nbc")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with compiling_alone(tmp_path / "b.nbc") as waited:
        assert not waited
    threading.Timer(0.2, holder.kill).start()
    with compiling_alone(tmp_path / "a.nbc") as waited:
        assert waited
        assert holder.wait() == -signal.SIGKILL
    holder.stdout.close()


@pytest.mark.gate
def test_kernel__says_once_that_it_is_compiled(rooms):
    process = start(rooms, LOGGED)
    assert process.communicate(timeout=240)[0].count("compiling kernels, once") == 1
    process = start(rooms, LOGGED)
    assert "compiling" not in process.communicate(timeout=240)[0]


def test_kernels__of_the_package_are_all_known_by_their_code():
    root = Path(__file__).resolve().parents[2]
    for path in sorted((root / "hcm_scale").rglob("*.py")):
        if "@kernel" in path.read_text():
            importlib.import_module(path.relative_to(root).with_suffix("").as_posix().replace("/", "."))
    assert len(KERNELS) > 100
    assert len({kernel._cache.name for kernel in KERNELS}) == len(KERNELS)
