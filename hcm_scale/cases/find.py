"""The cases of a scored graph: sets of nodes that are held together by the evidence that made them stand out.

Nodes stand out where they are flagged, or where p is at most 1 in 100; accounts with rows also where a kind about rows
says more of them than it says of nineteen in twenty. Findings among them are dense groups
(`groups.py`) and, where a table has rows such as payments, accounts that hold strange rows together (`of_rows.py`);
two that share half of the nodes of the smaller are one. A node that is in none is a case by itself if it is flagged,
and so are the thousand of smallest p that are not.

A case has a core, the nodes that stand out, and other members: ends of its rows, or nodes that a dense group grows by.
Its p is 1 / (sum of 1 / p over the core), the harmonic mean of their p over their number. Evidence of nodes that belong
together is not independent (all nodes of a chain have its surprise), and this holds however they depend on each other:
a group of twelve counts as much as twelve nodes in a list would. Flags are those of Benjamini and Hochberg among as
many tests as the graph has nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcm_scale.cases.groups import Structure, dense_groups
from hcm_scale.cases.of_rows import held_rows
from hcm_scale.graph.lookup import two_sides
from hcm_scale.graph.store import Graph
from hcm_scale.rows.evidence import RowEvidence
from hcm_scale.score.edge_index import edge_index
from hcm_scale.score.evidence import START
from hcm_scale.score.triangles import undirected

Nodes = NDArray[np.int64]
GROUP, ALONE, HAND = "group", "alone", "hand"  # what holds a case together, beside the kinds of rows
LEAST_P = 1e-300
_MOST_ALONE = 1000  # cases of one node that is not flagged
_STANDS_OUT = 0.01  # p up to which a node is looked at


class Case(NamedTuple):
    """Nodes that stand out together, other members, and rows between them; `surprise` is -log p."""

    core: Nodes
    others: Nodes
    rows: Nodes
    held_by: str
    surprise: float

    @property
    def members(self) -> Nodes:
        return np.concatenate([self.core, self.others])

    @property
    def p(self) -> float:
        return float(np.exp(-self.surprise))


def structure_of(graph: Graph) -> Structure:
    """The graph without directions, as groups are found in it."""
    side, indptr, indices = two_sides(graph), graph.indptr, graph.indices
    if graph.directed:
        both = undirected(edge_index(indptr, indices, directed=True))
        indptr, indices = both.indptr, both.indices
    return Structure(indptr, indices, side)


def find_cases(
    graph: Graph,
    p: NDArray[np.float64],
    flagged: NDArray[np.bool_],
    rows: RowEvidence | None,
    numbers: NDArray[np.float64] | None,
) -> list[Case]:
    """All cases, the most surprising first.

    `p` and `flagged` are in the order of nodes, as is what the kinds of rows say, (n, kinds), where there are rows.
    """
    stands_out = (p <= _STANDS_OUT) | flagged
    nodes = np.flatnonzero(stands_out)
    found = [(group.core, group.grown, nodes[:0], GROUP) for group in dense_groups(structure_of(graph), nodes)]
    if rows is not None and numbers is not None:
        stands_out |= numbers.max(axis=1) > START  # or a kind of rows says more of it than of nineteen in twenty
        some = np.flatnonzero(stands_out)
        for core, held, kind in held_rows(rows, some, numbers[some], stands_out):
            ends = np.union1d(rows.rows.payer[held], rows.rows.payee[held])
            found.append((core, np.setdiff1d(ends, core), held, kind))
    surprise = -np.log(np.maximum(p, LEAST_P))
    merged = [_merge([found[i] for i in one]) for one in _overlapping([one[0] for one in found])]
    cases = [Case(*one, float(np.logaddexp.reduce(surprise[one[0]]))) for one in merged]
    explained = np.zeros(len(p))  # the most that a case says of each of its members
    for case in cases:
        explained[case.members] = np.maximum(explained[case.members], case.surprise)
    alone = nodes[explained[nodes] < surprise[nodes]]
    alone = alone[np.lexsort((alone, p[alone], ~flagged[alone]))]
    alone = alone[: np.count_nonzero(flagged[alone]) + _MOST_ALONE]
    cases += [Case(alone[i : i + 1], nodes[:0], nodes[:0], ALONE, float(surprise[alone[i]])) for i in range(len(alone))]
    return sorted(cases, key=lambda case: (-case.surprise, int(case.core[0])))


def num_flagged(cases: Sequence[Case], num_nodes: int, rate: float) -> int:
    """How many of the cases, the most surprising first, are flagged at a false-discovery rate."""
    p = np.array([case.p for case in cases])
    below = np.flatnonzero(p * num_nodes <= rate * np.arange(1, 1 + len(p)))
    return int(below[-1]) + 1 if len(below) else 0


def _overlapping(cores: Sequence[Nodes]) -> list[list[int]]:
    """Sets of nodes, by their numbers, joined where two share at least half of the smaller one."""
    holders = defaultdict(list)
    for number, core in enumerate(cores):
        for node in core.tolist():
            holders[node].append(number)
    shared = Counter(pair for numbers in holders.values() for pair in combinations(numbers, 2))
    first = list(range(len(cores)))

    def root(number: int) -> int:
        while first[number] != number:
            number = first[number]
        return number

    for (one, other), count in sorted(shared.items()):
        if 2 * count >= min(len(cores[one]), len(cores[other])):
            low, high = sorted((root(one), root(other)))
            first[high] = low
    joined = defaultdict(list)
    for number in range(len(cores)):
        joined[root(number)].append(number)
    return list(joined.values())


def _merge(parts: Sequence[tuple[Nodes, Nodes, Nodes, str]]) -> tuple[Nodes, Nodes, Nodes, str]:
    """One finding of several: rows hold it if there are any, and then a dense group brings no more than its core."""
    if len(parts) == 1 and not len(parts[0][2]):
        return parts[0]
    core = np.unique(np.concatenate([part[0] for part in parts]))
    largest = max(parts, key=lambda part: (len(part[2]) > 0, len(part[0])))
    others = [part[1] for part in parts if (len(part[2]) > 0) == (len(largest[2]) > 0)]
    rows = np.unique(np.concatenate([part[2] for part in parts]))
    return core, np.setdiff1d(np.concatenate(others), core), rows, largest[3]
