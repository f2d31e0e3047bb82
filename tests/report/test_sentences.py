"""Every sentence about a node, read back: each number in it is that of a slow computation of its own.

The graphs are the worlds of `bench/accuracy/worlds.py`, scored by real, short runs. Reasons are read from an exported
table, as a user gets them.
"""

import itertools
import json
import math
import re
import statistics
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kinds import kind_numbers
from safetensors.numpy import load_file

from bench.accuracy.worlds import WORLDS, make_problem, odds_of
from hcm_scale.cli.export import export_table
from hcm_scale.features.purify import attribute_trust
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.evidence import weigh_evidence
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS
from hcm_scale.score.nodes import mean_degree
from hcm_scale.score.result import open_scores
from hcm_scale.serve.server import Views
from hcm_scale.stages.purify import open_purified
from hcm_scale.stages.report import found_by
from tests.helpers import small_graph, small_run

QUICK = ("unrelated", "hubs", "directed")  # the other worlds are for `make audit`
NUM_NODES = 600

COUNT, NUMBER, VALUE = r"[\d,]+", r"\d+\.\d+", r"-?[\d,.]+(?:e[+-]\d+)?"
LIKE = rf"nodes (?:without neighbours|with 1 neighbour|with {COUNT} to {COUNT} neighbours)"
USUAL = (
    rf"(?:, on average)?(?:, where (?P<usual>{NUMBER}) is usual for (?P<whom>.+)|, as is usual for (?P<same>.+)|"
    "(?P<few>; too few nodes have as many neighbours to say what is usual))"
)
SOME = rf"(?:(?P<count>{COUNT}) of )?its (?:(?P<degree>{COUNT}) neighbours|only neighbour)"
JOINED = (
    rf"(?:(?P<joined>all|{COUNT} of the) (?P<pairs>{COUNT}) pairs among )?{SOME} (?:is|are) joined(?: to each other)?"
)
FAR = rf"{JOINED}, (?P<link>although|and) (?:they|these pairs|(?P<far>{COUNT}) of these pairs)"
PATTERNS = {
    "hop": rf"{SOME} looks? (?P<own>{NUMBER}) hops away to the model{USUAL}",
    "context": rf"its attributes differ from those around it by (?P<own>{NUMBER}) on a scale from 0 to 2{USUAL}",
    "closure": rf"{FAR} look (?P<own>{NUMBER}) hops apart to the model{USUAL}",
    "context_closure": rf"{FAR} differ in attributes by (?P<own>{NUMBER}) on a scale from 0 to 2{USUAL}",
    "cohesion": rf"(?:{JOINED}, where their degrees lead to expect (?P<usual>{VALUE}) such pairs|"
    rf"it shares (?:(?P<least>{COUNT})(?: or more)? of|all) its (?P<partners>{COUNT}) neighbours with "
    rf"(?:each of (?P<others>{COUNT}) others|another), where degrees lead to expect (?P<chance>{VALUE})|"
    "more of its neighbours are joined to each other, or to the same others, than their degrees explain)",
    "attributes": r"(?P<none>no column alone is 2 deviations off; the farthest is )?(?P<told>.+?)"
    rf"(?:; usual is the median of (?P<whom>{LIKE}))?",
}
OPENING = re.compile(
    r"(?P<alone>No edge leads from it to another node\. )?"
    r"(?P<nothing>No kind of evidence ranks it among the first 5%\. What comes nearest: )?"
)
ONE = re.compile(
    rf"`(?P<name>[^`]+)` = (?P<own>{VALUE})(?:(?:(?P<same>, as is usual)| where (?P<usual>{VALUE}) is usual)"
    rf"(?: and (?P<around>{VALUE}) the mean around it)?"
    rf"| where the mean (?P<where>around it|over all nodes) is (?P<mean>{VALUE}))"
)
REASON = re.compile(r"(?P<text>\S.*?) \(rank (?P<rank>[\d,]+) of (?P<size>[\d,]+) by (?P<kind>\w+)\)\.(?: |$)")
WRONG = re.compile(r"\bnan\b|\binf\b|None|-0(?:\.0+)?(?![\d.])|  |\b(?:all )?1 (?:nodes|neighbours|pairs)\b|[{}]", re.I)


def whole(text: str) -> int:
    return int(text.replace(",", ""))


def written(text: str, number: float, digits: int | None = None) -> bool:
    """Whether the text is this number: to the digits that it has, or to three of its first digits."""
    value = float(text.replace(",", ""))
    if digits is None:
        return value == pytest.approx(number, rel=6e-3, abs=1e-6)
    return abs(value - number) <= 0.5 * 10.0**-digits + 1e-5


