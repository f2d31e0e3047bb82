"""A finished run: opened once, checked once, and all that is ever read from one.

`FinishedRun(folder)` knows the options of the run and its stages; graph, features, scores, samples, strange edges,
verdicts and lesson are opened when they are first asked for, each stage after all of its files were checked, and are
kept. It holds on to what it needs: the run whose model scored it (`trained`), and whatever `keeps` is, such as the
object that removes a temporary folder when nobody holds it any more.

Paths among the stored options mean what they meant when the run was made: config.json has the folder that it was
started in (`made.in`). It also has the path and the inode of the run's own folder. A run that lies elsewhere was moved,
or comes from somebody else (`is_own`): its queries are not run, and nothing is fetched for it, unless somebody says so.

`trained=RUN_DIR` is for tomorrow's graph, without training again. What that run learned is in its folders: how
attributes become features (purified), the samples (train-VIEW), and the reference of the scores (scores). Their keys
are among the options of the new run's stages. The options of the trained run are the defaults of the new one
(`as_trained`), and those that decided what it learned cannot be changed (`with_trained_options`).
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale import config as schema
from hcm_scale.base import console, files, remote
from hcm_scale.base.names import Hop
from hcm_scale.base.text import counted
from hcm_scale.cases.describe import case_page, describe
from hcm_scale.cases.store import Cases, open_cases
from hcm_scale.config import Config, with_options
from hcm_scale.edges.payments import StrangeRows
from hcm_scale.edges.rows import EdgeRows
from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.graph import Graph
from hcm_scale.ingest import readers
from hcm_scale.ingest.policy import Columns, InputError, shown_names
from hcm_scale.report import wording
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import Explanation, explain
from hcm_scale.report.write import notebook_html
from hcm_scale.review import teach, verdicts
from hcm_scale.review.cases import change_lines, changed_cases, judge_case, judged_cases
from hcm_scale.rows.evidence import open_row_evidence
from hcm_scale.run import sources
from hcm_scale.run.sources import Trained
from hcm_scale.run.workspace import Workspace, facts_text, open_stages, read_stages
from hcm_scale.score import result, table
from hcm_scale.score.edges import open_hops
from hcm_scale.score.kinds.all import ROW_KINDS
from hcm_scale.stages import cases
from hcm_scale.stages.purify import Purified, open_purified

if TYPE_CHECKING:  # imported where samples are: what is read of a run needs no torch
    import torch

    from hcm_scale.run.stages import RunContext
    from hcm_scale.score.edge_index import PairHead
    from hcm_scale.stages.convergence import Chains
    from hcm_scale.stages.edges import View

log = logging.getLogger(__name__)
TRAINED = "trained"  # in the folder of a saved run: the parts of another that its samples and reference are in
_SECTIONS = ("attributes", "purify", "hops", "sampling", "model", "posterior", "score")
_HERE = ("precision",)  # how this machine computes
_FREE = ("rank_by", "fdr")  # what is shown
_CHECKED = {  # by name in `fail_on`: the stage that says it, the fact, and why there may be none
    "drift": ("drift", "num_moved", "a run without trained= has nothing to be compared with"),
    "missing-column": ("graph", "missing_columns", "only tables that are read for trained= can lack its columns"),
    "new-columns": ("graph", "new_columns", "only tables that are read for trained= can have more columns"),
    "new-values": ("graph", "new_values", "only tables that are read for trained= can have more values"),
    "stability": ("scores", "stability", "this run has no scores of two encoders to compare"),
    "new-cases": ("cases", "num_new", "a run without since= or trained= has no cases to be compared with"),
    "flagged": ("scores", "num_flagged", "this run has no scores"),
}


class FinishedRun:
    """The run in a folder; ValueError where there is none, FolderError where it is not what the run left."""

    def __init__(self, folder: Path | str, *, trained: "FinishedRun | None" = None, keeps: Any = None) -> None:
        self.folder, self._keeps = Path(folder), keeps
        self._folders: dict[str, Path] = {}
        self._given: tuple[Any, verdicts.Verdicts] | None = None
        self._changed: tuple[verdicts.CaseChanges, Cases] | None = None
        if trained is not None:
            self.trained = trained

    # The list of stages, and the options.

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """What the run recorded, a `StageRecord` as a dict per stage; empty if there was none."""
        return read_stages(self.folder)

    @cached_property
    def keys(self) -> dict[str, str]:
        return {stage["name"]: stage["key"] for stage in self.stages}

    def facts(self, stage: str) -> dict[str, Any]:
        """What a stage counted; empty if the run has none of this name."""
        return next((dict(entry["detail"]) for entry in self.stages if entry["name"] == stage), {})

    def stage(self, name: str) -> Path:
        """The folder of a stage, all of its files checked."""
        if name not in self._folders:
            (self._folders[name],) = open_stages(self.folder, name, keys=self.keys)
        return self._folders[name]

    @cached_property
    def options(self) -> dict[str, Any]:
        """The stored options by full key; empty if there are none."""
        return schema.stored_options(self.folder)

    @cached_property
    def _made(self) -> dict[str, Any]:
        """Where the run was made: the working folder, its own folder, and the inode of that."""
        if made := schema.made_in(self.folder):
            files.check_types(self.folder / "config.json", made, {"in": str, "folder": str, "inode": int})
        return made

    @property
    def started_in(self) -> Path:
        """The folder that relative paths among the options mean; today's where nothing says it."""
        where = self._made.get("in", "")
        return Path() if where == str(Path.cwd()) else Path(where)

    @property
    def is_own(self) -> bool:
        """Whether the run lies where it was made; a moved one, and a stranger's, does not."""
        where, found = files.resolved(self.folder), self._made
        return bool(found) and (found["folder"], found["inode"]) == (str(where), where.stat().st_ino)

    @cached_property
    def config(self) -> Config:
        """The configuration, all but the graph's section."""
        options = {name: value for name, value in self.options.items() if not name.startswith("graph.")}
        with files.naming_damage(self.folder / "config.json"):
            return with_options(Config(), options)

    @cached_property
    def source(self) -> schema.GraphConfig:
        """The section of the graph's source, its paths absolute."""
        options = {name: value for name, value in self.options.items() if name.startswith("graph.")}
        with files.naming_damage(self.folder / "config.json"):
            kind = schema.SOURCES[files.typed(options.pop("graph.source", "default"), str)]
            return sources.absolute(with_options(Config(graph=kind()), options).graph, self.started_in)

    @cached_property
    def trained(self) -> "FinishedRun | None":
        """The run whose samples and reference scored this one; None if it was trained itself."""
        if (self.folder / TRAINED / console.STAGES_FILE).is_file():  # of a saved detector
            return FinishedRun(files.path_inside(self.folder, TRAINED))
        files.check_types(self.folder / "config.json", self.options, {"trained": str | None})
        where = self.options.get("trained")
        return None if where is None else FinishedRun(self.started_in / where)

    def model(self, views: Sequence[str]) -> Trained:
        """What another graph is scored with: folders and keys of these encoders and of what they rest on."""
        names = ["graph", "purified", *(f"train-{view}" for view in views), "scores"]
        folders = {name: self.stage(name) for name in names}
        if {name for name in self.keys if name.startswith("train-")} - {*names}:
            stages = self.folder / console.STAGES_FILE
            raise files.FolderError(f"{self.folder / 'config.json'} is not of the run that {stages} lists")
        return Trained(folders, {name: self.keys[name] for name in names})

    # Graph, features and scores.

    @cached_property
    def graph(self) -> Graph:
        return Graph.open(self.stage("graph"), verify=False)

    @cached_property
    def purified(self) -> Purified:
        """The purified graph and the features."""
        return open_purified(self.stage("purified"), self.graph)

    @cached_property
    def ranked(self) -> table.RankedFile:
        """The ranked table on disk."""
        ranked = table.RankedFile(self.stage("scores") / table.FILE)
        table.check_ranked(ranked.path, ranked, self.graph.num_nodes)
        return ranked

    @cached_property
    def table(self) -> pa.Table:
        """The ranked table, one row a node, strangest first."""
        ranked = table.read_scores(path := self.stage("scores") / table.FILE)
        table.check_ranked(path, ranked, self.graph.num_nodes, ("p", "flagged"))
        return ranked

    @cached_property
    def scored(self) -> dict[str, Any]:
        """The manifest of the scores."""
        return files.read_manifest(self.stage("scores"), result.KIND, result.FORMAT, types=result.TYPES)

    @property
    def identity(self) -> str:
        """The hash of the scores: that of a page or a lesson that is about other ones differs."""
        return files.hash_once(self.stage("scores") / table.FILE)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The nodes by rank, (n,)."""
        return self.ranked["node"].to_numpy()

    def column(self, name: str) -> NDArray[Any]:
        """A column of the ranked table in node order, (n,)."""
        return teach.in_node_order(self.ranked[name], self.order)

    @cached_property
    def hops(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and variance of every edge's predicted hop, each decoded where it is looked at."""
        return open_hops(self.stage("scores"), self.graph.num_edges)

    @cached_property
    def evidence(self) -> Evidence:
        """What explanations are computed from."""
        made = self.purified
        rows = open_row_evidence(self.stage("scores"), self.graph, ROW_KINDS)
        return Evidence.of(self.graph, made.graph, self.ranked, *self.hops, made.features, rows)

    def explain(self, ids: Sequence[str]) -> list[Explanation]:
        """Why the nodes of these ids are where they are, in numbers."""
        nodes = [self.graph.node_of(name) for name in ids]
        return [explain(self.evidence, node) for node in nodes]

    def explained_text(self, ids: Sequence[str], edges: Sequence[str] = (), names: Sequence[str] = ()) -> str:
        """Why these nodes, edges, `A,B`, and cases, by number or id, are where they are, as text."""
        if not ids and not edges and not names:
            how = "hcm-scale explain RUN ID, or node=ID, with an id of the graph; or edge=A,B; or case=N"
            raise ValueError(f"node is missing: {how}")
        about, taught = self.explain(ids) if ids else [], self.taught() if ids else None
        ends = ["" if taught is None else f"\n\n{taught.place_text(one.node)}" for one in about]
        texts = [wording.explanation_text(one) + end for one, end in zip(about, ends, strict=True)]
        texts += [wording.edge_text(self.edges.explain(*self.edges.ends_of(edge))) for edge in edges]
        texts += [case_page(self.case(name)) for name in names]
        return "\n\n\n".join(texts)

    @cached_property
    def found_cases(self) -> Cases:
        """What belongs together among the nodes that stand out; found now where the run ended with its scores."""
        if "cases" in self.keys:
            return open_cases(self.stage("cases"), self.graph)
        return cases.find(self.graph, self.ranked, self.evidence.rows)

    @property
    def cases(self) -> Cases:
        """The cases as people have changed them by now."""
        changes = self.verdicts().changes
        if self._changed is None or self._changed[0] is not changes:
            self._changed = changes, changed_cases(self.graph, self.found_cases, changes, lambda: self.column("p"))
        return self._changed[1]

    def case(self, name: str) -> dict[str, Any]:
        """All that is told of a case, by its number or id, and what was said of it."""
        cases = self.cases
        at = cases.position(str(name))
        judged = judged_cases(self.graph, cases, self.verdicts()).get(at)
        return describe(self.evidence, cases, at) | {"judged": "" if judged is None else judged.text()}

    def reopened_lines(self) -> list[str]:
        """A line for each case that was judged and has nodes that were not there then."""
        if "cases" not in self.keys:
            return []
        cases = self.cases
        judged = sorted(judged_cases(self.graph, cases, self.verdicts()).items())
        return [f"{cases.name_of(at)}: {said.text()}" for at, said in judged if said.num_new]

    def judge_case(self, name: str, verdict: str, by: str | None = None, note: str = "") -> str:
        """Keeps a verdict on a case, which is one on the nodes of its core; what there is to say of it."""
        cases = self.cases
        at = cases.position(str(name))
        verdicts.append(self.folder, judge_case(self.graph, cases, at, verdict, note), by)
        return f"{cases.name_of(at)}: {verdict}, {counted(len(cases[at].core), 'node')}"

    def change_case(self, how: str, name: str, values: Sequence[str] = (), by: str | None = None) -> None:
        """Puts a case together with others, `merge`, or `apart` again, or takes members `out` or `in`."""
        lines = change_lines(self.graph, self.cases, self.verdicts().changes, how, str(name), values)
        verdicts.append(self.folder, lines, by)

    def html(self, count: int = 10) -> str:
        """The run as a piece of HTML for a notebook, with the first `count` nodes."""
        return notebook_html(self.graph, self.ranked, self.hops[0], self.scored, count)

    # Samples.

    @cached_property
    def _context(self) -> "RunContext":
        from hcm_scale.run.stages import RunContext

        views = self.config.score.views
        trained = None if self.trained is None else self.trained.model(views)
        names = ["graph", "purified", *(name for view in views if (name := f"propagated-{view}") in self.keys)]
        names += [f"train-{view}" for view in views if trained is None]
        context = RunContext(self.config, Workspace(self.folder), "cpu", trained=trained)
        context.workspace.folders.update({name: self.stage(name) for name in names})
        return context

    @cached_property
    def views(self) -> "dict[str, View]":
        """The encoders by name, with their samples."""
        return {name: self._context.view(name) for name in self.config.score.views}

    @property
    def hop(self) -> Hop:
        """How a predicted hop is made of the chances of classes."""
        from hcm_scale.run.stages import scoring_of

        return scoring_of(self.config).hop

    def embedded(self, view: str) -> "Iterator[tuple[torch.Tensor, PairHead]]":
        """The embedding of all nodes under each sample of an encoder, and its pair head."""
        return self._context.embedded(self.views[view])

    def chains(self) -> "tuple[dict[str, Chains], NDArray[np.int64], NDArray[np.int64]]":
        """Predicted hops of some edges under each sample of each encoder, and the ends of the edges."""
        from hcm_scale.stages.convergence import drawn_edges

        return self._context.chains(self.views), *drawn_edges(self.graph)

    # Edges.

    @cached_property
    def edges(self) -> StrangeEdges:
        """The edges by how strange they are, computed as they are asked for."""
        return StrangeEdges(self.evidence)

    @cached_property
    def strange_rows(self) -> StrangeRows | None:
        """The rows of the edge table by how strange they are; None where the graph keeps none."""
        return None if self.evidence.rows is None else StrangeRows(self.edges)

    @cached_property
    def scale(self) -> dict[str, Any]:
        """What the scores were measured by."""
        return result.open_scale(self.stage("scores"), self.ranked)

    def edge_columns(self) -> Columns:
        """How the columns of the edge table are called and read."""
        named = {name: self.options.get(f"graph.{name}", value) for name, value in vars(schema.TablesGraph()).items()}
        types = {"source_column": str, "target_column": str, "id_type": str, "dates": str, "numbers": list[str]}
        files.check_types(self.folder / "config.json", named, types)
        read = {"id_type": named["id_type"], "dates": named["dates"], "numbers": tuple(named["numbers"])}
        return Columns(named["source_column"], named["target_column"], **read)

    @contextlib.contextmanager
    def edge_rows(self, nodes: NDArray[np.int64] | None, *, trusts_queries: bool = False) -> Iterator[EdgeRows | None]:
        """The edge table that the run was made from, to read the rows of edges between some nodes, or of all.

        None where there is no table. InputError where it is no longer what it was; ValueError where a run from
        elsewhere would have a query run, or a file fetched, and nobody has said `trusts_queries`.
        """
        source, content = self.source, self.facts("graph").get("source")
        if content is None or not isinstance(source, schema.TablesGraph) or not source.path:
            yield None
            return
        is_query = isinstance(source, schema.SqlGraph)
        if (is_query or remote.is_url(source.path)) and not (self.is_own or trusts_queries):
            what = "runs a query" if is_query else f"fetches {source.path}"
            advice = "--trust-queries if you trust it, --pairs leaves the rows of the table out"
            raise ValueError(f"{self.folder} was not made here, and {what} with your permissions: say {advice}")
        sources.check_exists(source)
        if {"content": sources.content_hash(sources.stamp(source, self.started_in))} != content:
            options = ("edges" if is_query else "path"), "nodes"
            named = " or ".join(f"graph.{name}={value}" for name in options if (value := getattr(source, name)))
            advice = "run it again, or export without the rows of the table: --pairs"
            raise InputError(f"{named} has changed since the run in {self.folder}, or is not there; {advice}")
        with sources.edge_rows(source, self.folder / "graph", self.graph, nodes, self.started_in) as rows:
            yield rows

    def check_output(self, path: Path) -> None:
        """Refuses to write over a file of the run, or one that it was made from, by whatever name."""
        if not path.is_file():
            if sources.would_read(self.source, path):
                raise ValueError(
                    f"{path} would be one of the tables that the run in {self.folder} reads; name another file"
                )
            return
        folders = [*self.keys, "taught", "embeddings", "stream", "records"]
        own = [file for name in folders for file in files.resolved(self.folder / name).rglob("*")]
        own += [self.folder / name for name in ("config.json", "stages.json", "log", verdicts.FILE)]
        for file in (*sources.local_files(self.source, self.started_in), *own):
            if file.is_file() and file.samefile(path):
                raise ValueError(f"{path} is {file}, which the run in {self.folder} reads; name another file")

    # Verdicts.

    def verdicts(self) -> verdicts.Verdicts:
        """The verdicts that count now, read when the file has changed."""
        state = files.state_of(self.folder / verdicts.FILE)  # before reading: what comes later is seen
        if self._given is None or self._given[0] != state:
            self._given = state, verdicts.latest(self.folder)
        return self._given[1]

    def taught(self) -> teach.Taught | None:
        """What verdicts have taught; None if nothing, or before the scores were made again."""
        return teach.open_taught(self.folder, self.stage("scores"))

    def import_verdicts(self, source: Any, by: str | None = None) -> list[str]:
        """Adds the verdicts of a table, whose ids may stand in a column named as in the run's own tables."""
        names = [str(self.options[key]) for key in ("graph.id_column", "graph.source_column") if self.options.get(key)]
        return teach.import_verdicts(self, source, by, names)

    # The run on a line, and whether it is as it should be.

    def line(self) -> str:
        """The folder, the seconds and what was found, for a sweep."""
        facts = self.facts("scores") or self.stages[-1]["detail"]
        seconds = sum(stage["seconds"] for stage in self.stages if not stage["skipped"])
        return f"{self.folder}   {seconds:.1f} s   {facts_text(facts)}"

    def failed_checks(self, fail_on: str | None, *, logs: bool = False) -> list[str]:
        """What `fail_on` names and holds, by what the run recorded; `logs` what is found."""
        failed = []
        for check, (name, sign, bound) in schema.parse_fail_on(fail_on).items():
            stage, key, lacks = _CHECKED[name]
            value = self.facts(stage).get(key)
            if value is None and logs:
                extra = console.event("check_skipped", check=check)
                log.warning("fail_on=%s has no effect: %s", check, lacks, extra=extra)
            if value is None or not (value < bound if sign == "<" else value > bound if sign else value):
                continue
            failed.append(check)
            if logs:
                extra = console.event("check_failed", check=check, value=value, status=3)
                why = self.facts(stage).get("line") or f"{key} is {value}"
                log.error("error: fail_on=%s: %s", check, why, extra=extra)
        return failed


