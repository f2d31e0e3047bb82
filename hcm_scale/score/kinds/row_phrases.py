"""Phrases that sentences about rows of the edge table, such as payments, are made of: times, amounts, and rows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hcm_scale.base.text import amount, clip
from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.rows.rows import DAY, HOUR
from hcm_scale.score.kinds.around import Around, Evidence
from hcm_scale.score.kinds.phrases import ID_WIDTH

_MOST_SHOWN = 5  # rows of a chain
_DATED = -62_135_596_800, 253_402_300_800  # seconds of the years 1 to 9999


def evidence_of(around: Around) -> RowEvidence:
    rows = around.evidence.rows
    assert rows is not None  # kinds about rows apply where a graph keeps them
    return rows


def row_facts(evidence: Evidence, row: int) -> dict[str, Any]:
    """A row as a person knows it: ids of both ends, seconds since 1970 and of a step, or 0, amount and currency."""
    rows: RowEvidence = evidence.rows
    paid, code = float(rows.amounts[row]), int(rows.rows.currency[row])
    ends = (evidence.graph.external_id(int(end[row])) for end in (rows.rows.payer, rows.rows.payee))
    return {
        **dict(zip(("payer", "payee"), ends, strict=True)),
        **{"time": float(rows.rows.time[row]), "steps": rows.steps},
        "amount": paid if np.isfinite(paid) else None,
        "currency": rows.currencies[code] if code < len(rows.currencies) else None,
    }


def amount_text(facts: Mapping[str, Any]) -> str:
    """Such as `930.00`, or `930.00 EUR`."""
    text = "" if facts["amount"] is None else amount(facts["amount"])
    return f"{text} {clip(facts['currency'], 12)}" if text and facts["currency"] else text


def time_text(seconds: float, steps: float, *, clock: bool | None = None) -> str:
    """Such as `4 May 2024 10:12`; of steps of so many seconds their number. Midnight has no clock unless asked for.

    >>> time_text(0.0, 0.0), time_text(90_000.0, 0.0), time_text(172_800.0, DAY), time_text(86_400.0, 1.0)
    ('1 January 1970', '2 January 1970 01:00', 'step 2', 'step 86,400')
    """
    if steps:
        return f"step {seconds / steps:,.0f}"
    if not _DATED[0] <= seconds < _DATED[1]:
        return f"second {seconds:.6g}"
    moment = datetime.fromtimestamp(seconds, UTC)
    date = f"{moment.day} {moment:%B} {moment.year}"
    return f"{date} {moment:%H:%M}" if (seconds % DAY > 0.0 if clock is None else clock) else date


def span_texts(times: Sequence[float], steps: float) -> list[str]:
    """Times beside each other: all with their clocks where one of them has one.

    >>> span_texts([0.0, 90_000.0], 0.0)
    ['1 January 1970 00:00', '2 January 1970 01:00']
    """
    return [time_text(time, steps, clock=any(time % DAY for time in times)) for time in times]


def length_text(seconds: float, steps: float) -> str:
    """Such as `19 hours`, `3 days` or, of steps of so many seconds, `2 steps`."""
    seconds = min(abs(seconds), 1e18)  # in a file that somebody sent rows may lie in any order
    if steps:
        unit, word = steps, "step"
    else:
        unit, word = next(
            (u, w) for u, w in ((DAY, "day"), (HOUR, "hour"), (60.0, "minute"), (0.0, "second")) if seconds >= 2 * u
        )
    count = max(1, round(seconds / (unit or 1.0)))
    return f"{count:,} {word}{'s' * (count != 1)}"


def at_once_text(time: float, steps: float) -> str:
    """When rows of one time were: within a step, a day or a moment.

    >>> at_once_text(86_400.0, 0.0), at_once_text(86_401.0, 0.0)
    ('on the same day', 'at the same time')
    """
    return "in the same step" if steps else "at the same time" if time % DAY else "on the same day"


def chain_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows that follow each other: who paid whom, how much and when; of many the first and the last."""
    shown = list(rows)
    if len(rows) > _MOST_SHOWN:
        shown = [*rows[: _MOST_SHOWN - 2], rows[-1]]
    said = []
    for number, row in enumerate(shown):
        if number == _MOST_SHOWN - 2 and len(rows) > _MOST_SHOWN:
            said.append("...")
        payer, payee = (clip(row[end], ID_WIDTH) for end in ("payer", "payee"))
        paid = f" {text}" if (text := amount_text(row)) else ""
        said.append(
            f"{payer} paid {payee}{paid} on {time_text(row['time'], row['steps'])}".replace(" on step", " at step")
        )
    return ", ".join(said)


def round_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows that follow each other, and whether they come back."""
    return f"{chain_text(rows)}{', back where it began' * (rows[0]['payer'] == rows[-1]['payee'])}"


def times_text(ratio: float) -> str:
    """Such as `12.0 times` or `8 % of`."""
    return f"{ratio:,.1f} times" if ratio >= 0.995 else f"{100 * ratio:.2g} % of"
