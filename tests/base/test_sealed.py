"""Hashes of files: read once a process, and again when the file is another."""

import os
import time
from pathlib import Path

import pytest

from hcm_scale.base import files


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The names of the files that are hashed from here on, in their order."""
    names: list[str] = []
    real = files.hash_file

    def noted(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(files, "hash_file", noted)
    return names


def write(path: Path, text: str) -> Path:
    """Writes a file and lets it rest for a moment, with a time of its last change that is always the same."""
    path.write_text(text)
    os.utime(path, (10, 10))
    time.sleep(0.15)
    return path


def test_hash_once__reads_a_file_once_until_it_is_another(tmp_path, read):
    path = write(tmp_path / "one", "ab")
    first = [files.hash_once(path) for _ in range(2)]
    assert read == ["one"]
    assert first == [files.hash_file(path)] * 2
    write(path, "cd")
    assert files.hash_once(path) == files.hash_file(path) != first[0]
    write(tmp_path / "two", "ef").replace(path)
    assert files.hash_once(path) == files.hash_file(path)
    path.unlink()
    write(path, "gh")
    assert files.hash_once(path) == files.hash_file(path)


def test_hash_once__does_not_keep_what_changed_just_now(tmp_path):
    for text in ("ab", "cd", "ef"):
        (tmp_path / "one").write_text(text)
        assert files.hash_once(tmp_path / "one") == files.hash_file(tmp_path / "one")


def test_hash_once__waits_until_a_large_file_can_be_kept(tmp_path, read, monkeypatch):
    monkeypatch.setattr(files, "_MANY_BYTES", 2)
    (tmp_path / "large").write_text("ab")
    first = [files.hash_once(tmp_path / "large") for _ in range(2)]
    assert read == ["large"]
    (tmp_path / "large").write_text("cd")
    assert files.hash_once(tmp_path / "large") != first[0]


def test_hash_folder__passes_over_hidden_files_and_what_is_left_out(tmp_path):
    for name in ("a", ".lock", "deep/b", "deep/kept/c", "kept/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(files.hash_folder(tmp_path, ["kept"])) == ["a", "deep/b", "deep/kept/c"]


def test_check_folder__names_the_file_and_what_to_do(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    hashes = files.hash_folder(tmp_path)
    files.check_folder(tmp_path, hashes, "call us")
    (tmp_path / "b").write_text("c")
    with pytest.raises(files.FolderError, match=f"{tmp_path}/b is damaged: .*; call us"):
        files.check_folder(tmp_path, hashes, "call us")
    (tmp_path / "a").unlink()
    with pytest.raises(files.FolderError, match=f"{tmp_path}/a is missing; call us"):
        files.check_folder(tmp_path, hashes, "call us")


def test_large_files__are_hashed_several_at_a_time_and_the_first_that_differs_is_named(tmp_path, monkeypatch):
    for number in range(9):
        (tmp_path / f"{number}").write_text(f"file {number}")
    alone = files.hash_folder(tmp_path)
    monkeypatch.setattr(files, "_MANY_BYTES", 0)
    assert files.hash_folder(tmp_path) == alone
    files.check_folder(tmp_path, alone, "make them again")
    for name in ("7", "3"):
        (tmp_path / name).write_text("another")
    with pytest.raises(files.FolderError, match=r"3 is damaged.*make them again"):
        files.check_folder(tmp_path, alone, "make them again")
