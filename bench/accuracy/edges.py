"""`python -m bench.accuracy.edges --worlds tidy weak inj_cora --seeds 0-1`: strange edges planted into graphs.

| kind    | what is planted, about one edge in two hundred of each kind                        |
|---------|------------------------------------------------------------------------------------|
| random  | two nodes drawn at random are joined                                               |
| between | two nodes of different communities, drawn as ends of edges are, so degrees fit     |
| rewired | an edge leads to another node instead, drawn so too                                |
| near    | two nodes two steps apart are joined; of two sides three steps                     |

Graphs are the worlds of `worlds.py`, worlds with few stray edges of their own (`RECIPES`), and data sets with edges as
they came (`--data-dir`). All kinds stand in one graph, each is measured against the edges that were not planted:
ROC-AUC and average precision of our list, of its parts, and of what is obvious: few common neighbours, a low
Adamic-Adar index, a low product of degrees (preferential attachment), a low cosine of attributes, a low reconstruction
by a graph autoencoder. Where a world's own edges lead astray as well, or an edge is planted between two nodes that
might as well be joined, as most of `near` are, nobody can tell.
"""

import argparse
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy.oddities import World, degrees
from bench.accuracy.problem import DATA, parse_seeds
from bench.accuracy.worlds import WORLDS, Made, Recipe, as_problem, world
from bench.accuracy.zoo import Nodes, Rng, adjacency, communities, edges, from_edges
from hcm_scale.base.rng import key
from hcm_scale.detector import HCM
from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import read_matrix
from hcm_scale.score.metrics import evaluate

RECIPES = {  # worlds whose own edges hardly lead astray
    "closed": Recipe("as follow, and no edge leaves its community", homophily=1.0),
    "tidy": Recipe("as follow, and two edges of a hundred leave their community at most", homophily=0.98),
    "circles": Recipe("communities of about fifty, which two edges of a hundred leave", homophily=0.98, community=50),
    "weak_circles": Recipe("the same, and attributes tell little", homophily=0.98, community=50, signal=1.0),
}
KINDS = ("random", "between", "rewired", "near")
_PURPOSE, _GAE = 0x320, 0x321  # uses of the seed
_SHARE = 0.005  # of the edges, of each kind
Values = NDArray[np.float64]


class Planted(NamedTuple):
    """The graph, the ends of its edges in edge order, and the kind of each: 0 not planted, 1 the first of KINDS."""

    graph: Graph
    ends: tuple[Nodes, Nodes]
    kind: NDArray[np.uint8]


def plant_edges(made: World, seed: int) -> Planted:
    """All kinds of strange edges in a world."""
    rng = np.random.default_rng(key(seed, _PURPOSE, zlib.crc32(made.name.encode())))
    graph = made.graph
    ends = np.stack(edges(graph), axis=1)
    count, taken = max(10, int(_SHARE * len(ends))), {tuple(sorted(pair)) for pair in ends.tolist()}
    rewired = rng.permutation(len(ends))[:count]
    found = {
        kind: np.array([_draw(made, kind, ends, ends[rewired[i]], taken, rng) for i in range(count)]) for kind in KINDS
    }
    kept = np.delete(ends, rewired, axis=0)
    rows = np.concatenate([kept, *found.values()])
    joined = replace(from_edges(replace(graph, directed=False), (rows[:, 0], rows[:, 1])), x=graph.x)
    kind, (left, right) = np.zeros(joined.num_edges, np.uint8), edges(joined)
    for number, pairs in enumerate(found.values(), 1):
        numbers = pairs.min(axis=1) * graph.num_nodes + pairs.max(axis=1)
        kind[np.searchsorted(left * graph.num_nodes + right, numbers)] = number
    return Planted(joined, (left, right), kind)


def _draw(made: World, kind: str, ends: Nodes, old: Nodes, taken: set[tuple[int, ...]], rng: Rng) -> list[int]:
    """A pair of nodes of this kind that is not joined yet."""
    graph, types = made.graph, made.types
    apart = types is not None and made.name == "bipartite"
    while True:
        u, v = (int(rng.choice(ends[rng.integers(len(ends))])) for _ in range(2))
        if kind == "random":
            u, v = map(int, rng.integers(graph.num_nodes, size=2))
        elif kind == "rewired":
            u = int(old[0])
        elif kind == "near":
            v = u
            for _ in range(3 if apart else 2):
                v = int(rng.choice(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]))
        pair = u, v
        is_new = u != v and tuple(sorted(pair)) not in taken
        if (
            is_new
            and not (apart and types[u] == types[v])
            and not (kind == "between" and made.groups[u] == made.groups[v])
        ):
            taken.add(tuple(sorted(pair)))
            return list(pair)


def obvious(planted: Planted, x: NDArray[np.float32], seed: int) -> dict[str, Values]:
    """How strange every edge is by each of the obvious numbers."""
    graph, (left, right) = planted.graph, planted.ends
    joined, degree = adjacency(graph), graph.degrees.astype(float)
    weighed = joined.multiply(1.0 / np.log(np.maximum(degree, 2))[None, :]).tocsr()
    found = {
        "common neighbours": -np.asarray(joined[left].multiply(joined[right]).sum(axis=1), float).ravel(),
        "Adamic-Adar": -np.asarray(weighed[left].multiply(joined[right]).sum(axis=1), float).ravel(),
        "degree product": -(degree[left] * degree[right]),
    }
    if x.shape[1]:
        unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        found["cosine"] = -(unit[left] * unit[right]).sum(axis=1).astype(float)
        found["GAE"] = -_gae(planted, x, seed)
    return found


