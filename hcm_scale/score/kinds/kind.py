"""A kind of evidence is one object: how its numbers are made, what they weigh, and what is said of them.

A kind gives every node a number, larger is stranger; `score.evidence` turns numbers into ranks, surprises and sums, and
knows no kind by name. To add one, write a file with a `Kind` and put it on the list in `all.py`. A plug-in's kind is
the same object, of which a table stores what is no code (`plugin.py`), so that whoever reads it does not need it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_EQUAL_DEGREE = 10.0  # mean degree at which hops weigh as much as attributes
_NOTABLE_SHARE = 0.05


class Facts(NamedTuple):
    """What weights follow from: the geometric mean of the degrees, and how far attributes and hops can be believed.

    Hops are predicted from embeddings that average over neighbours, and averaged over neighbours again: with two or
    three of them they are noise, with thirty they know more than attributes. With m the mean degree what is said by
    hops weighs 2 m / (m + 10), what is said by the attributes of neighbours 20 / (m + 10): the same at m = 10. Where
    neighbours are no more alike than any two nodes (`trust` 0: features/purify.py), being unlike them says little: a
    third of that. Where they are alike, few neighbours leave more to a node's own attributes: 20 / (m + 10), at least
    1. Hops weigh less where the model has not `learnt` to tell edges from other pairs (kinds/hop.py).
    """

    mean_degree: float = _EQUAL_DEGREE
    trust: float = 1.0
    learnt: float = 1.0

    @property
    def of_hops(self) -> float:
        return 2.0 * self.learnt * (self.mean_degree / (self.mean_degree + _EQUAL_DEGREE))

    @property
    def of_attributes(self) -> float:
        return 1.0 + self.trust * max(0.0, 2.0 * _EQUAL_DEGREE / (self.mean_degree + _EQUAL_DEGREE) - 1.0)

    @property
    def of_context(self) -> float:
        share = self.mean_degree / (self.mean_degree + _EQUAL_DEGREE)
        return 2.0 * (1.0 - share) * ((1.0 + 2.0 * self.trust) / 3.0)


class Tail(NamedTuple):
    """How the surprise of a number beyond the bulk is estimated from the bulk, from the quantile `low` to 95 %.

    An exponential tail has the shape 0. `least_scale` bounds its scale from below, `least_of_few` does so where most
    nodes share one number, or the bulk is of nodes that have nothing. Numbers that are `in_nats` are surprises already:
    where most are 0, the few others are not compared among themselves, and p takes them at their word, give or take 2.
    """

    low: float = 0.5
    exponential: bool = False
    least_scale: float = 0.0
    least_of_few: float = 0.0
    in_nats: bool = False


_USUAL = Tail()
OF_LOGARITHMS = Tail(low=0.75, exponential=True, least_scale=0.05, least_of_few=0.05)  # on some graphs most nodes are 0
OF_ROWS = Tail(low=0.75, exponential=True, least_scale=1.0, least_of_few=1.0, in_nats=True)


class TailOnly(NamedTuple):
    """Only what lies beyond the tail's beginning is evidence, so that it costs nothing where it has no meaning.

    There it weighs `weight`, up to `most` times log(n), from where on it is softened; in p it is a test of its own.
    A number up to `least` is none: where the bulk has next to nothing, a little more is no evidence either.
    """

    weight: float = 4.0
    most: float = 1.5
    least: float = -math.inf


SURE_WITNESS = TailOnly(weight=2.0, most=5.0)  # of numbers in nats: one that is sure outweighs six that say a little


class Column(NamedTuple):
    """What a column of numbers is called: its axis, what it means, its heading, and what a high rank by it means."""

    axis: str
    help: str = ""
    title: str = ""
    means: str = "the higher a node stands, the larger this number is"


@dataclass(frozen=True)
class Reason:
    """One kind of evidence about a node: its rank among `num_ranked` nodes, and what its sentence is made of.

    What the numbers are, its kind says. `usual` is what they are held against; `details` is for kinds that need more.
    """

    kind: str
    rank: int
    num_ranked: int = 0
    value: float | None = None
    usual: float | None = None
    count: int = 0
    pairs: int = 0
    far_pairs: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notable(self) -> bool:
        return self.rank <= max(1.0, _NOTABLE_SHARE * self.num_ranked)


@dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """A kind of evidence. Functions take a `KindInputs`, an `Around`, or an explanation and a reason.

    `columns` are those of its numbers, the first is ranked; `numbers` makes an array (n,) for each. Nodes that it says
    nothing about (without neighbours, unless it `ranks_all_nodes`) gain as much as its middle node; nodes without
    attributes of their own have its median where it `needs_attributes`. A kind about rows of the edge table, on the
    list `ROW_KINDS`, has `of_rows` too, and what a row's sentence needs in `row_links` and `row_spans`.
    """

    name: str
    columns: Mapping[str, Column]
    title: str  # in a list
    short: str  # over a narrow column
    help: str  # a sentence or two
    numbers: Callable[[Any], Sequence[Values]]
    needs_hops: bool = False  # others are made while hops are being predicted
    needs_attributes: bool = False
    applies: Callable[[Any], bool] = lambda inputs: True  # whether there is anything to make its numbers of
    ranks_all_nodes: bool = False
    zero_says_nothing: bool = False
    weight: Callable[[Facts], float] = lambda facts: 1.0
    tail: Tail = _USUAL
    tail_only: TailOnly | None = None
    by_encoder: Callable[[Any], Sequence[Values]] = lambda inputs: ()  # its numbers by each encoder alone
    stored: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)  # what it measures by: which are legal
    shows_differences: bool = False  # a reason is the node's own differences of attributes, a cause of others,
    follows_differences: bool = False  # of this one
    reason: Callable[[Any], Mapping[str, Any]] = lambda around: {"value": around.number}
    sentence: Callable[[Any, Reason], str] | None = None
    words: str = ""  # said with its number, where there is no such function
    of_rows: Callable[[Any], Values] | None = None  # nats of every row of the edge table, by a `MadeEvidence`
    row_links: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # what is kept of rows, (m,), by name,
    row_spans: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # and of accounts, (n, 2)
    row_title: str = ""  # of a row that stands out by it
    row_sentence: Callable[[Any, int], str] = lambda evidence, row: ""
    judge: Callable[[Any], Any] | None = None  # new rows, `Arrivals`, before others follow them
    new_row_sentence: Callable[[Any, Any, int], str] = lambda new, told, row: ""  # by what `judge` told
    rows_of: Callable[[Any, int], Any] = lambda rows, account: ()  # those that its number of an account is made of
    needs_both_ends: bool = False  # a row of it joins two accounts only where both stand out
    identity: str = ""  # of a plug-in: which code it is

    @property
    def column(self) -> str:
        return next(iter(self.columns))

    @property
    def rank_column(self) -> str:
        return f"{self.name}_rank"

    @property
    def full_title(self) -> str:
        """The kind in words, with its name, such as `neighbours seem far (hop)`."""
        return f"{self.title} ({self.name})"

    def is_faint(self, facts: Facts) -> bool:
        """Whether it weighs so little, by trust and what was learnt, that no node stands out by it."""
        return self.weight(facts) < 0.1 * self.weight(facts._replace(trust=1.0, learnt=1.0))

    def say(self, explanation: Any, reason: Reason) -> str:
        """What it says of a node."""
        if self.sentence is not None:
            return self.sentence(explanation, reason)
        words = self.words.rstrip(".:")
        return f"{words[:1].lower()}{words[1:]}: {reason.value:.4g}" if words else f"its number is {reason.value:.4g}"

    def says_something(self, row: Mapping[str, Any]) -> bool:
        """Of the node of this row of the ranked table."""
        if self.zero_says_nothing:
            return bool(row[self.column] > 0.0)
        return self.ranks_all_nodes or bool(row["degree"])


ROW_KIND = partial(Kind, ranks_all_nodes=True, zero_says_nothing=True, tail=OF_ROWS, tail_only=SURE_WITNESS)
