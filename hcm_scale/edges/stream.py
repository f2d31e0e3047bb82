"""New rows of a run that keeps rows, such as payments: each judged by itself, on the scale of the run's rows.

`open_new_rows` reads time, amount and currency of a whole table, in columns called as in the run, and judges all rows
(rows/stream.py). Rows that may yet matter to those that come later are kept in the run once the output is whole:

    run/stream/  rows.npy        rows that were scored since the run, by time (`ROW`): 61 bytes each, 4 million at most
                 manifest.json   the key of the scores that they came after, ids that the run does not have, numbered
                                 after its own, the keys of the tables that rows came from, hashes

Of the last table its rows of two weeks are kept, of others those since two weeks before it began: so the table can be
scored again, which replaces its rows and gives the same numbers. A table is known by what its rows say, not by its
name. Rows kept for other scores are dropped. The folder is no stage; without it rows are judged by the run alone.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.npy import open_array, save_npy
from hcm_scale.edges.payments import MOST_SENTENCES, StrangeRows, chances
from hcm_scale.edges.rows import EdgeRows
from hcm_scale.ingest.policy import Columns
from hcm_scale.ingest.row_columns import columns_of_new
from hcm_scale.ingest.table_files import TableFiles
from hcm_scale.rows.evidence import combined
from hcm_scale.rows.rows import Numbers, Values, log_amounts
from hcm_scale.rows.stream import REACH, ROW, Judged, Records, arrivals, not_among
from hcm_scale.score.kinds.all import ROW_KINDS

_KINDS = [(number, kind, kind.judge) for number, kind in enumerate(ROW_KINDS) if kind.judge]  # that judge new rows
FOLDER, KIND, FORMAT = "stream", "hcm_scale stream", 2
MOST_ROWS = 4_000_000
_ROWS, _SECONDS = "rows.npy", 86_400.0
ORDINARY = "nothing about the row itself is unusual; edge_pair_rank has the rank of the pair of its accounts"
_TYPES = {"of": str, "files": dict[str, str], "ids": list[str], "tables": list[str]}
log = logging.getLogger(__name__)


class State(NamedTuple):
    """Rows that were scored since the run, ids that it does not have, and the keys of the tables."""

    rows: Records
    ids: list[str]
    tables: list[str]

    def number(self, names: list[str], num_nodes: int) -> tuple[list[str], Numbers]:
        """All ids beside those of the run, with these, and the numbers of these."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys([*self.ids, *names]), num_nodes)}
        return list(numbers), np.array([numbers[name] for name in names], np.int64)

    def of_others(self, table: str) -> tuple[Records, int]:
        """The rows of other tables, and the number that this one has among the tables."""
        number = self.tables.index(table) if table in self.tables else len(self.tables)
        return self.rows[self.rows["table"] != number], number


def open_state(folder: Path, key: str, num_nodes: int) -> State:
    """The rows that were kept for the scores of this key; FolderError where the folder is damaged."""
    empty = State(np.zeros(0, ROW), [], [])
    if not folder.exists():
        return empty
    remedy = f"remove {folder}: rows are judged by the run alone then"
    manifest = files.read_manifest(folder, KIND, FORMAT, remedy, _TYPES)
    if manifest["of"] != key:
        log.info("%s holds rows that came after other scores: they are dropped", folder)
        return empty
    files.check_folder(folder, manifest["files"], remedy)
    num_accounts, num_tables = num_nodes + len(manifest["ids"]), len(manifest["tables"])

    def is_legal(block: Records) -> Any:
        ends, tables = np.stack([block["payer"], block["payee"]]), block["table"]
        legal = (ends >= 0).all(axis=0) & (ends < num_accounts).all(axis=0) & (tables >= 0) & (tables < num_tables)
        chains = np.isfinite(block["chain"]) & (block["chain"] >= 0.0)
        return legal & np.isfinite(block["time"]) & chains.all(axis=1) & ~np.isposinf(block["amount"])

    rule = (is_legal, f"ends are below {num_accounts}, tables below {num_tables}, times and chains finite")
    return State(open_array(folder / _ROWS, ROW, (None,), remedy, rule), manifest["ids"], manifest["tables"])


def _write_state(folder: Path, key: str, state: State, num_nodes: int) -> None:
    """Writes the state without ids and tables that no row has any more."""
    rows = state.rows.copy()
    ends = np.concatenate([rows["payer"], rows["payee"]])
    used = np.unique(ends[ends >= num_nodes])
    tables, rows["table"] = np.unique(rows["table"], return_inverse=True)
    for end in ("payer", "payee"):
        rows[end] = np.where(rows[end] < num_nodes, rows[end], num_nodes + np.searchsorted(used, rows[end]))
    files.remove_temporary(folder.parent, folder.name)
    with files.replacing_folder(folder) as fresh:
        save_npy(fresh / _ROWS, rows)
        named = {"ids": [state.ids[i - num_nodes] for i in used], "tables": [state.tables[i] for i in tables]}
        files.write_manifest(fresh, KIND, FORMAT, {"of": key, "files": files.hash_folder(fresh)} | named)


