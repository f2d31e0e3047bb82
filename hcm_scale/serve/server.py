"""The server of the local page: it answers this machine alone, and only who knows the address it printed.

It listens on 127.0.0.1. Every address begins with a random token, so that neither other users of the machine nor pages
of other sites that guess the port get anything; a request must name this host and port (`Host`), so that a name that an
attacker points at 127.0.0.1 (DNS rebinding) gets nothing either. It only reads, by GET. The page may load nothing but
its own style and script, by their hashes, and ask only this server.
"""

import contextlib
import errno
import json
import secrets
import threading
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader

from hcm_scale.graph import Graph
from hcm_scale.report import sections
from hcm_scale.report.card import card, num_rings
from hcm_scale.report.evidence import Evidence
from hcm_scale.report.explain import score_names
from hcm_scale.report.page import PAGE_ROWS, policy, templates
from hcm_scale.report.reasons import KIND_TITLES
from hcm_scale.report.wording import TERMS
from hcm_scale.report.write import stream_csv
from hcm_scale.run.workspace import open_stages
from hcm_scale.score import table
from hcm_scale.serve.ranked_file import Filter, RankedFile
from hcm_scale.stages import purify
from hcm_scale.stages.report import edge_hops, found_by

# ----------------------------------------------------------------------------
# What the served page shows of a run, as text: the page itself, rows of the list as JSON, and explanations as HTML.
#
# The list comes from scores.parquet by pieces (`ranked_file`), explanations from the same evidence as the report's
# cards, gathered when the first one is asked for. Templates are those of the report, with two more; everything that
# came from the user's data is escaped by them, or travels as JSON and is shown as text.


_NEIGHBORS = 60  # listed in an explanation
_WORDY = ("text", "words")  # columns that the list is not sorted by
_READ = ("graph", "purified", "scores")


class Views:
    """A finished run, ready to be looked at; ValueError where what is asked for is not legal."""

    def __init__(self, run_dir: Path) -> None:
        self.folders = dict(zip(_READ, open_stages(run_dir, *_READ), strict=True))
        self.name = run_dir.resolve().name
        self.graph = Graph.open(self.folders["graph"], verify=False)
        self.hops = edge_hops(self.folders["scores"], self.graph)
        self.ranked = RankedFile(self.folders["scores"] / table.FILE)
        table.check_ranked(self.ranked.path, self.ranked, self.graph.num_nodes)
        names = self.ranked.column_names
        self.ranked_by = (self.ranked.schema.metadata or {}).get(b"rank_by", b"ahp").decode()
        self.scores = sections.listed_scores(score_names(self.ranked), self.ranked_by, "evidence" in names)
        unread = {"node", *score_names(self.ranked)} - {*self.scores}
        self.read = [name for name in names if name not in unread]
        self.columns = sections.ranking_columns([*names, *(["label"] if "y" in names else [])], self.scores)
        self.sortable = [column["key"] for column in self.columns if column["kind"] not in _WORDY]
        self.highest = self.ranked.slice(0, 1)[self.ranked_by].to_pylist()
        self._lock = threading.Lock()

    def page(self) -> tuple[str, str]:
        """The page and its content security policy."""
        style, script = (_templates().get_template(name).render() for name in ("page.css", "serve.js"))
        found = found_by(self.folders["scores"])
        shown = {"flagged": None, "graph": {"num_nodes": self.ranked.num_rows}}
        if found.get("num_flagged") is not None:
            shown["flagged"] = {"num": found["num_flagged"]}
        text = (
            _templates()
            .get_template("serve.html")
            .render(
                name=self.name,
                summary=shown,
                ranked_by=self.ranked_by,
                columns=[column | {"fixed": column["key"] not in self.sortable} for column in self.columns],
                terms=TERMS,
                style=style,
                script=script,
            )
        )
        return text, policy(style=style, script=script) + "; connect-src 'self'; frame-ancestors 'none'"

    def rows(self, asked: dict[str, str]) -> str:
        """One page of the list as JSON: rows by column, how many there are in all, and the score of the longest bar."""
        sort, number = asked.get("sort", "rank"), asked.get("page", "0")
        if sort not in self.sortable:
            raise ValueError(f"sort={sort} is not legal; legal are {', '.join(self.sortable)}")
        first = _whole("page", number, 0, self.ranked.num_rows) * PAGE_ROWS
        rows, total = self.ranked.find(self.filter(asked), sort, asked.get("down") == "true", first, PAGE_ROWS)
        shown = sections.ranking_values(self.ranked.take(rows, self.read), self.scores)
        shown["id"] = [str(value) for value in shown["id"]]  # a script would round large numbers
        by_row = [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]
        return json.dumps({"rows": by_row, "total": total, "barTop": max(self.highest, default=0)}, allow_nan=False)

    def filter(self, asked: dict[str, str]) -> Filter:
        """The filter that is asked for."""
        kind, flagged = asked.get("kind", ""), asked.get("flagged") == "true"
        if kind and (kind not in KIND_TITLES or "evidence" not in self.ranked.column_names):
            raise ValueError(
                f"kind={kind} is not legal; legal are {', '.join(KIND_TITLES)}, where kinds are kept apart"
            )
        if flagged and "flagged" not in self.ranked.column_names:
            raise ValueError("flagged=true is not legal: nobody judged who stands out in this run")
        return Filter(kind, flagged, asked.get("query", "").strip())

    def explained(self, asked: dict[str, str]) -> str:
        """The card of the node of a rank, as HTML."""
        row = _whole("rank", asked.get("rank", ""), 1, self.ranked.num_rows) - 1
        node = self.ranked.take(np.array([row]), ["node"])["node"][0].as_py()
        with self._lock:
            shown = card(self._evidence, node, num_rings(self._evidence), _NEIGHBORS)
        return _templates().get_template("served_card.html").render(node=shown, num_nodes=self.ranked.num_rows)

    @cached_property
    def _evidence(self) -> Evidence:
        made = purify.open_purified(self.folders["purified"])
        return Evidence.of(self.graph, made.graph, self.ranked, *self.hops, made.features)


