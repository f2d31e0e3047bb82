"""Links and pipes in a stranger's run: nothing is written or copied through them, and nobody waits for ever."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from helpers import FAST, as_words, small_detector, small_graph

from hcm_scale import HCM
from hcm_scale.base import files
from hcm_scale.base.files import FolderError
from hcm_scale.cli.main import main
from hcm_scale.review import teach, verdicts
from hcm_scale.serve.server import Server


def test_verdicts__are_not_added_to_what_a_link_leads_to(tmp_path):
    mine, run = tmp_path / "notes.txt", tmp_path / "run"
    mine.write_text("mine\n")
    run.mkdir()
    (run / verdicts.FILE).symlink_to(mine)
    for read_or_write in (lambda: verdicts.append(run, [("a", "bad")]), lambda: verdicts.latest(run)):
        with pytest.raises(FolderError, match=f"{verdicts.FILE} is a link that leads out of"):
            read_or_write()
    assert mine.read_text() == "mine\n"


def test_verdicts__are_not_added_to_the_file_of_another_run(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    verdicts.append(run, [("a", "bad")])
    shutil.copytree(run, other, copy_function=os.link)
    with pytest.raises(FolderError, match="hard link"):
        verdicts.append(other, [("b", "bad")])
    assert [*verdicts.latest(run).by_id()] == [*verdicts.latest(other).by_id()] == ["a"]


@pytest.mark.timeout(900)
def test_save__copies_nothing_that_links_lead_to(tmp_path):
    made = small_detector(small_graph())
    made.teach({str(i): i % 2 == 0 for i in range(30)})
    mine, whole = tmp_path / "secret", tmp_path / "whole"
    mine.write_text("HUSH")
    made.save(whole)
    for name in ("taught/more", "verdicts.jsonl", "taught/lesson.safetensors", "taught"):
        run, out = tmp_path / "run", tmp_path / "out"
        for folder in (run, out):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, run)
        if name == "taught":
            (run / name).rename(tmp_path / "elsewhere")
            (run / name).symlink_to(tmp_path / "elsewhere")
            (tmp_path / "elsewhere" / "private").write_text("HUSH")
        else:
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(mine)
        with contextlib.suppress(FolderError):
            HCM.load(run).save(out)
        assert not [path for path in out.rglob("*") if path.is_file() and path.read_bytes() == b"HUSH"], name
    assert teach.open_taught(whole, whole / "scores") is not None


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run and a table of new edges."""
    place = tmp_path_factory.mktemp("whole")
    small_detector(small_graph(), run_dir=place / "run", views=["purified"])
    verdicts.append(place / "run", [(str(i), "bad" if i % 3 else "good") for i in range(30)])
    (place / "new.csv").write_text("source,target\n1,2\n3,90\n")
    return place


DOORS = {  # by name of the file that is irregular: who opens it
    verdicts.FILE: ["teach RUN", "review RUN"],
    ".lock": ["teach RUN", "run graph=community graph.num_nodes=60 overwrite=true run_dir=RUN"],
    "records/embeddings.lock": ["score-edges RUN NEW"],
    "records": ["score-edges RUN NEW"],
    "records/graph.lock": ["run graph=community graph.num_nodes=60 overwrite=true run_dir=RUN"],
    "records/graph.json": ["explain RUN 3"],
    "log": ["run graph=community graph.num_nodes=60 overwrite=true run_dir=RUN"],
    "scores/manifest.json": ["doctor RUN/scores"],
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize(("name", "door"), [(name, door) for name, doors in DOORS.items() for door in doors])
def test_irregular_file__is_refused_by_name_and_neither_waited_for_nor_followed(
    whole, tmp_path, monkeypatch, capfd, kind, name, door
):
    run = Path(shutil.copytree(whole / "run", tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to(
        outside if name == "records" else outside / "a"
    )
    words = door.replace("RUN", str(run)).replace("NEW", str(whole / "new.csv")).split()
    assert main([*words, *(as_words(FAST) if words[0] == "run" else [])]) == 2
    assert name.split("/")[0] in capfd.readouterr().err
    assert not list(outside.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.timeout(60)
def test_serve__of_a_run_whose_verdicts_are_a_pipe_answers(whole, tmp_path):
    run = Path(shutil.copytree(whole / "run", tmp_path / "run"))
    (run / verdicts.FILE).unlink()
    os.mkfifo(run / verdicts.FILE)
    with Server(run) as server, pytest.raises(FolderError, match=verdicts.FILE):
        server.views.judge({"id": "3", "verdict": "bad"})


def test_temporary_name__that_is_a_link_is_not_written_through(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("a.json", "b.json"):
        (tmp_path / f".{name}.{os.getpid()}.tmp").symlink_to(mine)
    with pytest.raises(FolderError):
        files.write_json(tmp_path / "a.json", {})
    with files.replacing_file(tmp_path / "b.json") as fresh:
        fresh.write_text("{}")
    assert mine.read_text() == "mine"
