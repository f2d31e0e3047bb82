"""A made table of payments: accounts of very different size, and schemes whose amounts are ordinary one by one.

Ordinary life: persons pay a few partners of their neighbourhood and some shops, at their own level and spread of
amounts; a third of them has a salary at the month's end and pays rent at its beginning; employers and shops pay and are
paid; three markets pass 97 % of what they receive on within the day, honestly. Everybody pays less at weekends, more at
the end of a month, and by season.

| scheme    | what happens                                                                                    |
|-----------|-------------------------------------------------------------------------------------------------|
| round     | 5 to 8 accounts pass an amount round within two days, less 1 to 5 % a step                        |
| slow      | the same with 30 to 120 hours between steps                                                     |
| fan_in    | 12 to 24 accounts pay one within a day, which sends the sum on in two payments                    |
| fan_out   | one pays 12 to 24 others within a day                                                           |
| scatter   | one pays 7 to 11 others, each of whom pays the same last account within a day                     |
| pass      | 6 to 10 amounts over the months leave within five hours of their arrival, less 1 to 5 %           |
| limit     | 8 to 15 payments of 93 to 99.9 % of a round limit within two days                               |
| dormant   | silent for months, then 10 to 19 payments in a week                                             |
| partner   | 5 to 8 payments of twice the usual amount to partners never seen before, within 36 hours         |
| split     | a payment a day to one new payee for 10 to 17 days                                              |

No default was chosen by the following ones before they were measured (`payment_variants.py`).

| scheme    | what happens                                                                                    |
|-----------|-------------------------------------------------------------------------------------------------|
| any_round | 3 to 12 accounts pass an amount round, half an hour to two days a step, less 0 to 8 %             |
| equal_in  | 12 to 20 accounts pay one the same amount within a week                                         |
| mule      | 6 to 10 payments in within 12 hours, 90 to 98 % of the sum out within a day, in one to three      |
| smurf     | 10 to 14 payments of 90 to 99.9 % of a round limit in a week, to partners and strangers           |
| first     | a single payment of 20 to 50 times the usual amount to a new partner                            |
| twice     | 3 to 5 payments are there twice within a minute                                                 |
| refund    | 8 to 12 negative payments to a shop within two weeks                                            |
| night     | 4 to 6 payments between 2 and 5 in two nights, to new partners                                  |
| equal     | 5 to 8 equal payments to one payee within an hour                                               |
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY, HOUR = 86_400.0, 3_600.0
SCHEMES = ("round", "slow", "fan_in", "fan_out", "scatter", "pass", "limit", "dormant", "partner", "split")
MORE_SCHEMES = ("any_round", "equal_in", "mule", "smurf", "first", "twice", "refund", "night", "equal")
_NUM_OTHERS = 300, 120, 3  # shops, employers, markets
_NEIGHBOURHOOD, _NUM_PARTNERS = 100, 8
_COUNTS = {  # payments of a scheme: at least, below
    "fan_in": (12, 25),
    "fan_out": (12, 25),
    "scatter": (7, 12),
    "pass": (6, 11),
    "limit": (8, 16),
    "dormant": (10, 20),
    "partner": (5, 9),
    "split": (10, 18),
    "equal_in": (12, 21),
    "mule": (6, 11),
    "smurf": (10, 15),
    "first": (1, 2),
    "twice": (3, 6),
    "refund": (8, 13),
    "night": (4, 7),
    "equal": (5, 9),
}
Numbers = NDArray[np.float64]
Nodes = NDArray[np.int64]


@dataclass(frozen=True)
class Payments:
    """Rows by time: payer, payee, amount, time in seconds, and the number of the scheme that a row is of, 0 for none.

    `members` are the accounts of each kind of scheme, `schemes` (kind, members) of each scheme in turn.
    """

    num_accounts: int
    payer: Nodes
    payee: Nodes
    amount: Numbers
    time: Numbers
    scheme: Nodes
    members: dict[str, Nodes]
    schemes: list[tuple[str, Nodes]]
    currency: NDArray[np.uint8] | None = None
    category: NDArray[np.uint8] | None = None


class _Rows:
    """Rows collected so far, a block for each call."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.float64]] = []

    def add(self, payer: Nodes, payee: Nodes, amount: Numbers | float, time: Numbers | float, scheme: int = 0) -> None:
        block = np.broadcast_arrays(payer, payee, amount, time, scheme)
        self.blocks.append(np.stack([part.astype(np.float64) for part in block]))

    def joined(self) -> NDArray[np.float64]:
        return np.concatenate(self.blocks, axis=1)


