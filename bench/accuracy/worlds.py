"""`python -m bench.accuracy.worlds --worlds unrelated hubs --odd none group --seeds 0-2`: synthetic worlds, odd nodes.

The zoo plants odd nodes into given graphs; here the world varies too, from one where attributes follow the edges to one
where they say nothing of them (`WORLDS`; a world is a function of its name, size and seed). A problem is a world and
what is planted into it, `unrelated:group`: one of the groups of `oddities.py`, whose degrees are those of their world,
one of the kinds of `zoo.py` (`swap`, `swap-weak`), or `none`, to count false flags. A world with bad nodes of its own
has the problem `own` alone.

Every method gets a row of the table: ROC-AUC, average precision, the share of planted nodes among the first 1 %, the
share of the legitimate hubs there; HCM also the nodes it flags, how many of these are not planted, and the share of the
hubs that it flags. Settings are the default ones; with `--types` HCM is told the types of nodes where a world has two.
"""

import argparse
import importlib.util
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.ensemble import IsolationForest

from bench.accuracy.methods import METHODS
from bench.accuracy.oddities import GROUPS, World, degrees, plant_groups
from bench.accuracy.problem import Problem, parse_seeds
from bench.accuracy.trivial import Scores
from bench.accuracy.zoo import KINDS, Nodes, Rng, adjacency, edges, from_edges, plant
from hcm_scale.base.rng import key
from hcm_scale.detector import HCM
from hcm_scale.features.transform import transform
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.score.metrics import evaluate, ranking

