"""Payments: what the four kinds of evidence about rows cost, and whom they find beside other ways.

Cost: a table of random payments, one account with a tenth of all rows, through each kind by itself, in rows a second.
The peer is scikit-learn's Isolation Forest on ten aggregates of each account, made by numpy from the same rows.

Accuracy: `bench/accuracy/payment_world.py`, two seeds, and AMLSim's cycles where they are. Accounts: the share of each
scheme's accounts in the first 2 %, and average precision; rows: how many of the first 1,000 are of a scheme. Ours are
the row kinds as a run weighs them, without the graph's own. Peers on accounts, the aggregates: Isolation Forest, LOF,
degree, and with the graph PyGOD's GAE and, on a GPU, DOMINANT. Peers on rows: Isolation Forest on log amount, amount
over the payer's median, hour and payer's rows; MIDAS (Bhatia et al. 2020), re-made from its paper with exact counts in
place of sketches, per hour; F-FADE (Chang et al. 2021) after what it says of itself, its paper's settings not at hand:
how often a pair is seen, fading over a week, is exponential with the product of factors of both ends as its mean, which
are learnt as rows come. The worlds of `payment_variants.py` are one table: whether what was chosen on the first
world holds elsewhere.
"""

import importlib.util
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from bench.accuracy.payment_variants import WORLDS
from bench.accuracy.payment_world import Payments, payments
from bench.harness import Table, at_least, at_most
from bench.pygod_batches import whole_graphs
from hcm_scale.rows.evidence import MadeEvidence, RowEvidence
from hcm_scale.rows.rows import Rows
from hcm_scale.score.evidence import KindNumbers, WeightedEvidence, weigh_evidence
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.score.threshold import judge

NUM_ROWS = {"smoke": 3_000, "quick": 1_000_000, "full": 10_000_000}
AMLSIM = Path("../shared/data/amlsim_cycle200/payments.csv")
_DAY = 86_400.0
Scores = dict[str, NDArray[np.float64]]


def random_rows(count: int) -> Rows:
    """Random payments over half a year among a twelfth as many accounts; one account has a tenth of all rows."""
    rng, accounts = np.random.default_rng(0), count // 12
    payer, payee = rng.integers(0, accounts, (2, count)).astype(np.int32)
    payee[rng.random(count) < 0.1] = 0
    return Rows.of(accounts, payer, payee, np.sort(rng.uniform(0, 180 * _DAY, count)), rng.lognormal(3, 1, count))


def aggregates(rows: Rows) -> NDArray[np.float64]:
    """Count, sum, mean, least, largest and spread of log amounts, first and last time, as payer and payee, (n, 16)."""
    out = []
    for ends in (rows.payer, rows.payee):
        n = rows.num_accounts
        count = np.bincount(ends, minlength=n)
        total = np.bincount(ends, rows.amount, n)
        mean = total / np.maximum(count, 1)
        spread = np.sqrt(np.bincount(ends, (rows.amount - mean[ends]) ** 2, n) / np.maximum(count, 1))
        least, most, first, last = np.full(n, 99.0), np.full(n, -99.0), np.full(n, rows.time[-1]), np.zeros(n)
        np.minimum.at(least, ends, rows.amount)
        np.maximum.at(most, ends, rows.amount)
        np.minimum.at(first, ends, rows.time)
        np.maximum.at(last, ends, rows.time)
        out += [np.log1p(count), total, mean, least, most, spread, first, last]
    return np.stack(out, axis=1)


def isolation(x: NDArray[np.float64]) -> NDArray[np.float64]:
    from sklearn.ensemble import IsolationForest

    return np.asarray(-IsolationForest(random_state=0, n_jobs=-1).fit(x).score_samples(x))


def ours(rows: Rows) -> tuple[WeightedEvidence, NDArray[np.float64]]:
    """What the four kinds say of every account, as a run weighs them, and of every row."""
    made = MadeEvidence(rows)
    inputs: Any = SimpleNamespace(rows=made, scale={}, measured=lambda make, *names: make())
    numbers = [kind.numbers(inputs)[0] for kind in ROW_KINDS]
    accounts = weigh_evidence(KindNumbers(dict(zip(ROW_KINDS, numbers, strict=True)), np.ones(rows.num_accounts, bool)))
    names = tuple(kind.name for kind in ROW_KINDS)
    kept = RowEvidence(rows, names, made.surprises(ROW_KINDS), {}, {}, np.zeros(0), np.zeros(0, np.int64))
    return accounts, kept.surprise