@dataclass(frozen=True, eq=False)
class NewRows:
    """The rows of a new table, judged, and the run that they come after."""

    run: Any  # new.Run
    key: str  # of the table
    state_key: str  # of what was kept when they were judged
    records: Records
    amounts: Values  # as they stand in the table
    names: list[str]  # ids that the run does not have, as the table's rows number them
    own_ends: tuple[Numbers, Numbers]  # by those numbers
    ids: list[str]  # such ids, as `records` number them
    is_kept: NDArray[np.bool_]  # those that later rows are judged by
    judged: Sequence[Judged]  # by each kind

    @property
    def steps(self) -> float:
        return float(self.run.evidence.rows.steps)

    @cached_property
    def _ranks(self) -> tuple[Values, float, Values, Values]:
        """The surprises of the run's rows in order, the largest p of a flagged row, and bars and units of kinds."""
        strange = StrangeRows(self.run.edges)
        least = strange.edges.rate / len(strange.p)
        flags_end = float(strange.p[strange.flagged].max(initial=least))
        bar, unit = (values[[number for number, *_ in _KINDS]] for values in strange.rows.bars)
        return np.sort(strange.rows.surprise), flags_end, bar, unit

    def columns(self, some: slice) -> dict[str, Any]:
        """What is told of some rows."""
        ordered, flags_end, bar, unit = self._ranks
        surprises = np.stack([judged.surprises[some] for judged in self.judged], axis=1)
        beyond = surprises / unit - bar
        kind, surprise = beyond.argmax(axis=1), combined(beyond)
        kind[surprise == 0.0] = len(_KINDS)
        p = chances(self.run.evidence.rows, surprise)
        rank = 1 + len(ordered) - np.searchsorted(ordered, surprise, side="right")
        names = [kind.name for _, kind, _ in _KINDS]
        is_said = rank <= MOST_SENTENCES
        told = [
            partial(kind.new_row_sentence, self, judged.told)
            for (_, kind, _), judged in zip(_KINDS, self.judged, strict=True)
        ]
        reasons = [
            (told[which](row) if which < len(told) else ORDINARY) if says else None
            for row, which, says in zip(range(some.start, some.stop), kind.tolist(), is_said.tolist(), strict=False)
        ]
        return {
            **{"rank": rank, "surprise": surprise, "p": p, "flagged": p <= flags_end},
            "evidence": pa.array([*names, "pair"]).take(pa.array(kind)),
            **{name: surprises[:, k].astype(np.float32) for k, name in enumerate(names)},
            "reason": pa.array(reasons, pa.string()),
        }

    def facts(self, row: Any) -> Mapping[str, Any]:
        """As `row_facts`, of a row of the sequence."""
        graph, currencies = self.run.graph, self.run.evidence.rows.currencies
        ends = {
            end: graph.external_id(int(row[end]))
            if row[end] < graph.num_nodes
            else self.ids[row[end] - graph.num_nodes]
            for end in ("payer", "payee")
        }
        currency = currencies[row["currency"]] if row["currency"] < len(currencies) else None
        return (
            ends
            | {"time": float(row["time"]), "steps": self.steps, "amount": float(np.exp(row["amount"]))}
            | {"currency": currency}
        )

    def keep(self) -> None:
        """Keeps the rows for tables that come later; those of the same table before are replaced."""
        folder, key, num_nodes = self.run.folder / FOLDER, self.run.keys["scores"], self.run.graph.num_nodes
        with files.file_lock(files.path_inside(self.run.folder, f"records/{FOLDER}.lock")):
            state = open_state(folder, key, num_nodes)
            others, number = state.of_others(self.key)
            ids, numbers = state.number(self.names, num_nodes)
            own = _renumbered(self.records, self.own_ends, numbers, number, num_nodes)[self.is_kept]
            if len(own):
                others = not_among(others[others["time"] >= own["time"].min() - REACH], own)
                own = own[own["time"] >= np.quantile(own["time"], 0.99) - REACH]  # one row may lie years ahead
            rows = np.concatenate([others, own])
            rows = rows[np.lexsort((rows["table"], rows["time"]))][-MOST_ROWS:]
            tables = state.tables if self.key in state.tables else [*state.tables, self.key]
            _write_state(folder, key, State(rows, ids, tables), num_nodes)


def _renumbered(records: Records, ends: tuple[Numbers, Numbers], numbers: Numbers, table: int, n: int) -> Records:
    """The records with ends that the run does not have by these numbers, and that of their table."""
    records = records.copy()
    every = np.concatenate([np.arange(n), numbers])
    records["payer"], records["payee"], records["table"] = every[ends[0]], every[ends[1]], table
    return records


def open_new_rows(run: Any, table: TableFiles, rows: EdgeRows, columns: Columns) -> NewRows | None:
    """The rows of a table, judged; None where the run keeps no rows. `rows` has numbered ids that the run has not."""
    if run.evidence.rows is None:
        return None
    about, own, num_nodes = run.graph.info["rows"], run.evidence.rows, run.graph.num_nodes
    read = columns_of_new(table, about, columns).read_all(about.get("seconds") or _SECONDS)
    time, amount, currency, category = read
    batches = list(rows.batches(ends_alone=True))
    ends = np.concatenate([left for _, left, _ in batches]), np.concatenate([right for _, _, right in batches])
    is_foreign = (currency >= len(own.currencies)) & (currency < 255) & (about["currency"] is not None)
    records, names = np.zeros(len(time), ROW), rows.new_ids()
    records["time"], records["currency"], records["category"] = time, currency, category
    records["amount"] = np.where(is_foreign, np.nan, log_amounts(amount))
    said = (*ends, *(read if about.get("category") else read[:3]))
    key = files.hash_value([names, *(files.hash_bytes(np.ascontiguousarray(each).tobytes()) for each in said)])
    state = open_state(run.folder / FOLDER, run.keys["scores"], num_nodes)
    kept, number = state.of_others(key)
    ids, numbers = state.number(names, num_nodes)
    records = _renumbered(records, ends, numbers, number, num_nodes)
    arrived = arrivals(own.rows, run.scale, kept, records, num_nodes + len(ids))
    judged = [judge(arrived) for _, _, judge in _KINDS]
    state_key = files.hash_value([state.ids, files.hash_bytes(np.ascontiguousarray(kept).tobytes())])
    return NewRows(run, key, state_key, records, amount, names, ends, ids, arrived.is_placed, judged)
