"""Folders are whole or absent, files are hashed once, and everything else is refused by name."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from hcm_scale.base import files


def test_hash_value__ignores_key_order():
    assert files.hash_value({"a": 1, "b": [2]}) == files.hash_value({"b": [2], "a": 1})
    assert files.hash_value({"a": 1}) != files.hash_value({"a": 2})


def test_hash_file__is_of_the_bytes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 5_000_000)
    two.write_bytes(b"x" * 5_000_000)
    assert files.hash_file(one) == files.hash_file(two)
    two.write_bytes(b"x" * 4_999_999 + b"y")
    assert files.hash_file(one) != files.hash_file(two)


def test_write_json__leaves_no_temporary_file(tmp_path):
    files.write_json(tmp_path / "a.json", {"b": 1, "a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 2, "b": 1}


def test_read_manifest__returns_what_was_written(tmp_path):
    files.write_manifest(tmp_path, "thing", 3, {"n": 7})
    assert files.read_manifest(tmp_path, "thing", 3)["n"] == 7
    assert files.read_manifest(tmp_path, "thing", 3, types={"n": int, "told": str | None})["told"] is None
    with pytest.raises(files.FolderError, match="told is None; it must be of type str"):
        files.read_manifest(tmp_path, "thing", 3, types={"told": str})


def test_read_manifest__refuses_an_unfinished_folder(tmp_path):
    with pytest.raises(files.FolderError, match="unfinished"):
        files.read_manifest(tmp_path, "thing", 1)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"kind": "other", "format": 2}, "holds 'other', not a 'thing'"),
        ({"kind": "thing", "format": 1}, "has format 1; this version of hcm-scale reads format 2 alone"),
        ({"kind": "thing", "format": 3}, "has format 3; this version of hcm-scale reads format 2 alone"),
        ({"kind": "thing"}, "has format None"),
    ],
)
def test_read_manifest__refuses_other_kinds_and_formats_by_name(tmp_path, manifest, message):
    files.write_sealed(tmp_path / files.MANIFEST, manifest)
    with pytest.raises(files.FolderError, match=message):
        files.read_manifest(tmp_path, "thing", 2)


def test_read_sealed__returns_what_was_written_and_refuses_every_change(tmp_path):
    path, value = tmp_path / "a.json", {"n": 7, "of": [1.5, None, {"x": "y"}]}
    files.write_sealed(path, value)
    assert files.read_sealed(path) == value
    sound = path.read_text()
    for text in (sound.replace("7", "8"), sound[:-4], "[1]", "{}", '{"n": 7}', "", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(files.FolderError, match=r"a\.json is damaged: .*; write it again$"):
            files.read_sealed(path, "write it again")
    path.unlink()
    with pytest.raises(files.FolderError, match=r"a\.json is missing$"):
        files.read_sealed(path)


def test_read_manifest__refuses_a_missing_folder(tmp_path):
    with pytest.raises(files.FolderError, match="is missing"):
        files.read_manifest(tmp_path / "nothing", "thing", 1)


@pytest.mark.parametrize("error", [KeyError("rows"), ValueError("odd"), pa.ArrowNotImplementedError("no such codec")])
def test_naming_damage__names_the_file_whatever_a_parser_raises(error):
    with pytest.raises(files.FolderError, match=r"^a/b is damaged: "), files.naming_damage(Path("a/b")):
        raise error


def test_replacing__takes_the_place_on_success(tmp_path):
    target = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with files.replacing_folder(target) as fresh:
            (fresh / "f").write_text(content)
    assert (target / "f").read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["folder"]


def test_replacing__keeps_the_old_folder_on_failure(tmp_path):
    target = tmp_path / "folder"
    with files.replacing_folder(target) as fresh:
        (fresh / "f").write_text("old")
    with pytest.raises(ZeroDivisionError), files.replacing_folder(target) as fresh:
        (fresh / "f").write_text(str(1 / 0))
    assert (target / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_remove_torn__removes_temporary_names_of_what_is_asked_and_nothing_else(tmp_path):
    torn = [".folder.123.new", ".folder.123.old", ".folder.json.7.tmp"]
    kept = [".folder2.new", "folder", ".hidden", ".other.123.new", "folder.123.new"]
    for name in (*torn, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npy").write_text("half")
    files.remove_temporary(tmp_path, "folder")
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    files.remove_temporary(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept} - {".other.123.new"}
    files.remove_temporary(tmp_path / "nowhere")


_ADD_TWENTY = """
import sys
from pathlib import Path
from hcm_scale.base import files
counter = Path(sys.argv[1])
for _ in range(20):
    with files.file_lock(counter.with_name("lock")):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def test_locked__excludes_other_processes(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", _ADD_TWENTY, str(counter)]) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert counter.read_text() == "60"


def test_write_bytes__stopped_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch):
    def stop(descriptor):
        raise KeyboardInterrupt

    files.write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(files.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/../../b", "/etc/hosts", "a\0b", None, 7, ["a"]])
def test_below__refuses_names_that_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(files.FolderError, match="is not legal as a name"):
        files.path_inside(tmp_path, name)


def test_below__refuses_links_out_of_the_folder_and_takes_those_within(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").touch()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "in" / "near").symlink_to("deep")
    (tmp_path / "in" / "out").symlink_to("..")
    assert files.path_inside(tmp_path / "link", "near/file") == tmp_path / "link" / "near" / "file"
    with pytest.raises(files.FolderError, match="is a link that leads out of"):
        files.path_inside(tmp_path / "in", "out/x")


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


def test_flushing__flushes_a_file_while_it_is_written(tmp_path, monkeypatch):
    seen, fsync = threading.Event(), os.fsync

    def flush(descriptor):
        fsync(descriptor)
        if os.fstat(descriptor).st_size == len(b"first"):
            seen.set()

    monkeypatch.setattr(files, "_FLUSH_SECONDS", 0.001)
    monkeypatch.setattr(os, "fsync", flush)
    with open(tmp_path / "long", "wb", buffering=0) as stream, files.flushing(stream):
        stream.write(b"first")
        assert seen.wait(10)
        stream.write(b" second")
    assert (tmp_path / "long").read_bytes() == b"first second"


def test_flushing__raises_the_error_of_a_disk(tmp_path, monkeypatch):
    tried = threading.Event()

    def fail(_descriptor):
        tried.set()
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(files, "_FLUSH_SECONDS", 0.001)
    monkeypatch.setattr(os, "fsync", fail)
    with (
        pytest.raises(OSError, match="the disk fails"),
        open(tmp_path / "any", "wb") as stream,
        files.flushing(stream),
    ):
        assert tried.wait(10)


def test_flushing__raises_the_error_of_the_writer(tmp_path):
    with pytest.raises(ValueError, match="no more"), open(tmp_path / "any", "wb") as stream, files.flushing(stream):
        raise ValueError("no more")
