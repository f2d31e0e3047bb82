"""Fixtures shared by all rooms: random graphs, and the real data sets where they are at hand."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Tests run side by side, so each has one thread; those about threads ask for `all_threads`, two of them.
os.environ["NUMBA_NUM_THREADS"] = "2"
os.environ["OMP_NUM_THREADS"] = "1"

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from scipy import sparse

from hcm_scale import plugins
from hcm_scale.base.kernel_cache import is_compiled, kernel_folder

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
numba.set_num_threads(1)

LOCK = "tests.lock"  # among the compiled kernels
LONGEST = (  # files that take over ten seconds, in `make test` and then in the gate; the longest first
    *("run/test_pipeline", "fault/test_surroundings", "ranks/test_launch", "test_imports", "score/test_nodes"),
    *("test_plugins", "fault/test_sent_runs", "run/test_trained", "cli/test_main", "sweep/test_study"),
    *("fault/test_hostile_runs", "stages/test_train", "rows/test_flow", "edges/test_new", "ingest/test_tables"),
    *("detector/test_docs", "fault/test_stop", "test_same_bytes", "ranks/test_scoring", "fault/test_kill"),
    *("test_bounds", "test_interpreted", "run/test_memory", "bench/test_accuracy", "test_warm", "sweep/test_search"),
    *("test_wheel", "base/test_jit"),
)


compiling: "list[subprocess.Popen[bytes]]" = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begins to compile the kernels of a run, once: tests side by side would each compile most of them.

    Meanwhile tests are collected; then they wait for a lock that ends with the process that compiles.
    """
    is_side_by_side = getattr(session.config.option, "numprocesses", None) and not is_worker(session)
    folder = kernel_folder()
    if folder and is_side_by_side and not session.config.option.collectonly and not is_compiled():
        code = "from helpers import compiled_kernels; compiled_kernels()"
        paths = {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).resolve().parents[:2]))}
        with open(folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [sys.executable, "-c", code]
            compiling.append(subprocess.Popen(command, env=os.environ | paths, pass_fds=[lock.fileno()]))


def pytest_runtestloop(session: pytest.Session) -> None:
    folder = kernel_folder()
    if is_worker(session) and folder and (folder / LOCK).exists():
        with open(folder / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def pytest_sessionfinish() -> None:
    for process in compiling:
        process.wait()


def is_worker(session: pytest.Session) -> bool:
    return hasattr(session.config, "workerinput")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: begun last, one would keep a core busy when there is nothing left for the others."""
    turns = {f"tests/{name}.py": turn for turn, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turns.get(item.nodeid.partition("::")[0], len(LONGEST)))


CSR = tuple[np.ndarray, np.ndarray]


def _data_folder() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ["HCM_DATA"]) if "HCM_DATA" in os.environ else beside


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell started the tests in the background and had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def hcm_scale(capsys, monkeypatch, tmp_path) -> "Iterator[Callable[..., subprocess.CompletedProcess[str]]]":
    """Runs a command in this process, as `hcm-scale` does in one of its own; its folder is `tmp_path`."""
    from hcm_scale.cli import main

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        return subprocess.CompletedProcess(words, main.main([*words]), *capsys.readouterr())

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield run
    root.handlers[:] = handlers  # Hydra leaves its own, which write to what was stderr
    root.setLevel(level)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """The path of a real data file; skips the test, naming the file, where it is absent."""

    def find(name: str) -> Path:
        path = _data_folder() / name
        if not path.exists():
            pytest.skip(f"{name} is not at hand; set HCM_DATA to the folder that holds it")
        return path

    return find


@pytest.fixture
def all_threads() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context in which numba uses all of its threads."""

    @contextlib.contextmanager
    def use() -> Iterator[None]:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        try:
            yield
        finally:
            numba.set_num_threads(1)

    return use


@pytest.fixture
def random_csr() -> Callable[..., CSR]:
    """A random simple graph as (indptr i64, indices i32): symmetric unless directed, sorted rows, no loops."""

    def make(num_nodes: int, num_edges: int, seed: int = 0, directed: bool = False) -> CSR:
        rng = np.random.default_rng(seed)
        u, v = rng.integers(0, num_nodes, (2, num_edges))
        keep = u != v
        u, v = u[keep], v[keep]
        if not directed:
            u, v = np.r_[u, v], np.r_[v, u]
        matrix = sparse.csr_array((np.ones(len(u), np.int8), (u, v)), shape=(num_nodes, num_nodes))
        matrix.sum_duplicates()
        matrix.sort_indices()
        return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)

    return make


@pytest.fixture
def forged() -> Callable[[Path, Path, Callable[[Path], object]], Path]:
    """`forged(run, out, edit)` is a copy of a finished run that somebody changed and then sealed again."""
    from hcm_scale.base.files import hash_file, write_sealed
    from hcm_scale.run import workspace

    def forge(run: Path, out: Path, edit: Callable[[Path], object]) -> Path:
        shutil.copytree(run, out)
        edit(out)
        for path in (out / "records").glob("*.json"):
            record = workspace.read_record(out / path.stem)
            now = {name: hash_file(out / path.stem / name) for name in record["files"]}
            write_sealed(path, record | {"files": now})
        return out

    return forge


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Calls work(world) for every rank of a world, each in a thread of its own; what they return, by rank.

    Where a rank fails the others hear of it at their next meeting, and its error is raised here.
    """
    from hcm_scale.ranks.world import LostRankError, World

    class Wire:
        def __init__(self, meeting: threading.Barrier) -> None:
            self.meeting = meeting

        def meet(self) -> None:
            try:
                self.meeting.wait(60)
            except threading.BrokenBarrierError as error:
                raise LostRankError("a rank is gone") from error

    def call(num_ranks: int, work: Callable[[World], Any]) -> list[Any]:
        meeting = threading.Barrier(num_ranks)
        errors: list[BaseException] = []

        def of_rank(rank: int) -> Any:
            try:
                return work(World(rank, num_ranks, wire=Wire(meeting)))  # each on a machine of its own
            except BaseException as error:
                errors.append(error)
                meeting.abort()

        with ThreadPoolExecutor(num_ranks) as ranks:
            made = list(ranks.map(of_rank, range(num_ranks)))
        for error in sorted(errors, key=lambda error: isinstance(error, LostRankError)):
            raise error
        return made

    return call


CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


class Browser:
    """One headless Chromium session, driven through chromedriver's HTTP protocol (W3C WebDriver)."""

    def __init__(self, address: str, options: dict[str, Any]):
        capabilities = {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": CHROMIUM, **options},
        }
        self.root = f"{address}/session"
        answer = self.call("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self.root += f"/{answer['sessionId']}"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, page: Path | str) -> None:
        self.call("POST", "/url", {"url": page.as_uri() if isinstance(page, Path) else page})
        self.wait("return document.querySelectorAll('#ranking-table tbody tr').length > 0")

    def wait(self, script: str) -> None:
        """Until the script returns something true."""
        for _ in range(200):
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"in vain: {script}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def element(self, css: str) -> str:
        return next(iter(self.call("POST", "/element", {"using": "css selector", "value": css}).values()))

    def click(self, css: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/value", {"text": text})

    def column(self, number: int) -> list[str]:
        """What the ranked table shows in one column, from 1."""
        script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.innerText.trim())"
        return self.run(script, f"#ranking-table tbody td:nth-child({number})")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]


@pytest.fixture(scope="session")
def driver() -> Iterator[str]:
    """The address of a chromedriver of our own."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{address}/status", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _session(driver: str, **options: Any) -> Iterator[Browser]:
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]
    browser = Browser(driver, {"args": arguments, **options})
    try:
        yield browser
    finally:
        browser.call("DELETE", "")


@pytest.fixture
def desktop(driver: str) -> Iterator[Browser]:
    yield from _session(driver)


@pytest.fixture
def phone(driver: str) -> Iterator[Browser]:
    metrics = {"width": 360, "height": 780, "pixelRatio": 2.0, "touch": True}
    yield from _session(driver, mobileEmulation={"deviceMetrics": metrics})


@pytest.fixture(autouse=True)
def own_plugins(monkeypatch):
    """Plug-ins that a test registers are gone after it."""
    before = plugins._registered
    monkeypatch.setattr(plugins, "_registered", {group: dict(found) for group, found in before.items()})
