"""Attributes that were dates: the graph holds days since the earliest, people read dates.

The ingest's record tells which columns of a node table are dates and what day 0 of each is, as `2024-01-31` or, of a
column with a time of day, `2024-01-31T08:00`. Times of day and durations stay numbers.
"""

import numpy as np

from hcm_scale.graph.store import Graph


def first_days(graph: Graph) -> dict[str, str]:
    """Day 0 of every column that holds dates, by the column's name."""
    read = graph.info.get("ingest", {})
    types = {line["column"]: line["type"] for line in read.get("told", []) if line["table"] == "nodes"}
    found = {}
    for column in read.get("columns", []):
        kind = types.get(column["name"], "")
        if column["method"] == "date" and kind.startswith(("date", "timestamp")):
            minute = np.datetime64(round(column["origin"] * 1440), "m")
            found[column["name"]] = str(minute.astype("M8[D]") if kind.startswith("date") else minute)
    return found


def value_text(value: float, first_day: str | None) -> str:
    """A value of an attribute: four digits, or where it is days since a date the date that it means.

    >>> value_text(0.12345, None), value_text(1.4, "2024-01-31"), value_text(0.5, "2024-01-31T08:00")
    ('0.1235', '2024-02-01', '2024-01-31 20:00')
    """
    return f"{value:.4g}" if first_day is None else date_text(value, first_day)


def date_text(days: float, first_day: str) -> str:
    """The date so many days after another, with a time of day where that has one."""
    steps = days * 1440 if "T" in first_day else days
    return str(np.datetime64(first_day) + round(steps)).replace("T", " ")
