"""Cases: of planted groups and schemes, how many are a finding among the first, beside other ways to group.

A group is found where one of the first k cases, k twice the number of groups, has half of its members, and a third of
that case or more is of the group. Flagged cases of which less than a third is planted are wrong. *Read*: rows of the
list, or cases, from the top on until half of the groups that cases find are found (in the list: half of a group's
members are above), for each of them; a case is read once, as a row is.

Worlds of `bench/accuracy/worlds.py` with groups of `oddities.py`, clean ones, payments of `payment_world.py`, AMLSim's
cycles where they are. Peers group the flagged nodes of the same run: connected components, Leiden communities (igraph),
and densest subgraphs by peeling; each sorts its groups by the sum of the members' -log p.
"""

import argparse
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench import data
from bench.accuracy import oddities, worlds
from bench.accuracy.payment_world import DAY, payments
from bench.harness import Table, at_least, at_most
from hcm_scale import HCM
from hcm_scale.base.rng import key
from hcm_scale.config import Config, TablesGraph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun

AMLSIM = data.folder() / "amlsim_cycle200" / "payments.csv"
SIZES = {"smoke": (1_000,), "quick": (1_000, 5_000), "full": (1_000, 5_000, 20_000)}
ODD = ("group", "half_dense", "block", "ring_kept")
Nodes = NDArray[np.int64]


class Problem(NamedTuple):
    """What is fitted, with which words, and the planted groups, of nodes as the input numbers them."""

    name: str
    data: Any
    words: dict[str, Any]
    groups: list[Nodes]
    kinds: list[str]  # of each group


def problem_of(world_name: str, odd: str, seed: int, num_nodes: int) -> Problem:
    made = worlds.make_problem(world_name, odd, seed, num_nodes)
    graph, groups = replace(made.graph, y=None), []
    if graph.x is None:
        graph = replace(graph, x=np.log1p(oddities.degrees(graph)).astype(np.float32)[:, None])
    if odd != "none":
        rng = np.random.default_rng(key(seed, worlds._ODD, zlib.crc32(odd.encode())))
        drawn = oddities.draw_groups(worlds.world(world_name, num_nodes, seed), odd, rng)
        groups = [group.members for group in drawn]
    return Problem(f"{world_name}:{odd}", graph, {}, groups, [odd] * len(groups))


def payments_of(seed: int, per_kind: int = 6, num_persons: int = 12_000) -> Problem:
    made = payments(seed, per_kind=per_kind, num_persons=num_persons)
    columns = {"payer": made.payer, "payee": made.payee, "amount": made.amount}
    table = pa.table(columns | {"time": pa.array((made.time * 1e3).astype("datetime64[ms]"))})
    groups = [
        np.unique(np.concatenate([made.payer[made.scheme == at], made.payee[made.scheme == at]]))
        for at in range(1, 1 + len(made.schemes))
    ]
    words = {"source": "payer", "target": "payee", "time": "time", "amount": "amount"}
    kinds = [kind for kind, _ in made.schemes]
    return Problem("payments" if per_kind else "payments, clean", table, words, groups, kinds)


def amlsim() -> Problem:
    """Cycles are the components of the laundering rows."""
    from scipy import sparse

    rows = np.loadtxt(AMLSIM, delimiter=",", skiprows=1)
    ends, count = rows[:, :2].astype(np.int64), int(rows[:, :2].max()) + 1
    bad = ends[rows[:, 2] < 60]
    edges = sparse.coo_array((np.ones(len(bad)), (bad[:, 0], bad[:, 1])), shape=(count, count))
    of_node = sparse.csgraph.connected_components(edges, directed=False)[1]
    nodes = np.unique(bad)
    groups = [nodes[of_node[nodes] == label] for label in np.unique(of_node[nodes])]
    table = pa.table({"from": ends[:, 0], "to": ends[:, 1], "amount": rows[:, 2], "time": rows[:, 3].astype(np.int64)})
    words = {"source": "from", "target": "to", "time": "time", "amount": "amount"}
    return Problem("AMLSim, cycles", table, words, groups, ["cycle"] * len(groups))


def found_at(groups: Sequence[Nodes], cases: Sequence[Nodes], first: int) -> Nodes:
    """The position of the first of these cases that finds each group; -1 where none does."""
    out = np.full(len(groups), -1)
    of_node: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for node in group.tolist():
            of_node.setdefault(node, []).append(number)
    for at, case in enumerate(cases[:first]):
        inside: dict[int, int] = {}
        for node in case.tolist():
            for number in of_node.get(node, ()):
                inside[number] = inside.get(number, 0) + 1
        for number, count in inside.items():
            if out[number] < 0 and 2 * count >= len(groups[number]) and 3 * count >= len(case):
                out[number] = at
    return out