class Slow:
    """What sentences tell of a scored graph, computed plainly, node by node."""

    def __init__(self, run_dir: Path) -> None:
        self.graph = Graph.open(run_dir / "graph")
        self.rows = {row["node"]: row for row in pq.read_table(run_dir / "scores/scores.parquet").to_pylist()}
        self.features = np.asarray(open_purified(run_dir / "purified", self.graph).features, np.float64)
        x = self.graph.x
        self.x = np.asarray(x.csr().toarray() if isinstance(x, SparseRows) else x, np.float64)
        self.spread = self.x.std(axis=0)
        self.trust = attribute_trust(self.graph.indptr, self.graph.indices, self.features.astype(np.float32))
        self.learnt = float(load_file(run_dir / "scores/scale.safetensors")["learnt"][0])
        ends = np.split(self.graph.indices, self.graph.indptr[1:-1])
        self.around = [row.tolist() for row in ends]
        arcs = ((u, v) for u, row in enumerate(self.around) for v in row if self.graph.directed or u < v)
        hops = open_scores(run_dir / "scores").edges().mean.astype(np.float64)
        self.hop = dict(zip(arcs, hops.tolist(), strict=True))
        lengths = np.linalg.norm(self.features, axis=1, keepdims=True)
        unit = np.divide(self.features, lengths, out=np.zeros_like(self.features), where=lengths > 0)
        self.distance = (1.0 - unit @ unit.T).tolist()
        self.sorted_columns = cache(self.sorted_columns)
        self.mean_length = cache(self.mean_length)
        self.usual = cache(self.usual)

    def length(self, kind: str, u: int, v: int) -> float:
        if kind in ("hop", "closure"):
            return self.hop[(u, v) if self.graph.directed or u < v else (v, u)]
        return self.distance[u][v]

    def mean_length(self, kind: str, node: int) -> float:
        return float(np.mean([self.length(kind, node, other) for other in self.around[node]]))

    def digits(self, node: int) -> int:
        return len(self.around[node]).bit_length()

    @cached_property
    def like(self) -> dict[int, list[int]]:
        nodes = range(self.graph.num_nodes)
        return {size: [v for v in nodes if self.digits(v) == size] for size in {self.digits(v) for v in nodes}}

    def like_words(self, node: int) -> str:
        if self.digits(node) < 2:
            return "nodes with 1 neighbour" if self.around[node] else "nodes without neighbours"
        first = 2 ** (self.digits(node) - 1)
        return f"nodes with {first:,} to {2 * first - 1:,} neighbours"

    def usual(self, kind: str, digits: int) -> float | None:
        nodes = self.like[digits]
        return float(np.median([self.mean_length(kind, v) for v in nodes])) if len(nodes) >= 8 else None

    def usual_edge(self, kind: str) -> float:
        pairs = self.hop
        if kind == "closure":
            return float(np.median(list(pairs.values())))
        both = [self.length(kind, u, v) for u, v in pairs]
        return float(np.median(both))

    def joined(self, nodes: list[int]) -> list[tuple[int, int]]:
        return [(u, v) for u, v in itertools.combinations(nodes, 2) if (u, v) in self.hop]

    def group(self, kind: str, node: int) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]:
        """The neighbours in far triangles, their joined pairs, and those that close the far triangles."""
        row = self.rows[node]
        num_far = round(math.expm1(row[KINDS[kind].column]) * (len(self.around[node]) + self.expected[node] / 4))

        def nearest(pair: tuple[int, int]) -> float:
            u, v = pair
            return min(self.length(kind, *sorted(ends)) for ends in ((node, u), (node, v), (u, v)))

        far = sorted(self.joined(self.around[node]), key=lambda pair: -nearest(pair))[:num_far]
        members = sorted({end for pair in far for end in pair})
        return members, self.joined(members), far

    @cached_property
    def expected(self) -> list[float]:
        """Triangles that degrees lead to expect at every node."""
        degree = np.array([len(row) for row in self.around], float)

        def of(node: int, rate: float) -> float:
            own = degree[node] - 1
            return 0.5 * sum(min(rate * own * (degree[v] - 1), own, degree[v] - 1) for v in self.around[node])

        nodes, rate = range(len(degree)), float((degree * (degree - 1)).sum() / degree.sum() ** 2)
        counted, wanted = (
            sum(map(f, nodes)) for f in (lambda v: len(self.joined(self.around[v])), lambda v: of(v, rate))
        )
        rate *= math.sqrt(max(1.0, counted / wanted)) if wanted else 1.0
        return [of(node, rate) for node in nodes]

    def extreme(self, node: int) -> list[int]:
        """Columns that are more than four times as far from the median as the quantile on their side."""
        found, columns = [], self.sorted_columns(self.digits(node))
        for column, value in enumerate(self.x[node].tolist()) if len(columns[0]) >= 8 else ():
            values = columns[column]
            inner, middle = math.ceil((len(values) - 1) / 20), statistics.median(values)
            usual_range = abs((values[-1 - inner] if value > middle else values[inner]) - middle)
            if usual_range and abs(value - middle) > 4 * usual_range:
                found.append(column)
        return found

    def sorted_columns(self, digits: int) -> list[list[float]]:
        return [sorted(column) for column in self.x[self.like[digits]].T.tolist()]

    def deviations(self, node: int) -> np.ndarray:
        theirs = self.x[self.around[node]].mean(axis=0) if self.around[node] else self.x.mean(axis=0)
        return np.divide(self.x[node] - theirs, self.spread, out=np.zeros(len(theirs)), where=self.spread > 0)


