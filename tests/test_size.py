"""The size of the package is a budget: growth is a decision that a commit tells, not something that happens."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "hcm_scale"
MOST_LINES = 42_953


def test_package__has_no_more_lines_than_its_budget():
    num_lines = sum(len(path.read_bytes().splitlines()) for path in PACKAGE.rglob("*.py"))
    assert num_lines <= MOST_LINES, f"{num_lines:,} lines of Python: remove {num_lines - MOST_LINES:,}, or say why"
