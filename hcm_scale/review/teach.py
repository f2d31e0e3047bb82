"""A finished run and what people said about its nodes: which to look at next, and the list that their verdicts make.

    RUN/taught/    taught.parquet        id, node, taught, taught_rank, verdict; by taught_rank
                   lesson.safetensors    what `apply_lesson` needs to rank another graph
                   manifest.json         what was taught, in words, what it rests on, the hash of the scores behind it

`next_nodes` draws nodes for a verdict, `import_verdicts` adds the verdicts of a table, `teach` learns from
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
from hcm_scale.base.text import counted
from hcm_scale.base.threads import run_in_slices
from hcm_scale.ingest.encode import is_text
from hcm_scale.ingest.policy import InputError
from hcm_scale.ingest.table_files import TableSource
from hcm_scale.report.wording import reasons_of
from hcm_scale.review import verdicts
from hcm_scale.review.cases import judged_cases
from hcm_scale.review.draw import draw
from hcm_scale.review.estimate import Estimates, Share
from hcm_scale.review.learn import Inputs, Lesson, apply_lesson, learn
from hcm_scale.score import table
from hcm_scale.score.evidence import nodes_by_group
from hcm_scale.score.metrics import ranking

KIND, FORMAT = "hcm_scale taught", 1
FOLDER, FILE, _LESSON = "taught", "taught.parquet", "lesson.safetensors"
WORTH = 0.2
_FIRSTS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
_FIRST_CASES = (10, 20, 50, 100, 200, 500)
_SURE = verdicts.NAMES[verdicts.GOOD], verdicts.NAMES[verdicts.BAD]
_NOT_GIVEN = len(verdicts.NAMES)  # code of a node without a verdict
_COLUMNS = {"taught": pa.float64(), "taught_rank": pa.int64(), "verdict": pa.string()}
_MODEL = ("weights", "center", "spread")
_TYPES: dict[str, Any] = {"scores": str, "files": dict[str, str], "changed": bool, "sentences": list[str]}
_TYPES |= dict.fromkeys(("num_bad", "num_good", "num_unsure"), int)
Values = NDArray[np.float64]
Run = Any  # run.finished.FinishedRun, in a room above


def _words(codes: Any) -> pa.Array:
    return pa.array([*verdicts.NAMES, None], pa.string()).take(codes)


def _score(run: Run) -> Values:
    return run.column(table.ranked_by(run.ranked))


def inputs_of(run: Run) -> Inputs:
    """What a lesson is learned from, or applied to."""
    features, names, neighbors = run.purified.features, run.purified.columns, (run.graph.indptr, run.graph.indices)
    titles = [kind.title for kind in table.kinds_of(run.ranked).values()]
    return Inputs(_score(run), _ranks(run), run.graph.degrees, features, names, *neighbors, _num_compared(run), titles)


def _num_compared(run: Run) -> NDArray[np.int64] | None:
    """Among how many nodes each has its ranks by kind; None: among all."""
    types, groups = run.graph.node_types, table.compared_types(run.ranked)
    if types is None or groups is None:
        return None
    out = np.zeros(run.graph.num_nodes, np.int64)
    for nodes in nodes_by_group(types, groups):
        out[nodes] = len(nodes)
    return out


def _ranks(run: Run) -> dict[str, NDArray[Any]]:
    """Ranks in node order, (n,), by every kind of evidence; empty where the run has one score alone."""
    return {kind.name: run.column(kind.rank_column) for kind in table.kinds_of(run.ranked).values()}


def in_node_order(column: pa.ChunkedArray, nodes: NDArray[np.int64]) -> NDArray[Any]:
    """A column of a ranked table, whose rows are of these nodes, in node order, (n,)."""
    values = column.to_numpy()
    out = np.empty_like(values)

    def fill(rows: slice) -> None:
        out[nodes[rows]] = values[rows]

    run_in_slices(len(out), fill)
    return out


class LabelledNodes(NamedTuple):
    """Verdicts on nodes of a graph, in the order of the nodes, and what there is to say about the others."""

    nodes: NDArray[np.int64]
    codes: verdicts.Codes
    notes: list[str]
    cases: NDArray[np.int64]  # the number of the case that a verdict was given on; -1 for none
    is_own: NDArray[np.bool_]  # whether it was given on the node itself as well

    @staticmethod
    def of(run: Run) -> "LabelledNodes":
        """The verdicts beside a run that count."""
        given = verdicts.latest(run.folder)
        ids = given.table["id"].combine_chunks()
        nodes = verdicts.find_nodes(run.graph, ids)
        order = np.argsort(nodes, kind="stable")[np.count_nonzero(nodes < 0) :]
        if len(absent := ids.filter(pa.array(nodes < 0))):
            shown = verdicts.shown_ids(absent)
            given.notes.append(f"verdicts on {len(absent):,} ids that are not in this graph: {shown}")
        cases = given.cases.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        return LabelledNodes(nodes[order], given.codes[order], given.notes, cases[order], given.is_own[order])

    def by_node(self, num_nodes: int) -> verdicts.Codes:
        """The code of every node's verdict, (n,)."""
        out = np.full(num_nodes, _NOT_GIVEN, np.int8)
        out[self.nodes] = self.codes
        return out

    def labelled(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Nodes known to be bad or good, and whether they are bad."""
        sure = self.codes != verdicts.UNSURE
        return self.nodes[sure], self.codes[sure] == verdicts.BAD

    def lessons(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The same, of nodes judged by their case alone only the one with the best rank: it is one verdict."""
        best = np.lexsort((ranks[self.nodes], ~self.is_own, self.cases))
        is_first = np.append(True, np.diff(self.cases[best]) != 0)[: len(best)] | (self.cases[best] < 0)
        chosen = np.sort(best[is_first | self.is_own[best]])
        return self._replace(nodes=self.nodes[chosen], codes=self.codes[chosen]).labelled()


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
        rows = table.read_scores(path)
        table.check_rows(path, rows, self.num_nodes, {"node": pa.int64(), **_COLUMNS})
        ranks, taught = rows["taught_rank"].to_numpy(), rows["taught"].to_numpy()
        is_list = np.array_equal(ranks, np.arange(1, len(ranks) + 1)) and (taught[1:] <= taught[:-1]).all()
        if not is_list or np.isnan(taught).any():
            raise files.FolderError(f"{path} is damaged: its rows are not in the order of taught, a number each")
        return rows

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
        given = f", and its verdict is {row['verdict']}" if row["verdict"] else ""
        return f"taught rank {row['taught_rank']:,} of {self.num_nodes:,}{given}"

    def column(self, name: str) -> NDArray[Any]:
        """A column in node order, (n,)."""
        return in_node_order(self.table[name], self.table["node"].to_numpy())

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
    taught, given = run.taught(), LabelledNodes.of(run)
    score = _score(run) if taught is None else taught.scores
    reviewed = given.by_node(len(score)) != _NOT_GIVEN
    _, is_bad = given.labelled()
    by_kind, bad_share = list(_ranks(run).values()), float(is_bad.mean()) if len(is_bad) else 0.0
    drawn = draw(score, by_kind, reviewed, count, len(given.nodes), bad_share, _num_compared(run))
    nodes = [entry.node for entry in drawn]
    ranks = run.column("rank") if taught is None else taught.column("taught_rank")
    return pa.table(
        {
            "id": pa.array([run.graph.external_id(node) for node in nodes]),
            "verdict": pa.nulls(len(nodes), pa.string()),
            "rank" if taught is None else "taught_rank": ranks[nodes],
            "why": [entry.why for entry in drawn],
            "chance": [entry.chance for entry in drawn],
            "reason": reasons_of(run.evidence, nodes),
        }
    )


# Verdicts of a table.


def import_verdicts(run: Run, source: TableSource, by: str | None = None, id_names: Sequence[str] = ()) -> list[str]:
    """Adds the verdicts of a table that differ from those known; returns what there is to say about them."""
    given, said = verdicts.read_table(source, id_names, of=run.graph)
    (ids, number, last), codes = verdicts.last_rows(given["id"]), given["code"].to_numpy()
    nodes, lines = verdicts.find_nodes(run.graph, ids), [said]
    if len(ids) and (nodes < 0).all():
        example = run.graph.external_id(0)
        none = f"{said}; none of these ids is in the graph of {run.folder}, where they look like {example!r}"
        raise InputError(none + _of_zeros(run, ids))
    twice = np.isin(np.arange(len(ids)), number[codes != codes[last[number]]])
    for which, what in ((twice, "with two verdicts, of which the later one counts"), (nodes < 0, "not in this graph")):
        named = ids.filter(pa.array(which))
        lines += [f"{counted(len(named), 'id')} {what}: {verdicts.shown_ids(named)}"] if len(named) else []
    lines[-1] += _of_zeros(run, ids.filter(pa.array(nodes < 0)))
    before = np.append(LabelledNodes.of(run).by_node(run.graph.num_nodes), -1)[nodes]
    before[before == _NOT_GIVEN] = verdicts.NONE
    new = pa.table({"id": ids, "code": codes[last]}).filter(pa.array((nodes >= 0) & (before != codes[last])))
    for chunk in new.to_batches(1 << 20):
        words = _words(chunk["code"])
        verdicts.append(run.folder, zip(chunk["id"].to_pylist(), words.to_pylist(), strict=True), by)
    return lines


def _of_zeros(run: Run, absent: pa.Array) -> str:
    """What to say where ids that are not in the graph are those of nodes without the zeros before them."""
    own = run.graph.ids
    if own is None or not is_text(own.type) or not len(absent):
        return ""
    is_bare = pc.any(pc.is_in(pc.utf8_ltrim(own, "0"), absent.cast(own.type))).as_py()
    return "; some lack the zeros before them, which sheets of `hcm-scale review RUN --csv FILE.xlsx` keep" * is_bare


# The lesson.


def teach(run: Run, worth: float = WORTH) -> Taught:
    """What the verdicts beside a run make of its list, written into RUN/taught."""
    given = LabelledNodes.of(run)
    if not len(given.nodes) and not (run.folder / FOLDER).is_dir():  # which those taken back had made
        advice = f"hcm-scale review {run.folder} --csv FILE writes a list to fill in"
        raise ValueError(f"{run.folder} has no verdicts on nodes of its graph yet; {advice}")
    nodes, is_bad = labelled = given.labelled()
    lessons = given.lessons(run.column("rank"))
    lesson = learn(inputs_of(run), *lessons) if len(nodes) else Lesson(_score(run), False, [], {})
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
        firsts = [first for first in _FIRSTS if first <= len(order)] or [len(order)]
        estimates = Estimates.of({"after": order, "before": run.order}, *labelled, lessons)
        facts["shares"] = {name: [*map(list, estimates.shares(name, firsts))] for name in ("before", "after")}
        facts["worth"] = worth
        facts["worth_reading"] = {name: estimates.worth_reading(name, worth) for name in ("before", "after")}
    if len(of_cases := case_shares(run, given)):
        facts["case_shares"] = [*map(list, of_cases)]
    with files.file_lock(run.folder / ".lock", wait=False) as is_free:
        if not is_free:
            raise ValueError(f"{run.folder} is at work: another run or lesson writes to it; the verdicts are kept")
        return _write(run, lesson.taught, order, given, lesson.model, facts)


def case_shares(run: Run, given: LabelledNodes) -> list[Share]:
    """Shares of bad ones among the first cases; none unless cases were judged, and not all of them bad."""
    if (given.cases < 0).all():
        return []
    cases = run.cases
    judged = sorted(judged_cases(run.graph, cases, verdicts.latest(run.folder)).items())
    is_bad = {at: said.verdict == verdicts.NAMES[verdicts.BAD] for at, said in judged if said.verdict in _SURE}
    if all(is_bad.values()):
        return []
    firsts = [first for first in _FIRST_CASES if first <= len(cases)] or [len(cases)]
    estimates = Estimates.of({"cases": np.arange(len(cases))}, np.array([*is_bad]), np.array([*is_bad.values()]))
    return estimates.shares("cases", firsts)


def estimate(run: Run, score: Values, first: int) -> Share:
    """The share of bad nodes among the first of a list, with its 90 % interval, from the verdicts beside the run."""
    if not 1 <= first <= len(score):
        raise ValueError(f"first={first} is not legal: a whole number from 1 to {len(score):,}, the nodes of the list")
    lists = {"taught": ranking(score), "before": run.order}
    given = LabelledNodes.of(run)
    estimates = Estimates.of(lists, *given.labelled(), given.lessons(run.column("rank")))
    (share,) = estimates.shares("taught", [first])
    return share


def _write(
    run: Run,
    taught: Values,
    order: NDArray[np.int64],
    given: LabelledNodes,
    model: Mapping[str, Values],
    facts: Mapping[str, Any],
) -> Taught:
    """Writes the folder; the caller holds the lock of the run. `order` are the nodes by taught score."""
    codes, size = given.by_node(len(taught)), table.group_rows(len(order))

    def rows(first: int) -> pa.Table:
        nodes = order[first : first + size]
        ids = pa.array(nodes) if run.graph.ids is None else run.graph.ids.take(pa.array(nodes))
        ranks = np.arange(first + 1, first + len(nodes) + 1)
        words = _words(codes[nodes])
        return pa.table({"id": ids, "node": nodes, "taught": taught[nodes], "taught_rank": ranks, "verdict": words})

    folder = run.folder / FOLDER
    with files.replacing_folder(folder) as fresh:
        table.write_scores(fresh / FILE, [partial(rows, first) for first in range(0, len(order), size)])
        files.write_bytes(fresh / _LESSON, save({name: np.ascontiguousarray(array) for name, array in model.items()}))
        body = {"scores": run.identity, "files": files.hash_folder(fresh), **facts}
        files.write_manifest(fresh, KIND, FORMAT, body)
    return Taught(folder, files.read_manifest(folder, KIND, FORMAT), len(order))


def carry_over(trained: Run, run: Run, applies_lesson: bool = True) -> list[str]:
    """What a run that was scored with `trained=` gets from there, in words: its lesson, and the verdicts on its nodes.

    One that follows another by `since=` gets the verdicts alone, without `applies_lesson`. The caller holds the lock
    of the run. A lesson that was taught here is kept.
    """
    trained_dir, before = trained.folder, verdicts.latest(trained.folder)
    ids = before.table["id"].combine_chunks()
    nodes, own = verdicts.find_nodes(run.graph, ids), verdicts.latest(run.folder)
    is_new = pc.invert(pc.is_in(ids, own.table["id"].combine_chunks())).to_numpy(zero_copy_only=False)
    new = before.table.filter(pa.array((nodes >= 0) & is_new))
    verdicts.append_known(run.folder, new, before.changes.since(own.changes))
    lines = []
    if len(back := np.flatnonzero((nodes >= 0) & (before.codes == verdicts.BAD))):
        ranks = run.column("rank")[nodes[back]]
        back = back[np.argsort(ranks)]
        names = verdicts.shown_ids(ids.take(pa.array(back)))
        lines.append(f"known as bad in {trained_dir} and here again, best rank first ({len(back):,}): {names}")
    if not applies_lesson:
        return lines
    lesson = trained.taught()
    if lesson is None:
        if len(ids):
            lines.append(f"{trained_dir} has verdicts and learned nothing yet: hcm-scale teach {trained_dir} does it")
        return lines
    here = run.taught()
    if not lesson.facts["changed"] or (here is not None and "taught_by" not in here.facts):
        return lines
    model = files.read_tensors(lesson.folder / _LESSON, lambda data: {name: load(data)[name] for name in _MODEL})
    given = LabelledNodes.of(run)
    taught = apply_lesson(model, inputs_of(run), given.nodes[given.codes == verdicts.BAD])
    facts = {name: lesson.facts[name] for name in ("changed", "sentences", "num_bad", "num_good", "num_unsure")}
    _write(run, taught, ranking(taught), given, model, facts | {"taught_by": str(trained_dir)})
    lines.append(f"taught by {_rests_on(facts)} of {trained_dir}: the new order is in {run.folder / FOLDER / FILE}")
    return lines


# In words.


def _rests_on(facts: Mapping[str, Any]) -> str:
    """What a lesson rests on.

    >>> _rests_on({"num_bad": 3, "num_good": 1, "num_unsure": 0})
    '4 verdicts (3 bad, 1 good)'
    """
    counts = {name: facts[f"num_{name}"] for name in ("bad", "good", "unsure")}
    named = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{counted(sum(counts.values()), 'verdict')} ({named or 'none that counts'})"


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
    shares = [f"{_share_text(Share(*each))} of the first {each[0]:,}" for each in facts.get("case_shares", ())]
    lines += ["", f"estimated share of bad cases: {', '.join(shares)}"] if shares else []
    return "\n".join(lines)


def _share_text(share: Share) -> str:
    """A share and its interval.

    >>> _share_text(Share(50, 0.2, 0.1, 0.345))
    '20 % (10 to 34)'
    """
    return f"{100 * share.share:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
