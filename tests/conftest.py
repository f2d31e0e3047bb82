"""Fixtures shared by all rooms: random graphs, and the real data sets where they are at hand."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Tests run side by side, so each has one thread; those about threads ask for `all_threads`, two of them.
os.environ["NUMBA_NUM_THREADS"] = "2"
os.environ["OMP_NUM_THREADS"] = "1"

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from scipy import sparse

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
numba.set_num_threads(1)

FIRST = "tests/test_cli.py"  # compiles most kernels, while the next files need none
NEXT = tuple(
    f"tests/{name}"
    for name in ("test_conf", "test_workspace", "test_imports", "test_signatures", "report/", "sweep/test_collect")
    + ("base/", "posterior/", "shards/", "ranks/test_w")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, two files that need the same kernels would compile them twice."""

    def turn(item: pytest.Item) -> int:
        return 0 if item.nodeid.startswith(FIRST) else 2 - item.nodeid.startswith(NEXT)

    items.sort(key=turn)


CSR = tuple[np.ndarray, np.ndarray]


def _data_folder() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ["HCM_DATA"]) if "HCM_DATA" in os.environ else beside


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
