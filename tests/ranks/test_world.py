"""Ranks in processes of their own, over gloo: what they do together, and what they say when they cannot."""

import json
import socket
import subprocess
import sys

import pytest
import torch

from hcm_scale.ranks.world import (
    ALONE,
    LostRankError,
    RankInfo,
    World,
    _open_group,
    addresses_towards,
    choose_device,
    interface_of,
    join,
)

MEMBER = """
import json, os, sys
import torch
from hcm_scale.ranks.world import LostRankError, RankInfo, join

rank, size, port, ill = (int(text) for text in sys.argv[1:])
torch.set_num_threads(1)
with join(RankInfo(rank, size, rank, size, "127.0.0.1", port), timeout_seconds=30) as world:
    heard = world.broadcast({"from": rank})
    world.barrier()
    vector = torch.linspace(0, 1, 1001) * (rank + 1) / 3
    total = world.sum(vector)
    if rank == ill:
        os._exit(7)
    try:
        world.barrier()
        world.sum(torch.ones(2))
    except LostRankError as error:
        print(json.dumps({"lost": str(error)}))
        os._exit(3)
    bits = total.view(torch.int32).sum().item()
    print(json.dumps({"heard": heard, "bits": bits, "sum": total[-1].item(), "device": world.device}))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def members(size: int, ill: int = -1) -> list[tuple[int, dict]]:
    """(exit status, what was printed) of every rank."""
    port = free_port()
    command = [sys.executable, "-W", "error", "-c", MEMBER]
    ranks = [
        subprocess.Popen([*command, *map(str, (rank, size, port, ill))], stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    return [(rank.returncode, json.loads(text or "{}")) for rank, text in zip(ranks, printed, strict=True)]


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks__hear_rank_0_and_add_up_to_the_same_bits(size):
    ended = members(size)
    assert [status for status, _ in ended] == [0] * size
    assert all(report["heard"] == {"from": 0} and report["device"] == "cpu" for _, report in ended)
    assert len({report["bits"] for _, report in ended}) == 1
    assert ended[0][1]["sum"] == pytest.approx(sum(range(1, size + 1)) / 3)


@pytest.mark.parametrize("ill", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_rank_that_ends__is_noticed_by_the_others(ill):
    ended = members(2, ill)
    assert ended[ill][0] == 7
    status, report = ended[1 - ill]
    assert status == 3
    assert f"rank {ill} is gone" in report["lost"]


def test_alone__everything_returns_at_once():
    ALONE.barrier()
    assert ALONE.broadcast({"a": [1]}) == {"a": [1]}
    assert ALONE.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert ALONE.leads
    assert not World(rank=1, size=2).leads


def test_world_of_one__opens_no_connection():
    with join(RankInfo(0, 1, 0, 1, "nowhere.invalid", 1)) as world:
        assert (world.rank, world.size, world.device, world.wire) == (0, 1, "cpu", None)


def test_join__says_that_rank_0_is_missing():
    with (
        pytest.raises(LostRankError, match=r"the ranks' store at 127\.0\.0\.1:\d+ cannot be reached"),
        join(RankInfo(1, 2, 1, 2, "127.0.0.1", free_port()), timeout_seconds=1),
    ):
        pass


def test_join__says_which_rank_is_missing():
    with (
        pytest.raises(LostRankError, match=r"ranks \[1\] did not come within 1 s"),
        join(RankInfo(0, 2, 0, 2, "127.0.0.1", free_port()), timeout_seconds=1),
    ):
        pass


def test_choose_device__shares_gpus_over_gloo(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda", 1, 2) == ("cuda:1", "nccl")
    assert choose_device("cuda", 3, 4) == ("cuda:1", "gloo")
    assert choose_device("cpu", 3, 4) == ("cpu", "gloo")


def test_addresses__lead_to_an_interface():
    local, remote = addresses_towards("127.0.0.1", 80)
    assert local == remote == "127.0.0.1"
    assert interface_of(local) is not None
    assert interface_of("203.0.113.77") is None


@pytest.mark.gpu
def test_sum__goes_over_nccl_beside_other_kernels():
    """NCCL takes one rank a GPU, so on one GPU the group is of one: the call, its stream and its order are real."""
    store = torch.distributed.HashStore()
    _open_group(RankInfo(0, 1, 0, 1, "127.0.0.1", 1), store, "nccl", timeout_seconds=60)
    try:
        vector, expected = torch.zeros(1 << 20, device="cuda"), 0
        for step in range(10):
            vector += step
            World(0, 2, "cuda:0").sum(vector)  # a world that believes in a second rank
            vector *= 2
            expected = 2 * (expected + step)
        assert vector.unique().tolist() == [expected]
    finally:
        torch.distributed.destroy_process_group()
