"""A run that failed takes away the folder that it made, and nothing of anybody else."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcm_scale.base import files
from hcm_scale.base.files import file_lock
from hcm_scale.cli import errors


def fail_in(run_dir: Path, meanwhile: contextlib.AbstractContextManager[object] | None = None) -> None:
    """A run that fails in its first stage, as `meanwhile` goes on beside it."""
    with contextlib.suppress(ValueError), errors.removing_empty_run(run_dir):
        with file_lock(run_dir / ".lock"):
            for name in ("log", "config.json", "stages.json", "records/graph.json", "graph/half", ".graph.1.new/x"):
                (run_dir / name).parent.mkdir(exist_ok=True)
                (run_dir / name).write_text("{}")
        if meanwhile is not None:
            meanwhile.__enter__()
        raise ValueError("no such column")


def test_failed_run__leaves_no_folder_that_it_made(tmp_path):
    fail_in(tmp_path / "a" / "b" / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    fail_in(tmp_path / "run")
    assert (tmp_path / "run" / "log").is_file()


@contextlib.contextmanager
def running(run_dir: Path) -> Iterator[None]:
    """A run from Python: it holds the lock."""
    with file_lock(run_dir / ".lock"):
        yield


@contextlib.contextmanager
def starting(run_dir: Path) -> Iterator[None]:
    """A command that has not come to the lock yet."""
    with errors.removing_empty_run(run_dir):
        (run_dir / "log").touch()
        yield


@contextlib.contextmanager
def with_data(run_dir: Path) -> Iterator[None]:
    """A file that is no run's own."""
    (run_dir / ".given").mkdir()
    yield


@pytest.mark.parametrize("other", [running, starting, with_data])
def test_failed_run__leaves_the_folder_where_another_has_begun(tmp_path, other):
    with contextlib.ExitStack() as until_the_end:
        meanwhile = other(tmp_path / "run")
        fail_in(tmp_path / "run", meanwhile)
        until_the_end.push(meanwhile.__exit__)
        assert (tmp_path / "run" / "graph" / "half").is_file()


def test_lock__of_a_folder_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    waits, taken, go_on = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(files.log, "info", lambda *_: waits.set())

    def second() -> None:
        with file_lock(tmp_path / "run" / ".lock"):
            taken.set()
            go_on.wait(60)

    with file_lock(tmp_path / "run" / ".lock"):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert waits.wait(60)
        (tmp_path / "run" / ".lock").unlink()
        (tmp_path / "run").rmdir()
    assert taken.wait(60)
    try:
        with file_lock(tmp_path / "run" / ".lock", wait=False) as is_held:
            assert not is_held
    finally:
        go_on.set()
        waiting.join()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
