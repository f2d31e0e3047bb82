"""How a command fails: one line on stderr, and a status that says whose turn it is.

| status  | meaning                                                                                              |
|---------|------------------------------------------------------------------------------------------------------|
| 0       | done                                                                                                 |
| 2       | something that you said or brought is wrong: an option, a file, a folder                             |
| 1       | anything else: a full disk, no memory, a lost rank, a chain that diverged                            |
| 128 + n | stopped by signal n                                                                                  |
"""

import contextlib
import errno
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hcm_scale.base import console, files
from hcm_scale.base.console import shorten

USER_ERRORS = (
    ValueError,
    OSError,
    FloatingPointError,
    MemoryError,
)  # they speak to the user; any other is a fault of ours
_WRONG = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
STDOUT = "stdout"  # the name by which errors tell of it
_LIMITED = (errno.EDQUOT, errno.EFBIG)
_FULL = (errno.ENOSPC, *_LIMITED)
_MUCH = 1 << 30  # bytes: a disk with as many free is not full
_SHORT_WRITE = re.compile(r"(\d+) requested and (\d+) written")  # numpy, of its items
_LONGEST = 4_000  # characters of an error
_OWN = (".lock", "log", "config.json", console.STAGES_FILE, "records", "ranks")  # of a run, beside its stages
_BYTES_NEEDED = re.compile(r"([\d,]+) bytes are needed")


class LoggedError(Exception):
    """An error that the log has told already; `status` is what is left to say."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.status = status_of(error)


def status_of(error: Exception) -> int:
    """The status with which a command ends that failed so."""
    return 2 if isinstance(error, _WRONG) else 1


def print_error(error: Exception, words: Sequence[str] = ()) -> int:
    """Tells of an error where no log does, as the words of the command ask for; returns the status."""
    text = f"error: {error_line(error)}"
    print(console.json_line("error", text) if "log=json" in words else text, file=sys.stderr)
    return status_of(error)


def error_line(error: Exception, run_dir: str = ".") -> str:
    r"""An error as a line: one of the system by what it is about, a full disk with the room that is left.

    >>> error_line(FileNotFoundError(2, "No such file or directory", "a\nb.csv"))
    'a\\nb.csv: No such file or directory'
    """
    if isinstance(error, OSError):
        where = str(error.filename or run_dir)
        is_full = error.errno in _FULL or "No space left" in str(error) or _SHORT_WRITE.search(str(error))
        if is_full and where != STDOUT:
            text = _full(error, where)
        elif error.errno == errno.EMFILE:
            text = f"{error.strerror}, which `ulimit -n` allows more of"
        else:
            text = f"{where}: {error.strerror}" if error.strerror and error.filename else str(error)
    else:
        text = str(error) or type(error).__name__
    return shorten(text, _LONGEST)


def _full(error: OSError, where: str) -> str:
    place = Path(where).absolute()
    while not place.exists():
        place = place.parent
    needed = _BYTES_NEEDED.search(str(error))
    num_needed = int(needed[1].replace(",", "")) if needed else 0
    needs, free = f"{needed[0]}, " if needed else "", shutil.disk_usage(place).free
    if error.errno in _LIMITED or free > max(_MUCH, num_needed):
        why = f"{where} cannot be written, though {free:,} bytes are free on its disk"
        return f"{why}: a quota, `ulimit -f` or a lack of inodes is in the way; afterwards the same command goes on"
    return f"the disk of {where} is full: {needs}{free:,} bytes are free there; make room, and the same command goes on"


@contextlib.contextmanager
def removing_empty_run(run_dir: Path) -> Iterator[None]:
    """Makes the folder of a run; takes it away again, with those above it that were made, if no stage was finished.

    It stays where another process is at work there, or has left files. A run that was stopped keeps what it has.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"run_dir={run_dir} is a file; it names the folder of the run")
    if run_dir.is_symlink() and not run_dir.exists():
        raise ValueError(f"run_dir={run_dir} is a link to {run_dir.readlink()}, which is not there")
    made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    with files.entered(run_dir) as is_alone:
        try:
            yield
        except Exception:
            if made and is_alone():
                with files.file_lock(run_dir / ".lock", wait=False) as is_held:
                    if is_held and _is_unfinished(run_dir):
                        shutil.rmtree(run_dir, ignore_errors=True)
                for path in made[1:]:
                    with contextlib.suppress(OSError):
                        path.rmdir()
            raise


def _is_unfinished(run_dir: Path) -> bool:
    """Whether the folder holds nothing but what a run makes, and no finished stage."""
    stages = [*run_dir.glob("records/*.json")]
    own = {*_OWN, *(path.stem for path in stages)}
    others = [path for path in run_dir.iterdir() if path.name not in own and not files.is_torn(path)]
    return not others and not any('"finished": true' in path.read_text() for path in stages)
