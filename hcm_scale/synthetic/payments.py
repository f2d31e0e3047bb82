"""A seeded table of payments with five planted schemes, for tests and the tutorial.

Accounts belong to branches and pay mostly within them, by day, in amounts of their own size. Planted are

    ring      8 accounts that pass large amounts round, one to the next, within the hour
    fan       5 accounts that 80 others pay small amounts to, and 5 that pay to 80 others
    round     5 accounts that pay 500, 1,000, 1,500, ... where others pay 212.37
    night     5 accounts that pay between 1 and 4 o'clock
    dormant   5 accounts that pay for two weeks, then not for months, then often in the last days

Beyond its scheme an account is like the others. Memory: about 100 bytes a payment.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SCHEMES = {"ring": 8, "fan": 10, "round": 5, "night": 5, "dormant": 5}
_DAYS = 180
_FIRST_DAY = np.datetime64("2024-01-01T00:00:00", "s")
_BRANCH_SIZE = 100
_KINDS = np.array(["card", "transfer", "bill", "cash"])


def payments(num_accounts: int = 5_000, seed: int = 0) -> tuple[pa.Table, dict[str, list[str]]]:
    """Columns payer, payee, amount, time and kind, by time; and the accounts of each scheme.

    >>> table, planted = payments(500)
    >>> table.column_names, len(planted["ring"])
    (['payer', 'payee', 'amount', 'time', 'kind'], 8)
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_accounts)
    chosen = np.split(order[: sum(SCHEMES.values())], np.cumsum([*SCHEMES.values()])[:-1])
    planted, honest = dict(zip(SCHEMES, chosen, strict=True)), order[sum(SCHEMES.values()) :]
    payer, payee = _pairs(rng, num_accounts)
    is_of = {scheme: np.isin(payer, nodes) for scheme, nodes in planted.items()}
    sizes = {scheme: int(np.count_nonzero(rows)) for scheme, rows in is_of.items()}
    amount = rng.lognormal(rng.normal(4.0, 0.5, num_accounts)[payer], 0.8).round(2)
    amount[is_of["round"]] = 500.0 * rng.integers(1, 7, sizes["round"])
    hour = np.where(rng.random(len(payer)) < 0.06, rng.uniform(0, 6, len(payer)), rng.normal(14, 3, len(payer)) % 24)
    hour[is_of["night"]] = rng.uniform(1, 4, sizes["night"])
    day = rng.integers(0, _DAYS, len(payer))
    woken = rng.random(sizes["dormant"]) < 0.6
    late, early = _DAYS - 1 - rng.integers(0, 4, len(woken)), rng.integers(0, 14, len(woken))
    day[is_of["dormant"]] = np.where(woken, late, early)
    is_asleep = np.isin(payee, planted["dormant"]) & (day >= 14) & (day < _DAYS - 4)
    rows = [np.stack([payer, payee, amount, day + hour / 24])[:, ~is_asleep], _ring(rng, planted["ring"])]
    for number, hub in enumerate(planted["fan"]):
        ends = rng.choice(honest, 80, replace=False), np.full(80, hub)
        time = rng.integers(0, _DAYS, 80) + rng.normal(14, 3, 80).clip(0, 23.9) / 24
        rows.append(np.stack([*(ends if number < 5 else ends[::-1]), rng.uniform(20, 60, 80).round(2), time]))
    payer, payee, amount, time = np.concatenate(rows, axis=1)
    mix = rng.dirichlet([4, 3, 2, 1], num_accounts).cumsum(axis=1)[payer.astype(np.int64)]
    kind = (rng.random(len(payer))[:, None] > mix[:, :3]).sum(axis=1)
    names = np.array([f"acc-{number:05}" for number in range(num_accounts)])
    columns = {"payer": names[payer.astype(np.int64)], "payee": names[payee.astype(np.int64)], "amount": amount}
    columns |= {"time": _FIRST_DAY + (86_400 * time).astype(np.int64), "kind": _KINDS[kind]}
    table = pa.table(columns).take(pa.array(np.argsort(time, kind="stable")))
    return table, {scheme: names[nodes].tolist() for scheme, nodes in planted.items()}


def _pairs(rng: np.random.Generator, num_accounts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Payer and payee of ordinary payments: 20 to 60 an account, to ten or so partners, nine of ten in its branch."""
    partners = rng.integers(0, num_accounts, (num_accounts, 10))
    start = np.arange(num_accounts)[:, None] // _BRANCH_SIZE * _BRANCH_SIZE
    near = np.minimum(start + rng.integers(0, _BRANCH_SIZE, partners.shape), num_accounts - 1)
    partners = np.where(rng.random(partners.shape) < 0.9, near, partners)
    payer = np.repeat(np.arange(num_accounts), 20 + rng.poisson(15, num_accounts))
    payee = partners[payer, rng.integers(0, 10, len(payer))]
    return payer[payer != payee], payee[payer != payee]


def _ring(rng: np.random.Generator, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Twelve rounds of a large amount, less a little at every step, a quarter of an hour each."""
    step = np.arange(len(nodes))
    amount = rng.uniform(4_000, 9_000, 12)[:, None] * 0.98**step
    time = rng.integers(1, _DAYS - 1, 12)[:, None] + 0.5 + step / 96
    ends = np.broadcast_to(nodes, amount.shape), np.broadcast_to(np.roll(nodes, -1), amount.shape)
    return np.stack([column.ravel().astype(np.float64) for column in (*ends, amount.round(2), time)])