_WORLD, _ODD = 0x300, 0x301  # uses of the seed
_NUM_HUBS = 6
_BAD_SHARE = 0.05
_PARTS = ("auc", "ap", "first")
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How a world is made: edges first, then attributes."""

    about: str
    degree: float = 16.0  # mean, over the nodes that are not isolated by the recipe
    tail: str = "lognormal"  # of the degrees: lognormal (deviation .8 of the logarithm) or power (exponent 2.5)
    homophily: float = 0.8  # share of the edges drawn inside a community
    isolated: float = 0.0  # share of the nodes without an edge
    columns: int = 20
    attributes: str = "centroid"  # centroid, heavy (independent of the edges), words (sparse)
    signal: float = 2.5  # length of a community's centroid, beside noise of variance 1 in every column
    second_type: float = 0.0  # share of the nodes of type 1
    bipartite: bool = False
    directed: bool = False
    rows_per_edge: int = 1
    hubs: bool = False
    bad: bool = False
    community: int = 500  # nodes of a community, about


WORLDS = {
    "follow": Recipe("attributes follow the edges: communities, each with a mean of its own"),
    "weak": Recipe("attributes follow the edges weakly", homophily=0.5, signal=1.0),
    "unrelated": Recipe("dense, heavy-tailed attributes that say nothing of the edges", attributes="heavy"),
    "half_isolated": Recipe("half of the nodes have no edge", isolated=0.5),
    "mostly_isolated": Recipe("three nodes of four have no edge", isolated=0.75),
    "hubs": Recipe("degrees of a power law, and six merchants with up to a fourth of all as partners", 10.0, "power",
                   hubs=True),
    "skewed": Recipe("degrees of a power law, and attributes that follow the edges closely", 10.0, "power", 0.9,
                     signal=4.0),
    "bipartite": Recipe("users and shops, seven to three", second_type=0.3, bipartite=True),
    "two_types": Recipe("two types of nodes with different attributes; edges within and between", second_type=0.5),
    "directed": Recipe("edges of one direction", directed=True),
    "repeated": Recipe("four rows an edge, either way round, before it is made a graph", rows_per_edge=4),
    "few_columns": Recipe("three attributes", columns=3),
    "many_columns": Recipe("300 sparse attributes: about fifteen words a node", columns=300, attributes="words"),
    "no_columns": Recipe("no attributes", columns=0),
    "sparse_edges": Recipe("mean degree 2.5", 2.5),
    "dense_edges": Recipe("mean degree 30", 30.0),
    "fraud": Recipe("as unrelated; the bad have larger values in a third of the columns and know each other better "
                    "than chance, and their degree does not tell", attributes="heavy", bad=True),
}  # fmt: skip


def world(name: str, num_nodes: int = 5_000, seed: int = 0, recipe: Recipe | None = None) -> World:
    """The world of this name, or by a recipe of the caller's; a function of its arguments."""
    if recipe is None and name not in WORLDS:
        raise ValueError(f"world={name!r} is unknown; it is one of {', '.join(WORLDS)}")
    if num_nodes < 500:
        raise ValueError(f"num_nodes={num_nodes} is out of range; it is at least 500")
    recipe, rng = recipe or WORLDS[name], np.random.default_rng(key(seed, _WORLD, zlib.crc32(name.encode())))
    shares = np.arange(1, max(4, num_nodes // recipe.community) + 1) ** -0.5
    groups = rng.choice(len(shares), num_nodes, p=shares / shares.sum())
    types = (rng.random(num_nodes) < recipe.second_type).astype(np.int64) if recipe.second_type else None
    bad = rng.random(num_nodes) < _BAD_SHARE if recipe.bad else None
    hubs = np.zeros(num_nodes, bool)
    hubs[rng.permutation(num_nodes)[: _NUM_HUBS * recipe.hubs]] = True
    empty = Graph(np.zeros(num_nodes + 1, np.int64), np.zeros(0, np.int32), directed=recipe.directed)
    made = World(name, empty, groups, hubs, types, bad)
    graph = replace(from_edges(empty, *_edge_rows(recipe, made, rng)), x=_attributes(recipe, made, rng))
    return replace(made, graph=graph)


def _edge_rows(recipe: Recipe, made: World, rng: Rng) -> Iterator[tuple[Nodes, Nodes]]:
    """Both ends of rows of edges: nodes drawn by weight, the second mostly from the community of the first."""
    n, groups, types, bad = len(made.groups), made.groups, made.types, made.bad
    weights = rng.lognormal(0.0, 0.8, n) if recipe.tail == "lognormal" else np.minimum(rng.pareto(1.5, n) + 1, n**0.5)
    weights[rng.permutation(n)[: int(recipe.isolated * n)]] = 0.0
    num_edges = int(recipe.degree * np.count_nonzero(weights) / 2)
    sides = (types == 0, types == 1) if recipe.bipartite else (np.ones(n, bool),) * 2
    num_rows = 2 * num_edges  # as many as are distinct in the end, and some
    left = _drawn(weights * sides[0], groups, np.full(num_rows, -1), rng)
    wanted = np.where(rng.random(num_rows) < recipe.homophily, groups[left], -1)
    right = _drawn(weights * sides[1], groups, wanted, rng)
    if bad is not None:
        joins = np.flatnonzero(bad[left] & (rng.random(num_rows) < 0.06))
        right[joins] = _drawn(weights * bad, groups, np.full(len(joins), -1), rng)
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, first = np.unique(low * n + high, return_index=True)
    chosen = np.sort(first[(low != high)[first]])[:num_edges]
    chosen = np.repeat(chosen, recipe.rows_per_edge)
    rows = rng.permuted(np.stack([left, right], axis=1)[chosen], axis=1)
    yield rows[:, 0], rows[:, 1]
    for hub in np.flatnonzero(made.hubs):
        partners = rng.permutation(n)[: rng.integers(n // 5, n // 4)]
        yield np.full(len(partners), hub), partners


def _drawn(weights: NDArray[np.float64], groups: Nodes, wanted: Nodes, rng: Rng) -> Nodes:
    """A node for every wanted community (-1: any), by weight."""
    order = np.argsort(groups, kind="stable")
    ends = np.concatenate([[0.0], np.cumsum(weights[order])])
    bounds = ends[np.searchsorted(groups[order], np.arange(groups.max() + 2))]
    low, high = np.where(wanted < 0, 0.0, bounds[wanted]), np.where(wanted < 0, ends[-1], bounds[wanted + 1])
    places = np.searchsorted(ends, low + (high - low) * rng.random(len(wanted)), side="right") - 1
    return order[places]


def _attributes(recipe: Recipe, made: World, rng: Rng) -> Rows | SparseRows | None:
    groups, shape = made.groups, (len(made.groups), recipe.columns)
    if not recipe.columns:
        return None
    if recipe.attributes == "words":
        popularity = rng.gamma(0.3, size=(groups.max() + 1, shape[1])) + rng.gamma(0.3, size=shape[1])
        chances = 15 * popularity / popularity.sum(axis=1, keepdims=True)
        return SparseRows.of(sparse.csr_array((rng.random(shape) < chances[groups]).astype(np.float32)))
    if recipe.attributes == "heavy":
        return _heavy(shape, made.bad, rng)
    centroids = rng.standard_normal((groups.max() + 1, shape[1]))
    centroids *= recipe.signal / np.linalg.norm(centroids, axis=1, keepdims=True)
    x = centroids[groups] + rng.standard_normal(shape)
    if made.types is not None and not recipe.bipartite:  # other means and half of the spread
        x = np.where(made.types[:, None] == 1, 0.5 * x + rng.standard_normal(shape[1]), x)
    return x.astype(np.float32)


def _heavy(shape: tuple[int, int], bad: Any, rng: Rng) -> Rows:
    """Correlated columns with heavy tails: amounts (lognormal), balances of either sign, and waiting times."""
    factors = rng.standard_normal((shape[0], 5)) @ rng.standard_normal((5, shape[1])) / 5**0.5
    z = 0.6 * factors + 0.8 * rng.standard_normal(shape)
    if bad is not None:
        z[np.ix_(bad, np.arange(shape[1]) % 3 == 0)] *= 1.5
    x = np.exp(z)
    x[:, 1::3] = np.sinh(z[:, 1::3])
    x[:, 2::3] = np.exp(0.5 * z[:, 2::3]) + rng.exponential(size=z[:, 2::3].shape)
    return x.astype(np.float32)


class Made(NamedTuple):
    """A problem: the graph, its labels (1 = planted, or bad), the legitimate hubs and the types of nodes or None."""

    graph: Graph
    y: NDArray[np.uint8]
    hubs: NDArray[np.bool_]
    types: Nodes | None


def make_problem(world_name: str, odd: str, seed: int = 0, num_nodes: int = 5_000) -> Made:
    """The problem of these names; ValueError for a combination that makes no sense."""
    if odd not in odds_of(world_name):
        raise ValueError(f"odd={odd!r} is unknown in {world_name}; it is one of {', '.join(odds_of(world_name))}")
    made = world(world_name, num_nodes, seed)
    kind, _, strength = odd.partition("-")
    if odd in ("none", "own"):
        y = np.zeros(num_nodes, np.uint8) if made.bad is None else made.bad.astype(np.uint8)
        graph = replace(made.graph, y=y)
    elif odd in GROUPS:
        graph = plant_groups(made, odd, np.random.default_rng(key(seed, _ODD, zlib.crc32(odd.encode()))))
    else:  # hubs are given as known anomalies, which are not planted
        graph = plant(replace(made.graph, y=made.hubs.astype(np.uint8)), kind, strong=not strength, seed=seed).graph
    assert graph.y is not None
    return Made(graph, graph.y, made.hubs, made.types)


def odds_of(world_name: str) -> list[str]:
    """What can be planted into a world.

    Nothing that breaks a bipartite one or needs attributes that are not there; no exchange of attributes where they say
    nothing of the edges, which nobody could see.
    """
    if world_name not in WORLDS:
        raise ValueError(f"world={world_name!r} is unknown; it is one of {', '.join(WORLDS)}")
    recipe = WORLDS[world_name]
    if recipe.bad:
        return ["own"]
    if recipe.bipartite:
        legal = ["none", "block", "half_block", "star", "far", "swap"]
    else:
        legal = ["none", *GROUPS, *KINDS]
    if not recipe.columns:
        legal = [odd for odd in legal if odd not in ("far", "swap", "ring", "ring_kept")]
    elif recipe.attributes == "heavy":
        legal.remove("swap")
    return legal + [f"{odd}-weak" for odd in legal if odd in KINDS]


def problems() -> Iterator[str]:
    """All names of problems.

    >>> "unrelated:group" in problems(), "bipartite:group" in problems()
    (True, False)
    """
    return (f"{name}:{odd}" for name in WORLDS for odd in odds_of(name))


def as_problem(name: str, made: Made, seed: int) -> Problem:
    """What baselines are given: the graph with edges both ways, and standardised features ((n, 0) without any)."""
    x = made.graph.x
    symmetric = from_edges(replace(made.graph, directed=False), edges(made.graph))
    few = {"scale": "log1p", "pca": 20} if isinstance(x, SparseRows) else {"scale": "none"}
    features = np.zeros((len(made.y), 0), np.float32) if x is None else transform(x, **few).x
    return Problem(name, seed, symmetric, features, one_way=made.graph)


def _structure(problem: Problem) -> Scores:
    """Triangles of every node, and the largest k such that a node is left when those of under k neighbours go."""
    graph = problem.graph
    joined = adjacency(graph)
    left, core, k = graph.degrees.astype(float), np.zeros(graph.num_nodes), 0.0
    alive = np.ones(graph.num_nodes, bool)
    while alive.any():
        k = max(k, left[alive].min())
        gone = alive & (left <= k)
        core[gone], alive = k, alive & ~gone
        left -= joined @ gone.astype(float)
    triangles = (joined @ joined).multiply(joined).sum(axis=1) / 2
    return {"degree": graph.degrees.astype(float), "triangles": triangles, "core": core}


def _isolation_forest(problem: Problem) -> Scores:
    graph = problem.graph
    around = adjacency(graph) @ problem.x / np.maximum(graph.degrees, 1)[:, None]
    rows = np.column_stack([problem.x, around, graph.degrees])
    return {"iforest": -IsolationForest(random_state=key(problem.seed) % 2**31).fit(rows).score_samples(rows)}


def _attribute_scores(problem: Problem) -> Scores:
    if not problem.x.shape[1]:
        return {}
    norm = np.linalg.norm(problem.x, axis=1).astype(float)
    return {"norm": norm, "lof": METHODS["lof"].load()(problem, "cpu")["LOF"]}


def _pygod(problem: Problem) -> Scores:
    if importlib.util.find_spec("pygod") is None or not problem.x.shape[1]:
        return {}
    return {name.lower(): METHODS[name.lower()].load()(problem, "cpu")[name] for name in ("DOMINANT", "GAE")}


BASELINES: dict[str, Callable[[Problem], Scores]] = {
    "structure": _structure,
    "attributes": _attribute_scores,
    "iforest": _isolation_forest,
    "pygod": _pygod,
}
_DEFAULT = ("hcm", "structure", "attributes", "iforest")


def run(
    name: str, seed: int, num_nodes: int, methods: tuple[str, ...] = _DEFAULT, typed: bool = False
) -> Iterator[dict[str, Any]]:
    """One line a score on a problem such as `unrelated:group`."""
    world_name, odd = name.split(":")
    made = make_problem(world_name, odd, seed, num_nodes)
    problem = as_problem(name, made, seed)
    for method in methods:
        started, labels = time.perf_counter(), None
        if method == "hcm":
            graph = replace(made.graph, y=None)
            if graph.x is None:  # as graph.featureless=degree reads files; a Graph without attributes is refused
                graph = replace(graph, x=np.log1p(degrees(graph)).astype(np.float32)[:, None])
            found = HCM(seed=seed, device="cpu").fit(graph, node_type=made.types if typed else None)
            scores, labels = {"hcm": found.scores}, found.labels_ == 1
        else:
            scores = BASELINES[method](problem)
        seconds = round(time.perf_counter() - started, 2)
        for row, score in scores.items():
            about = {"problem": name, "seed": seed, "num_nodes": num_nodes, "method": row, "seconds": seconds}
            yield about | measure(made, score, labels if row == "hcm" else None)


def measure(made: Made, score: NDArray[Any], flagged: NDArray[np.bool_] | None) -> dict[str, Any]:
    """ROC-AUC and average precision where something is planted, what comes first, and what is flagged."""
    first = ranking(score)[: max(1, len(score) // 100)]
    out: dict[str, Any] = {}
    if made.y.any():
        found = evaluate(made.y, score)
        out |= {"auc": found["roc_auc"], "ap": found["average_precision"], "first": float(made.y[first].mean())}
    if made.hubs.any():
        out["hubs_first"] = float(np.isin(np.flatnonzero(made.hubs), first).mean())
    if flagged is not None:
        out |= {"flagged": int(flagged.sum()), "false": int((flagged & (made.y == 0)).sum())}
        if made.hubs.any():
            out["hubs_flagged"] = float(flagged[made.hubs].mean())
    return out


def markdown(lines: list[dict[str, Any]]) -> str:
    """A row for every problem: ROC-AUC / average precision / share of planted among the first 1 %, means over seeds."""
    methods = list(dict.fromkeys(line["method"] for line in lines))
    ours = ["flagged", "false share", "hubs flagged"]
    rows = [f"| problem | {' | '.join([*methods, *ours])} |", "|---" * (1 + len(methods) + len(ours)) + "|"]
    for name in dict.fromkeys(line["problem"] for line in lines):
        of_problem = [line for line in lines if line["problem"] == name]
        cells = [
            " / ".join(_mean([line for line in of_problem if line["method"] == method], part) for part in _PARTS)
            for method in methods
        ]
        flagged, false = (sum(line.get(part, 0) for line in of_problem) for part in ("flagged", "false"))
        share = f"{false / flagged:.2f}" if flagged else "-"
        cells += [_mean(of_problem, "flagged", 0), share, _mean(of_problem, "hubs_flagged")]
        rows.append(f"| {name} | {' | '.join('-' if set(cell) <= set('- /') else cell for cell in cells)} |")
    return "\n".join(rows)


def _mean(lines: list[dict[str, Any]], part: str, digits: int = 2) -> str:
    values = [line[part] for line in lines if part in line]
    return f"{np.mean(values):.{digits}f}" if values else "-"


def main(arguments: list[str] | None = None) -> None:
    """Runs the problems that were asked for, adds a JSON line a score to the file, and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy.worlds", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    every = list(dict.fromkeys(odd for name in WORLDS for odd in odds_of(name)))
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), metavar="WORLD")
    parser.add_argument("--odd", nargs="+", choices=every, metavar="ODD", default=["none", *GROUPS, "far", "swap",
                        "rewire", "own"], help=", ".join(every))  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=parse_seeds, default=[[0]], help="numbers or ranges: 0-4 7")
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--methods", nargs="+", choices=("hcm", *BASELINES), default=_DEFAULT)
    parser.add_argument("--types", action="store_true", help="tell HCM the types of nodes")
    parser.add_argument("--out", type=Path, help="file that JSON lines are added to")
    options = parser.parse_args(arguments)
    lines: list[dict[str, Any]] = []
    for name in problems():
        world_name, odd = name.split(":")
        if world_name in options.worlds and odd in options.odd:
            for seed in sorted({seed for group in options.seeds for seed in group}):
                fresh = list(run(name, seed, options.nodes, tuple(options.methods), options.types))
                lines += fresh
                if options.out:
                    with open(options.out, "a") as file:
                        file.writelines(json.dumps(line) + "\n" for line in fresh)
    print(markdown(lines))


if __name__ == "__main__":
    main()
