"""How a command fails: one line on stderr, and a status that says whose turn it is.

| status  | meaning                                                                                              |
|---------|------------------------------------------------------------------------------------------------------|
| 0       | done                                                                                                 |
| 2       | something that you said or brought is wrong: an option, a file, a folder                             |
| 3       | done, all results are written, and something that `fail_on` names holds                              |
| 1       | anything else: a full disk, no memory, a lost rank, a chain that diverged                            |
| 128 + n | stopped by signal n                                                                                  |
"""

import contextlib
import errno
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from hcm_scale.base import console, remote

log = logging.getLogger("hcm_scale")

USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)  # one line for the user; any other is a bug
STDOUT = "stdout"  # its name in errors
_WRONG_INPUT = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_LIMIT = (errno.EDQUOT, errno.EFBIG)
_PLENTY_BYTES = 1 << 30  # a disk with as many free is not full
_MAX_CHARACTERS = 4_000
_BYTES_NEEDED = re.compile(r"([\d,]+) bytes are needed")  # of `base.npy`
_RUN_FILES = (".lock", "log", "config.json", console.STAGES_FILE, "records", "ranks")  # beside the stages


class LoggedError(Exception):
    """An error that is in the log already; `status` is the exit status."""

    def __init__(self, error: Exception | str, status: int = 0) -> None:
        super().__init__(str(error))
        self.status = status_of(error) if isinstance(error, Exception) else status


def status_of(error: Exception) -> int:
    return 2 if isinstance(error, _WRONG_INPUT) else 1


@contextlib.contextmanager
def logging_errors(run_dir: Path | str) -> Iterator[None]:
    """Logs an error that is the user's to mend, and raises LoggedError in its place."""
    try:
        yield
    except USER_ERRORS as error:
        extra = console.event("error", status=status_of(error))
        log.error("error: %s", error_line(error, str(run_dir)), extra=extra)
        raise LoggedError(error) from error


def error_line(error: Exception, run_dir: str = ".") -> str:
    r"""One line for an error: of the system with the file concerned, of a full disk with the bytes that are free.

    >>> error_line(FileNotFoundError(2, "No such file or directory", "a\nb.csv"))
    'a\\nb.csv: No such file or directory'
    """
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        where = str(error.filename or run_dir)
        is_short_write = " requested and " in text  # numpy's own error, without a number
        is_full = error.errno in (errno.ENOSPC, *_LIMIT) or "No space left" in text or is_short_write
        if is_full and where != STDOUT:
            text = _full_disk(error, where)
        elif error.errno == errno.EMFILE:
            text = f"{error.strerror}, which `ulimit -n` allows more of"
        elif error.strerror and error.filename:
            text = f"{where}: {error.strerror}"
    return console.shorten(remote.hide_secrets(text), _MAX_CHARACTERS)


def _full_disk(error: OSError, where: str) -> str:
    place = Path(where).absolute()
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, _BYTES_NEEDED.search(str(error))
    if error.errno in _LIMIT or free > max(_PLENTY_BYTES, int(needed[1].replace(",", "")) if needed else 0):
        why = f"{where} cannot be written, though {free:,} bytes are free on its disk"
        return f"{why}: a quota, `ulimit -f` or a lack of inodes is in the way; afterwards the same command goes on"
    needs = f"{needed[0]}, " if needed else ""
    return f"the disk of {where} is full: {needs}{free:,} bytes are free there; make room, and the same command goes on"


@contextlib.contextmanager
def removing_empty_run(run_dir: Path) -> Iterator[None]:
    """Makes the folder of a run, and removes it with the parents that it made if the run fails before any stage ends.

    The folder stays if another process works in it or has left files there. A run that was stopped keeps its folder.
    """
    from hcm_scale.base import files

    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"run_dir={run_dir} is a file; it names the folder of the run")
    if run_dir.is_symlink() and not run_dir.exists():
        raise ValueError(f"run_dir={run_dir} is a link to {run_dir.readlink()}, which is not there")
    made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    with files.shared_folder_lock(run_dir) as is_alone:
        try:
            yield
        except Exception:
            if made and is_alone():
                with files.file_lock(run_dir / ".lock", wait=False) as is_held:
                    if is_held and _is_empty_run(run_dir):
                        shutil.rmtree(run_dir, ignore_errors=True)
                for path in made[1:]:
                    with contextlib.suppress(OSError):
                        path.rmdir()
            raise


def _is_empty_run(run_dir: Path) -> bool:
    """Whether the folder holds only what a run makes, and no finished stage."""
    from hcm_scale.base.files import is_temporary

    records = [*run_dir.glob("records/*.json")]
    names = {*_RUN_FILES, *(path.stem for path in records)}
    others = [path for path in run_dir.iterdir() if path.name not in names and not is_temporary(path)]
    return not others and not any('"finished": true' in path.read_text() for path in records)
