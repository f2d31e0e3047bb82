"""The cache of compiled kernels: never stale, never in the way.

Every call is a process of its own: a fork of one that has imported numba and nothing of the package.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "constants.py": "STEP = 1\n",
    "callee.py": """
from hcm_scale.base.jit import kernel
from hcm_scale.constants import STEP

@kernel
def forward(x):
    return x + STEP
""",
    "caller.py": """
from typing import NamedTuple
from hcm_scale.base.jit import kernel
from hcm_scale.callee import forward

class Pair(NamedTuple):
    first: int
    second: int

@kernel(nogil=True)
def gap(pair):
    return forward(pair.first) - pair.second
""",
}
COUNTS = """
import numba
from hcm_scale.base.jit import kernel

def counting(each):
    @numba.njit
    def count(x):
        return each if x < 2 else count(x - 1) + count(x - 2)  # too much for it to be written out where it is called
    return count

count_ones, count_tens = counting(1), counting(10)

@kernel
def ones(x):
    return count_ones(x)

@kernel
def tens(x):
    return count_tens(x)
"""
CALL = """
{first}
from hcm_scale.caller import Pair, gap
print({value}, sum(gap.stats.cache_hits.values()))
"""
INTEGERS, FLOATS = "gap(Pair(first=10, second=3))", "gap(Pair(first=10.5, second=3.0))"
LOGGED = "import logging; logging.basicConfig(level=logging.INFO, stream=__import__('sys').stdout)\n"
AS_ANOTHER = """
import os
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
"""
FORKS = """
import concurrent.futures.thread, importlib.metadata, json, logging, os, sys, tempfile
import numba, xxhash
importlib.metadata.version("numba")
numba.njit(lambda x: x + 1)(1)  # loads what another user may not be able to read

for line in sys.stdin:
    code, folder, environment = json.loads(line)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.path[0], tempfile.tempdir = folder, None
            numba.core.config.reload_config()
            exec(code, {})
            break
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        errors.seek(0)
        print(json.dumps([status, out.read(), errors.read()]), flush=True)
