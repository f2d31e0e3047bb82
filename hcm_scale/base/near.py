"""What a name that leads nowhere was probably meant to be: files of a like name, and the runs that there are."""

from difflib import get_close_matches
from pathlib import Path

STAGES_FILE = "stages.json"  # every run's folder has one
_SHOWN = 8


def no_file(word: str) -> str:
    """What to say of a file that is not there: its folder is missing, or names in it that are alike."""
    path = Path(word)
    if not path.parent.is_dir():
        return f"{word} is not there: there is no folder {path.parent}"
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = [str(path.parent / name) for name in get_close_matches(path.name, names, 3)]
    return f"{word} is not there" + (f"; did you mean {' or '.join(close)}?" if close else "")


def no_run(run_dir: Path) -> str:
    """What to say of a folder that holds no run: whether it is there, and the runs beside it and in runs/."""
    found = {path.parent for place in (run_dir.parent, Path("runs")) for path in place.glob(f"*/{STAGES_FILE}")}
    named = sorted(map(str, found - {run_dir}))
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    there = f"; runs that are: {', '.join(named[:_SHOWN])}{more}" if named else "; hcm-scale run makes one"
    return f"{run_dir} {'holds no run' if run_dir.is_dir() else 'is not there'}{there}"
