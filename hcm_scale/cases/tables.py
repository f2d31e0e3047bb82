"""Cases as tables, for other programs: one row a member, one a case, one a row of the edge table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hcm_scale.base.text import clip, p_text
from hcm_scale.cases.describe import money_of, roles_of, title_of
from hcm_scale.cases.store import HELD_BY, Cases, id_text
from hcm_scale.graph.store import Graph
from hcm_scale.report.evidence import Evidence
from hcm_scale.rows.evidence import RowEvidence

_NAMED = 4  # members in a line


def _ids(graph: Graph, nodes: Any) -> pa.Array:
    return pa.array(nodes) if graph.ids is None else graph.ids.take(pa.array(nodes))


def case_table(cases: Cases, evidence: Evidence) -> pa.Table:
    """One row a case, the most surprising first; where rows are kept with its money and the times of its rows."""
    table, number = cases.table, np.arange(len(cases))
    about = pa.table(
        {
            "case": cases.numbers,
            "case_id": pa.array([id_text(int(each)) for each in table["id"]], pa.string()),
            "case_p": np.exp(-table["surprise"]),
            "flagged": number < cases.num_flagged,
            "held_by": pa.array(HELD_BY).take(pa.array(table["held"])),
            "members": pa.array(table["members"]),
            "stand_out": pa.array(table["core"]),
            "rows": pa.array(table["rows"]),
        }
    )
    if evidence.rows is None:
        return about
    for name, column in _money(cases, evidence.rows).items():
        about = about.append_column(name, column)
    return about


def _money(cases: Cases, kept: RowEvidence) -> dict[str, pa.Array]:
    """Of every case sums inside, in and out, in the currency that most is in, and its first and last time."""
    told: list[dict[str, Any]] = []
    for case in cases:
        sums = money_of(kept, case) if len(case.rows) else []
        one: dict[str, Any] = max(sums, key=lambda amounts: amounts["inside"], default={})
        told.append(
            {f"money_{name}": one.get(key) for name, key in (("inside", "inside"), ("in", "into"), ("out", "out"))}
        )
        times = kept.rows.time[case.rows[[case.rows.argmin(), case.rows.argmax()]]] if len(case.rows) else (None, None)
        told[-1] |= {"currency": one.get("currency"), "first": times[0], "last": times[1]}
    kinds = dict.fromkeys(("money_inside", "money_in", "money_out"), pa.float64()) | {"currency": pa.string()}
    out = {name: pa.array([one[name] for one in told], kind) for name, kind in kinds.items()}
    for name in ("first", "last") if kept.rows.has_times else ():
        times = pa.array([one[name] for one in told], pa.float64())
        dates = pc.cast(pc.round(pc.multiply(times, 1e3)), pa.int64()).cast(pa.timestamp("ms"))
        out[name] = pc.divide(times, kept.steps) if kept.steps else dates
    return out


def member_table(evidence: Evidence, cases: Cases, top: int | None = None, flagged: bool = False) -> pa.Table:
    """One row a member of every case, of the first `top`, or of the flagged, with the role and numbers of each node."""
    count = min(len(cases) if top is None else top, cases.num_flagged if flagged else len(cases))
    number = cases.number_of_member[: cases.member_ends[count]]
    nodes, graph = cases.members[: len(number)], evidence.graph
    roles = [role for at in range(count) for role in roles_of(cases[at], evidence.rows)]
    ranks = evidence.row_of_node[nodes]
    about = case_table(cases, evidence).drop_columns(["members", "stand_out", "rows"]).take(pa.array(number))
    about = about.rename_columns(["case_flagged" if name == "flagged" else name for name in about.column_names])
    is_core = np.arange(len(nodes)) - cases.member_ends[number] < cases.table["core"][number]
    columns = {"id": _ids(graph, nodes), "role": pa.array(roles, pa.string()), "stands_out": is_core}
    columns["rank"] = ranks + 1
    names = [name for name in ("type", "score", "evidence", "p", "flagged") if name in evidence.scores.column_names]
    numbers = evidence.scores.take(ranks, names)
    columns |= {name: numbers[name] for name in names}
    columns["degree"] = graph.indptr[nodes + 1] - graph.indptr[nodes]
    for name, column in columns.items():
        about = about.append_column(name, column if isinstance(column, pa.ChunkedArray) else pa.array(column))
    return about


def row_table(evidence: Evidence, cases: Cases, top: int | None = None, flagged: bool = False) -> pa.Table | None:
    """One row for every row of the edge table that a case holds; None where the graph keeps no rows."""
    if (kept := evidence.rows) is None:
        return None
    count = min(len(cases) if top is None else top, cases.num_flagged if flagged else len(cases))
    number = np.repeat(np.arange(count), cases.table["rows"][:count])
    rows = cases.rows[: len(number)]
    time: Any = kept.rows.time[rows]
    time = time / kept.steps if kept.steps else pa.array((time * 1e3).astype(np.int64), pa.timestamp("ms"))
    columns: dict[str, Any] = {"case": cases.numbers[number]}
    columns |= {
        "source": _ids(evidence.graph, kept.rows.payer[rows]),
        "target": _ids(evidence.graph, kept.rows.payee[rows]),
    }
    columns |= {"time": time} if kept.rows.has_times else {}
    columns["amount"] = kept.amounts[rows]
    if kept.currencies:
        names = pa.array([*kept.currencies, None], pa.string())
        columns["currency"] = names.take(pa.array(np.minimum(kept.rows.currency[rows], len(names) - 1)))
    return pa.table(columns)


def case_lines(graph: Graph, cases: Cases, count: int, said: Mapping[int, str] | None = None) -> list[str]:
    """The first cases, a line each below a heading, with what was said of them and which are new since a run."""
    new = {one["id"] for one in cases.changes["new"]} if cases.changes else set[str]()
    lines = [f"case  {'id':<12}{'p':>10}   {'members':>7}   held together by"]
    for at in range(min(count, len(cases))):
        case = cases[at]
        names = ", ".join(_name(graph, node) for node in case.core[:_NAMED].tolist())
        more = f" and {len(case.core) - _NAMED:,} more" if len(case.core) > _NAMED else ""
        flag = "  flagged" * (at < cases.num_flagged) + "  new" * (cases.id_of(at) in new)
        flag += f"  {said[at]}" if said and at in said else ""
        size = len(case.core) + len(case.others)
        numbers = f"{cases.numbers[at]:>4}  {cases.id_of(at):<12}{p_text(case.p):>10}   {size:>7,}"
        lines.append(f"{numbers}   {title_of(case)}: {names}{more}{flag}")
    return lines if len(lines) > 1 else []


def _name(graph: Graph, node: int) -> str:
    return clip(graph.external_id(node), 24)
