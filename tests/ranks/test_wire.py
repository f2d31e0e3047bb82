"""Ranks wait for each other without a limit, and notice when one is gone or stopped."""

import fcntl
import os
import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hcm_scale.ranks import wire, world

TOKEN = "secret"


@pytest.fixture(params=[2, 4])
def wires(request):
    """The ends of all ranks, rank 0 first."""
    size = request.param
    server = wire.listen("127.0.0.1")
    address = server.getsockname()[:2]
    with ThreadPoolExecutor(size) as pool:
        leader = pool.submit(wire.accept_all, server, size, TOKEN, 30.0)
        others = [pool.submit(wire.call, address, rank, TOKEN, 30.0) for rank in reversed(range(1, size))]
        ends = [leader.result(), *(end.result() for end in reversed(others))]
    yield ends
    for end in ends:
        end.close()


def together(wires: list[wire.Wire], act):
    with ThreadPoolExecutor(len(wires)) as pool:
        return [future.result(timeout=30) for future in [pool.submit(act, rank, end) for rank, end in enumerate(wires)]]


def test_listen__on_all_addresses_hears_both_families():
    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        server = wire.listen("")
        with ThreadPoolExecutor(2) as pool:
            leader = pool.submit(wire.accept_all, server, 2, TOKEN, 30.0)
            other = pool.submit(wire.call, (host, server.getsockname()[1]), 1, TOKEN, 30.0).result()
            ends = [leader.result(), other]
        assert together(ends, lambda rank, end: end.tell(7)) == [7, 7]
        for end in ends:
            end.close()


def test_meet__works_with_descriptors_beyond_a_thousand():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip("this machine allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    here, there = socket.socketpair()
    far = socket.socket(fileno=fcntl.fcntl(here.fileno(), fcntl.F_DUPFD, 2000))
    ends = [
        wire.Wire([wire.Line(end, near)], leads=end == 1, timeout_seconds=30) for end, near in ((1, far), (0, there))
    ]
    try:
        together(ends, lambda rank, end: end.meet())
    finally:
        here.close()
        for end in ends:
            end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tell__gives_every_rank_what_rank_0_says(wires):
    value = {"folder": "a\nb", "finished": False, "numbers": [1, 2.5, None]}
    assert together(wires, lambda rank, end: end.tell(value if rank == 0 else "ignored")) == [value] * len(wires)


def test_meet__lets_nobody_through_before_all_have_come(wires):
    come: list[int] = []

    def member(rank: int, end: wire.Wire) -> int:
        time.sleep(0.02 * (len(wires) - rank))
        come.append(rank)
        end.meet()
        return len(come)

    for meeting in range(1, 4):
        assert min(together(wires, member)) >= meeting * len(wires)


def test_meetings_and_messages__do_not_mix(wires):
    def member(rank: int, end: wire.Wire) -> list:
        heard = []
        for turn in range(50):
            end.meet()
            heard.append(end.tell(turn if rank == 0 else None))
        return heard

    assert together(wires, member) == [list(range(50))] * len(wires)


def test_large_message__arrives_whole(wires):
    value = ["x" * 300_000, 1]
    assert together(wires, lambda rank, end: end.tell(value))[-1] == value


def test_lost_rank__is_named_even_while_another_is_slow(wires):
    wires[-1].close()
    with pytest.raises(world.LostRankError, match=rf"rank {len(wires) - 1} is gone"):
        wires[0].meet()


@pytest.fixture
def hasty():
    """The ends of two ranks that wait 1.5 s for a sign of life."""
    server = wire.listen("127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(wire.call, server.getsockname()[:2], 1, TOKEN, 1.5)
        ends = [wire.accept_all(server, 2, TOKEN, 1.5), other.result()]
    yield ends
    for end in ends:
        end.close()


def test_busy_rank__is_waited_for_past_the_limit(hasty):
    together(hasty, lambda rank, end: time.sleep(2.5 * rank) or end.meet())
    together(hasty, lambda rank, end: time.sleep(2.5 * (1 - rank)) or end.meet())


@pytest.mark.parametrize("waiting", [0, 1])
def test_rank_without_beats__is_given_up_by_the_limit(hasty, waiting):
    stopped = hasty[1 - waiting]
    stopped._closed.set()  # its thread ends, its connection stays open: all that is seen of a process under SIGSTOP
    with pytest.raises(wire.SilentRankError, match=rf"rank {1 - waiting} gave no sign of life for .*_seconds=1\.5"):
        hasty[waiting].meet()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("rank", [0, 1])
def test_waiting_rank__runs_its_signal_handlers(wires, rank):
    def interrupt(*_: object) -> None:
        raise RuntimeError("asked to stop")

    before = signal.signal(signal.SIGUSR2, interrupt)
    asking = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
    asking.start()
    try:
        with pytest.raises(RuntimeError, match="asked to stop"):
            wires[rank].meet()
    finally:
        asking.join()
        signal.signal(signal.SIGUSR2, before)


def test_lost_leader__is_named(wires):
    wires[0].close()
    with pytest.raises(world.LostRankError, match="rank 0 is gone"):
        wires[1].meet()


def test_stranger__is_not_let_in():
    server = wire.listen("127.0.0.1")
    address = server.getsockname()[:2]
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(wire.accept_all, server, 2, TOKEN, 30.0)
        bad = [b'{"rank": 1, "token": "guess"}\n', b"GET /\r\n", b'{"rank": 5, "token": "secret"}\n', b"[]", b"{"]
        for greeting in bad:
            with socket.create_connection(address, timeout=5) as stranger:
                stranger.sendall(greeting)
                assert stranger.recv(1) == b""
        end = wire.call(address, 1, TOKEN, 30.0)
        assert [line.rank for line in leader.result().lines] == [1]
        leader.result().close()
        end.close()


def test_first_word_of_a_rank__is_not_lost_behind_its_greeting():
    server = wire.listen("127.0.0.1")
    address = server.getsockname()[:2]

    def come_and_meet() -> None:
        end = wire.call(address, 1, TOKEN, 30.0)
        end.meet()
        end.close()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(come_and_meet)
        time.sleep(0.2)  # all that it says by itself is under way before rank 0 looks
        leader = wire.accept_all(server, 2, TOKEN, 30.0)
        try:
            leader.meet()
        finally:
            leader.close()
        other.result()


def test_rank_that_never_comes__is_named():
    with pytest.raises(world.LostRankError, match=r"ranks \[1, 2\] did not come within 0.2 s"):
        wire.accept_all(wire.listen("127.0.0.1"), 3, TOKEN, 0.2)


def test_leader_that_is_not_there__is_named():
    with wire.listen("127.0.0.1") as server:
        address = server.getsockname()[:2]
    with pytest.raises(world.LostRankError, match=r"rank 0 cannot be reached at 127\.0\.0\.1"):
        wire.call(address, 1, TOKEN, 1.0)


def test_line__joins_what_the_network_cuts_and_hears_no_value_in_beats():
    near, far = socket.socketpair()
    sender = threading.Thread(target=lambda: [near.sendall(bytes([byte])) for byte in b'\n{"a": 1}\n\n\n[2]\n\n'])
    sender.start()
    end = wire.Wire([wire.Line(3, far)], leads=False, timeout_seconds=5.0)
    assert [end.tell(None), end.tell(None)] == [{"a": 1}, [2]]
    sender.join()
    near.close()
    with pytest.raises(world.LostRankError, match=r"rank 3 is gone"):
        end.tell(None)
    end.close()