# A run whose model scores another graph.


def as_trained(config: Config) -> Config:
    """The configuration with the options of the trained run in the sections that count, all of them legal.

    The user's options come on top: one that differs from the trained run was then asked for. How this machine computes
    is not taken from there.
    """
    where = Path(config.trained or "")
    stored = schema.stored_options(where)
    if not stored:
        raise ValueError(f"trained={config.trained} is not the run_dir of a run: it has no config.json")
    if earlier := stored.get("trained"):
        raise ValueError(f"trained={config.trained} was itself scored with trained={earlier}; name that one")
    keys = [key for key in stored if key.split(".")[0] in _SECTIONS and key.split(".")[-1] not in _HERE]
    try:
        if missing := {*_SECTIONS} - {key.split(".")[0] for key in keys}:
            raise ValueError(f"it has no section {min(missing)}")
        before = with_options(Config(), {key: stored[key] for key in keys})
    except ValueError as error:
        why = "it was made by another version, or changed since: run it again with hcm-scale run"
        raise files.FolderError(f"{where / 'config.json'}: {error}; {why}") from error
    return replace(config, **{section: getattr(before, section) for section in _SECTIONS})


def with_trained_options(config: Config) -> Config:
    """The configuration with the options that decided what the trained run learned; warns of other values."""
    if config.trained is None:
        return config
    if files.resolved(Path(config.trained)) == files.resolved(Path(config.run_dir)):
        raise ValueError(f"trained={config.trained} is run_dir itself; name another run_dir for the new scores")
    made = as_trained(config)
    for section in _SECTIONS:
        now, before = getattr(config, section), getattr(made, section)
        for name in (entry.name for entry in fields(now)):
            asked, had = getattr(now, name), getattr(before, name)
            if name in _HERE + _FREE:
                setattr(before, name, asked)
            elif asked != had:
                option = f"{section}.{name}={asked}"
                log.warning("%s has no effect: trained=%s was made with %s", option, config.trained, had)
    return made


