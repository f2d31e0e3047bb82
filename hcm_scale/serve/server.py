"""The server of the local page: it answers this machine alone, and only who knows the address it printed.

It listens on 127.0.0.1. Every address begins with a random token, so that neither other users of the machine nor pages
of other sites that guess the port get anything; a request must name this host and port (`Host`), so that a name that an
attacker points at 127.0.0.1 (DNS rebinding) gets nothing either. It only reads, by GET. The page may load nothing but
its own style and script, by their hashes, and ask only this server.
"""

import contextlib
import errno
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hcm_scale.report.csv_file import stream_csv
from hcm_scale.serve.views import Views

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
