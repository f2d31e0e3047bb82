"""What is logged as one JSON object a line, for programs that read logs: `log=json`.

    {"time": "2026-11-16T00:12:01.123+00:00", "level": "info", "message": "...", "stage": "labels"}

`stage` is there while a stage is made; a failure of ours has its traceback as `trace`.
"""

import contextlib
import datetime
import json
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

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


def use(handlers: Sequence[logging.Handler]) -> None:
    """Has handlers write so all that this process logs from now on, Python's warnings and progress too."""
    from hcm_scale.base import progress

    progress.draw_no_bars()
    logging.captureWarnings(True)
    for handler in handlers:
        handler.setFormatter(JsonLines())


def line(level: str, message: str) -> str:
    """A line of its own, where nothing is logged to."""
    return JsonLines().format(logging.makeLogRecord({"levelname": level, "msg": message}))


@contextlib.contextmanager
def of_stage(name: str) -> Iterator[None]:
    """Says of what is logged in the block to which stage it belongs."""
    before = _stage.set(name)
    try:
        yield
    finally:
        _stage.reset(before)
