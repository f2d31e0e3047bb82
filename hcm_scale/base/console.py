"""What a person reads while and after a run works: progress, log formats, safe text, and messages about names.

- `Progress` shows progress: one live line on a terminal (tqdm), else a line in the log every half minute. Whoever calls
  `showing_progress` decides for a block whether bars are drawn, and is called at each step.
- `JsonFormatter` writes log records as JSON lines, for `log=json`; `event` gives one fields of its own.
- `printable` and `shorten` make text from files safe for a terminal.
- `suggest` and its neighbours end messages about names that do not exist.

tqdm is imported when the first bar is drawn: the command line starts without it.
"""

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

log = logging.getLogger(__name__)
STAGES_FILE = "stages.json"  # every run's folder has one
_LINE_EVERY_SECONDS = 30.0
_MOST_RUNS = 8  # named in a message
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # but tab and line break


class Step(NamedTuple):
    """How far a piece of work is: its name, how much of `total` (None: unknown) is done, and in which unit."""

    label: str
    done: int
    total: int | None
    unit: str


Watcher = Callable[[Step], None]
writes_json = False  # set by `use_json_lines`, for this process
_draws: bool | None = None  # None: on a terminal, and elsewhere as lines in the log
_watcher: Watcher | None = None
_watching = threading.Lock()
_num_drawn = 0
_stage: ContextVar[str | None] = ContextVar("stage", default=None)


class Progress:
    """Progress of one piece of work: drawn by tqdm, written to the log, or silent; the watcher is told in any case.

    A notebook has no cursor that goes up: while one bar is drawn there, others are lines in the log.
    """

    def __init__(self, total: int | None, unit: str, label: str, *, initial: int = 0, unit_scale: bool = False) -> None:
        global _num_drawn
        self.n = self._initial = initial
        self._total, self._unit, self._label, self._postfix = total, unit, label, ""
        self._started = self._logged = time.monotonic()
        self._began: float | None = None
        self._counting = threading.Lock()  # threads share a bar
        is_terminal = sys.stderr.isatty()
        draws = (is_terminal and not writes_json) if _draws is None else _draws and (is_terminal or _num_drawn == 0)
        self._logs = not draws and _draws is not False
        self._drawn: Any = None
        if draws:
            from tqdm import tqdm

            _num_drawn += 1
            scaled: Any = {"initial": initial, "unit_scale": unit_scale}
            self._drawn = tqdm(total=total, unit=unit, desc=label, dynamic_ncols=True, **scaled)

    def skip(self, num_done: int) -> None:
        """Counts what an earlier call has done, which says nothing about the time left either."""
        if num_done:
            self._initial += num_done
            self._add(num_done)

    def update(self, num_more: int = 1) -> None:
        """The first piece, which may wait for compilers and cold files, says nothing about the time left."""
        self._add(num_more)
        if self._began is None:
            self._began, self._initial = time.monotonic(), self.n

    def _add(self, num_more: int) -> None:
        with self._counting:
            self.n += num_more
        notify_watcher(Step(self._label, self.n, self._total, self._unit))
        if self._drawn is not None:
            self._drawn.update(num_more)
        elif self._logs and time.monotonic() - self._logged >= _LINE_EVERY_SECONDS:
            self._logged = time.monotonic()
            fields = {"label": self._label, "done": self.n, "total": self._total, "unit": self._unit}
            log.info("%s", self, extra=event("progress", **fields, seconds=self._logged - self._started))

    def set_postfix(self, refresh: bool = True, **numbers: object) -> None:
        self._postfix = "".join(f"   {name}={value}" for name, value in numbers.items())
        if self._drawn is not None:
            self._drawn.set_postfix(refresh=refresh, **numbers)

    def __str__(self) -> str:
        seconds = time.monotonic() - self._started
        done, left = f"{self.n:,}", ""
        if self._total is not None:
            done += f" of {self._total:,}"
        if self._total is not None and self._began is not None and self.n > self._initial:
            working = time.monotonic() - self._began
            left = f", about {working * (self._total - self.n) / (self.n - self._initial):,.0f} s left"
        return f"{self._label:<20} {done} {self._unit}s in {seconds:,.0f} s{left}{self._postfix}"

    def close(self) -> None:
        global _num_drawn
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None
            _num_drawn -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def notify_watcher(step: Step) -> None:
    """Calls the watcher, if there is one; one call at a time, whatever the number of threads."""
    if _watcher is not None:
        with _watching:
            _watcher(step)


