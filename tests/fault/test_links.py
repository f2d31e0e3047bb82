"""Links in a stranger's run that lead out of it: nothing is written through them, and nothing is copied."""

import contextlib
import shutil

import pytest
from helpers import small_detector, small_graph

from hcm_scale import HCM
from hcm_scale.base.files import FolderError
from hcm_scale.review import teach, verdicts


def test_verdicts__are_not_added_to_what_a_link_leads_to(tmp_path):
    mine, run = tmp_path / "notes.txt", tmp_path / "run"
    mine.write_text("mine\n")
    run.mkdir()
    (run / verdicts.FILE).symlink_to(mine)
    for read_or_write in (lambda: verdicts.append(run, [("a", "bad")]), lambda: verdicts.latest(run)):
        with pytest.raises(FolderError, match=f"{verdicts.FILE} is a link that leads out of"):
            read_or_write()
    assert mine.read_text() == "mine\n"


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
