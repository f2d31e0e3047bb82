"""Small random tables of payments of every awkward shape, and half a year of ordinary ones to hide a scheme in."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from hcm_scale.base.threads import kernel_threads
from hcm_scale.rows.rows import DAY, HOUR, Rows

SHAPES = (
    "plain", "equal times", "days", "months", "missing", "two currencies", "to oneself", "without rows", "one account",
    "hub", "extreme", "two rows", "one row", "no rows",
)  # fmt: skip


def random_rows(shape: str, seed: int, *, shift: float = 0.0, scale: float = 1.0, shuffled: bool = False) -> Rows:
    """Rows of a few accounts, with amounts that often are 90 to 100 % of another."""
    rng = np.random.default_rng(seed)
    num_rows = {"no rows": 0, "one row": 1, "two rows": 2, "hub": 400}.get(shape, 250)
    num_accounts = 60 if shape == "without rows" else 12
    payer, payee = rng.integers(0, 12, (2, num_rows))
    time = rng.choice(np.arange(0, 40 * 86_400, 300), num_rows, replace=False)
    amount = np.where(rng.random(num_rows) < 0.5, rng.choice([50.0, 90.0, 95.0, 100.0], num_rows), 1.0)
    amount = np.where(amount == 1.0, rng.lognormal(4.0, 1.0, num_rows), amount)
    currency = np.zeros(num_rows, np.uint8)
    if shape == "equal times":
        time = rng.choice(time[:20], num_rows)
    elif shape in ("days", "months"):
        time = rng.integers(0, 90, num_rows) * (86_400 if shape == "days" else 30 * 86_400)
    elif shape == "missing":
        amount = rng.choice([1.0, 1.0, 1.0, 0.0, -1.0, np.nan, np.inf], num_rows) * np.where(
            amount == 50.0, 0.0, amount
        )
    elif shape == "two currencies":
        currency = rng.choice(np.array([3, 255], np.uint8), num_rows)
    elif shape == "to oneself":
        payee = np.where(rng.random(num_rows) < 0.4, payer, payee)
    elif shape in ("one account", "hub"):
        is_in = rng.random(num_rows) < 0.5
        payer, payee = np.where(is_in, payer, 0), np.where(is_in, 0, payee)
        time = time // (1 if shape == "one account" else 20)
    elif shape == "extreme":
        time = rng.choice([-62_135_596_800, 253_402_300_799], num_rows) - time
        amount = amount * rng.choice([1e300, 1e-300], num_rows)
    if shape not in ("to oneself", "hub", "one account"):
        payee = np.where(payee == payer, (payee + 1) % 12, payee)
    category = np.random.default_rng(seed).choice(np.array([0, 0, 0, 1, 1, 2, 7, 255], np.uint8), num_rows)
    category = np.where(np.arange(num_rows) < num_rows // 3, np.minimum(category, 1), category)
    order = rng.permutation(num_rows) if shuffled else np.arange(num_rows)
    columns = (each[order] for each in (payer, payee, time + shift, amount * scale, currency, category))
    return Rows.of(num_accounts, *columns)


@pytest.fixture(
    params=[(shape, seed) for shape in SHAPES for seed in range(2)], ids=lambda each: f"{each[0]} {each[1]}"
)
def rows(request) -> Rows:
    with np.errstate(invalid="ignore"):
        return random_rows(*request.param)


@pytest.fixture
def same_by_threads() -> Callable:
    """What a function of rows gives, which is the same bytes in one thread and in two, without a NaN."""

    def run(function, rows):
        results = []
        for threads in (1, 2):
            with kernel_threads(threads):
                results.append(function(rows))
        for one, two in zip(*results, strict=True):
            np.testing.assert_array_equal(one, two)
            assert np.isfinite(one).all()
        return results[0]

    return run


@pytest.fixture(params=["shuffled", "earlier", "later", "scaled"])
def disguised(request) -> tuple[Rows, Rows]:
    """A table with distinct times, and the same with its rows shuffled, its times shifted or its amounts scaled."""
    options = {"shuffled": {"shuffled": True}, "earlier": {"shift": -62e9 - 1}, "later": {"shift": 17e9 + 1}}
    return random_rows("plain", 5), random_rows("plain", 5, **options.get(request.param, {"scale": 977.3}))


class Life(NamedTuple):
    """Payments by plain columns; who is who."""

    num_accounts: int
    payer: np.ndarray
    payee: np.ndarray
    time: np.ndarray
    amount: np.ndarray
    persons: np.ndarray
    shops: np.ndarray
    employer: int
    landlord: int
    tenants: np.ndarray

    def rows(self, payer=(), payee=(), time=(), amount=()) -> tuple[Rows, np.ndarray]:
        """All rows, with these besides, and the numbers of these."""
        more = np.broadcast_arrays(payer, payee, time, amount)
        columns = [np.r_[own, new] for own, new in zip(self[1:5], more, strict=True)]
        columns[:2] = [each.astype(np.int64) for each in columns[:2]]
        order = np.argsort(columns[2], kind="stable")
        return Rows.of(self.num_accounts, *columns), np.argsort(order)[len(self.payer) :]

    def quiet(self, count: int) -> np.ndarray:
        """Persons who pay and are paid about as often as others."""
        num_rows = np.bincount(np.r_[self.payer, self.payee], minlength=self.num_accounts)[self.persons]
        return self.persons[np.argsort(np.abs(num_rows - np.median(num_rows)), kind="stable")[:count]]


@pytest.fixture(scope="session")
def life() -> Life:
    """Half a year: persons pay a few partners and shops, thrice as often at the month's end; salaries, and rents."""
    rng, months = np.random.default_rng(0), np.arange(6)
    persons, shops = np.arange(600), np.arange(600, 612)
    employer, landlord, tenants = 612, 613, persons[:60]
    level = rng.normal(4.0, 0.5, 614)
    partners = rng.integers(0, 600, (600, 8))
    busy = np.cumsum(np.where(np.arange(180) % 30 >= 27, 3.0, 1.0))

    def times(count):
        day = np.searchsorted(busy, rng.random(count) * busy[-1])
        return day * DAY + np.clip(rng.normal(13.0, 3.0, count), 0.0, 23.9) * HOUR

    payer = rng.choice(persons, 18_000)
    blocks = [(payer, partners[payer, rng.integers(0, 8, 18_000)], times(18_000), rng.normal(level[payer], 0.3))]
    payer = rng.choice(persons, 3_000)
    blocks.append((payer, rng.choice(shops, 3_000), times(3_000), rng.normal(3.0, 0.4, 3_000)))
    day = np.repeat(30 * months + 28, 100)
    salaries = rng.normal(7.6, 0.4, 100)[np.arange(600) % 100]
    blocks.append((employer, persons[np.arange(600) % 100 + 100], day * DAY + rng.uniform(9, 11, 600) * HOUR, salaries))
    day = np.repeat(30 * months + 1, 60)
    rents = rng.normal(6.8, 0.2, 60)[np.arange(360) % 60]
    blocks.append((np.tile(tenants, 6), landlord, day * DAY + rng.uniform(7, 12, 360) * HOUR, rents))
    payer, payee, time, amount = np.concatenate([np.broadcast_arrays(*block) for block in blocks], axis=1)
    apart = payer != payee
    ends = payer[apart].astype(np.int64), payee[apart].astype(np.int64)
    columns = *ends, time[apart], np.exp(amount[apart])
    return Life(614, *columns, persons, shops, employer, landlord, tenants)
