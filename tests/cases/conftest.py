"""A finished run of half a year of payments with a ring and a collector among them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.config import TablesGraph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from tests.helpers import small_config

DAY, HOUR = 86_400.0, 3_600.0
TAKER = "off"
RING = [f"r{k}" for k in range(6)]
COLLECTOR, PAYERS = "c", [f"p{k}" for k in range(14)]


def payments(seed: int = 3, *, ring: bool = True, more: int = 0) -> pa.Table:
    """Payments among 250 accounts; six pass an amount round within a day, and one collects from fourteen on another.

    What was collected goes on to one account 23 minutes after the last, in two payments.
    """
    rng, names = np.random.default_rng(seed), np.array([f"a{k}" for k in range(230)] + RING + PAYERS)
    payer = rng.integers(0, len(names), 6000)
    payee = (payer + rng.integers(1, 12, 6000)) % len(names)
    rows = [(names[payer], names[payee], rng.uniform(0, 180 * DAY, 6000), rng.lognormal(3.0 + payer % 3, 0.3))]
    collected = 100 * DAY + np.sort(rng.uniform(0, 20 * HOUR, 14))
    amounts = rng.lognormal(4.0, 0.3, 14)
    rows += [(np.array(PAYERS), np.full(14, COLLECTOR), collected, amounts)]
    sent = np.array([0.55, 0.4]) * amounts.sum()
    rows += [(np.full(2, COLLECTOR), np.full(2, TAKER), collected[-1] + np.array([1380.0, 1500.0]), sent)]
    if ring:
        who = np.array(RING + [f"s{k}" for k in range(more)])
        times, amounts = 90 * DAY + 3 * HOUR * np.arange(len(who)), 300 * 0.97 ** np.arange(len(who))
        rows += [(who, np.roll(who, -1), times, amounts)]
    source, target, time, amount = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    when = pa.array((1_700_000_000_000 + time * 1e3).astype(np.int64), pa.timestamp("ms"))
    return pa.table(
        {"payer": source, "payee": target, "time": when, "amount": amount.round(2), "currency": ["EUR"] * len(time)}
    )


def run_of(folder: Path, table: pa.Table, **options: object) -> FinishedRun:
    pq.write_table(table, folder.with_suffix(".parquet"))
    config = small_config(folder, **options)
    ends = {"source_column": "payer", "target_column": "payee"}
    config.graph = TablesGraph(path=str(folder.with_suffix(".parquet")), edge_attributes="auto", **ends)
    pipeline.run(config)
    return FinishedRun(folder)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_of(tmp_path_factory.mktemp("cases") / "run", payments())
