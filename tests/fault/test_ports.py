"""Which ports a run opens, and what a stranger can do to them.

Ranks of one machine are heard on its loopback alone; garbage, a wrong token and a connection that says nothing change
nothing.
"""

import json
import socket

import psutil
import pytest

GARBAGE = [
    b"",
    b"\0" * 8,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    json.dumps({"rank": 1, "token": "0" * 32}).encode() + b"\n",
    bytes([0, 0xCE, 0xF7, 0x85, 0x3C]) + b"\xff" * 64,  # how torch's store wants to be greeted, then nonsense
]


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses on which a process and all that it started listen."""
    parent = psutil.Process(pid)
    connections = [entry for one in (parent, *parent.children(recursive=True)) for entry in one.net_connections()]
    return {(entry.laddr.ip, entry.laddr.port) for entry in connections if entry.status == psutil.CONN_LISTEN}


@pytest.mark.gate
def test_strangers__find_loopback_ports_only_and_disturb_nothing(start):
    running = start("world.processes=2", "world.max_restarts=0")
    running.wait_until(lambda: running.step() > 20)
    ports = listening(running.process.pid)
    assert ports
    assert {host for host, _ in ports} == {"127.0.0.1"}
    silent = [socket.create_connection(address) for address in ports]
    for address in ports:
        for message in GARBAGE:
            with socket.create_connection(address) as stranger:
                stranger.sendall(message)
    assert running.step() < 250, "the run was over before it could be disturbed"
    assert running.finish() == 0, running.output()
    for stranger in silent:
        stranger.close()
    assert len(running.samples()) == 4
