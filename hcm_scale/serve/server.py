"""`hcm-scale serve`: a local page over a finished run, every node paged, filtered and explained on click.

`Views` makes what the page shows: the page itself, rows of the list as JSON and explanations as HTML. Rows are searched
in scores.parquet on disk; reasons and explanations come from `Evidence`, as in the report, gathered at the first.
The templates are the report's and a few more, and escape whatever came from the user's data. Verdicts are read from
the run's file whenever it has changed, so that several reviewers, pages and commands see what each other gave.
Strange edges are ranked when they are first asked for, and stored beside the stages.

`Server` listens on 127.0.0.1; GET reads, and POST adds verdicts to the run. Every address begins with a random token,
so that neither other users of the machine nor pages of other sites that guess the port get anything. A request must
name this host and port (`Host`), so that a name that an attacker points at 127.0.0.1 (DNS rebinding) gets nothing
either; a POST must also come from the page itself (`Origin`, `Sec-Fetch-Site`), as JSON of a few bytes, and names a
node by its id. Every request says which scores it is about (`of`, their hash): where the run was made again under an
open page, that page is told to reload, and no verdict is stored. The page may load nothing but its own style and
script, by their hashes, and ask only this server.
"""

import contextlib
import errno
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import ChoiceLoader, Environment, PackageLoader, UndefinedError
from numpy.typing import NDArray

from hcm_scale.base import console, files
from hcm_scale.base.names import CASE_CHANGES
from hcm_scale.cases.clue import grow_from
from hcm_scale.cases.drawing import drawn
from hcm_scale.cases.find import structure_of
from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.report import sections
from hcm_scale.report.card import card, num_rings
from hcm_scale.report.page import PAGE_ROWS, policy, templates
from hcm_scale.report.wording import kind_words, reasons_of, terms
from hcm_scale.report.write import stream_csv
from hcm_scale.review import teach, verdicts
from hcm_scale.review.cases import CaseVerdict, change_lines, judge_case, judged_cases
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score import table
from hcm_scale.serve.search import Filter, find_rows, passing_rows

