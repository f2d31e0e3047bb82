"""`hcm-scale serve`: a local page over a finished run, every node paged, filtered and explained on click.

`Views` makes what the page shows: the page itself, rows of the list as JSON and explanations as HTML. Rows are searched
in scores.parquet on disk; reasons and explanations come from `Evidence`, as in the report, gathered at the first.
The templates are the report's and two more, and escape whatever came from the user's data.

`Server` listens on 127.0.0.1 and only reads, by GET. Every address begins with a random token, so that neither other
users of the machine nor pages of other sites that guess the port get anything. A request must name this host and port
(`Host`), so that a name that an attacker points at 127.0.0.1 (DNS rebinding) gets nothing either. The page may load
nothing but its own style and script, by their hashes, and ask only this server.
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
from hcm_scale.report.explain import explain
from hcm_scale.report.page import PAGE_ROWS, policy, templates
from hcm_scale.report.reasons import KIND_TITLES
from hcm_scale.report.wording import TERMS, all_reasons
from hcm_scale.report.write import stream_csv
from hcm_scale.run.workspace import open_stages
from hcm_scale.score import table
from hcm_scale.serve.search import Filter, find_rows, passing_rows
from hcm_scale.stages import purify
from hcm_scale.stages.report import edge_hops, found_by

_NEIGHBORS = 60  # listed in an explanation
_STAGES = ("graph", "purified", "scores")
_NOT_FOUND = "there is nothing here\n"
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

    def __init__(self, run_dir: Path) -> None:
        self.folders = dict(zip(_STAGES, open_stages(run_dir, *_STAGES), strict=True))
        self.name = run_dir.resolve().name
        self.graph = Graph.open(self.folders["graph"], verify=False)
        self.hops = edge_hops(self.folders["scores"], self.graph)
        self.ranked = table.RankedFile(self.folders["scores"] / table.FILE)
        table.check_ranked(self.ranked.path, self.ranked, self.graph.num_nodes)
        names, scores = self.ranked.column_names, table.score_names(self.ranked)
        self.ranked_by, self.has_kinds = table.ranked_by(self.ranked), table.has_kinds(self.ranked)
        self.scores = sections.listed_scores(scores, self.ranked_by, self.has_kinds)
        self.read = [name for name in names if name not in scores or name in self.scores]
        self.columns = sections.ranking_columns([*names, "reason", *(["label"] if "y" in names else [])], self.scores)
        self.sortable = [column["key"] for column in self.columns if column["kind"] not in ("text", "words")]
        self.highest = self.ranked.slice(0, 1)[self.ranked_by].to_pylist()
        self._lock = threading.Lock()

    def page(self) -> tuple[str, str]:
        """The page and its content security policy."""
        page, style, script = (_templates().get_template(name) for name in ("serve.html", "page.css", "serve.js"))
        allowed = {"style": style.render(), "script": script.render()}
        num_flagged = found_by(self.folders["scores"]).get("num_flagged")
        flagged = None if num_flagged is None else {"num": num_flagged}
        text = page.render(
            name=self.name,
            summary={"flagged": flagged, "graph": {"num_nodes": self.ranked.num_rows}},
            ranked_by=self.ranked_by,
            columns=[column | {"fixed": column["key"] not in self.sortable} for column in self.columns],
            terms=TERMS,
            **allowed,
        )
        return text, policy(**allowed) + "; connect-src 'self'; frame-ancestors 'none'"

    def rows(self, asked: dict[str, str]) -> str:
        """One page of the list as JSON: its rows, how many there are in all, and the score of the longest bar."""
        sort = asked.get("sort", "rank")
        if sort not in self.sortable:
            raise ValueError(f"sort={sort} is not legal; legal are {', '.join(self.sortable)}")
        down = asked.get("down") == "true"
        first = _whole("page", asked.get("page", "0"), 0, self.ranked.num_rows) * PAGE_ROWS
        rows, total = find_rows(self.ranked, self.filter(asked), sort, down, first, PAGE_ROWS)
        found = self.ranked.take(rows, self.read)
        shown = sections.ranking_values(found, self.scores)
        with self._lock:
            shown["reason"] = [all_reasons(explain(self._evidence, node)) for node in found["node"].to_pylist()]
        shown["id"] = [str(value) for value in shown["id"]]  # a script would round large numbers
        by_row = [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]
        return json.dumps({"rows": by_row, "total": total, "barTop": max(self.highest, default=0)}, allow_nan=False)

    def filter(self, asked: dict[str, str]) -> Filter:
        """The filter that a query asks for."""
        kind, flagged = asked.get("kind", ""), asked.get("flagged") == "true"
        if kind and (kind not in KIND_TITLES or not self.has_kinds):
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
    """The whole number that a parameter holds, between bounds.

    >>> _whole("rank", "7", 1, 10)
    7
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and low <= int(text) <= high):
        raise ValueError(f"{name}={text} is not legal; it is a whole number from {low} to {high}")
    return int(text)


def _templates() -> Environment:
    """The report's templates and those of the served page."""
    shared = templates()
    return shared.overlay(loader=ChoiceLoader([PackageLoader(__package__), shared.loader]))  # type: ignore[list-item]


class Server(ThreadingHTTPServer):
    """A server of one run, whose page is at `url`."""

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
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", _NOT_FOUND, {})
        else:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                asked = dict(parse_qsl(target.query))
                self._csv(asked) if page == "scores.csv" else self._answer(*self._found(page, asked))

    def _found(self, page: str, asked: dict[str, str]) -> tuple[HTTPStatus, str, str, dict[str, str]]:
        """Status, content type, text and further headers of the answer."""
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
        return HTTPStatus.NOT_FOUND, "text/plain", _NOT_FOUND, {}

    def _csv(self, asked: dict[str, str]) -> None:
        """Streams the rows that pass as they are read; the end of the connection ends the file."""
        ranked = self.server.views.ranked
        try:
            wanted = self.server.views.filter(asked)
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


def serve(run_dir: Path | str, port: int = 0) -> None:
    """Serves the page of a finished run until interrupted, and prints its address. Port 0 takes any free one."""
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
