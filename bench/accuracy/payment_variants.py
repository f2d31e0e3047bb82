"""Made tables of payments with other proportions than `payment_world`: what was chosen there has to hold here.

| world      | what differs                                                                                    |
|------------|-------------------------------------------------------------------------------------------------|
| more       | the other schemes of `payment_world`                                                            |
| small      | 500 persons                                                                                     |
| short      | 60 days                                                                                         |
| long       | two years                                                                                       |
| hours      | times are whole hours                                                                           |
| days       | times are dates                                                                                 |
| calls      | no amounts                                                                                      |
| currencies | three currencies, by neighbourhood; a tenth of the rows is in another                           |
| cards      | 3,000 customers pay 250 merchants: weekly shops, subscriptions, some refunds and repeated rows   |
| logins     | 2,000 users log in to 300 hosts in office hours, robots at all; no amounts                      |
| categories | 14 sorts of payments, each account has its own; some turn to one, or several, that they never had |
| firms      | 1,200 firms pay monthly invoices of some suppliers, and salaries, in batches                    |

Of cards a `stolen` one pays two or three tiny amounts and then two to four large ones, at new merchants within four
hours; a `terminal` charges 20 to 40 customers about the same within a day; a `busy` one has 15 payments within five
days. Of logins `spray` is one user at 30 to 60 hosts within an hour, `lateral` one at 8 to 12 new hosts in two nights,
`guess` 40 rows of one pair within ten minutes. Of firms an `invoice` of an old supplier goes to a new account thrice.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bench.accuracy.payment_world import DAY, HOUR, MORE_SCHEMES, Nodes, Numbers, Payments, _Rows, payments

_FACTORS = np.array([1.0, 0.85, 150.0])  # of amounts in a currency


def _table(rows: _Rows, num_accounts: int, schemes: list[tuple[str, Nodes]]) -> Payments:
    joined = rows.joined()
    payer, payee, amount, time, scheme = joined[:, np.argsort(joined[3], kind="stable")]
    members = {kind: np.concatenate([who for each, who in schemes if each == kind]) for kind, _ in schemes}
    ends = payer.astype(np.int64), payee.astype(np.int64)
    return Payments(num_accounts, *ends, amount, time, scheme.astype(np.int64), members, schemes)


def _floored(step: float) -> Callable[[int], Payments]:
    def make(seed: int) -> Payments:
        world = payments(seed, num_persons=4_000, per_kind=3, num_others=(100, 40, 2))
        return replace(world, time=np.floor(world.time / step) * step)

    return make


def calls(seed: int) -> Payments:
    world = payments(seed, num_persons=4_000, per_kind=3, num_others=(100, 40, 2))
    return replace(world, amount=np.full(len(world.time), np.nan))


def currencies(seed: int) -> Payments:
    world = payments(seed, num_persons=4_000, per_kind=3, num_others=(100, 40, 2))
    rng = np.random.default_rng(seed)
    code = world.payer // 1_500 % 3
    code = np.where((world.scheme == 0) & (rng.random(len(code)) < 0.1), rng.integers(0, 3, len(code)), code)
    first = {number: code[np.flatnonzero(world.scheme == number)[0]] for number in range(1, len(world.schemes) + 1)}
    code = np.array([first.get(number, own) for number, own in zip(world.scheme.tolist(), code, strict=True)])
    return replace(world, amount=world.amount * _FACTORS[code], currency=code.astype(np.uint8))


def categories(seed: int, per_kind: int = 6) -> Payments:
    """The kinds of schemes are how common the category is that 4, 7 or 12 payments in turn have, or that it is several.

    >>> world = categories(0, 1)
    >>> sorted(world.members)[:3], len(world.schemes)
    (['common12', 'common4', 'common7'], 9)
    """
    num_persons = 4_000
    world = payments(seed, num_persons=num_persons, per_kind=0, num_others=(100, 40, 2))
    rng, num, share = np.random.default_rng(seed + 77), world.num_accounts, 1.0 / np.arange(1, 15)
    share /= share.sum()
    own = np.cumsum(rng.dirichlet(4.0 * share, num), axis=1)
    category = (rng.random(len(world.payer))[:, None] > own[world.payer]).sum(axis=1).clip(0, 13)
    to_shops, is_salary = (
        (end >= low) & (end < high)
        for end, low, high in (
            (world.payee, num_persons, num_persons + 100),
            (world.payer, num_persons + 100, num_persons + 140),
        )
    )
    category = np.where(is_salary, 19, np.where(to_shops, 14 + world.payee % 5, category))
    scheme, schemes = np.zeros(len(category), np.int64), list[tuple[str, Nodes]]()
    rows = np.split(np.argsort(world.payer, kind="stable"), np.cumsum(np.bincount(world.payer, minlength=num))[:-1])
    free = iter(rng.permutation([v for v in range(num_persons) if len(rows[v]) >= 18]).tolist())
    for kind, least, most in (("rare", 0.0, 0.035), ("common", 0.05, 1.0), ("several", 0.0, 1.0)):
        for count in np.repeat([4, 7, 12], per_kind).tolist():
            for who in free:
                some = rows[who][category[rows[who]] < 14]
                unused = [c for c in np.setdiff1d(np.arange(14), category[rows[who]]) if least <= share[c] < most]
                if len(some) >= max(count + 8, 2 * count) and len(unused) >= (3 if kind == "several" else 1):
                    break
            first = rng.integers(len(some) // 2, len(some) - count + 1)
            turned = some[first : first + count]
            category[turned] = rng.choice(unused, count if kind == "several" else 1)
            schemes.append((f"{kind}{count}", np.array([who])))
            scheme[turned] = len(schemes)
    members = {kind: np.concatenate([who for each, who in schemes if each == kind]) for kind, _ in schemes}
    return replace(world, category=category.astype(np.uint8), scheme=scheme, members=members, schemes=schemes)


def cards(seed: int, per_kind: int = 4) -> Payments:
    rng, rows, num, num_shops, num_days = np.random.default_rng(seed), _Rows(), 3_000, 250, 120
    shop = num + np.arange(num_shops)
    popular, ticket = rng.pareto(1.1, num_shops) + 0.1, rng.normal(3.2, 1.0, num_shops)
    spread = rng.uniform(0.2, 0.8, num_shops)
    own = rng.choice(num_shops, (num, 10), p=popular / popular.sum())
    rate, level = rng.lognormal(np.log(0.2), 0.7, num), rng.normal(0.0, 0.4, num)

    def pay(who: Nodes, at: Nodes, time: Numbers, scheme: int = 0) -> Numbers:
        amount = np.exp(ticket[at] + level[who] + spread[at] * rng.normal(0, 1, len(at)))
        rows.add(who, shop[at], amount, time, scheme)
        return amount

    def hours(count: int) -> Numbers:
        return np.clip(rng.normal(15.0, 4.0, count), 0.0, 23.9) * HOUR

    who = np.repeat(np.arange(num), rng.poisson(rate * num_days))
    at = np.where(rng.random(len(who)) < 0.9, own[who, rng.integers(0, 10, len(who))], 0)
    strange = rng.random(len(who)) < 0.08
    at = np.where(strange, rng.choice(num_shops, len(who), p=popular / popular.sum()), at)
    time = rng.integers(0, num_days, len(who)) * DAY + hours(len(who))
    amount = pay(who, at, time)
    for chance, factor, least, most in ((0.015, -1.0, DAY, 20 * DAY), (0.002, 1.0, 1.0, 60.0)):  # refunds, repeats
        some = np.flatnonzero(rng.random(len(who)) < chance)
        rows.add(who[some], shop[at[some]], factor * amount[some], time[some] + rng.uniform(least, most, len(some)))
    weekly = np.flatnonzero(rng.random(num) < 0.7)  # the same shop on the same day of the week
    for week in range(num_days // 7):
        day = week * 7 + weekly % 7
        pay(weekly, own[weekly, 0], day * DAY + hours(len(weekly)))
    subscribed = np.flatnonzero(rng.random(num) < 0.5)
    price = rng.choice([4.99, 9.99, 12.99, 29.0], num)
    for month in range(num_days // 30):
        rows.add(subscribed, shop[subscribed % 4], price[subscribed], (month * 30 + subscribed % 28) * DAY + 6 * HOUR)
    free, schemes = rng.permutation(num).tolist(), list[tuple[str, Nodes]]()
    for kind in ("stolen", "terminal", "busy"):
        for _ in range(per_kind):
            number, start = len(schemes) + 1, (rng.integers(40, num_days - 6) + rng.uniform(0.2, 0.8)) * DAY
            card = np.array([free.pop()])
            if kind == "stolen":
                small, large = rng.integers(2, 4), rng.integers(2, 5)
                new = rng.permutation(np.setdiff1d(np.arange(num_shops), own[card]))[: small + large]
                usual = np.exp(3.2 + level[card])
                paid = np.concatenate([rng.uniform(1, 3, small), usual * rng.uniform(5, 15, large)])
                rows.add(card[0], shop[new], paid, start + np.sort(rng.uniform(0, 4, small + large)) * HOUR, number)
            elif kind == "terminal":
                count, card = int(rng.integers(20, 41)), shop[[rng.integers(num_shops // 2, num_shops)]]
                charged = rng.choice(num, count, replace=False)
                rows.add(charged, card[0], rng.uniform(18, 22, count), start + rng.uniform(0, 24, count) * HOUR, number)
            else:
                pay(np.repeat(card, 15), rng.choice(own[card[0]], 15), start + rng.uniform(0, 5, 15) * DAY, number)
            schemes.append((kind, card))
    return _table(rows, num + num_shops, schemes)


def logins(seed: int, per_kind: int = 4) -> Payments:
    rng, rows, num, num_hosts, num_days = np.random.default_rng(seed), _Rows(), 2_000, 300, 60
    host, workdays = num + np.arange(num_hosts), np.array([day for day in range(num_days) if day % 7 < 5])
    own = rng.choice(num_hosts, (num, 4), p=(w := rng.pareto(1.0, num_hosts) + 0.1) / w.sum())
    who = np.repeat(np.arange(num), rng.poisson(rng.lognormal(np.log(0.8), 0.8, num) * len(workdays)))
    at = own[who, rng.integers(0, 4, len(who))]
    at = np.where(rng.random(len(who)) < 0.95, at, rng.integers(0, num_hosts, len(who)))
    time = rng.choice(workdays, len(who)) * DAY + np.clip(rng.normal(11, 2.5, len(who)), 0, 23.9) * HOUR
    rows.add(who, host[at], np.nan, time)
    for robot in range(20):
        ticks = np.arange(0.0, num_days * DAY, rng.choice([HOUR, 6 * HOUR, DAY]))
        rows.add(np.array([robot]), host[own[robot, 0]], np.nan, ticks + rng.uniform(0, 60, len(ticks)))
    free, schemes = rng.permutation(np.arange(20, num)).tolist(), list[tuple[str, Nodes]]()
    for kind in ("spray", "lateral", "guess"):
        for _ in range(per_kind):
            user, number = free.pop(), len(schemes) + 1
            day = rng.integers(20, num_days - 3) * DAY
            if kind == "spray":
                count = int(rng.integers(30, 61))
                new, time = rng.choice(num_hosts, count, replace=False), day + 10 * HOUR + rng.uniform(0, HOUR, count)
            elif kind == "lateral":
                count = int(rng.integers(8, 13))
                new = rng.choice(np.setdiff1d(np.arange(num_hosts), own[user]), count, replace=False)
                time = day + rng.integers(0, 2, count) * DAY + rng.uniform(1, 4, count) * HOUR
            else:
                new, time = np.full(40, rng.choice(own[user])), day + 14 * HOUR + rng.uniform(0, 600, 40)
            rows.add(np.array([user]), host[new], np.nan, time, number)
            schemes.append((kind, np.array([user])))
    return _table(rows, num + num_hosts, schemes)


def firms(seed: int, per_kind: int = 4) -> Payments:
    rng, rows, num, staff, num_days = np.random.default_rng(seed), _Rows(), 1_200, 3_000, 360
    level, num_suppliers = rng.normal(8.0, 1.3, num), rng.integers(3, 12, num)
    payer = np.repeat(np.arange(num), num_suppliers)
    near, large = (payer + rng.integers(1, 60, len(payer))) % num, rng.integers(0, 60, len(payer))
    payee = np.where(rng.random(len(payer)) < 0.7, near, large)
    payer, payee = payer[payer != payee], payee[payer != payee]
    price = level[payer] - 1.0 + rng.normal(0, 0.8, len(payer))
    spread, day = rng.choice([0.0, 0.05, 0.3, 0.8], len(payer)), rng.integers(0, 28, len(payer)) // 7 * 7  # batches
    is_bad, free = np.zeros(len(payer), np.int64), rng.permutation(np.arange(60, num)).tolist()
    schemes = list[tuple[str, Nodes]]()
    outsiders = num + staff + np.arange(per_kind)
    for fraud in range(per_kind):
        firm = free.pop()
        is_bad[rng.choice(np.flatnonzero(payer == firm))] = fraud + 1
        schemes.append(("invoice", np.array([outsiders[fraud]])))
    for month in range(num_days // 30):
        pays = (rng.random(len(payer)) < 0.85) | (is_bad > 0)
        time = (month * 30 + day + rng.integers(0, 2, len(payer))) * DAY + rng.uniform(9, 11, len(payer)) * HOUR
        amount = np.exp(price + spread * rng.normal(0, 1, len(payer)))
        turned = (is_bad > 0) & (month >= 8) & (month < 11)
        to = np.where(turned, outsiders[is_bad - 1], payee)
        for scheme in range(per_kind + 1):
            some = pays & (np.where(turned, is_bad, 0) == scheme)
            rows.add(payer[some], to[some], amount[some], time[some], scheme)
    works, wage = rng.choice(num, staff, p=(w := np.exp(level)) / w.sum()), rng.lognormal(7.8, 0.4, staff)
    for month in range(num_days // 30):
        rows.add(works, num + np.arange(staff), wage, (month * 30 + 27) * DAY + 8 * HOUR)
    for kind in ("fan_in", "any_round", "pass", "split"):
        for _ in range(per_kind):
            number, start = len(schemes) + 1, (rng.integers(60, 320) + rng.uniform(0.33, 0.6)) * DAY
            who = np.array([free.pop() for _ in range(rng.integers(3, 9) if kind == "any_round" else 1)])
            count = int(rng.integers(8, 15))
            others = rng.choice(num, count, replace=False)
            usual = np.exp(level[who[0]] - 1.0 + rng.normal(0, 0.6, count))
            if kind == "fan_in":
                rows.add(others, who[0], usual, start + rng.uniform(0, 24, count) * HOUR, number)
            elif kind == "any_round":
                paid = usual[0] * np.cumprod(1.0 - rng.uniform(0, 0.05, len(who)))
                rows.add(who, np.roll(who, -1), paid, start + np.cumsum(rng.uniform(4, 48, len(who))) * HOUR, number)
            elif kind == "pass":
                time = rng.uniform(5, 350, count) * DAY
                rows.add(others, who[0], usual, time, number)
                left = time + rng.uniform(0.3, 20, count) * HOUR
                rows.add(who[0], rng.choice(num, count), usual * rng.uniform(0.95, 0.99, count), left, number)
            else:
                paid = usual[0] * rng.uniform(0.9, 1.1, count)
                rows.add(who[0], others[:1], paid, start + np.arange(count) * DAY, number)
            schemes.append((kind, who))
    return _table(rows, num + staff + per_kind, schemes)


WORLDS: dict[str, Callable[[int], Payments]] = {
    "more": lambda seed: payments(seed, num_persons=6_000, per_kind=5, num_others=(150, 60, 2), kinds=MORE_SCHEMES),
    "small": lambda seed: payments(
        seed, num_persons=500, per_kind=1, num_others=(15, 6, 1), kinds=("round", "fan_in", "pass", "limit", "scatter")
    ),
    "short": lambda seed: payments(seed, num_persons=4_000, num_days=60, per_kind=3, num_others=(100, 40, 2)),
    "long": lambda seed: payments(seed, num_persons=2_000, num_days=730, per_kind=3, num_others=(60, 20, 2)),
    "hours": _floored(HOUR),
    "days": _floored(DAY),
    "calls": calls,
    "currencies": currencies,
    "categories": categories,
    "cards": cards,
    "logins": logins,
    "firms": firms,
}