Kept = TypeVar("Kept")
_NEIGHBORS = 60  # listed in an explanation
_MAX_BODY_BYTES = 1 << 16  # of a POST: an id may be long
_NUM_REVIEWED = 20  # nodes of one draw
_NUM_EDGES = 100
_CASES = 10  # of a page
_EDGES_FILE, _EDGES_FORMAT = "strange_edges.json", 2  # in the run, once they were asked for
_TAUGHT = {"key": "taught_rank", "name": "Taught", "kind": "count", "help": "Rank by what the verdicts have taught"}
_NOT_FOUND = "there is nothing here\n"
_CHANGED = "the run was made again since this page was opened, and its ranks are of other nodes: reload the page\n"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Views:
    """What the page shows of a finished run; methods raise ValueError where a parameter is not legal."""

    def __init__(self, run: FinishedRun, by: str | None = None, trusts_queries: bool = False) -> None:
        self.run, self.run_dir, self.by, self.trusts_queries = run, run.folder, by, trusts_queries
        self.graph, self.ranked, self.identity = run.graph, run.ranked, run.identity
        _ = run.purified, run.hops  # a damaged run is refused before it is served
        names, scores = self.ranked.column_names, table.score_names(self.ranked)
        self.ranked_by, self.words = table.ranked_by(self.ranked), kind_words(table.kinds_of(self.ranked))
        self.read = [name for name in names if name not in scores or name == self.ranked_by]
        self.types = [name for name in table.compared_types(self.ranked) or () if name is not None]
        listed = [*names, "reason", *(["label"] if "y" in names else [])]
        self.columns = sections.ranking_columns(listed, self.ranked_by, self.words, self.types)
        self.columns.insert(2, {"key": "verdict", "name": "Verdict", "kind": "verdict", "help": "given by people"})
        self.sortable = [column["key"] for column in self.columns if column["kind"] not in ("text", "words", "verdict")]
        self.highest = self.ranked.slice(0, 1)[self.ranked_by].to_pylist()
        self._lock, self._edge_lock = threading.Lock(), threading.Lock()
        self._kept: dict[Path, tuple[Any, Any]] = {}

    def page(self) -> tuple[str, str]:
        """The page and its content security policy."""
        page, *styles, script = (
            _templates().get_template(name) for name in ("serve.html", "page.css", "serve.css", "serve.js")
        )
        allowed = {"style": "".join(style.render() for style in styles), "script": script.render()}
        num_flagged = self.run.scored.get("num_flagged")
        flagged = None if num_flagged is None else {"num": num_flagged}
        columns = [column | {"fixed": column["key"] not in self.sortable} for column in self.columns]
        taught = self._taught()
        text = page.render(
            name=self.run_dir.resolve().name,
            summary={"flagged": flagged, "graph": {"num_nodes": self.ranked.num_rows}},
            ranked_by=self.ranked_by,
            identity=self.identity,
            columns=[*columns[:3], *([_TAUGHT] if taught else []), *columns[3:]],
            unwritable="" if os.access(self.run_dir, os.W_OK) else str(self.run_dir),
            taught=taught and taught[0].partition("\n\n"),
            terms=terms(self.words),
            **allowed,
        )
        return text, policy(**allowed) + "; connect-src 'self'; frame-ancestors 'none'"

    def rows(self, asked: dict[str, str]) -> str:
        """One page of the list as JSON: its rows, how many there are in all, and the score of the longest bar."""
        sort, taught = asked.get("sort", "rank"), self._taught()
        legal = [*self.sortable, *([_TAUGHT["key"]] if taught else [])]
        if sort not in legal:
            raise ValueError(f"sort={sort} is not legal; legal are {', '.join(legal)}")
        down = asked.get("down") == "true"
        first = _whole("page", asked.get("page", "0"), 0, self.ranked.num_rows) * PAGE_ROWS
        by = taught[1] if taught and sort == _TAUGHT["key"] else sort
        rows, total = find_rows(self.ranked, self.filter(asked), by, down, first, PAGE_ROWS)
        taken = self.ranked.take(rows, self.read)
        shown = sections.ranking_values(taken, self.ranked_by)
        with self._lock:
            shown["reason"] = reasons_of(self.run.evidence, taken["node"].to_pylist())
        shown["id"] = [str(value) for value in shown["id"]]  # a script would round large numbers
        shown |= self.verdicts_on(taken["id"]) | ({_TAUGHT["key"]: taught[1][rows].tolist()} if taught else {})
        by_row = [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]
        answer = {"rows": by_row, "total": total, "barTop": max(self.highest, default=0), "counts": self._counts()}
        return json.dumps(answer, allow_nan=False)

    def filter(self, asked: dict[str, str]) -> Filter:
        """The filter that a query asks for."""
        kind, flagged = asked.get("kind", ""), asked.get("flagged") == "true"
        if kind and kind not in self.words:
            raise ValueError(f"kind={kind} is not legal; legal are {', '.join(self.words)}")
        if flagged and "flagged" not in self.ranked.column_names:
            raise ValueError("flagged=true is not legal: this run has no flags")
        if (node_type := asked.get("type", "")) and node_type not in self.types:
            raise ValueError(f"type={node_type} is not legal; legal are {', '.join(self.types) or 'none in this run'}")
        judged = self._judged(asked.get("verdict", ""))
        return Filter(kind, flagged, asked.get("query", "").strip(), node_type, **judged)

    def _judged(self, verdict: str) -> dict[str, pa.ChunkedArray]:
        """The ids that a filter by verdict keeps or leaves out; `none` is for nodes without one."""
        if verdict not in ("", *verdicts.NAMES):
            raise ValueError(f"verdict={verdict} is not legal; legal are {', '.join(verdicts.NAMES)}")
        given = self.run.verdicts()
        if verdict in ("", "none"):
            return {"but": given.table["id"]} if verdict else {}
        return {"only": given.table["id"].filter(pa.array(given.codes == verdicts.NAMES.index(verdict)))}

    def explained(self, asked: dict[str, str]) -> str:
        """The card of the node of a rank, as HTML."""
        taken = self._row(asked)
        with self._lock:
            shown = card(self.run.evidence, taken["node"][0].as_py(), num_rings(self.run.evidence), _NEIGHBORS)
        given = self._verdict_on(taken["id"])
        return _templates().get_template("served_card.html").render(node=shown, num_nodes=self.ranked.num_rows, **given)

    def edges(self, asked: dict[str, str]) -> str:
        """The strangest edges, as HTML; other requests are answered while they are ranked."""
        with self._edge_lock:
            return self._strange_edges

    @cached_property
    def _strange_edges(self) -> str:
        """The strangest edges of the run, as HTML: as stored, unless that cannot be shown, or ranked now and stored."""
        path, of = self.run_dir / _EDGES_FILE, [_EDGES_FORMAT, self.identity]
        template = _templates().get_template("served_edges.html")
        show = partial(template.render, directed=self.graph.directed, num_nodes=self.ranked.num_rows)
        with contextlib.suppress(OSError, ValueError, UndefinedError), files.naming_damage(path):
            if (stored := files.read_sealed(path)).get("of") == of:
                return show(shown=stored)
        with self._lock:
            edges = self.run.edges
        of_rows = self.run.strange_rows
        shown = edges.shown(_NUM_EDGES, self._count_rows) if of_rows is None else of_rows.shown(_NUM_EDGES)
        shown |= {"of": of}
        with contextlib.suppress(OSError):  # a run that cannot be written is ranked again by the next server
            files.write_sealed(path, shown)
        return show(shown=shown)

    def _count_rows(self, edges: StrangeEdges, chosen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """How many rows of the user's table lie on each edge; None where it is not there as it was."""
        nodes, trusts = edges.nodes_of(chosen), self.trusts_queries
        with contextlib.suppress(ValueError, OSError), self.run.edge_rows(nodes, trusts_queries=trusts) as rows:
            return None if rows is None else rows.count(chosen, edges.evidence.edges.find)
        return None

    def cases(self, asked: dict[str, str]) -> str:
        """One page of cases with what was said of each, as HTML."""
        cases = self.run.cases
        last = max(0, (len(cases) - 1) // _CASES)
        page = min(last, _whole("page", asked.get("page", "0"), 0, len(self.run.found_cases)))  # there may be fewer now
        places = range(page * _CASES, min(len(cases), (page + 1) * _CASES))
        said = judged_cases(self.graph, cases, self.run.verdicts())
        with self._lock:
            shown = [drawn(self.run.evidence, cases, at) for at in places]
        for at, case in zip(places, shown, strict=True):
            case |= _told(said.get(at))
        about = {"page": page, "last": last, "first": page * _CASES + 1, "num": len(cases)}
        template = _templates().get_template("served_cases.html")
        return template.render(shown=shown, num_nodes=self.ranked.num_rows, **about)

    def around(self, asked: dict[str, str]) -> str:
        """Nodes around a case by which the surprise of the whole would rise, as HTML."""
        cases, run = self.run.cases, self.run
        case = cases[cases.position(asked.get("case", ""))]
        with self._lock:
            taken = grow_from(structure_of(self.graph), case.members.tolist(), run.column("p"), run.evidence.rows)
            ranks = run.column("rank")
        around = [
            {"id": sections.cut_id(self.graph.external_id(one.node)), "rank": int(ranks[one.node]), "why": one.why}
            for one in taken
        ]
        return _templates().get_template("served_around.html").render(around=around, num_nodes=self.ranked.num_rows)

    def _judge_case(self, asked: Mapping[str, Any]) -> str:
        name, cases = str(asked["case"]), self.run.cases
        at = cases.position(name)
        self._store(judge_case(self.graph, cases, at, str(asked.get("verdict", "")), str(asked.get("note", ""))))
        said = judged_cases(self.graph, cases, self.run.verdicts()).get(at)
        return json.dumps(_told(said) | {"counts": self._counts()})

    def change_case(self, asked: Mapping[str, Any]) -> str:
        """Puts a case together with others, or takes members out of it; what moved, and where it is now, as JSON."""
        how, name, values = (asked.get(key) for key in ("how", "case", "values"))
        given = [how, name, *(values if isinstance(values, list) else [None])]
        if how not in CASE_CHANGES or not all(isinstance(text, str) for text in given):
            raise ValueError(f"legal is how, one of {', '.join(CASE_CHANGES)}, a case, and a list of values, all texts")
        lines = change_lines(self.graph, self.run.cases, self.run.verdicts().changes, given[0], given[1], given[2:])
        self._store(lines)
        at = (cases := self.run.cases).position(given[1])
        return json.dumps({"moved": [line.name for line in lines], "case": cases.id_of(at), "page": at // _CASES})

    def _store(self, lines: Sequence[Any]) -> None:
        try:
            verdicts.append(self.run_dir, lines, self.by)
        except OSError as error:
            raise OSError(f"not stored, {self.run_dir} cannot be written: {error.strerror}") from error

    def judge(self, asked: Mapping[str, Any]) -> str:
        """Stores a verdict on a case, or the node of an id; the one that counts now, and the counts of all, as JSON."""
        if "case" in asked:
            return self._judge_case(asked)
        name = asked.get("id")
        ids = pa.chunked_array([[name if isinstance(name, str) else ""]], pa.large_string())
        if verdicts.find_nodes(self.graph, ids.combine_chunks())[0] < 0:
            raise ValueError(f"id={name!r:.60} is not legal; it is that of a node of {self.run_dir}")
        self._store([(name, asked.get("verdict", ""))])
        return json.dumps(self._verdict_on(ids) | {"counts": self._counts()})

    def _row(self, asked: Mapping[str, Any]) -> pa.Table:
        row = _whole("rank", str(asked.get("rank", "")), 1, self.ranked.num_rows) - 1
        return self.ranked.take(np.array([row]), ["id", "node"])

    def to_review(self, asked: Mapping[str, Any]) -> str:
        """The ranks of nodes worth a verdict, and why each was drawn, as JSON."""
        drawn = teach.next_nodes(self.run, _NUM_REVIEWED)
        nodes = verdicts.find_nodes(self.graph, drawn["id"].combine_chunks().cast(pa.large_string()))
        ranks = self.run.column("rank")[nodes].tolist()
        return json.dumps(list(zip(ranks, drawn["why"].to_pylist(), strict=True)))

    def rank_again(self, asked: Mapping[str, Any]) -> str:
        """Ranks the nodes again by all verdicts, beside the list as it is; what is said about that, as JSON."""
        return json.dumps(teach.taught_text(teach.teach(self.run)))

    def _current(self, path: Path, read: Callable[[], Kept]) -> Kept:
        """read(), kept until the file at `path` changes."""
        state = files.state_of(path)  # before reading: what comes later is seen
        if path not in self._kept or self._kept[path][0] != state:
            self._kept[path] = state, read()
        kept: Kept = self._kept[path][1]
        return kept

    def _taught(self) -> tuple[str, NDArray[np.int64]] | None:
        """What verdicts have taught, in words, and the taught rank of every row; None where nothing was taught."""
        return self._current(self.run_dir / teach.FOLDER / files.MANIFEST, self._read_taught)

    def _read_taught(self) -> tuple[str, NDArray[np.int64]] | None:
        taught = self.run.taught()
        if taught is None:
            return None
        return teach.taught_text(taught), taught.column("taught_rank")[self.ranked["node"].to_numpy()]

    def _counts(self) -> dict[str, int]:
        codes = self.run.verdicts().codes
        return {"verdicts": len(codes), "bad": int(np.count_nonzero(codes == verdicts.BAD))}

    def verdicts_on(self, ids: pa.ChunkedArray) -> dict[str, list[str]]:
        """The verdict on each node of `ids`, empty where there is none, and who gave it."""
        table = self.run.verdicts().table
        names = ids.cast(table["id"].type)
        given = {row["id"]: row for row in table.filter(pc.is_in(table["id"], names)).to_pylist()}
        rows = [given.get(name) for name in names.to_pylist()]
        words = [verdicts.NAMES[row["code"]] if row else "" for row in rows]
        return {"verdict": words, "by": [row["by"] or "" if row else "" for row in rows]}

    def _verdict_on(self, ids: pa.ChunkedArray) -> dict[str, str]:
        return {key: value for key, (value,) in self.verdicts_on(ids).items()}


_ANSWERS: dict[tuple[str, str], tuple[str, Callable[[Views, dict[str, Any]], str]]] = {
    ("GET", "rows"): ("application/json", Views.rows),
    ("GET", "explained"): ("text/html", Views.explained),
    ("GET", "edges"): ("text/html", Views.edges),
    ("GET", "cases"): ("text/html", Views.cases),
    ("GET", "around"): ("text/html", Views.around),
    ("POST", "cases"): ("application/json", Views.change_case),
    ("POST", "verdicts"): ("application/json", Views.judge),
    ("POST", "review"): ("application/json", Views.to_review),
    ("POST", "teach"): ("application/json", Views.rank_again),
}


def _told(said: CaseVerdict | None) -> dict[str, str]:
    return {"verdict": said.verdict if said else "", "judged": said.text() if said else ""}


def _whole(name: str, text: str, low: int, high: int) -> int:
    """The whole number that a parameter holds, between bounds.

    >>> _whole("rank", "7", 1, 10)
    7
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and low <= int(text) <= high):
        raise ValueError(f"{name}={text} is not legal; it is a whole number from {low} to {high}")
    return int(text)


def _templates() -> Environment:
    shared = templates()
    return shared.overlay(loader=ChoiceLoader([PackageLoader(__package__), shared.loader]))  # type: ignore[list-item]


class Server(ThreadingHTTPServer):
    """A server of one run, whose page is at `url`."""

    daemon_threads = True

    def __init__(self, run_dir: Path, port: int = 0, by: str | None = None, trusts_queries: bool = False) -> None:
        self._of_run, self._lock = (run_dir, by, trusts_queries), threading.Lock()
        self._state, self._views = self._open()
        self.token = secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", port), Handler)
        self.hosts = [f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")]
        self.url = f"http://{self.hosts[0]}/{self.token}/"

    def _open(self) -> tuple[Any, Views]:
        run_dir, by, trusts_queries = self._of_run
        state = files.state_of(run_dir / console.STAGES_FILE)  # before reading: what comes later is seen
        return state, Views(FinishedRun(run_dir), by, trusts_queries)

    @property
    def views(self) -> Views:
        """What is shown; opened again once the run was made again. ValueError while it is being made."""
        with self._lock:
            if files.state_of(self._of_run[0] / console.STAGES_FILE) != self._state:
                self._state, self._views = self._open()
            return self._views

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that has closed its connection: it wants no answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "hcm-scale", ""
    timeout = 60

    def do_GET(self) -> None:
        if (page := self._page()) is not None:
            asked = dict(parse_qsl(urlsplit(self.path).query))
            self._csv(asked) if page == "scores.csv" else self._answer(*self._reply(page, asked))

    def do_POST(self) -> None:
        if (page := self._page()) is not None:
            status, reason = self._refusal()
            self._answer(*(self._posted(page) if status is HTTPStatus.OK else (status, "text/plain", reason, {})))

    def _page(self) -> str | None:
        """The page that is asked for, below the token; None, answered, where the address is not this server's."""
        token, _, page = urlsplit(self.path).path.removeprefix("/").partition("/")
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to its own address only\n", {})
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", _NOT_FOUND, {})
        else:
            return page
        return None

    def _refusal(self) -> tuple[HTTPStatus, str]:
        """Why a POST is refused; OK where it is not.

        A browser says where a request comes from, and pages of other sites cannot change that, nor send JSON unasked.
        """
        here, length = f"http://{self.headers['Host']}", self.headers.get("Content-Length", "")
        site = self.headers.get_all("Sec-Fetch-Site", ["same-origin"])  # older browsers do not say
        if self.headers.get_all("Origin", []) != [here] or site != ["same-origin"]:
            return HTTPStatus.FORBIDDEN, "this server takes verdicts from its own page only\n"
        if self.headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "legal is application/json\n"
        if not (length.isascii() and length.isdecimal()):
            return HTTPStatus.LENGTH_REQUIRED, "the length is missing\n"
        if len(length) > 9 or int(length) > _MAX_BODY_BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"legal are {_MAX_BODY_BYTES:,} bytes\n"
        return HTTPStatus.OK, ""

    def _posted(self, page: str) -> tuple[HTTPStatus, str, str, dict[str, str]]:
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            return HTTPStatus.BAD_REQUEST, "text/plain", "legal is a JSON object\n", {}
        return self._reply(page, asked)

    def _reply(self, page: str, asked: dict[str, Any]) -> tuple[HTTPStatus, str, str, dict[str, str]]:
        try:
            views = self.server.views
            if (self.command, page) == ("GET", ""):
                text, policy = views.page()
                return HTTPStatus.OK, "text/html", text, {"Content-Security-Policy": policy}
            if (self.command, page) in _ANSWERS:
                if self.command == "POST" and "of" not in asked:
                    raise ValueError("of is missing: the hash of the scores that the page shows")
                if asked.get("of", views.identity) != views.identity:
                    return HTTPStatus.CONFLICT, "text/plain", _CHANGED, {}
                kind, view = _ANSWERS[self.command, page]
                return HTTPStatus.OK, kind, view(views, asked), {}
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n", {}
        except OSError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n", {}
        return HTTPStatus.NOT_FOUND, "text/plain", _NOT_FOUND, {}

    def _csv(self, asked: dict[str, str]) -> None:
        """Streams the rows that pass as they are read; the end of the connection ends the file."""
        try:
            ranked, wanted = self.server.views.ranked, self.server.views.filter(asked)
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n", {})
        else:
            self._start(HTTPStatus.OK, "text/csv", {"Content-Disposition": 'attachment; filename="scores.csv"'})
            stream_csv(self.wfile, passing_rows(ranked, wanted), ranked.schema)

    def _answer(self, status: HTTPStatus, kind: str, text: str, headers: dict[str, str]) -> None:
        body = text.encode()
        self._start(status, kind, {"Content-Length": str(len(body))} | headers)
        self.wfile.write(body)

    def _start(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": f"{kind}; charset=utf-8"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing, because the addresses hold the token."""


def serve(run_dir: Path | str, port: int = 0, by: str | None = None, trusts_queries: bool = False) -> None:
    """Serves the page of a finished run until interrupted, and prints its address. Port 0 takes any free one.

    `by` is who gives the verdicts, by default the user of this process; `trusts_queries` is that of
    `FinishedRun.edge_rows`.
    """
    try:
        made = Server(Path(run_dir), port, by, trusts_queries)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(f"--port {port} is in use by another program; --port 0 takes any free one") from error
    with made as server:
        print(f"{server.url}\nserves {run_dir} to this machine until Ctrl-C", flush=True)
        server.serve_forever()