def _whole(name: str, text: str, low: int, high: int) -> int:
    """A whole number between bounds.

    >>> _whole("rank", "7", 1, 10)
    7
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and low <= int(text) <= high):
        raise ValueError(f"{name}={text} is not legal; it is a whole number from {low} to {high}")
    return int(text)


def _templates() -> Environment:
    """The report's templates and those of this room."""
    shared = templates()
    return shared.overlay(loader=ChoiceLoader([PackageLoader(__package__), shared.loader]))  # type: ignore[list-item]


_NOTHING = "there is nothing here\n"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """A server of one run; `url` is where its page is."""

    daemon_threads = True

    def __init__(self, run_dir: Path, port: int = 0) -> None:
        self.views = Views(run_dir)
        self.token = secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", port), Handler)
        self.hosts = [f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")]
        self.url = f"http://{self.hosts[0]}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "hcm-scale", ""
    timeout = 60

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        token, _, page = target.path.removeprefix("/").partition("/")
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to its own address only\n", {})
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", _NOTHING, {})
        else:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                asked = dict(parse_qsl(target.query))
                self._csv(asked) if page == "scores.csv" else self._answer(*self._found(page, asked))

    def _found(self, page: str, asked: dict[str, str]) -> tuple[HTTPStatus, str, str, dict[str, str]]:
        """What to answer: the status, the kind of text, the text and headers of its own."""
        views = self.server.views
        try:
            if page == "":
                text, policy = views.page()
                return HTTPStatus.OK, "text/html", text, {"Content-Security-Policy": policy}
            if page == "rows":
                return HTTPStatus.OK, "application/json", views.rows(asked), {}
            if page == "explained":
                return HTTPStatus.OK, "text/html", views.explained(asked), {}
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n", {}
        except OSError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n", {}
        return HTTPStatus.NOT_FOUND, "text/plain", _NOTHING, {}

    def _csv(self, asked: dict[str, str]) -> None:
        """The rows that pass, as they are read: the connection's end is theirs."""
        ranked = self.server.views.ranked
        try:
            wanted = self.server.views.filter(asked)
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n", {})
        else:
            self._start(HTTPStatus.OK, "text/csv", {"Content-Disposition": 'attachment; filename="scores.csv"'})
            stream_csv(self.wfile, ranked.passing(wanted), ranked.schema)

    def _answer(self, status: HTTPStatus, kind: str, text: str, headers: dict[str, str]) -> None:
        body = text.encode()
        self._start(status, kind, {"Content-Length": str(len(body))} | headers)
        self.wfile.write(body)

    def _start(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        refused = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        for name, value in (_HEADERS | refused | {"Content-Type": f"{kind}; charset=utf-8"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: an address holds the token."""


def serve(run_dir: Path | str, port: int = 0) -> None:
    """Serves the page of a finished run until it is interrupted; prints where. Port 0 is any free one."""
    try:
        made = Server(Path(run_dir), port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(f"--port {port} is in use by another program; --port 0 takes any free one") from error
    with made as server:
        print(f"{server.url}\nserves {run_dir} to this machine until Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
