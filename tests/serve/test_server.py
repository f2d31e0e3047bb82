"""The server answers who knows its address, with the whole list; and nobody else."""

import csv
import http.client
import json
import socket
import threading
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from hcm_scale.cli import main
from hcm_scale.edges.strange import StrangeEdges
from hcm_scale.run.finished import FinishedRun
from hcm_scale.serve.server import Server, serve


def get(server: Server, page: str, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, page, headers={"Host": host or server.hosts[0]})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, dict(reply.getheaders()), text


def asked(server: Server, page: str) -> str:
    status, _, text = get(server, f"/{server.token}/{page}")
    assert status == 200
    return text


def test_server__listens_on_this_machine_alone_and_at_an_address_nobody_guesses(server: Server, run_dir: Path):
    assert server.server_address[0] == "127.0.0.1"
    with Server(run_dir) as other:
        assert other.token != server.token
        assert len(other.token) >= 32


def test_serve__names_the_port_that_is_in_use(server: Server, run_dir: Path):
    with pytest.raises(ValueError, match=f"--port {server.server_port} is in use by another program"):
        serve(run_dir, server.server_port)


@pytest.mark.parametrize("page", ["/", "/rows", "/x/", "//", "/é/".encode().decode("latin-1"), "/../"])
def test_server__shows_nothing_without_its_token(server: Server, page: str):
    status, headers, text = get(server, quote(page))
    assert (status, text) == (404, "there is nothing here\n")
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1:{port}."]
)
def test_server__refuses_other_hosts(server: Server, host: str):
    status, _, text = get(server, f"/{server.token}/", host.format(port=server.server_port))
    assert status == 403
    assert server.views.run_dir.name not in text
    assert get(server, f"/{server.token}/", server.hosts[1])[0] == 200  # localhost


def test_server__refuses_a_request_with_two_hosts_or_none(server: Server):
    for hosts in ("", f"Host: {server.hosts[0]}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as raw:
            raw.sendall(f"GET /{server.token}/ HTTP/1.0\r\n{hosts}\r\n".encode())
            assert b" 403 " in raw.recv(100)


def test_server__knows_get_and_post_alone(server: Server):
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert get(server, f"/{server.token}/", method=method)[0] == 501
    assert get(server, f"/{server.token}/verdicts")[0] == 404


def test_server__page_runs_its_own_script_only(server: Server):
    _, headers, text = get(server, f"/{server.token}/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in text.replace("http-equiv", "")
    assert headers["Referrer-Policy"] == "no-referrer"


def test_server__rows_are_those_of_the_file(server: Server, run_dir: Path):
    table = pq.read_table(run_dir / "scores" / "scores.parquet")
    seen = [row for page in range(20) for row in json.loads(asked(server, f"rows?page={page}"))["rows"]]
    assert [row["id"] for row in seen] == table["id"].to_pylist()
    assert [row["degree"] for row in seen] == table["degree"].to_pylist()
    hops = json.loads(asked(server, "rows?kind=hop&sort=degree&down=true"))
    assert hops["total"] == table["evidence"].to_pylist().count("hop")
    degrees = [row["degree"] for row in hops["rows"]]
    assert degrees == sorted(degrees, reverse=True)
    name = table["id"][250].as_py()
    assert json.loads(asked(server, f"rows?query={quote(name)}"))["rows"][0]["rank"] == 251


def test_server__csv_is_what_passes(server: Server, run_dir: Path):
    table = pq.read_table(run_dir / "scores" / "scores.parquet").to_pylist()
    rows = list(csv.DictReader(asked(server, "scores.csv?kind=attributes").splitlines()))
    wanted = [row for row in table if row["evidence"] == "attributes"]
    assert [row["id"] for row in rows] == [row["id"] for row in wanted]
    assert [float(row["score"]) for row in rows] == [row["score"] for row in wanted]


def test_server__explains_any_node_and_escapes_its_id(server: Server):
    text = asked(server, "explained?rank=300")
    assert 'id="node-300"' in text
    assert "&lt;img src=x" in text
    assert "<img" not in text
    assert 'href="#node-' in text  # from neighbour to neighbour


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("rows?sort=id", "sort=id is not legal; legal are rank, score,"),
        ("rows?page=-1", "page=-1 is not legal; it is a whole number from 0 to 300"),
        ("rows?verdict=evil", "verdict=evil is not legal; legal are good, bad, unsure, none"),
        ("rows?kind=x", "kind=x is not legal; legal are hop, closure,"),
        ("explained?rank=301", "rank=301 is not legal; it is a whole number from 1 to 300"),
        ("explained", "rank= is not legal"),
        ("scores.csv?kind=x", "kind=x is not legal"),
    ],
)
def test_server__says_what_is_legal(server: Server, page: str, said: str):
    status, headers, text = get(server, f"/{server.token}/{page}")
    assert status == 400
    assert text.startswith(said)
    assert headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "usage: hcm-scale serve [-h] [--port N] [--by NAME] [--trust-queries] RUN"),
        (["nowhere"], "nowhere is not there"),
        (["nowhere", "--port", "x"], "--port x is not legal"),
        (["nowhere", "--port", "-1"], "port"),
        (["nowhere", "--port", "65536"], "--port 65536 is not legal"),
    ],
)
def test_command__says_what_is_wrong(monkeypatch, capsys, tmp_path: Path, words: list[str], said: str):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hcm-scale", "serve", *words])
    assert main.main() == 2
    assert said in capsys.readouterr().err


def test_edges__are_ranked_when_asked_for_and_stored_while_others_are_answered(start, own_run: Path, monkeypatch):
    server, go_on, began, shown = start(), threading.Event(), threading.Event(), StrangeEdges.shown

    def slow(*arguments):
        began.set()
        assert go_on.wait(30)
        return shown(*arguments)

    monkeypatch.setattr(StrangeEdges, "shown", slow)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(asked(server, "edges")))
    asking.start()
    assert began.wait(30)
    assert json.loads(asked(server, "rows"))["rows"]
    assert "class=" in asked(server, "explained?rank=1")
    go_on.set()
    asking.join()
    first = FinishedRun(own_run).edges.table(1).to_pylist()[0]
    rows = answers[0].partition("<tbody>")[2]
    assert rows.count("<tr") == 100
    ranks = {row["id"]: row["rank"] for row in pq.read_table(own_run / "scores" / "scores.parquet").to_pylist()}
    for end in (first["source"], first["target"]):
        assert f'href="#node-{ranks[end]}"' in rows.partition("</tr>")[0]
    assert "<img" not in answers[0]
    monkeypatch.setattr(StrangeEdges, "shown", None)
    assert asked(start(), "edges") == answers[0]  # another server reads what is stored
    (own_run / "strange_edges.json").write_text("{")
    monkeypatch.setattr(StrangeEdges, "shown", shown)
    assert asked(start(), "edges") == answers[0]