def peers(run: FinishedRun, surprise: NDArray[np.float64], flagged: Nodes) -> dict[str, list[Nodes]]:
    """Groups of the flagged nodes by other ways, each sorted by the surprise of its members together."""
    import igraph

    graph = run.graph
    position = np.full(graph.num_nodes, -1)
    position[flagged] = np.arange(len(flagged))
    pairs = [
        (at, int(other))
        for at, node in enumerate(flagged.tolist())
        for other in position[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]]
        if other > at
    ]
    own = igraph.Graph(len(flagged), pairs)
    leiden = own.community_leiden("modularity", n_iterations=5) if pairs else own.connected_components()
    ways = {"components of the flagged": own.connected_components(), "Leiden on the flagged": leiden}
    out = {name: [flagged[np.array(one, int)] for one in clusters] for name, clusters in ways.items()}
    out["peeling of the flagged"] = [flagged[one] for one in peeled(len(flagged), pairs)]
    return {name: sorted(some, key=lambda one: -surprise[one].sum()) for name, some in out.items()}


def peeled(count: int, pairs: Sequence[tuple[int, int]]) -> list[Nodes]:
    """Densest subgraphs by Charikar's peeling, one after another, while one has an edge a node or more."""
    import heapq

    near: list[set[int]] = [set() for _ in range(count)]
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    out, left = list[Nodes](), set(range(count))
    while left:
        degree = {node: len(near[node] & left) for node in left}
        heap, edges = [(d, node) for node, d in degree.items()], sum(degree.values()) / 2
        heapq.heapify(heap)
        alive, order, best, at = set(left), [], 0.0, 0
        while heap:
            d, node = heapq.heappop(heap)
            if node not in alive or d != degree[node]:
                continue
            if edges / len(alive) > best:
                best, at = edges / len(alive), len(order)
            alive.remove(node)
            order.append(node)
            edges -= d
            for other in near[node] & alive:
                degree[other] -= 1
                heapq.heappush(heap, (degree[other], other))
        if best < 1.0:
            break
        group = set(left) - set(order[:at])
        out.append(np.array(sorted(group)))
        left -= group
    return out + [np.array([node]) for node in sorted(left)]


def measure(problem: Problem, seed: int = 0, run: FinishedRun | None = None) -> list[dict[str, Any]]:
    """A row a way to group."""
    run = run or HCM(seed=seed, device="cpu").fit(problem.data, **problem.words)._require_fitted().run
    ids = {str(run.graph.external_id(node)): node for node in range(run.graph.num_nodes)}
    groups = [np.array([ids[str(node)] for node in group.tolist()]) for group in problem.groups]
    p, flagged = np.zeros(run.graph.num_nodes), np.zeros(run.graph.num_nodes, bool)
    node = run.ranked["node"].to_numpy()
    p[node], flagged[node] = run.ranked["p"].to_numpy(), run.ranked["flagged"].to_numpy(zero_copy_only=False)
    surprise = -np.log(np.maximum(p, 1e-300))
    planted = np.zeros(run.graph.num_nodes, bool)
    planted[np.concatenate([*groups, np.zeros(0, int)])] = True
    cases, first = [case.members for case in run.cases], 2 * len(groups)
    ways = {"cases": cases} | peers(run, surprise, np.flatnonzero(flagged))
    rows = []
    for way, some in ways.items():
        row: dict[str, Any] = {"problem": problem.name, "nodes": run.graph.num_nodes, "way": way, "groups": len(groups)}
        row |= dict.fromkeys(("found", "flagged", "wrong", "cases_read", "rows_read"), float("nan"))
        row["num_cases"] = len(some)
        at = found_at(groups, some, first)
        row["found"] = float((at >= 0).mean()) if groups else float("nan")
        if way == "cases":
            right = [3 * planted[case].sum() >= len(case) for case in cases[: run.cases.num_flagged]]
            row |= {"flagged": len(right), "wrong": len(right) - int(sum(right))}
            row |= read_each(groups, at, node)
            found_kinds = [kind for kind, where in zip(problem.kinds, at.tolist(), strict=True) if where >= 0]
            row["kinds"] = {kind: found_kinds.count(kind) / problem.kinds.count(kind) for kind in {*problem.kinds}}
        rows.append(row)
    return rows