@contextlib.contextmanager
def showing_progress(draws: bool, watcher: Watcher | None = None) -> Iterator[None]:
    """Within the block, draws bars or does not, and calls `watcher` at every step."""
    global _draws, _watcher
    before = _draws, _watcher
    _draws, _watcher = draws, watcher
    try:
        yield
    finally:
        _draws, _watcher = before


def disable_progress() -> None:
    """From now on this process shows no progress: another one on the same terminal does."""
    global _draws
    _draws = False


class JsonFormatter(logging.Formatter):
    """Log records as JSON objects without line breaks.

    {"time": "2026-11-16T00:12:01.123+00:00", "level": "info", "event": "message", "message": "...", "stage": "labels"}

    Beside them stand the fields of an `event`, null for numbers that JSON lacks. `stage` is there within
    `logging_stage`; an internal error has its traceback as `trace`.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {"time": moment.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        line |= {"event": getattr(record, "event", "message"), "message": record.getMessage()}
        if (stage := _stage.get()) is not None:
            line["stage"] = stage
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        fields = json.dumps(getattr(record, "fields", {}), default=str)
        return json.dumps(line | json.loads(fields, parse_constant=lambda _: None), ensure_ascii=False)


def event(name: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a call of the logger: JSON lines then have this `event` and these fields, other lines do not."""
    return {"event": name, "fields": fields}


def use_json_lines(handlers: Sequence[logging.Handler]) -> None:
    """From now on these handlers write JSON lines, Python's warnings and progress among them."""
    global writes_json
    writes_json = True
    logging.captureWarnings(True)
    for handler in handlers:
        handler.setFormatter(JsonFormatter())


def json_line(level: str, message: str, extra: dict[str, Any]) -> str:
    """One such line, for a process that has no handler."""
    return JsonFormatter().format(logging.makeLogRecord({"levelname": level, "msg": message, **extra}))


@contextlib.contextmanager
def logging_stage(name: str) -> Iterator[None]:
    """Within the block, JSON lines name this stage."""
    before = _stage.set(name)
    try:
        yield
    finally:
        _stage.reset(before)


@contextlib.contextmanager
def keeping_warnings(*loggers: str) -> Iterator[list[str]]:
    """The warnings of these loggers within the block, each once."""
    kept: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: None if record.getMessage() in kept else kept.append(record.getMessage())  # type: ignore[method-assign]
    for name in loggers:
        logging.getLogger(name).addHandler(handler)
    try:
        yield kept
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)


def printable(text: str) -> str:
    r"""The text with every control character but tab and line break spelled out: an id may hold what terminals obey.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shorten(text: str, most: int = 200) -> str:
    r"""The text, printable, as one line of about `most` characters: its beginning and its end.

    >>> shorten("a\nb"), shorten("0123456789", 4)
    ('a\\nb', '012 ... 9')
    """
    line = printable(text).replace("\n", "\\n")
    end = most // 4
    return line if len(line) <= most else f"{line[: most - end]} ... {line[-end:]}"


class Printable(logging.Formatter):
    """Log records as usual, but printable."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def suggest(name: str, legal: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known one, or nothing.

    >>> suggest("lable", ["run", "label"]), suggest("x", ["run", "label"])
    ("; did you mean 'label'?", '')
    """
    close = get_close_matches(name, list(legal), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def legal_names(name: str, legal: Collection[str]) -> str:
    """The end of a message about an unknown name: all legal ones, and the most similar."""
    return f"legal are {', '.join(legal)}{suggest(name, legal)}"


def missing_file_text(word: str) -> str:
    """Message about a file that does not exist: its folder is missing, or a similar name in it."""
    path = Path(word)
    if not path.parent.is_dir():
        return f"{word} is not there: there is no folder {path.parent}"
    return f"{word} is not there{suggest(path.name, sorted(entry.name for entry in path.parent.iterdir()))}"


def missing_run_text(run_dir: Path) -> str:
    """Message about a folder that holds no run: whether it exists, and the runs beside it and in runs/."""
    runs = {path.parent for folder in (run_dir.parent, Path("runs")) for path in folder.glob(f"*/{STAGES_FILE}")}
    named = sorted(map(str, runs - {run_dir}))
    more = f" and {len(named) - _MOST_RUNS} more" if len(named) > _MOST_RUNS else ""
    there = f"; runs that are: {', '.join(named[:_MOST_RUNS])}{more}" if named else "; hcm-scale run makes one"
    return f"{run_dir} {'holds no run' if run_dir.is_dir() else 'is not there'}{there}"
