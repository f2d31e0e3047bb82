"""The most surprising set of nodes around some that are given, grown node by node while its surprise rises.

A node next to the set is taken where this sum exceeds 3 nats, so that chance takes one in twenty:

    -log(nodes whose p is as small * d(node) * (sum of d over the set) / (sum of all d)), the number of nodes as strange
        that chance puts next to the set
    -log P(Poisson(mean) >= edges - 1), its edges into the set beyond the one by which it is next to it, where degrees
        lead to expect `mean`
    the surprise of the strangest row between it and the set, less the logarithm of the rows of the account in the set

A node of more than a hundred neighbours joins nothing together, and is not taken.
The node that adds most is taken first. Nothing is taken where nothing holds.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.cases.groups import Structure, poisson_surprise
from hcm_scale.rows.evidence import RowEvidence

_MARGIN, _MOST, _HUB = 3.0, 60, 100


class Taken(NamedTuple):
    """A node that was taken, what it adds in nats, and why."""

    node: int
    gain: float
    why: str


def grow_from(graph: Structure, clue: list[int], p: NDArray[np.float64], rows: RowEvidence | None) -> list[Taken]:
    """Nodes around the clue, in the order in which they were taken."""
    inside, taken, place = set(clue), list[Taken](), np.empty(len(p), np.int64)
    place[np.argsort(p, kind="stable")] = np.arange(1, 1 + len(p))
    while len(inside) < _MOST:
        best = max(_candidates(graph, inside, place, rows), key=lambda one: (one.gain, -one.node), default=None)
        if best is None or best.gain <= 0.0:
            return taken
        taken.append(best)
        inside.add(best.node)
    return taken


def _candidates(graph: Structure, inside: set[int], place: NDArray[np.int64], rows: RowEvidence | None) -> list[Taken]:
    """What every node next to the set would add; `place` is that of every node by its p, from 1 on."""
    degree, total = np.diff(graph.indptr), max(1, int(graph.indptr[-1]))
    volume = int(sum(degree[node] for node in inside))
    near = [graph.indices[graph.indptr[node] : graph.indptr[node + 1]].astype(np.int64) for node in sorted(inside)]
    nodes, edges = np.unique(np.concatenate(near), return_counts=True)
    is_candidate = ~np.isin(nodes, list(inside)) & (degree[nodes] <= _HUB)
    by_rows, out = _strangest(rows, inside), []
    for node, count in zip(nodes[is_candidate].tolist(), edges[is_candidate].tolist(), strict=True):
        mean = degree[node] * volume / total
        by_edges, by_row = poisson_surprise(count - 1.0, mean), by_rows.get(node, 0.0)
        gain = -math.log(place[node] * mean) + by_edges + by_row - _MARGIN
        why = [f"place {place[node]:,} by p"] if place[node] * mean < 0.4 else []
        why += [f"joined to {count:,} of them, where {mean:.1g} are expected"] if by_edges > 1.0 else []
        why += ["a strange row joins it to them"] if by_row > 1.0 else []
        out.append(Taken(node, float(gain), ", ".join(why)))
    return out


def _strangest(rows: RowEvidence | None, inside: set[int]) -> dict[int, float]:
    """The surprise of the strangest row between the set and each account, beyond that of one of so many rows."""
    out: dict[int, float] = {}
    for account in inside if rows is not None else ():
        assert rows is not None
        own = np.concatenate(rows.of_account(account))
        gain = -np.log(rows.chances(rows.surprise[own])) - math.log(max(1, len(own)))
        for other, value in zip(rows.other_ends(own, account).tolist(), gain.tolist(), strict=True):
            if value > out.get(other, 0.0):
                out[other] = value
    return out