def open_trained(config: Config) -> Trained | None:
    """The folders that a run with `config.trained` is made with, all of their files checked; None if it trains."""
    return None if config.trained is None else FinishedRun(config.trained).model(config.score.views)


def open_earlier(config: Config) -> cases.Earlier | None:
    """The run whose cases keep their ids: `since`, or else the trained one where it has cases."""
    where = config.since or config.trained
    if where is None:
        return None
    run = FinishedRun(where)
    if files.resolved(Path(where)) == files.resolved(Path(config.run_dir)):
        raise ValueError(f"since={where} is run_dir itself; name another run_dir for the new run")
    if "cases" not in run.keys:
        if config.since is None:
            return None
        raise ValueError(
            f"since={where} has no cases: it is no finished run, or was made with until= before the report"
        )
    return cases.Earlier(where, run.stage("cases"), run.keys["cases"])


def check_earlier(config: Config, graph: Graph) -> None:
    """Refuses a run of `since` whose ids are of another type; a column that it coded in another way is told."""
    if config.since is None:
        return
    before = Graph.open(FinishedRun(config.since).stage("graph"), verify=False)
    kinds = [
        "whole numbers" if one.ids is None or pa.types.is_integer(one.ids.type) else "text" for one in (graph, before)
    ]
    if kinds[0] != kinds[1]:
        advice = "graph.id_type=text reads both alike"
        raise ValueError(f"since={config.since} has ids that are {kinds[1]}, and here they are {kinds[0]}: {advice}")
    if config.trained is None and (text := recoded_text(graph, before)):
        log.warning("since=%s: %s", config.since, text)


def recoded_text(graph: Graph, before: Graph) -> str:
    """What there is to say where columns became attributes in another way in an earlier run; else nothing."""
    if not (recoded := readers.recoded_columns(graph, before)):
        return ""
    which = f"{shown_names(recoded)} became attributes in another way there"
    return f"{which}, which by itself changes scores: trained= keeps it"
