"""Clients of `hcm-scale serve` that close too early, and the end of the server: nothing on stderr but what is meant."""

import functools
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import serving, small_graph, small_run

from hcm_scale.serve.server import Handler, Server

NUM_NODES = 3_000  # whose list is more than a socket buffers


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clients") / "run"
    small_run(folder, small_graph(NUM_NODES), until="score", **{"score.views": ["purified"]})
    return folder


def hang_up(connection: socket.socket) -> None:
    """Closes with a reset, as a killed browser does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answer(server: Server) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(REQUESTS["rows"].format(token=server.token, host=server.hosts[0]).encode())
        return connection.recv(20)


REQUESTS = {
    "nothing": "",
    "half a line": "GET /",
    "half a request": "GET /{token}/rows HTTP/1.1\r\nHost: {host}\r\n",
    "rows": "GET /{token}/rows HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "the whole list": "GET /{token}/scores.csv HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "half a verdict": "POST /{token}/verdicts HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
    "Content-Type: application/json\r\nContent-Length: 40\r\n\r\n{{",
}


@pytest.mark.parametrize("first_bytes", [0, 20], ids=["at once", "after some bytes"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_client_that_hangs_up__causes_no_word(run_dir, capfd, request_, first_bytes):
    with serving(run_dir) as server:
        for _ in range(3):
            connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
            connection.sendall(request_.format(token=server.token, host=server.hosts[0]).encode())
            if first_bytes and request_.startswith("GET") and request_.endswith("\r\n\r\n"):
                assert connection.recv(first_bytes)
            hang_up(connection)
        assert answer(server)  # those before were taken up
    assert capfd.readouterr().err == ""


def test_fault_of_the_server__is_still_told(run_dir, capfd, monkeypatch):
    monkeypatch.setattr(Handler, "do_GET", lambda self: 1 / 0)
    with serving(run_dir) as server:
        assert answer(server) == b""
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal__ends_the_server_with_its_status_and_one_line(run_dir, signum, tmp_path):
    with open(tmp_path / "err", "w") as err:
        command = [sys.executable, "-m", "hcm_scale", "serve", str(run_dir)]
        heard = functools.partial(signal.signal, signum, signal.SIG_DFL)  # a job in the background ignores SIGINT
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, preexec_fn=heard)
    try:
        assert re.match(r"http://127.0.0.1:\d+/", process.stdout.readline())
        time.sleep(0.2)
        process.send_signal(signum)
        assert process.wait(60) == 128 + signum
    finally:
        process.kill()
        process.stdout.close()
    told = (tmp_path / "err").read_text()
    assert told == f"stopped by {signum.name}; to go on from here: hcm-scale serve {run_dir}\n"
