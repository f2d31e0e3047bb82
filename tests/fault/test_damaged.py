"""Damaged files of every format: a graph or an InputError that names the file, never anything else (damaged.py)."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("damaged.py")
A_CHILD = 500


def read_cases(first: int, count: int, folder: Path) -> list[dict]:
    """What became of each case; a child that died is a finding of the case that it had begun."""
    command = [sys.executable, str(SCRIPT), str(first), str(count), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode:
        return [*lines[:-1], {**lines[-1], "finding": f"ended with {done.returncode}: {done.stderr[-500:]}"}]
    return lines


def findings(count: int, tmp_path: Path) -> tuple[list[dict], Counter]:
    starts = range(0, count, A_CHILD)
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda first: read_cases(first, min(A_CHILD, count - first), tmp_path / str(first)), starts)
        lines = [line for part in parts for line in part]
    ended = Counter((line["format"], "refused" in line) for line in lines if "format" in line)
    return [line for line in lines if "finding" in line], ended


def test_damaged_files__are_a_graph_or_an_error_that_names_them(tmp_path):
    found, ended = findings(252, tmp_path)
    assert not found, "\n".join(map(json.dumps, found))
    assert sum(ended.values()) == 252
    assert all(ended[kind, refused] for kind, _ in ended for refused in (False, True))  # both ends, of every format


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_damaged_files__are_a_graph_or_an_error_that_names_them(tmp_path):
    found, ended = findings(10_000, tmp_path)
    assert not found, "\n".join(map(json.dumps, found))
    assert sum(ended.values()) == 10_000
