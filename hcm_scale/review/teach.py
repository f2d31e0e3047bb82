"""A finished run and what people said about its nodes: which to look at next, and the list that their verdicts make.

    RUN/taught/    taught.parquet        id, node, taught, taught_rank, verdict; by taught_rank
                   lesson.safetensors    what `apply_lesson` needs to rank another graph
                   manifest.json         what was taught, in words, what it rests on, the hash of the scores behind it

`next_nodes` draws nodes for a verdict, `take_in` adds the verdicts of a table, `teach` learns from
all that were given and writes the folder, whole or not at all; `carry_over` does so for a run that was scored with
`trained=`. Nothing in the folders of stages changes. A folder whose scores have been made again since is not read:
the verdicts are still there, and `teach` makes it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hcm_scale.base import files
from hcm_scale.base.threads import run_in_slices
from hcm_scale.graph import Graph
from hcm_scale.ingest.policy import InputError
from hcm_scale.ingest.table_files import TableSource
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.wording import reasons_of
from hcm_scale.review import verdicts
from hcm_scale.review.draw import draw
from hcm_scale.review.estimate import Estimates, Share
from hcm_scale.review.learn import Inputs, Lesson, apply_lesson, learn
from hcm_scale.score import table
from hcm_scale.score.metrics import ranking
from hcm_scale.stages.purify import Purified, open_purified
from hcm_scale.stages.report import edge_hops

KIND, FORMAT = "hcm_scale taught", 1
FOLDER, FILE, _LESSON = "taught", "taught.parquet", "lesson.safetensors"
WORTH = 0.2
_FIRSTS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
_NOT_GIVEN = len(verdicts.NAMES)  # code of a node without a verdict
_WORDS = pa.array([*verdicts.NAMES, None], pa.string())
_COLUMNS = {"taught": pa.float64(), "taught_rank": pa.int64(), "verdict": pa.string()}
_MODEL = ("weights", "center", "spread")
_TYPES: dict[str, Any] = {"scores": str, "files": dict[str, str], "changed": bool, "sentences": list[str]}
_TYPES |= dict.fromkeys(("num_bad", "num_good", "num_unsure"), int)
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder, its graph and features, and its ranked table on disk."""

    folder: Path
    graph: Graph
    purified: Purified
    ranked: table.RankedFile

    @staticmethod
    def open(run_dir: Path, graph: Path, purified: Path, scores: Path) -> "Run":
        """The run of these folders of stages, which the caller has checked."""
        ranked, opened = table.RankedFile(scores / table.FILE), Graph.open(graph, verify=False)
        table.check_ranked(ranked.path, ranked, opened.num_nodes)
        return Run(run_dir, opened, open_purified(purified, opened), ranked)

    def column(self, name: str) -> NDArray[Any]:
        """A column in node order, (n,)."""
        return _in_node_order(self.ranked[name], self.order)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The nodes by rank, (n,)."""
        return self.ranked["node"].to_numpy()

    @cached_property
    def score(self) -> Values:
        """The label-free score that ranks, (n,)."""
        return self.column(table.ranked_by(self.ranked))

    def inputs(self) -> Inputs:
        """What a lesson is learned from, or applied to."""
        features, names = self.purified.features, self.purified.columns
        neighbors = self.graph.indptr, self.graph.indices
        titles = [kind.title for kind in table.kinds_of(self.ranked).values()]
        return Inputs(self.score, self.places(), self.graph.degrees, features, names, *neighbors, titles)

    def places(self) -> dict[str, NDArray[Any]]:
        """Places in node order, (n,), by every kind of evidence."""
        return {kind.name: self.column(kind.rank_column) for kind in table.kinds_of(self.ranked).values()}


def _in_node_order(column: pa.ChunkedArray, nodes: NDArray[np.int64]) -> NDArray[Any]:
    values = column.to_numpy()
    out = np.empty_like(values)

    def fill(part: slice) -> None:
        out[nodes[part]] = values[part]

    run_in_slices(len(out), fill)
    return out


class Given(NamedTuple):
    """Verdicts on nodes of a graph, in the order of the nodes, and what there is to say about the others."""

    nodes: NDArray[np.int64]
    codes: verdicts.Codes
    notes: list[str]

    @staticmethod
    def of(run: Run) -> "Given":
        """The verdicts beside a run that count."""
        found = verdicts.latest(run.folder)
        ids = found.table["id"].combine_chunks()
        nodes = verdicts.find_nodes(run.graph, ids)
        order = np.argsort(nodes, kind="stable")[np.count_nonzero(nodes < 0) :]
        if len(absent := ids.filter(pa.array(nodes < 0))):
            shown = verdicts.shown_ids(absent)
            found.notes.append(f"verdicts on {len(absent):,} ids that are not in this graph: {shown}")
        return Given(nodes[order], found.codes[order], found.notes)

    def by_node(self, num_nodes: int) -> verdicts.Codes:
        """The code of every node's verdict, (n,)."""
        out = np.full(num_nodes, _NOT_GIVEN, np.int8)
        out[self.nodes] = self.codes
        return out

    def known(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Nodes known to be bad or good, and whether they are bad."""
        sure = self.codes != verdicts.UNSURE
        return self.nodes[sure], self.codes[sure] == verdicts.BAD


@dataclass(frozen=True, eq=False)
class Taught:
    """The list that verdicts made: its folder, and the manifest, which `taught_text` puts into words."""

    folder: Path
    facts: dict[str, Any]
    num_nodes: int

    @cached_property
    def table(self) -> pa.Table:
        """Rows by taught_rank: id, node, taught, taught_rank, verdict; FolderError where it is no such list."""
        path = self.folder / FILE
        found = table.read_scores(path)
        table.check_rows(path, found, self.num_nodes, {"node": pa.int64(), **_COLUMNS})
        ranks, taught = found["taught_rank"].to_numpy(), found["taught"].to_numpy()
        is_list = np.array_equal(ranks, np.arange(1, len(ranks) + 1)) and (taught[1:] <= taught[:-1]).all()
        if not is_list or np.isnan(taught).any():
            raise files.FolderError(f"{path} is damaged: its rows are not in the order of taught, a number each")
        return found

    def beside(self, ranked: pa.Table) -> pa.Table:
        """Rows of a ranked table with the columns taught, taught_rank and verdict."""
        rows = self.table.take(pa.array(self.column("taught_rank")[ranked["node"].to_numpy()] - 1))
        for name in _COLUMNS:
            ranked = ranked.append_column(name, rows[name])
        return ranked

    def row_of(self, node: int) -> dict[str, Any]:
        """Taught score, rank and verdict of a node."""
        (row,) = self.table.filter(pc.equal(self.table["node"], node)).select([*_COLUMNS]).to_pylist()
        return dict(row)

    def place_text(self, node: int) -> str:
        """Where verdicts have put a node, in words."""
        row = self.row_of(node)
        known = f", and its verdict is {row['verdict']}" if row["verdict"] else ""
        return f"taught rank {row['taught_rank']:,} of {self.num_nodes:,}{known}"

    def column(self, name: str) -> NDArray[Any]:
        """A column in node order, (n,)."""
        return _in_node_order(self.table[name], self.table["node"].to_numpy())

    @cached_property
    def scores(self) -> Values:
        """The taught score in node order, (n,)."""
        return self.column("taught")


def open_taught(run_dir: Path, scores: Path) -> Taught | None:
    """What a run was taught; None if it was not, or its scores have been made again since."""
    folder = files.path_inside(run_dir, FOLDER)
    if not folder.is_dir():
        return None
    again = f"remove {folder}, and hcm-scale teach {run_dir} makes it again from the verdicts"
    facts = files.read_manifest(folder, KIND, FORMAT, again, _TYPES)
    if facts["scores"] != files.hash_once(scores / table.FILE):
        return None
    files.check_folder(folder, facts["files"], again)
    taught = Taught(folder, facts, table.RankedFile(scores / table.FILE).num_rows)
    with files.naming_damage(folder / files.MANIFEST, again):
        taught_text(taught)  # whatever it says can be said
    return taught


def names_in(run_dir: Path) -> list[str]:
    """The files of what a run was taught, by their names in its folder; none where it was not."""
    return [f"{FOLDER}/{name}" for name in (FILE, _LESSON, files.MANIFEST)] if (run_dir / FOLDER).is_dir() else []


# Which nodes to look at.


def next_nodes(run: Run, count: int) -> pa.Table:
    """The nodes whose verdicts would teach most: id, an empty verdict, rank, why and by which chance, and the reason.

    The same until there are new verdicts.
    """
    taught, given = open_taught(run.folder, run.ranked.path.parent), Given.of(run)
    score = run.score if taught is None else taught.scores
    reviewed = given.by_node(len(score)) != _NOT_GIVEN
    _, is_bad = given.known()
    places, bad_share = list(run.places().values()), float(is_bad.mean()) if len(is_bad) else 0.0
    drawn = draw(score, places, reviewed, count, len(given.nodes), bad_share)
    nodes = [entry.node for entry in drawn]
    ranks = run.column("rank") if taught is None else taught.column("taught_rank")
    hops = edge_hops(run.ranked.path.parent, run.graph)
    evidence = Evidence.of(run.graph, run.purified.graph, run.ranked, *hops, run.purified.features)
    return pa.table(
        {
            "id": pa.array([run.graph.external_id(node) for node in nodes]),
            "verdict": pa.nulls(len(nodes), pa.string()),
            "rank" if taught is None else "taught_rank": ranks[nodes],
            "why": [entry.why for entry in drawn],
            "chance": [entry.chance for entry in drawn],
            "reason": reasons_of(evidence, nodes),
        }
    )


# Verdicts of a table.


def take_in(run: Run, source: TableSource, by: str | None = None, id_names: Sequence[str] = ()) -> list[str]:
    """Adds the verdicts of a table that differ from those known; returns what there is to say about them."""
    given, said = verdicts.read_table(source, id_names)
    (ids, number, last), codes = verdicts.last_rows(given["id"]), given["code"].to_numpy()
    nodes, told = verdicts.find_nodes(run.graph, ids), [said]
    if len(ids) and (nodes < 0).all():
        example = run.graph.external_id(0)
        raise InputError(f"{said}; none of these ids is in the graph of {run.folder}, where they look like {example!r}")
    twice = np.isin(np.arange(len(ids)), number[codes != codes[last[number]]])
    for which, what in ((twice, "with two verdicts, of which the later one counts"), (nodes < 0, "not in this graph")):
        named = ids.filter(pa.array(which))
        told += [f"{len(named):,} ids {what}: {verdicts.shown_ids(named)}"] if len(named) else []
    before = np.append(Given.of(run).by_node(run.graph.num_nodes), -1)[nodes]
    before[before == _NOT_GIVEN] = verdicts.NONE
    new = pa.table({"id": ids, "code": codes[last]}).filter(pa.array((nodes >= 0) & (before != codes[last])))
    for part in new.to_batches(1 << 20):
        words = _WORDS.take(part["code"])
        verdicts.append(run.folder, zip(part["id"].to_pylist(), words.to_pylist(), strict=True), by)
    return told


# The lesson.


def teach(run: Run, worth: float = WORTH) -> Taught:
    """What the verdicts beside a run make of its list, written into RUN/taught."""
    given = Given.of(run)
    if not len(given.nodes) and not (run.folder / FOLDER).is_dir():  # which those taken back had made
        how = f"hcm-scale review {run.folder} --csv FILE writes a list to fill in"
        raise ValueError(f"{run.folder} has no verdicts on nodes of its graph yet; {how}")
    nodes, is_bad = known = given.known()
    lesson = learn(run.inputs(), *known) if len(nodes) else Lesson(run.score, False, [], {})
    order = ranking(lesson.taught) if lesson.changed else run.order
    facts: dict[str, Any] = {
        "notes": given.notes,
        "changed": bool(lesson.changed),
        "sentences": list(lesson.sentences),
        "num_bad": int(is_bad.sum()),
        "num_good": int(len(is_bad) - is_bad.sum()),
        "num_unsure": len(given.nodes) - len(nodes),
    }
    if not is_bad.all():  # else they may be cases that somebody knew, which tell nothing about the list
        firsts = [first for first in _FIRSTS if first <= len(run.score)] or [len(run.score)]
        found = Estimates.of({"after": order, "before": run.order}, *known)
        facts["shares"] = {name: [*map(list, found.shares(name, firsts))] for name in ("before", "after")}
        facts["worth"] = worth
        facts["worth_reading"] = {name: found.worth_reading(name, worth) for name in ("before", "after")}
    with files.file_lock(run.folder / ".lock", wait=False) as is_free:
        if not is_free:
            raise ValueError(f"{run.folder} is at work: another run or lesson writes to it; the verdicts are kept")
        return _write(run, lesson.taught, order, given, lesson.model, facts)


def estimate(run: Run, score: Values, first: int) -> Share:
    """The share of bad nodes among the first of a list, with its 90 % interval, from the verdicts beside the run."""
    if not 1 <= first <= len(score):
        raise ValueError(f"first={first} is not legal: a whole number from 1 to {len(score):,}, the nodes of the list")
    lists = {"taught": ranking(score), "before": run.order}
    (found,) = Estimates.of(lists, *Given.of(run).known()).shares("taught", [first])
    return found


def _write(
    run: Run,
    taught: Values,
    order: NDArray[np.int64],
    given: Given,
    model: Mapping[str, Values],
    facts: Mapping[str, Any],
) -> Taught:
    """Writes the folder; the caller holds the lock of the run. `order` are the nodes by taught score."""
    codes, size = given.by_node(len(taught)), table.group_rows(len(order))

    def rows(first: int) -> pa.Table:
        nodes = order[first : first + size]
        ids = pa.array(nodes) if run.graph.ids is None else run.graph.ids.take(pa.array(nodes))
        ranks = np.arange(first + 1, first + len(nodes) + 1)
        words = _WORDS.take(pa.array(codes[nodes]))
        return pa.table({"id": ids, "node": nodes, "taught": taught[nodes], "taught_rank": ranks, "verdict": words})

    folder = run.folder / FOLDER
    with files.replacing_folder(folder) as fresh:
        table.write_scores(fresh / FILE, [partial(rows, first) for first in range(0, len(order), size)])
        files.write_bytes(fresh / _LESSON, save({name: np.ascontiguousarray(part) for name, part in model.items()}))
        body = {"scores": files.hash_once(run.ranked.path), "files": files.hash_folder(fresh), **facts}
        files.write_manifest(fresh, KIND, FORMAT, body)
    return Taught(folder, files.read_manifest(folder, KIND, FORMAT), len(order))


def carry_over(trained_dir: Path, trained_scores: Path, run: Run) -> list[str]:
    """What a run that was scored with `trained=` gets from there, in words: its lesson, and the verdicts on its nodes.

    The caller holds the lock of the run. A lesson that was taught here is kept.
    """
    before = verdicts.latest(trained_dir)
    ids = before.table["id"].combine_chunks()
    nodes, own = verdicts.find_nodes(run.graph, ids), verdicts.latest(run.folder).table["id"].combine_chunks()
    is_new = pc.invert(pc.is_in(ids, own)).to_numpy(zero_copy_only=False)
    if (new := before.table.filter(pa.array((nodes >= 0) & is_new))).num_rows:
        verdicts.append_known(run.folder, new)
    told = []
    if len(back := np.flatnonzero((nodes >= 0) & (before.codes == verdicts.BAD))):
        ranks = run.column("rank")[nodes[back]]
        back = back[np.argsort(ranks)]
        names = verdicts.shown_ids(ids.take(pa.array(back)))
        told.append(f"known as bad in {trained_dir} and here again, best rank first ({len(back):,}): {names}")
    lesson = open_taught(trained_dir, trained_scores)
    if lesson is None:
        if len(ids):
            told.append(f"{trained_dir} has verdicts and learned nothing yet: hcm-scale teach {trained_dir} does it")
        return told
    here = open_taught(run.folder, run.ranked.path.parent)
    if not lesson.facts["changed"] or (here is not None and "taught_by" not in here.facts):
        return told
    model = files.read_tensors(lesson.folder / _LESSON, lambda data: {name: load(data)[name] for name in _MODEL})
    given = Given.of(run)
    taught = apply_lesson(model, run.inputs(), given.nodes[given.codes == verdicts.BAD])
    facts = {name: lesson.facts[name] for name in ("changed", "sentences", "num_bad", "num_good", "num_unsure")}
    _write(run, taught, ranking(taught), given, model, facts | {"taught_by": str(trained_dir)})
    told.append(f"taught by {_rests_on(facts)} of {trained_dir}: the new order is in {run.folder / FOLDER / FILE}")
    return told


# In words.


def _rests_on(facts: Mapping[str, Any]) -> str:
    """What a lesson rests on.

    >>> _rests_on({"num_bad": 3, "num_good": 1, "num_unsure": 0})
    '4 verdicts (3 bad, 1 good)'
    """
    counts = {name: facts[f"num_{name}"] for name in ("bad", "good", "unsure")}
    named = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{sum(counts.values()):,} verdicts ({named or 'none that counts'})"


def taught_text(taught: Taught) -> str:
    """What there is to say about the verdicts, what they changed, and how good the list was and is, to be printed."""
    facts = taught.facts
    state = "taught by" if facts["changed"] else "the list keeps its order after"
    lines = [*facts.get("notes", ()), f"{state} {_rests_on(facts)}", *(f"  {said}" for said in facts["sentences"])]
    if "shares" in facts:
        lines += ["", f"{'estimated share of bad':<28}{'before':>24}{'after':>24}   (90 % interval)"]
        for old, new in zip(facts["shares"]["before"], facts["shares"]["after"], strict=True):
            lines.append(f"  among the first {old[0]:<10,}{_share_text(Share(*old)):>24}{_share_text(Share(*new)):>24}")
        ranks = facts["worth_reading"]
        price = f"as long as {100 * facts['worth']:g} % of the nodes there are bad"
        lines += ["", f"worth reading {price}: down to rank {ranks['before']:,} before, {ranks['after']:,} after"]
    elif "taught_by" not in facts:
        lines += ["", "how good the list is takes verdicts on good nodes too: hcm-scale review draws some"]
    return "\n".join(lines)


def _share_text(found: Share) -> str:
    """A share and its interval.

    >>> _share_text(Share(50, 0.2, 0.1, 0.345))
    '20 % (10 to 34)'
    """
    return f"{100 * found.share:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
