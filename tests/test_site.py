"""The documentation is a site: every page is in its index, every link leads somewhere, and it asks no other host."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.gate
def test_site__is_built_strictly_and_needs_no_network(tmp_path):
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stderr
    pages = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    assert not [found for page in pages for found in re.findall(r"<(?:script|link|img)[^>]+https?://[^>]+", page)]
    assert 'id="hcm_scale.HCM.fit"' in (tmp_path / "site/api/hcm/index.html").read_text()  # from the docstrings
    assert (tmp_path / "site/figures/report.png").stat().st_size < 250_000


def test_pages__are_short_enough_to_be_read():
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "docs").rglob("*.md")}
    assert sum(count for path, count in lines.items() if "lab" not in path.relative_to(ROOT).parts) <= 2_200
    assert lines[ROOT / "docs/faq.md"] <= 120
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_pages__name_files_that_are_there():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(
            r"(?<![\w/.])(?:tests|bench|docs|examples)/[\w/.-]+\.(?:py|md|jsonl|svg|sh)\b", page.read_text()
        )
    }
    assert len(named) > 40
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_security_page__names_for_each_line_a_test_that_is_there():
    page = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`", page)
    assert sum(bool(test) for _, test in named) >= 19
    absent = [(file, test) for file, test in named if test and f"\ndef {test}(" not in (ROOT / file).read_text()]
    assert absent == []
    told = page.partition("| a sent folder may try to |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line for line in told if "::test_" not in line and "**it can**" not in line] == []