def read_each(groups: Sequence[Nodes], at: Nodes, order: Nodes) -> dict[str, float]:
    """Cases and rows of the list that are read until half of the groups that cases find are found, by group."""
    if not (at >= 0).any():
        return {"cases_read": float("nan"), "rows_read": float("nan")}
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    halves = np.sort([np.sort(rank[group])[(len(group) - 1) // 2] for group in groups])
    found = np.sort(at[at >= 0])
    half = (len(found) + 1) // 2
    return {"cases_read": float(found[half - 1] + 1) / half, "rows_read": float(halves[half - 1] + 1) / half}


def month(num_days: int, num_persons: int = 1_500, seed: int = 0) -> dict[str, Any]:
    """A run a day, each following the one before, of the last 140 days of payments: how long cases keep their ids.

    `kept` is the share of days on which the case of a scheme has the id that it had the day before, `shared` how many
    ids were those of two schemes, of cases that never held both, and `moved` how many were of cases without a member
    in common, among all cases of two members or more.
    """
    made, ids, members = payments(seed, per_kind=2, num_persons=num_persons), dict[int, str](), dict[str, set[str]]()
    schemes: dict[str, set[frozenset[int]]] = {}
    days, kept, moved = 0, 0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for day in range(num_days):
            is_seen = (made.time >= day * DAY) & (made.time < (day + 140) * DAY)
            names = [made.payer[is_seen].astype(str), made.payee[is_seen].astype(str)]
            time = pa.array((made.time[is_seen] * 1e3).astype("datetime64[ms]"))
            table = {"payer": names[0], "payee": names[1], "amount": made.amount[is_seen], "time": time}
            pq.write_table(pa.table(table), f"{folder}/{day}.parquet")
            config = Config(run_dir=f"{folder}/run{day}", since=f"{folder}/run{day - 1}" if day else None)
            config.graph = TablesGraph(path=f"{folder}/{day}.parquet", source_column="payer", target_column="payee")
            config.world.device = "cpu"
            pipeline.run(config)
            run = FinishedRun(config.run_dir)
            node = {run.graph.external_id(node): node for node in range(run.graph.num_nodes)}
            own = [made.scheme[is_seen] == at for at in range(1, 1 + len(made.schemes))]
            ends = [{*names[0][some], *names[1][some]} for some in own]
            groups = [np.array(sorted(node[name] for name in some), np.int64) for some in ends]
            at = found_at(groups, [case.members for case in run.cases], len(run.cases))
            today = {
                scheme: run.cases.id_of(where)
                for scheme, where in enumerate(at.tolist())
                if where >= 0 and ends[scheme]
            }
            days += len(today.keys() & ids.keys())
            kept += sum(ids[scheme] == today[scheme] for scheme in today.keys() & ids.keys())
            for name in {*today.values()}:
                held = frozenset(scheme for scheme, own_name in today.items() if own_name == name)
                schemes.setdefault(name, set()).add(held)
            for number, case in enumerate(run.cases):
                name, inside = run.cases.id_of(number), {run.graph.external_id(one) for one in case.members.tolist()}
                moved |= {name} if not inside & members.get(name, inside) else set()
                members |= {name: inside} if len(inside) > 1 else {}
            ids |= today
            shutil.rmtree(f"{folder}/run{day - 1}/labels", ignore_errors=True)
    shared = [name for name, held in schemes.items() if not frozenset.intersection(*held)]
    kept_share = kept / max(1, days)
    return {
        "days": num_days,
        "pairs": days,
        "kept": kept_share,
        "ids": len(members),
        "shared": len(shared),
        "moved": len(moved),
    }


def problems(size: str) -> Iterator[Problem]:
    for num_nodes in SIZES[size]:
        for name in worlds.WORLDS if size != "smoke" else ("follow",):
            for odd in ("none", *ODD, "half_block"):
                if odd in worlds.odds_of(name):
                    yield problem_of(name, odd, 0, num_nodes)
    for seed in (0, 1) if size != "smoke" else ():
        yield payments_of(seed)
    if size != "smoke":
        yield payments_of(0, 0)
    if AMLSIM.is_file() and size != "smoke":
        yield amlsim()


def cases(size: str) -> Iterator[Table]:
    """One table of all problems, and what is claimed of them."""
    rows = [row for problem in problems(size) for row in measure(problem)]
    for row in rows:
        row.pop("kinds", None)
    ours = [row for row in rows if row["way"] == "cases"]
    dense = [row["found"] for row in ours if row["problem"].split(":")[-1] in ("group", "half_dense", "block")]
    clean = [row for row in ours if not row["groups"]]
    others = [row for row in ours if row["groups"]]
    wrong = sum(row["wrong"] for row in others) / max(1, sum(row["flagged"] for row in others))
    claims = [
        at_least("dense groups found", float(np.mean(dense)), 0.8, "of all"),
        at_most("flagged cases that are wrong", wrong, 0.2, "of all"),
        at_most("flagged cases of a clean world", sum(row["flagged"] for row in clean) / max(1, len(clean)), 1.0, ""),
    ]
    yield Table("planted groups among the first cases", rows, claims)
    told = month({"smoke": 2, "quick": 10, "full": 30}[size])
    lasting = [
        at_least("days on which a case keeps its id", told["kept"], 0.95, "of all"),
        at_most("ids of two different cases", float(told["shared"] + told["moved"]), 0.0, ""),
    ]
    yield Table("ids of cases from day to day", [told], lasting)


def main() -> None:
    """One problem, or several, as JSON lines: for experiments."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="+", help="WORLD:ODD, payments, clean, amlsim, month")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=5_000)
    given = parser.parse_args()
    for name in given.names:
        if name == "month":
            print(json.dumps({"problem": "month"} | month(30, seed=given.seed)), flush=True)
            continue
        if ":" in name:
            problem = problem_of(*name.split(":"), given.seed, given.nodes)
        elif name == "amlsim":
            problem = amlsim()
        else:
            problem = payments_of(given.seed, 0 if name == "clean" else 6)
        for row in measure(problem, given.seed):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
