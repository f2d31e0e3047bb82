"""What a name that leads nowhere was probably meant to be: a known name that is like it, or the runs that there are."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path

STAGES_FILE = "stages.json"  # every run's folder has one
_SHOWN = 8


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that is most like it, or nothing.

    >>> suggest("lable", ["run", "label"]), suggest("x", ["run", "label"])
    ("; did you mean 'label'?", '')
    """
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def legal_names(name: str, legal: Collection[str]) -> str:
    """The end of a message about an unknown name: all that are legal, and the one that was probably meant."""
    return f"legal are {', '.join(legal)}{suggest(name, legal)}"


def no_file(word: str) -> str:
    """What to say of a file that is not there: its folder is missing, or a name in it that is alike."""
    path = Path(word)
    if not path.parent.is_dir():
        return f"{word} is not there: there is no folder {path.parent}"
    return f"{word} is not there{suggest(path.name, sorted(entry.name for entry in path.parent.iterdir()))}"


def no_run(run_dir: Path) -> str:
    """What to say of a folder that holds no run: whether it is there, and the runs beside it and in runs/."""
    found = {path.parent for place in (run_dir.parent, Path("runs")) for path in place.glob(f"*/{STAGES_FILE}")}
    named = sorted(map(str, found - {run_dir}))
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    there = f"; runs that are: {', '.join(named[:_SHOWN])}{more}" if named else "; hcm-scale run makes one"
    return f"{run_dir} {'holds no run' if run_dir.is_dir() else 'is not there'}{there}"