"""


def fill(folder: Path) -> Path:
    """A package with the real cache and two kernels."""
    package = folder / "hcm_scale"
    shutil.copytree(ROOT / "hcm_scale" / "base", package / "base", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {"__init__.py": "", **FILES}.items():
        (package / name).write_text(text)
    return package


@pytest.fixture
def package(tmp_path) -> Path:
    return fill(tmp_path)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can enter and read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def forks() -> Iterator["subprocess.Popen[str]"]:
    """A process that runs each line of its input, (code, folder, environment), in a fork of itself."""
    command, pipe = [sys.executable, "-W", "error", "-c", FORKS], subprocess.PIPE
    with subprocess.Popen(command, env=plain_environment(), stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def plain_environment() -> dict[str, str]:
    others = {name: word for name, word in os.environ.items() if not name.startswith(("NUMBA_", "PYTHONPATH"))}
    return others | {"PYTHONDONTWRITEBYTECODE": "1"}


Ended = tuple[int, str, str]


@pytest.fixture
def run(forks) -> Callable[..., Ended]:
    """What a call of `gap` ends in: the status, the output and the errors of its process."""

    def run(package: Path, first: str = "", value: str = INTEGERS, **environment: str) -> Ended:
        code = CALL.format(first=first, value=value)
        print(json.dumps([code, str(package.parent), plain_environment() | environment]), file=forks.stdin, flush=True)
        return tuple(json.loads(forks.stdout.readline()))

    return run


@pytest.fixture
def call(run) -> Callable[..., tuple[float, int]]:
    """What `gap` returns in a new process, and how often its compiled code was found."""
    return lambda *arguments, **environment: result(run(*arguments, **environment))


def result(ended: Ended) -> tuple[float, int]:
    status, out, errors = ended
    assert (status, errors) == (0, "")
    value, hits = out.split()[-2:]
    return float(value), int(hits)


def folders(parent: Path) -> list[Path]:
    return sorted({path.parent for path in parent.rglob("*.nbi")})


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_kernel__is_compiled_once_and_again_where_its_files_are_damaged(call, package, kind):
    assert call(package) == (8, 0)
    assert call(package) == (8, 1)
    for damage in (lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"no pickle"):
        files = list(package.rglob(f"*.{kind}"))
        assert len(files) == 2
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        assert call(package) == (8, 0)
        assert call(package) == (8, 1)


def test_kernel__whose_file_is_of_other_types_is_compiled_again(call, package):
    assert call(package) == (8, 0)
    assert call(package, value=FLOATS) == (8.5, 0)
    (first,) = package.rglob("caller.gap*.1.nbc")
    (second,) = package.rglob("caller.gap*.2.nbc")
    shutil.copy(first, second)
    assert call(package, value=FLOATS) == (8.5, 0)
    assert call(package, value=FLOATS) == (8.5, 1)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "old", "new", "value"),
    [("callee.py", "x + STEP", "x - STEP", 6), ("constants.py", "STEP = 1", "STEP = 5", 12)],
)
def test_kernel__sees_a_change_in_another_file_and_leaves_nothing_old(call, package, name, old, new, value):
    assert call(package) == (8, 0)
    (before,) = folders(package)
    foreign = before.with_name("hcm_scale-of-somebody")
    foreign.mkdir()
    (package / name).write_text(FILES[name].replace(old, new))
    assert call(package) == (value, 0)
    assert call(package) == (value, 1)
    (after,) = folders(package)
    assert after != before
    assert not before.exists()
    assert foreign.exists()


@pytest.mark.gate
def test_kernel__with_checked_bounds_has_a_folder_of_its_own(call, package):
    assert call(package) == (8, 0)
    assert call(package, NUMBA_BOUNDSCHECK="1") == (8, 0)
    assert call(package) == (8, 1)
    assert len(folders(package)) == 2


@pytest.mark.gate
def test_kernel__is_kept_elsewhere_where_its_folder_cannot_be_written(call, package, tmp_path):
    (package / "__pycache__").write_text("not a folder")
    for variable in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        elsewhere = {variable: str(tmp_path / variable)}
        assert call(package, **elsewhere) == (8, 0)
        assert call(package, **elsewhere) == (8, 1)
        assert folders(tmp_path / variable)


def test_kernel__runs_where_no_folder_can_be_written(run, package, tmp_path):
    (package / "__pycache__").write_text("not a folder")
    (tmp_path / "file").write_text("not a folder either")
    nowhere = LOGGED + f"import tempfile; tempfile.tempdir = {str(tmp_path / 'file')!r}"
    _, out, errors = run(package, nowhere, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert errors == ""
    assert out.split()[-2:] == ["8", "0"]
    assert out.count("compiling kernels") == out.count("set NUMBA_CACHE_DIR") == 1


@pytest.mark.gate
def test_kernel__of_a_package_that_cannot_be_written_is_kept_in_a_temporary_folder(call, run, shared):
    package, temporary, home = fill(shared), shared / "tmp", shared / "home"
    temporary.mkdir()
    temporary.chmod(0o1777)
    for closed in (home, package / "__pycache__"):
        closed.mkdir()
        closed.chmod(0o555)
    where = {"HOME": str(home), "XDG_CACHE_HOME": "", "TMPDIR": str(temporary)}
    status, out, errors = run(package, AS_ANOTHER + LOGGED, **where)
    assert (status, errors) == (0, "")
    assert out.split()[-2:] == ["8", "0"]
    (folder,) = folders(temporary)
    assert f"they are kept in {folder}" in out
    assert not folder.stat().st_mode & 0o022
    assert call(package, AS_ANOTHER, **where) == (8, 1)


@pytest.mark.gate
def test_kernel__compiled_by_the_owner_of_the_package_serves_those_who_cannot_write_there(call, shared):
    package, nowhere = fill(shared), {"HOME": "/nonexistent", "XDG_CACHE_HOME": ""}
    assert call(package, **nowhere) == (8, 0)
    (folder,) = folders(package)
    for number in range(60):  # as many as make a whole set
        (folder / f"other-{number}.nbi").touch()
    assert call(package, AS_ANOTHER, **nowhere) == (8, 1)
    assert call(package, AS_ANOTHER, FLOATS, **nowhere) == (8.5, 0), "what is missing cannot be kept"


@pytest.mark.gate
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_kernel__is_never_loaded_from_a_folder_that_everybody_can_write(call, package, tmp_path, mode):
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert call(package, **elsewhere) == (8, 0)
    (folder,) = folders(package)
    for place in (folder, package / "__pycache__"):
        place.chmod(mode)
        assert call(package, **elsewhere) == (8, int(mode == 0o775))
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        place.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_kernel__is_never_loaded_from_a_folder_of_another_user(call, package, tmp_path):
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert call(package, **elsewhere) == (8, 0)
    os.chown(folders(package)[0], 65534, 65534)
    assert call(package, **elsewhere) == (8, 0)


def start(package: Path, value: str = INTEGERS) -> "subprocess.Popen[str]":
    """A call that others may be beside of."""
    command = [sys.executable, "-W", "error", "-c", CALL.format(first="", value=value)]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=plain_environment(), cwd=package.parent, **piped)


@pytest.mark.gate
def test_kernel__compiled_by_two_processes_at_once_is_right_in_both(call, package):
    started = [start(package), start(package), start(package, value=FLOATS)]
    ended = [result((process.wait(240), *process.communicate())) for process in started]
    assert [value for value, _ in ended] == [8, 8, 8.5]
    for value, wanted in ((INTEGERS, 8), (FLOATS, 8.5)):
        assert call(package, value=value)[0] == wanted
        assert call(package, value=value) == (wanted, 1)


@pytest.mark.gate
def test_kernel__calls_its_own_function_beside_one_of_another_process_that_is_named_alike(call, package):
    (package / "counts.py").write_text(COUNTS)
    first = "from hcm_scale.counts import ones, tens"
    assert [call(package, first, value)[0] for value in ("ones(10)", "tens(10)")] == [89, 890]
    assert call(package, first, "ones(10) + tens(10)")[0] == 979


@pytest.mark.gate
def test_kernel__says_once_that_it_is_compiled(run, package):
    assert run(package, LOGGED)[1].count("compiling kernels, once") == 1
    assert "compiling" not in run(package, LOGGED)[1]