def pygod(rows: Rows, x: NDArray[np.float64]) -> Scores:
    """PyGOD's GAE and DOMINANT at their defaults, on the graph of who paid whom with the aggregates of accounts."""
    if importlib.util.find_spec("pygod") is None:
        return {}
    import pygod.detector
    import torch
    from torch_geometric.data import Data

    pairs = np.unique(np.stack([rows.payer, rows.payee]).astype(np.int64), axis=1)
    edges = torch.from_numpy(np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1))
    data, has_gpu = Data(x=torch.from_numpy(x.astype(np.float32)), edge_index=edges), torch.cuda.is_available()
    out: Scores = {}
    for name in ("GAE", "DOMINANT") if has_gpu else ("GAE",):  # a dense matrix of all pairs, minutes on two cores
        torch.manual_seed(0)
        with whole_graphs("cuda" if has_gpu else "cpu"):
            detector = getattr(pygod.detector, name)(gpu=0 if has_gpu else -1, verbose=0).fit(data)
        out[f"{name} (PyGOD)"] = detector.decision_score_.numpy().astype(np.float64)
    return out


def midas(rows: Rows) -> NDArray[np.float64]:
    """MIDAS: chi-squared of a pair's rows in this hour against its mean so far, of every row."""
    total, current, out = Counter[tuple[int, int]](), defaultdict[tuple[int, int], int](int), np.zeros(len(rows))
    ticks, before = (rows.time // 3_600).astype(np.int64), -1
    for row, (tick, payer, payee) in enumerate(zip(ticks, rows.payer.tolist(), rows.payee.tolist(), strict=True)):
        if tick != before:
            current.clear()
            before = tick
        pair = payer, payee
        current[pair] += 1
        total[pair] += 1
        age, now, s = max(1, int(tick - ticks[0]) + 1), current[pair], total[pair]
        out[row] = 0.0 if age == 1 else (now - s / age) ** 2 * age**2 / (s * (age - 1))
    return out


def fade(rows: Rows) -> NDArray[np.float64]:
    """F-FADE: -log likelihood of how often the pair of every row was seen of late."""
    rng, n = np.random.default_rng(0), rows.num_accounts
    pair = np.unique(rows.payer.astype(np.int64) * n + rows.payee, return_inverse=True)[1]
    factors, others, out = rng.normal(0.0, 0.3, (2, n, 16)), rng.integers(0, n, len(rows)), np.zeros(len(rows))
    _fade((rows.payer, rows.payee, pair, rows.time), others, *factors, np.zeros((2, pair.max() + 1)), out)
    return out


@numba.njit  # type: ignore[untyped-decorator]
def _fade(rows: Any, others: Any, left: Any, right: Any, state: Any, out: Any) -> None:
    """Fills scores in turn; after each row the factors of its pair learn, and those of a pair that was hardly seen."""
    (payer, payee, pairs, time), (often, last) = rows, state
    for row in range(len(out)):
        pair = pairs[row]
        often[pair] = 1.0 + often[pair] * math.exp((last[pair] - time[row]) / (7.0 * 86_400.0))
        last[pair] = time[row]
        out[row] = _learn(left[payer[row]], right[payee[row]], often[pair])
        _learn(left[payer[row]], right[others[row]], 0.02)


@numba.njit  # type: ignore[untyped-decorator]
def _learn(u: Any, v: Any, often: float) -> float:
    """-log likelihood of a frequency before the step of 0.05 along its gradient."""
    z = 0.0
    for k in range(len(u)):
        z += u[k] * v[k]
    mean = math.log1p(math.exp(min(z, 30.0))) + 1e-3
    slope = max(-1.0, min(1.0, (1.0 / mean - often / mean**2) / (1.0 + math.exp(-z))))
    for k in range(len(u)):
        u[k], v[k] = u[k] - 0.05 * slope * v[k], v[k] - 0.05 * slope * u[k]
    return often / mean + math.log(mean)


def by_rows(rows: Rows) -> NDArray[np.float64]:
    medians = np.array(
        [np.median(rows.amount[own]) if len(own := rows.out.of(v)) else 0.0 for v in range(rows.num_accounts)]
    )
    hour, busy = rows.time % _DAY, np.log1p(np.diff(rows.out.indptr))
    return np.stack([rows.amount, rows.amount - medians[rows.payer], hour, busy[rows.payer]], axis=1)


def accuracy(name: str, rows: Rows, is_bad: Any, of_scheme: Any, schemes: dict[str, Any]) -> Table:
    """One table: a row a way."""
    from sklearn.metrics import average_precision_score
    from sklearn.neighbors import LocalOutlierFactor
    from sklearn.preprocessing import StandardScaler

    x = StandardScaler().fit_transform(aggregates(rows))
    accounts, of_rows = ours(rows)
    degree = np.asarray(rows.num_rows, np.float64)
    ways: dict[str, tuple[Any, Any]] = {
        "hcm_scale, kinds of rows": (accounts.score, of_rows),
        "Isolation Forest": (isolation(x), isolation(by_rows(rows))),
        "LOF": (-LocalOutlierFactor(35).fit(x).negative_outlier_factor_, None),
        "degree": (degree, None),
        "MIDAS": (None, midas(rows)),
        "F-FADE": (None, fade(rows)),
    } | {name: (scores, None) for name, scores in pygod(rows, x).items()}
    table = []
    for way, (of_accounts, each_row) in ways.items():
        row: dict[str, Any] = {"way": way}
        if of_accounts is not None:
            first = np.argsort(-of_accounts, kind="stable")[: len(of_accounts) // 50]
            row["average_precision"] = float(average_precision_score(is_bad, of_accounts))
            row |= {kind: float(np.isin(members, first).mean()) for kind, members in schemes.items()}
        else:
            row |= dict.fromkeys(["average_precision", *schemes], float("nan"))
        hit = None if each_row is None else of_scheme[np.argsort(-each_row, kind="stable")[:1_000]].mean()
        table.append(row | {"rows_of_schemes_in_first_1000": float("nan") if hit is None else float(hit)})
    best = max(row["average_precision"] for row in table[1:] if row["average_precision"] == row["average_precision"])
    claims = [
        at_least(f"{name}: average precision beside the best peer's", table[0]["average_precision"] / best, 1.5, "x")
    ]
    return Table(name, table, claims)


def by_time(world: Payments) -> Rows:
    ends, codes = (world.payer, world.payee), (world.currency, world.category)
    return Rows.of(world.num_accounts, *ends, world.time, world.amount, *codes)


def other_worlds() -> Table:
    """One row a world: of its schemes' accounts by kind, of flags, and of as many rows as belong to schemes."""
    from sklearn.metrics import average_precision_score

    table = []
    for name, make in WORLDS.items():
        world = make(0)
        rows, bad = by_time(world), world.scheme > 0
        accounts, of_rows = ours(rows)
        is_member, is_touched = np.zeros((2, world.num_accounts), bool)
        is_member[np.concatenate(list(world.members.values()))] = True
        is_touched[np.concatenate([world.payer[bad], world.payee[bad]])] = True
        flagged = judge(accounts.sums, 0.1).flagged
        size = max(world.num_accounts // 50, 2 * int(is_member.sum()))
        first = np.argsort(-accounts.score, kind="stable")[:size]
        missed = {kind: found for kind, own in world.members.items() if (found := np.isin(own, first).mean()) < 1.0}
        hit = bad[np.argsort(-of_rows, kind="stable")[: bad.sum()]].mean()
        table.append(
            {"world": name, "average_precision": float(average_precision_score(is_member, accounts.score))}
            | {"flags": int(flagged.sum()), "right": int((flagged & is_touched).sum()), "rows_of_schemes": float(hit)}
            | {"not_all_in_first": ", ".join(f"{kind} {found:.2f}" for kind, found in missed.items())}
        )
    return Table("other worlds of payments, seed 0", table, [])


def cases(size: str) -> Iterator[Table]:
    """Cost, then accuracy."""
    rows = random_rows(NUM_ROWS[size])
    made = MadeEvidence(random_rows(3_000))
    made.surprises(ROW_KINDS)  # compiled
    made, seconds = MadeEvidence(rows), dict[str, float]()
    ways: dict[str, Callable[[], Any]] = {
        **{kind.name.replace("_", " "): partial(kind.of_rows, made) for kind in ROW_KINDS if kind.of_rows},
        "aggregates and Isolation Forest (peer)": lambda: isolation(aggregates(rows)),
    }
    for name, work in ways.items():
        started = time.perf_counter()
        work()
        seconds[name] = time.perf_counter() - started
    table = [{"kind": name, "seconds": each, "rows_a_second": len(rows) / each} for name, each in seconds.items()]
    ours_seconds = sum(list(seconds.values())[:4])
    claims = [at_most("ten million rows through all four", ours_seconds * 1e7 / len(rows), 60, "seconds")]
    yield Table(f"{len(rows):,} rows of {rows.num_accounts:,} accounts, one with a tenth of them", table, claims)
    for seed in (0, 1) if size != "smoke" else (0,):
        world = payments(seed)
        is_bad = np.zeros(world.num_accounts, bool)
        is_bad[np.concatenate(list(world.members.values()))] = True
        yield accuracy(f"world of payments, seed {seed}", by_time(world), is_bad, world.scheme > 0, world.members)
    if size != "smoke":
        yield other_worlds()
    if AMLSIM.is_file() and size != "smoke":
        data = np.loadtxt(AMLSIM, delimiter=",", skiprows=1)
        labels = np.loadtxt(AMLSIM.with_name("labels.csv"), delimiter=",", skiprows=1)
        is_bad = np.zeros(int(data[:, :2].max()) + 1, bool)
        is_bad[labels[labels[:, 1] == 1, 0].astype(int)] = True
        order = np.argsort(data[:, 3], kind="stable")
        ends = data[:, :2].astype(np.int32)
        kept = Rows.of(len(is_bad), ends[:, 0], ends[:, 1], data[:, 3] * _DAY, data[:, 2])
        yield accuracy("AMLSim, 200 cycles", kept, is_bad, (data[:, 2] < 60)[order], {"cycle": np.flatnonzero(is_bad)})
