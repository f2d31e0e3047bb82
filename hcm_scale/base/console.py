"""What a name that leads nowhere was probably meant to be: a known name that is like it, or the runs that there are."""

import contextlib
import datetime
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Self

from tqdm import tqdm

# ----------------------------------------------------------------------------
# What a person sees while work goes on: one live line on a terminal, else one line in the log every half minute.
#
# `shown` says for a while whether bars are drawn and who is told of each step. Also what a stage cost.


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_LINE_EVERY_SECONDS = 30.0


class Step(NamedTuple):
    """How far a piece of work is: its name, how much of `total` is done (None: nobody knows), and of what."""

    label: str
    done: int
    total: int | None
    unit: str


Watcher = Callable[[Step], None]
_as_lines = False
_draws: bool | None = None  # None: on a terminal, and elsewhere as lines in the log
_watcher: Watcher | None = None
_telling = threading.Lock()


class Bar(tqdm):
    """A tqdm bar that tells the watcher of every update, drawn or not."""

    def __init__(self, label: str, total: int | None, unit: str, **options: Any) -> None:
        self._step = Step(label, options.get("initial", 0), total, unit)
        super().__init__(total=total, unit=unit, desc=label, **options)

    def update(self, n: float | None = 1) -> bool | None:
        self._step = self._step._replace(done=self._step.done + int(n or 0))
        report_step(self._step)
        return super().update(n)


class Lines:
    """What a bar does, as lines in the log."""

    def __init__(self, total: int | None, unit: str, label: str, initial: int = 0) -> None:
        self.n = self._first = initial
        self._total, self._unit, self._label, self._more = total, unit, label, ""
        self._started = self._told = time.monotonic()

    def update(self, num_more: int = 1) -> None:
        self.n += num_more
        report_step(Step(self._label, self.n, self._total, self._unit))
        if time.monotonic() - self._told >= _LINE_EVERY_SECONDS:
            self._told = time.monotonic()
            log.info("%s", self)

    def set_postfix(self, refresh: bool = True, **numbers: object) -> None:
        self._more = "".join(f"   {name}={value}" for name, value in numbers.items())

    def __str__(self) -> str:
        seconds = time.monotonic() - self._started
        done, left = f"{self.n:,}", ""
        if self._total is not None:
            done += f" of {self._total:,}"
            left = f", about {seconds * (self._total - self.n) / max(1, self.n - self._first):,.0f} s left"
        return f"{self._label:<20} {done} {self._unit}s in {seconds:,.0f} s{left}{self._more}"

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def bar(total: int | None, unit: str, label: str, **options: Any) -> Bar | Lines:
    """A tqdm bar as wide as the terminal, or lines where stderr is none; nothing after `be_quiet`.

    A notebook has no cursor that goes up: beside a bar that is drawn there, another one is lines.
    """
    is_terminal = sys.stderr.isatty()
    is_second = not is_terminal and any(isinstance(other, Bar) for other in list(Bar._instances))
    if (_draws is None and (_as_lines or not is_terminal)) or (_draws and is_second):
        return Lines(total, unit, label, options.get("initial", 0))
    return Bar(label, total, unit, disable=_draws is False, dynamic_ncols=True, **options)


def report_step(step: Step) -> None:
    """Tells the watcher, if there is one; one call at a time, whatever the number of threads."""
    if _watcher is not None:
        with _telling:
            _watcher(step)


def is_interactive() -> bool:
    """Whether a person sees stderr as it is written: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextlib.contextmanager
def showing_progress(draws: bool, watcher: Watcher | None = None) -> Iterator[None]:
    """Draws bars or does not, and tells `watcher` of every step, until the end of the block."""
    global _draws, _watcher
    before = _draws, _watcher
    _draws, _watcher = draws, watcher
    try:
        yield
    finally:
        _draws, _watcher = before


def use_log_lines() -> None:
    """From now on progress is lines in the log, on a terminal too."""
    global _as_lines
    _as_lines = True


def disable_progress() -> None:
    """From now on this process draws no bars: another one on the same terminal does."""
    global _draws
    _draws = False


def peak_rss_bytes() -> int:
    """The highest resident memory of this process since `reset_peak_rss`, or since its start where none is kept."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        import psutil

        return psutil.Process().memory_info().peak_wset  # as Windows calls it
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def reset_peak_rss() -> None:
    """Forgets the highest resident memory so far; does nothing where the system has no such switch."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


# ----------------------------------------------------------------------------
# What is logged as one JSON object a line, for programs that read logs: `log=json`.
#
#     {"time": "2026-11-16T00:12:01.123+00:00", "level": "info", "message": "...", "stage": "labels"}
#
# `stage` is there while a stage is made; a failure of ours has its traceback as `trace`.


_stage: ContextVar[str | None] = ContextVar("stage", default=None)


class JsonLines(logging.Formatter):
    """A record as a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, without line breaks."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {"time": moment.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        line["message"] = record.getMessage()
        if _stage.get() is not None:
            line["stage"] = str(_stage.get())
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def use_json_lines(handlers: Sequence[logging.Handler]) -> None:
    """Has handlers write so all that this process logs from now on, Python's warnings and progress too."""
    use_log_lines()
    logging.captureWarnings(True)
    for handler in handlers:
        handler.setFormatter(JsonLines())


def json_line(level: str, message: str) -> str:
    """A line of its own, where nothing is logged to."""
    return JsonLines().format(logging.makeLogRecord({"levelname": level, "msg": message}))


@contextlib.contextmanager
def logging_stage(name: str) -> Iterator[None]:
    """Says of what is logged in the block to which stage it belongs."""
    before = _stage.set(name)
    try:
        yield
    finally:
        _stage.reset(before)


# ----------------------------------------------------------------------------
# What comes from files, as a terminal may show it: control characters spelled out, long texts cut.
#
# An id or the name of a column may hold what a terminal obeys: ESC [2J clears it, others hide or reverse what
# follows.


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # but tab and line break


def printable(text: str) -> str:
    r"""The text, every control character but tab and line break spelled out.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shorten(text: str, most: int = 200) -> str:
    r"""The text as one line of about `most` characters: its beginning and its end.

    >>> shorten("a\nb"), shorten("0123456789", 4)
    ('a\\nb', '012 ... 9')
    """
    line = printable(text).replace("\n", "\\n")
    end = most // 4
    return line if len(line) <= most else f"{line[: most - end]} ... {line[-end:]}"


class Printable(logging.Formatter):
    """A log record of one or more lines."""

    def format(self, record: logging.LogRecord) -> str:
        """As ever, but printable."""
        return printable(super().format(record))


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


def missing_file_text(word: str) -> str:
    """What to say of a file that is not there: its folder is missing, or a name in it that is alike."""
    path = Path(word)
    if not path.parent.is_dir():
        return f"{word} is not there: there is no folder {path.parent}"
    return f"{word} is not there{suggest(path.name, sorted(entry.name for entry in path.parent.iterdir()))}"


def missing_run_text(run_dir: Path) -> str:
    """What to say of a folder that holds no run: whether it is there, and the runs beside it and in runs/."""
    found = {path.parent for place in (run_dir.parent, Path("runs")) for path in place.glob(f"*/{STAGES_FILE}")}
    named = sorted(map(str, found - {run_dir}))
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    there = f"; runs that are: {', '.join(named[:_SHOWN])}{more}" if named else "; hcm-scale run makes one"
    return f"{run_dir} {'holds no run' if run_dir.is_dir() else 'is not there'}{there}"
