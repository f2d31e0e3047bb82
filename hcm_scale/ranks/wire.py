"""How ranks wait for each other, however long that takes, and notice at once when one is gone.

A stage may keep one rank busy for an hour while the others wait. A collective with a timeout cannot tell such a rank
from a dead one, so waiting does not go through collectives: rank 0 has one TCP connection to each other rank.

    a process that dies        closes its end, whatever killed it: noticed at once
    one that is stopped        sends no beats any more: a thread of every rank sends six within `timeout_seconds`
    a machine that is silent   the same

A waiting rank still runs its signal handlers, and does not count the time for which it was stopped itself. What torch
offers instead, and why not: `docs/lab/decisions.md`.

Messages are JSON, one a line, and small: decisions, keys, paths; a beat is an empty line. Cost: a thread per rank, a
socket for each other rank, one round trip per barrier.
"""

import contextlib
import hmac
import json
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_NUM_BEATS = 6  # within the time after which a silent rank is given up
_CHUNK_BYTES = 1 << 16
_HELLO_SECONDS = 10  # within which whoever connects to our port has to send the token


class LostRankError(ConnectionError):
    """Another rank ended or cannot be reached; its own error is the one to read."""


class SilentRankError(LostRankError):
    """Another rank sent no beat; it may have been stopped, and is not killed yet."""


@dataclass(eq=False)
class Line:
    """One connection: JSON values in, JSON values out, and beats between them."""

    rank: int  # who is at the other end
    connection: socket.socket
    _unread: bytes = b""
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, value: Any) -> None:
        try:
            with self._sending:
                self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise self.lost(error) from error

    def beat(self) -> None:
        """Sends an empty line, unless a value is being sent or the buffer is full; the reader finds a broken line."""
        if self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self.connection.send(b"\n", socket.MSG_DONTWAIT)
            self._sending.release()

    @property
    def has_value(self) -> bool:
        return b"\n" in self._unread

    def read(self) -> None:
        """Reads what has arrived into the buffer."""
        try:
            chunk = self.connection.recv(_CHUNK_BYTES)
        except OSError as error:
            raise self.lost(error) from error
        if not chunk:
            raise self.lost("it ended")
        self._unread = (self._unread + chunk).lstrip(b"\n")

    def take(self) -> Any:
        """The first value in the buffer."""
        text, _, rest = self._unread.partition(b"\n")
        self._unread = rest.lstrip(b"\n")
        return json.loads(text)

    def lost(self, reason: object) -> LostRankError:
        return LostRankError(f"rank {self.rank} is gone ({reason}); its own error is in its log")


def receive(lines: Sequence[Line], timeout_seconds: float) -> list[Any]:
    """One value from each line, read in whatever order they arrive: a lost rank is noticed while a slow one works."""
    silent = {line: 0.0 for line in lines if not line.has_value}
    with selectors.DefaultSelector() as selector:
        for line in silent:
            selector.register(line.connection, selectors.EVENT_READ, line)
        while silent:
            before = time.monotonic()
            ready = [entry.data for entry, _ in selector.select(timeout_seconds / _NUM_BEATS)]
            waited = min(time.monotonic() - before, timeout_seconds / _NUM_BEATS)  # more if we were stopped ourselves
            for line in ready:
                line.read()
                if line.has_value:
                    selector.unregister(line.connection)
                    del silent[line]
            for line in silent:
                silent[line] = 0.0 if line in ready else silent[line] + waited
                if silent[line] > timeout_seconds:
                    raise SilentRankError(
                        f"rank {line.rank} gave no sign of life for world.timeout_seconds={timeout_seconds:g}: was it "
                        "stopped?"
                    )
    return [line.take() for line in lines]


class Wire:
    """Rank 0 has a line to every other rank, each of them one to rank 0."""

    def __init__(self, lines: Sequence[Line], *, leads: bool, timeout_seconds: float) -> None:
        self.lines = lines
        self.leads = leads  # whether this is rank 0
        self._timeout_seconds = timeout_seconds
        self._closed = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="hcm-scale-beats", daemon=True)
        self._beats.start()

    def meet(self) -> None:
        """Returns when every rank has called this."""
        if self.leads:
            receive(self.lines, self._timeout_seconds)
        else:
            self.lines[0].send(None)
        self.tell(None)

    def tell(self, value: Any) -> Any:
        """Rank 0's value, on every rank; the values of the others are ignored."""
        if not self.leads:
            return receive(self.lines, self._timeout_seconds)[0]
        for line in self.lines:
            line.send(value)
        return value

    def close(self) -> None:
        self._closed.set()
        self._beats.join()
        for line in self.lines:
            line.connection.close()

    def _beat(self) -> None:
        while not self._closed.wait(self._timeout_seconds / _NUM_BEATS):
            for line in self.lines:
                line.beat()


def listen(address: str, port: int = 0) -> socket.socket:
    """A listening socket on this port, or a free one, of this address, or of all addresses if it is empty."""
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server((address, port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def accept_all(server: socket.socket, size: int, token: str, timeout_seconds: float) -> Wire:
    """Rank 0's end: waits until ranks 1 .. size - 1 have connected with the right token, and closes the server."""
    lines: dict[int, Line] = {}
    deadline = time.monotonic() + timeout_seconds
    with server:
        while len(lines) < size - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, size)) - set(lines))
                raise LostRankError(f"ranks {missing} did not come within {timeout_seconds:g} s") from error
            rank = _greeted(connection, token)
            if rank is None or rank in lines or not 0 < rank < size:
                connection.close()
                continue
            lines[rank] = Line(rank, _watched(connection, timeout_seconds))
            lines[rank].send("welcome")
    return Wire([lines[rank] for rank in sorted(lines)], leads=True, timeout_seconds=timeout_seconds)


def call(address: tuple[str, int], rank: int, token: str, timeout_seconds: float) -> Wire:
    """The end of another rank: connects to rank 0, sends its rank and token, and waits to be welcomed."""
    try:
        connection = socket.create_connection(address, timeout=timeout_seconds)
    except OSError as error:
        raise LostRankError(f"rank 0 cannot be reached at {address[0]}, port {address[1]} ({error})") from error
    line = Line(0, _watched(connection, timeout_seconds))
    line.send({"rank": rank, "token": token})
    receive([line], timeout_seconds)
    return Wire([line], leads=False, timeout_seconds=timeout_seconds)


def _greeted(connection: socket.socket, token: str) -> int | None:
    """The rank of a peer that knows the token; None for anyone else.

    A hello fits one packet, so one read is enough, and nobody can block the server by sending single bytes.
    """
    connection.settimeout(_HELLO_SECONDS)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        hello = json.loads(connection.recv(_CHUNK_BYTES))
        if hmac.compare_digest(str(hello["token"]), token):
            return int(hello["rank"])
    return None


def _watched(connection: socket.socket, timeout_seconds: float) -> socket.socket:
    """The connection; a message leaves at once, and within the limit."""
    connection.settimeout(timeout_seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