def _gae(planted: Planted, x: NDArray[np.float32], seed: int, width: int = 32, steps: int = 100) -> Values:
    """Logit of every edge by a graph autoencoder: two graph convolutions, inner products, as many random non-edges."""
    torch.set_num_threads(1)  # small products on shared cores
    torch.manual_seed(key(seed, _GAE) % 2**31)
    graph, n = planted.graph, planted.graph.num_nodes
    scale = 1.0 / np.sqrt(graph.degrees + 1.0)
    rows = np.concatenate([np.repeat(np.arange(n), graph.degrees), np.arange(n)])
    columns = np.concatenate([graph.indices, np.arange(n)])
    values = torch.tensor(scale[rows] * scale[columns], dtype=torch.float32)
    places = torch.tensor(np.stack([rows, columns]))
    spread = torch.sparse_coo_tensor(places, values, (n, n), check_invariants=False).coalesce()
    once = spread @ torch.tensor(x)
    first = torch.nn.Linear(x.shape[1], 2 * width)
    second = torch.nn.Linear(2 * width, width)
    optimiser = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    left, right = (torch.tensor(end) for end in planted.ends)
    for step in range(steps + 1):
        z = second(spread @ torch.relu(first(once)))
        logit = (z[left] * z[right]).sum(dim=1)
        if step == steps:
            return logit.detach().numpy().astype(float)
        others = (z[torch.randint(n, (len(left),))] * z[torch.randint(n, (len(left),))]).sum(dim=1)
        target = torch.cat([torch.ones(len(left)), torch.zeros(len(left))])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(torch.cat([logit, others]), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    raise AssertionError


def run(name: str, seed: int, num_nodes: int, data_dir: Path) -> Iterator[dict[str, Any]]:
    """One line a score, with ROC-AUC and average precision by kind."""
    if name in DATA:
        with tempfile.TemporaryDirectory() as scratch:
            graph = read_matrix(Path(scratch) / "graph", data_dir / str(DATA[name].file))
            graph = replace(graph, y=None, kind=None)
            made = World(name, graph, communities(graph), np.zeros(graph.num_nodes, bool))
            yield from _measure(made, seed)
    else:
        yield from _measure(world(name, num_nodes, seed, RECIPES.get(name)), seed)


def _measure(made: World, seed: int) -> Iterator[dict[str, Any]]:
    planted = plant_edges(made, seed)
    graph, none = planted.graph, np.zeros(planted.graph.num_nodes, np.uint8)
    x = as_problem(made.name, Made(replace(graph, y=none), none, made.hubs, made.types), seed).x
    if graph.x is None:  # as graph.featureless=degree reads files
        graph = replace(graph, x=np.log1p(degrees(graph)).astype(np.float32)[:, None])
    found = HCM(seed=seed, device="cpu").fit(graph).edges_
    found = found.take(np.lexsort((found["target"].to_numpy(), found["source"].to_numpy())))  # in edge order
    flagged = found["flagged"].to_numpy()
    facts = {"flagged": int(flagged.sum()), "planted": int((flagged & (planted.kind > 0)).sum())}
    astray = made.groups[planted.ends[0]] != made.groups[planted.ends[1]]
    facts["own astray"] = int((flagged & (planted.kind == 0) & astray).sum())
    ours = {"ours": found["surprise"].to_numpy()}
    ours |= {name: found[name].to_numpy().astype(float) for name in ("hop", "around", "unlike")}
    for method, score in {**ours, **obvious(planted, x, seed)}.items():
        line: dict[str, Any] = {"world": made.name, "seed": seed, "method": method, "num_edges": graph.num_edges}
        for number, kind in enumerate(KINDS, 1):
            judged = (planted.kind == 0) | (planted.kind == number)
            numbers = evaluate((planted.kind[judged] == number).astype(np.uint8), score[judged])
            line[kind] = [round(numbers["roc_auc"], 4), round(numbers["average_precision"], 4)]
        yield line | (facts if method == "ours" else {})


def markdown(lines: list[dict[str, Any]]) -> str:
    """A row for every world and kind: ROC-AUC / average precision of each method, means over seeds."""
    methods = list(dict.fromkeys(line["method"] for line in lines))
    rows = [f"| world | kind | {' | '.join(methods)} |", "|---" * (2 + len(methods)) + "|"]
    for name in dict.fromkeys(line["world"] for line in lines):
        for kind in KINDS:
            cells = []
            for method in methods:
                some = [line[kind] for line in lines if (line["world"], line["method"]) == (name, method)]
                cells.append(" / ".join(f"{x:.3f}".lstrip("0") for x in np.mean(some, axis=0)) if some else "-")
            rows.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*RECIPES, *WORLDS, *DATA]
    parser.add_argument("--worlds", nargs="+", default=[*RECIPES, "follow", "weak"], choices=names, metavar="NAME")
    parser.add_argument("--seeds", type=parse_seeds, default=[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("HCM_DATA", "data")))
    parser.add_argument("--out", type=Path, help="a file to add the lines to")
    given = parser.parse_args(arguments)
    lines = []
    for name in given.worlds:
        for seed in given.seeds:
            for line in run(name, seed, given.nodes, given.data_dir):
                lines.append(line)
                text = json.dumps(line)
                print(text, flush=True)
                if given.out:
                    with given.out.open("a") as stream:
                        stream.write(text + "\n")
    print(markdown(lines))


if __name__ == "__main__":
    main()