class Reader:
    """Reads sentences against a `Slow`; `assert` fails where one is not true."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow
        self.usual_edge = cache(slow.usual_edge)

    def read(self, node: int, text: str) -> list[str]:
        """The kinds that the reasons of a node tell of, in their order."""
        assert not WRONG.search(text), text
        slow, row = self.slow, self.slow.rows[node]
        opening = OPENING.match(text)
        found = list(REASON.finditer(text, opening.end()))
        assert "".join([opening[0], *(match[0] for match in found)]) == text
        kinds = [match["kind"] for match in found]
        sizes = {kind: sum(map(bool, slow.around)) for kind in KINDS} | dict.fromkeys(
            ("attributes", "cohesion"), slow.graph.num_nodes
        )
        notable = {kind for kind, size in sizes.items() if row[f"{kind}_rank"] <= max(1, 0.05 * size)}
        notable -= {kind for kind in ("closure", "context_closure", "cohesion") if row[kind] <= 0}
        notable -= set() if slow.around[node] else {"hop", "context"}
        notable -= {"hop"} if slow.learnt < 0.1 else set()  # weighs nothing
        notable -= {"closure"} if slow.trust * slow.learnt < 0.1 else set()
        assert (opening["alone"] is not None) == (not slow.around[node])
        assert (opening["nothing"] is not None) == (not notable), text
        extreme = slow.extreme(node)
        assert set(kinds) == notable | ({"attributes"} if extreme else set()) or (not notable and len(kinds) == 1)
        for match in found:
            kind = match["kind"]
            assert (whole(match["rank"]), whole(match["size"])) == (row[f"{kind}_rank"], sizes[kind])
            assert whole(match["rank"]) <= whole(match["size"])
            title, _, rest = match["text"].partition(": ")
            claimed = kind in notable or (kind == "attributes" and bool(extreme))
            assert (title.lower() == KINDS[kind].title) == claimed, text
            rest = rest if claimed else match["text"][0].lower() + match["text"][1:]
            self.read_reason(kind, node, rest, extreme)
        if "attributes" in kinds and (extreme or np.abs(slow.deviations(node)).max() >= 2):
            assert not {"hop", "context"} & set(kinds[: kinds.index("attributes")]), text
        return kinds

    def read_reason(self, kind: str, node: int, text: str, extreme: list[int]) -> None:
        match = re.fullmatch(PATTERNS[kind], text)
        assert match, text
        if kind == "attributes":
            self.read_attributes(node, match, extreme)
        elif kind == "cohesion":
            self.read_cohesion(node, match, text)
        else:
            self.read_lengths(kind, node, match, text)

    def read_lengths(self, kind: str, node: int, match: re.Match[str], text: str) -> None:
        slow, degree = self.slow, len(self.slow.around[node])
        if kind.endswith("closure"):
            members, joined, far = slow.group(kind, node)
            self.read_pairs(match, len(members), len(joined), degree)
            assert whole(match["far"]) == len(far) if match["far"] else len(far) == len(joined)
            value, usual = float(np.mean([slow.length(kind, u, v) for u, v in far])), self.usual_edge(kind)
            whom, count = "two neighbours", len(far)
        else:
            value, usual = slow.mean_length(kind, node), slow.usual(kind, slow.digits(node))
            whom, count = slow.like_words(node), degree
            assert kind == "context" or match["count"] is None
            assert kind == "context" or whole(match["degree"] or "1") == degree
        assert ("on average" in text) == (count > 1)
        digits = len(match["own"].partition(".")[2])
        assert written(match["own"], value, digits), (text, value)
        assert (match["few"] is not None) == (usual is None)
        if usual is not None:
            assert (match["whom"] or match["same"]) == whom
            assert written(match["usual"] or match["own"], usual, digits), (text, usual)
            assert match["usual"] != match["own"]
        if kind.endswith("closure"):
            assert (match["link"] == "although") == (
                match["same"] is None and float(match["own"]) > float(match["usual"])
            )

    def read_pairs(self, match: re.Match[str], count: int, joined: int, degree: int) -> None:
        assert whole(match["count"] or match["degree"]) == count
        assert whole(match["degree"]) == degree
        assert bool(match["joined"]) == (count > 2)
        if match["joined"]:
            assert whole(match["pairs"]) == count * (count - 1) // 2
            assert joined == whole(match["pairs"] if match["joined"] == "all" else match["joined"].split()[0])
        else:
            assert joined == 1
        assert (" is joined" in match[0]) == (joined == 1 and count > 2)

    def read_cohesion(self, node: int, match: re.Match[str], text: str) -> None:
        assert self.slow.rows[node]["cohesion"] > 0
        around = self.slow.around[node]
        if text.startswith("more of its neighbours"):
            assert self.slow.graph.directed or not len(self.slow.joined(around))  # of two sides
            return
        assert not self.slow.graph.directed
        if match["partners"]:  # of a graph of two sides
            assert int(match["partners"].replace(",", "")) == len(around)
            least = int((match["least"] or match["partners"]).replace(",", ""))
            shared = [len({*around} & {*others}) for other, others in enumerate(self.slow.around) if other != node]
            assert sum(each >= least for each in shared) >= int((match["others"] or "1").replace(",", ""))
            assert float(match["chance"].replace(",", "")) < least
            return
        self.read_pairs(match, len(around), len(self.slow.joined(around)), len(around))
        expected = self.slow.expected[node]
        assert written(match["usual"], expected, 1) if expected >= 0.1 else written(match["usual"], expected, 2)
        assert len(self.slow.joined(around)) > expected

    def read_attributes(self, node: int, match: re.Match[str], extreme: list[int]) -> None:
        slow, deviations = self.slow, self.slow.deviations(node)
        cited = list(ONE.finditer(match["told"]))
        assert "; ".join(one[0] for one in cited) == match["told"] or match["told"] == "no single column shows it"
        columns = [slow.graph.columns.index(one["name"]) for one in cited]
        if match["none"]:
            assert not extreme
            assert np.abs(deviations).max() < 2
        else:
            assert all(column in extreme or abs(deviations[column]) >= 2 - 1e-6 for column in columns)
            assert set(columns) <= set(extreme) or set(extreme) <= set(columns)
        assert (match["whom"] or slow.like_words(node)) == slow.like_words(node)
        nodes, around = slow.like[slow.digits(node)], slow.around[node]
        for one, column in zip(cited, columns, strict=True):
            assert written(one["own"], float(slow.x[node, column]))
            usual = one["own"] if one["same"] else one["usual"]
            assert (usual is not None) == (len(nodes) >= 8) == (match["whom"] is not None)
            assert usual is None or written(usual, float(np.median(slow.x[nodes, column])))
            mean = one["around"] or one["mean"]
            assert (mean is None) == (not around and len(nodes) >= 8)
            assert mean is None or written(mean, float(slow.x[around if around else slice(None), column].mean()))


def named(graph: Graph) -> Graph:
    """The graph with names of columns; its degrees as attribute if it has none."""
    graph = graph if graph.x is not None else replace(graph, x=np.diff(graph.indptr)[:, None].astype(np.float32))
    return replace(graph, columns=tuple(f"c{column}" for column in range(graph.x.shape[1])))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.audit) for name in WORLDS]
)
def test_sentences__of_every_world_are_true(name: str, tmp_path: Path):
    odd = next(odd for odd in ("own", "half_dense", "block") if odd in odds_of(name))
    small_run(tmp_path / "run", graph=named(make_problem(name, odd, 0, NUM_NODES).graph))
    export_table(FinishedRun(tmp_path / "run"), tmp_path / "list.parquet", NUM_NODES)
    slow = Slow(tmp_path / "run")
    reader, told = Reader(slow), set()
    for row in pq.read_table(tmp_path / "list.parquet", columns=["node", "reason"]).to_pylist():
        told |= set(reader.read(row["node"], row["reason"]))
    assert {"context", "attributes", *(["hop"] if slow.learnt >= 0.1 else [])} <= told
    for case in json.loads((tmp_path / "run/report/report.json").read_bytes())["cases"]["shown"]:
        members = sorted(int(member["id"]) for member in case["members"])
        joined = [(u, v) for u, v in itertools.combinations(members, 2) if {(u, v), (v, u)} & set(slow.hop)]
        assert case["num_edges"] == len(joined)
        assert all(slow.rows[int(member["id"])]["rank"] == member["rank"] for member in case["members"])


def test_sentences__reader_refuses_what_is_not_true(tmp_path: Path):
    """The reader itself: every number of a sentence, changed, is noticed, and so is a wrong link or order."""
    small_run(tmp_path / "run", graph=named(make_problem("follow", "half_dense", 0, NUM_NODES).graph))
    export_table(FinishedRun(tmp_path / "run"), tmp_path / "list.parquet", 40)
    reader, num_changed = Reader(Slow(tmp_path / "run")), 0
    for row in pq.read_table(tmp_path / "list.parquet", columns=["node", "reason"]).to_pylist():
        reader.read(row["node"], row["reason"])
        changes = [
            row["reason"][: match.start()] + str(int(match[0]) + 2) + row["reason"][match.end() :]
            for match in re.finditer(r"(?<![\w`.-])\d+(?![\w`%]| deviations| to 2| on a scale)", row["reason"])
            if row["reason"][: match.start()][-12:] != "scale from "
        ]
        changes += [row["reason"].replace("although", "and", 1)] * ("although" in row["reason"])
        for text in changes:
            with pytest.raises(AssertionError):
                reader.read(row["node"], text)
            num_changed += 1
    assert num_changed > 400


def test_causes__are_told_before_consequences_wherever_a_node_is_explained(tmp_path: Path):
    rng, graph = np.random.default_rng(0), small_graph(300, num_attributes=4)
    logins = rng.poisson(8, (300, 1))
    logins[77] = 176
    graph = replace(graph, x=np.hstack([np.asarray(graph.x), logins]).astype(np.float32), columns=(*"abcd", "logins"))
    small_run(tmp_path / "run", graph=graph)
    export_table(FinishedRun(tmp_path / "run"), tmp_path / "list.parquet", 300)
    found = pq.read_table(tmp_path / "list.parquet", columns=["id", "reason"]).to_pylist()
    reasons = {row["id"]: row["reason"] for row in found}
    assert re.match(r"Odd attributes: `logins` = 176 where [78] is usual and ", reasons[77])

    views, report = Views(FinishedRun(tmp_path / "run")), json.loads((tmp_path / "run/report/report.json").read_bytes())
    listed = json.loads(views.rows({}))["rows"]
    assert [row["reason"] for row in listed] == [reasons[int(row["id"])] for row in listed]
    assert report["table"]["reason"][:100] == [reasons[node] for node in report["table"]["id"][:100]]
    assert set(report["table"]["reason"][100:]) == {None}
    for card in report["top"]:
        lines = [f"{told['title'].capitalize()}: {told['text']}." for told in card["told"] if told["title"]]
        assert all(line in reasons[card["id"]] for line in lines)
    served = " ".join(re.sub("<[^>]*>", "", views.explained({"rank": str(list(reasons).index(77) + 1)})).split())
    printed = " ".join(FinishedRun(tmp_path / "run").explained_text(["77"]).split())
    for text in (served.replace("Odd attributes : ", "Odd attributes: "), printed):
        places = {text.find(kind.title.capitalize()) for kind in KINDS.values()} - {-1}
        assert min(places) == text.find("Odd attributes")


def test_shares__of_kinds_are_those_of_the_scores_by_each_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    said = small_run(tmp_path / "run", graph=named(make_problem("unrelated", "none", 0, NUM_NODES).graph))
    table = pq.read_table(tmp_path / "run/scores/scores.parquet")
    degree, num_first = table["degree"].to_numpy(), 6
    scale = load_file(tmp_path / "run/scores/scale.safetensors")
    believed = float(scale["trust"][0]), float(scale["learnt"][0])
    usual = degree > 0, mean_degree(degree), *believed
    alone = {
        name: weigh_evidence(kind_numbers({name: table[kind.column].to_numpy()}, *usual)).score
        for name, kind in KINDS.items()
    }
    np.testing.assert_allclose(sum(alone.values()), table["score"].to_numpy())
    first = {kind: score[:num_first].sum() for kind, score in alone.items()}
    shares = found_by(tmp_path / "run/scores")["shares"]
    assert shares == pytest.approx({kind: score / sum(first.values()) for kind, score in first.items()})
    for kind, share in shares.items():
        assert (f"{KINDS[kind].title} {100 * share:.0f}%" in caplog.text) == (share >= 0.005)
    assert "No single node can be named at a false-discovery rate of 10%" in said
    assert "reading list" in said