class _Life:
    """What decides ordinary payments: who pays whom, how much and when."""

    def __init__(
        self, rng: np.random.Generator, num_persons: int, num_days: int, num_others: tuple[int, int, int] = _NUM_OTHERS
    ) -> None:
        self.rng, self.num_persons, self.num_days = rng, num_persons, num_days
        self.person = np.arange(num_persons)
        self.num_sellers = num_persons // 60  # the first persons sell on the markets, and take part in no scheme
        others = np.cumsum([num_persons, *num_others])
        self.shop, self.employer, self.market = (np.arange(a, b) for a, b in itertools.pairwise(others))
        self.num_accounts = int(others[-1])
        self.level = rng.normal(4.0, 1.2, self.num_accounts)
        self.spread = rng.uniform(0.3, 1.0, self.num_accounts)
        shape = num_persons, _NUM_PARTNERS
        start = self.person[:, None] // _NEIGHBOURHOOD * _NEIGHBOURHOOD
        near = (start + rng.integers(0, _NEIGHBOURHOOD, shape)) % num_persons
        self.partners = np.where(rng.random(shape) < 0.9, near, rng.integers(0, num_persons, shape))
        day = np.arange(num_days)
        busy = np.where(day % 7 >= 5, 0.6, 1.1) * np.where(day % 30 >= 27, 1.8, 1.0)
        self._days = np.cumsum(busy * (1.0 + 0.5 * np.sin(2.0 * np.pi * day / num_days)))

    def times(self, count: int, hour: float = 13.0, spread: float = 3.5) -> Numbers:
        day = np.searchsorted(self._days, self.rng.random(count) * self._days[-1])
        return day * DAY + np.clip(self.rng.normal(hour, spread, count), 0.0, 23.99) * HOUR

    def usual(self, account: Nodes) -> Numbers:
        """Amounts that these accounts often pay."""
        return np.exp(self.rng.normal(self.level[account], 0.5 * self.spread[account]))

    def strangers(self, count: int) -> Nodes:
        return self.rng.choice(self.person, count, replace=False)

    def fill(self, rows: _Rows) -> None:
        """All ordinary payments."""
        rng, person, num_days = self.rng, self.person, self.num_days
        rate = rng.lognormal(np.log(0.035), 0.8, self.num_persons)
        payer = np.repeat(person, rng.poisson(rate * num_days))
        payee = self.partners[payer, np.minimum(rng.exponential(2.0, len(payer)).astype(int), _NUM_PARTNERS - 1)]
        rows.add(payer, payee, np.exp(rng.normal(self.level[payer], self.spread[payer])), self.times(len(payer)))
        payer = np.repeat(person, rng.poisson(rng.lognormal(np.log(0.02), 0.7, self.num_persons) * num_days))
        popular = rng.pareto(1.2, len(self.shop)) + 0.2
        own = rng.choice(self.shop, (self.num_persons, 5), p=popular / popular.sum())
        ticket = rng.normal(3.3, 0.8, len(payer)) + 0.2 * (self.level[payer] - 4.0)
        rows.add(payer, own[payer, rng.integers(0, 5, len(payer))], np.exp(ticket), self.times(len(payer), 15.0, 4.0))
        self._monthly(rows)
        payer = np.repeat(self.shop, rng.poisson(20, len(self.shop)))
        rows.add(payer, rng.choice(person, len(payer)), rng.lognormal(6.0, 0.7, len(payer)), self.times(len(payer)))
        payee = np.repeat(self.employer, rng.poisson(30, len(self.employer)))
        rows.add(rng.choice(person, len(payee)), payee, rng.lognormal(6.5, 0.8, len(payee)), self.times(len(payee)))
        for market in self.market:
            amount, time = rng.lognormal(4.0, 0.8, 400), self.times(400)
            rows.add(rng.choice(person, 400), market, amount, time)
            rows.add(
                market,
                rng.choice(person[: self.num_sellers], 400),
                0.97 * amount,
                time + rng.uniform(2, 20, 400) * HOUR,
            )

    def _monthly(self, rows: _Rows) -> None:
        rng, person = self.rng, self.person
        size = rng.pareto(1.5, len(self.employer)) + 0.1
        employer = rng.choice(len(self.employer), self.num_persons, p=size / size.sum())
        salary, works = rng.lognormal(7.6, 0.4, self.num_persons), person[rng.random(self.num_persons) < 0.35]
        tenants = works[works % 3 == 0]
        for month in range(self.num_days // 30):
            day = 30 * month + 27 + rng.integers(0, 3, len(self.employer))[employer[works]]
            amount = salary[works] * np.exp(rng.normal(0.0, 0.02, len(works)))
            rows.add(self.employer[employer[works]], works, amount, day * DAY + rng.normal(10, 0.5, len(works)) * HOUR)
            time = (30 * month + 1) * DAY + rng.normal(9, 2, len(tenants)) * HOUR
            rows.add(tenants, self.partners[tenants, -1], 0.3 * salary[tenants], time)


def _plant(life: _Life, rows: _Rows, kind: str, number: int, free: list[int]) -> Nodes:
    """Adds the rows of one scheme; returns its members, who are taken from `free`."""
    rng = life.rng
    start = (rng.integers(20, life.num_days - 25) + rng.uniform(0.33, 0.58)) * DAY

    def take(count: int) -> Nodes:
        return np.array([free.pop() for _ in range(count)])

    if kind in ("round", "slow"):
        who = take(rng.integers(5, 9))
        pauses = rng.uniform(*((0.5, 8.0) if kind == "round" else (30.0, 120.0)), len(who))
        amount = life.usual(who[:1]) * np.cumprod(1.0 - rng.uniform(0.01, 0.05, len(who)))
        rows.add(who, np.roll(who, -1), amount, start + np.cumsum(pauses) * HOUR, number)
        return who
    who = take(2 if kind == "scatter" else 1)
    count = int(rng.integers(*_COUNTS[kind]))
    amount, others = life.usual(np.full(count, who[0])), life.strangers(count)
    if kind == "fan_in":
        time = start + rng.uniform(0, 24, count) * HOUR
        rows.add(others, who[0], amount, time, number)
        sent = time.max() + rng.uniform(2, 20, 2) * HOUR
        rows.add(who[0], life.strangers(2), amount.sum() * np.array([0.55, 0.42]), sent, number)
    elif kind == "fan_out":
        rows.add(who[0], others, amount, start + rng.uniform(0, 24, count) * HOUR, number)
    elif kind == "scatter":
        time = start + rng.uniform(0, 12, count) * HOUR
        rows.add(who[0], others, amount, time, number)
        rows.add(
            others, who[1], amount * rng.uniform(0.95, 0.99, count), time + rng.uniform(3, 24, count) * HOUR, number
        )
    elif kind == "pass":
        time = rng.uniform(5, life.num_days - 5, count) * DAY
        rows.add(others, who[0], amount, time, number)
        left = time + rng.uniform(0.3, 5, count) * HOUR
        rows.add(who[0], life.strangers(count), amount * rng.uniform(0.95, 0.99, count), left, number)
    elif kind == "limit":
        limit = 10.0 ** np.ceil(life.level[who[0]] / np.log(10.0))
        payee = rng.choice(life.partners[who[0]], count)
        rows.add(
            who[0], payee, limit * rng.uniform(0.93, 0.999, count), start + rng.uniform(0, 48, count) * HOUR, number
        )
    elif kind == "dormant":
        start = rng.integers(life.num_days // 2, life.num_days - 10) * DAY
        payee = rng.choice(life.partners[who[0]], count)
        rows.add(who[0], payee, amount, start + rng.uniform(0, 7, count) * DAY, number)
    elif kind == "partner":
        rows.add(who[0], others, 2.0 * amount, start + rng.uniform(0, 36, count) * HOUR, number)
    elif kind == "split":
        days = np.arange(count) + rng.uniform(-0.2, 0.2, count)
        rows.add(who[0], others[:1], 3.0 * amount[0] * rng.uniform(0.9, 1.1, count), start + days * DAY, number)
    return who


def _plant_more(life: _Life, rows: _Rows, kind: str, number: int, free: list[int]) -> Nodes:
    """As `_plant`, of `MORE_SCHEMES`."""
    rng = life.rng
    start = (rng.integers(life.num_days // 4, life.num_days - 8) + rng.uniform(0.33, 0.58)) * DAY
    who = np.array([free.pop() for _ in range(rng.integers(3, 13) if kind == "any_round" else 1)])
    count = int(rng.integers(*_COUNTS.get(kind, (2, 3))))
    amount, others = life.usual(np.full(count, who[0])), life.strangers(count)
    if kind == "any_round":
        amount = life.usual(who[:1]) * np.cumprod(1.0 - rng.uniform(0.0, 0.08, len(who)))
        rows.add(who, np.roll(who, -1), amount, start + np.cumsum(rng.uniform(0.5, 48.0, len(who))) * HOUR, number)
    elif kind == "equal_in":
        rows.add(others, who[0], amount[0], start + rng.uniform(0, 7, count) * DAY, number)
    elif kind == "mule":
        rows.add(others, who[0], amount, start + rng.uniform(0, 12, count) * HOUR, number)
        parts = rng.dirichlet(np.full(rng.integers(1, 4), 5.0)) * rng.uniform(0.9, 0.98) * amount.sum()
        sent = start + rng.uniform(13, 36, len(parts)) * HOUR
        rows.add(who[0], life.strangers(len(parts)), parts, sent, number)
    elif kind == "smurf":
        limit = 10.0 ** np.ceil(life.level[who[0]] / np.log(10.0))
        payee = np.where(rng.random(count) < 0.5, rng.choice(life.partners[who[0]], count), others)
        rows.add(who[0], payee, limit * rng.uniform(0.9, 0.999, count), start + rng.uniform(0, 7, count) * DAY, number)
    elif kind == "first":
        rows.add(who[0], others, amount * rng.uniform(20.0, 50.0), start, number)
    elif kind == "twice":
        time = rng.uniform(5, life.num_days - 5, count) * DAY
        payee = rng.choice(life.partners[who[0]], count)
        for again in (0.0, rng.uniform(1, 60, count)):
            rows.add(who[0], payee, amount, time + again, number)
    elif kind == "refund":
        time = start + rng.uniform(0, 14, count) * DAY
        rows.add(who[0], rng.choice(life.shop), -amount, np.minimum(time, life.num_days * DAY), number)
    elif kind == "night":
        time = np.floor(start / DAY) * DAY + rng.integers(0, 2, count) * DAY + rng.uniform(2, 5, count) * HOUR
        rows.add(who[0], others, amount, time, number)
    elif kind == "equal":
        rows.add(who[0], others[0], amount[0], start + rng.uniform(0, 1, count) * HOUR, number)
    return who


def payments(
    seed: int = 0,
    *,
    num_persons: int = 12_000,
    num_days: int = 180,
    per_kind: int = 6,
    num_others: tuple[int, int, int] = _NUM_OTHERS,
    kinds: tuple[str, ...] = SCHEMES,
) -> Payments:
    """A table of payments with `per_kind` schemes of each kind; 0 for a clean one. `num_others` as in `_Life`.

    >>> table = payments(num_persons=1_000, per_kind=1)
    >>> sorted(table.members) == sorted(SCHEMES), bool((np.diff(table.time) >= 0).all())
    (True, True)
    """
    rng = np.random.default_rng(seed)
    life, rows = _Life(rng, num_persons, num_days, num_others), _Rows()
    life.fill(rows)
    ordinary = rows.joined()
    num_rows = np.bincount(ordinary[:2].astype(np.int64).ravel(), minlength=life.num_accounts)[:num_persons]
    free = rng.permutation(np.flatnonzero((num_rows >= 8) & (life.person >= life.num_sellers))).tolist()
    planted, schemes = _Rows(), list[tuple[str, Nodes]]()
    for kind in kinds:
        plant = _plant if kind in SCHEMES else _plant_more
        for _ in range(per_kind):
            schemes.append((kind, plant(life, planted, kind, len(schemes) + 1, free)))
    members = (
        {kind: np.concatenate([who for each, who in schemes if each == kind]) for kind in kinds} if schemes else {}
    )
    if schemes:
        asleep = np.isin(ordinary[:2], members.get("dormant", [])).any(axis=0) & (ordinary[3] > 20 * DAY)
        ordinary = np.concatenate([ordinary[:, ~asleep], planted.joined()], axis=1)
    ordinary = ordinary[:, ordinary[0] != ordinary[1]]
    payer, payee, amount, time, scheme = ordinary[:, np.argsort(ordinary[3], kind="stable")]
    ends = payer.astype(np.int64), payee.astype(np.int64)
    return Payments(life.num_accounts, *ends, amount.round(2) + 0.01, time, scheme.astype(np.int64), members, schemes)
