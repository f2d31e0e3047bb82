"""The ranks that work on one run: which of them this process is, and what they do together.

    share       the range of items that falls to a rank
    barrier     waits for all, however long they take (`wire.py`)
    broadcast   rank 0's small JSON value, on all ranks
    sum         one flat vector added up over the ranks, the only traffic of a training step

A rank joins with a `RankInfo`, the place that whoever started it gave it. Gradients travel over NCCL if every rank has
a GPU of its own, else over gloo, which also carries tensors of a GPU that ranks share. A collective gives up after
`timeout_seconds`; a rank that died is noticed sooner, because its connections close.

Ranks of one machine listen on its loopback alone; those of several on the address by which the others know them, or on
all addresses if that is a name, which every machine resolves for itself.

Network: a step moves the parameters and a handful of counts, about twice 4 bytes each, per rank.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil

from hcm_scale.base.threads import num_cores
from hcm_scale.ranks.wire import LostRankError, Wire, accept_all, call, listen

if TYPE_CHECKING:  # finished runs are read without torch
    import torch.distributed as dist
    from torch import Tensor

__all__ = ["ALONE", "LOOPBACK", "LostRankError", "RankInfo", "World", "join"]
LOOPBACK = "127.0.0.1"
_INTERFACE = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}  # variables of the two backends


@dataclass(frozen=True)
class RankInfo:
    """The place of one process among all, and where rank 0 is to be found."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this machine
    local_size: int
    address: str  # of the store: on rank 0's machine, unless `hosted`
    port: int
    hosted: bool = False  # the store belongs to torchrun
    attempt: str = ""  # separates the keys of one start from the next in a hosted store

    @property
    def one_machine(self) -> bool:
        return self.local_size == self.size

    @property
    def meeting(self) -> str:
        """The address over which the ranks talk."""
        return LOOPBACK if self.one_machine else self.address


@dataclass(frozen=True, eq=False)
class World:
    """One process among `size`. Alone, every call returns at once."""

    rank: int = 0
    size: int = 1
    device: str | None = None  # where this rank computes; None: as the configuration says
    num_threads: int | None = None  # this rank's share of the machine's cores; None: all of them
    wire: Wire | None = None
    local_size: int = 1  # ranks of this machine, which share its memory

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes, draws progress and decides."""
        return self.rank == 0

    def share(self, num_items: int, chunk: int = 1, rank: int | None = None) -> tuple[int, int]:
        """The items first .. last - 1 of a rank, by default of this one: whole chunks, shared out evenly.

        >>> [World(size=3).share(100, 30, rank) for rank in range(3)]
        [(0, 30), (30, 60), (60, 100)]
        """
        rank, num_chunks = self.rank if rank is None else rank, -(-num_items // chunk)
        first, last = (min(num_items, chunk * (num_chunks * at // self.size)) for at in (rank, rank + 1))
        return first, last

    def barrier(self) -> None:
        """Returns when every rank has called this; LostRankError if one is gone."""
        if self.wire is not None:
            self.wire.meet()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, JSON-able and small, on every rank."""
        return value if self.wire is None else self.wire.tell(value)

    def sum(self, vector: "Tensor") -> "Tensor":
        """The sum of the ranks' vectors, (k,), in place; bit for bit the same on every rank."""
        if self.size > 1:
            import torch.distributed as dist

            try:
                dist.all_reduce(vector)
            except RuntimeError as error:
                reason = str(error).partition(". ")[0]
                raise LostRankError(f"a rank stopped answering in the middle of a step ({reason})") from error
        return vector


ALONE = World()


@contextlib.contextmanager
def join(info: RankInfo, *, device: str = "cpu", timeout_seconds: float = 300.0) -> Iterator[World]:
    """The world of this rank, connected to the others inside the block. `device` is cpu or cuda.

    A rank that leaves with an exception does not wait for the others: they notice its closed connections.
    """
    import torch
    import torch.distributed as dist

    device, backend = choose_device(device, info.local_rank, info.local_size)
    if device != "cpu":
        torch.cuda.set_device(device)
    num_threads = max(1, num_cores() // info.local_size) if info.local_size > 1 else None
    if info.size == 1:
        yield World(device=device, num_threads=num_threads)
        return
    store = _open_store(info, timeout_seconds)
    with contextlib.closing(_open_wire(info, store, timeout_seconds)) as wire:
        _open_group(info, store, backend, timeout_seconds)
        world = World(info.rank, info.size, device, num_threads, wire, info.local_size)
        yield world
        world.barrier()  # nobody closes a connection that another still reads from
        dist.destroy_process_group()


def choose_device(device: str, local_rank: int, local_size: int) -> tuple[str, str]:
    """The device of a rank and the backend of its world: NCCL only where no two ranks share a GPU."""
    if device != "cuda":
        return "cpu", "gloo"
    import torch

    num_gpus = torch.cuda.device_count()
    return f"cuda:{local_rank % num_gpus}", "nccl" if local_size <= num_gpus else "gloo"


def _open_store(info: RankInfo, timeout_seconds: float) -> "dist.Store":
    """The key-value store through which ranks find each other."""
    import torch.distributed as dist

    address = info.address if info.hosted else info.meeting
    is_master = info.rank == 0 and not info.hosted
    try:
        store = dist.TCPStore(
            address,
            info.port,
            info.size,
            is_master=is_master,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listen(own_address(address, info.port), info.port).detach() if is_master else None,
        )
    except (OSError, RuntimeError) as error:
        raise LostRankError(f"the ranks' store at {address}:{info.port} cannot be reached ({error})") from error
    return dist.PrefixStore(f"hcm_scale/{info.attempt}", store)


def _open_wire(info: RankInfo, store: "dist.Store", timeout_seconds: float) -> Wire:
    """Rank 0 writes to the store where it listens, and the others connect."""
    if info.rank == 0:
        local, remote = addresses_towards(info.meeting, info.port)
        known_as = info.meeting if local == remote else local  # the name that reached the store reaches us too
        server = listen(own_address(known_as, info.port))
        token = secrets.token_hex(16)
        store.set("wire", json.dumps([known_as, server.getsockname()[1], token]))
        return accept_all(server, info.size, token, timeout_seconds)
    try:
        address, port, token = json.loads(store.get("wire"))
    except RuntimeError as error:
        raise LostRankError(f"rank 0 did not come within {timeout_seconds:g} s ({error})") from error
    return call((address, port), info.rank, token, timeout_seconds)


def _open_group(info: RankInfo, store: "dist.Store", backend: str, timeout_seconds: float) -> None:
    """Opens torch's process group on the interface that leads to the others; the one of the hostname is often wrong.

    NCCL finds the interface between machines itself.
    """
    import torch.distributed as dist

    if (backend == "gloo" or info.one_machine) and _INTERFACE[backend] not in os.environ:
        interface = interface_of(addresses_towards(info.meeting, info.port)[0])
        os.environ.update({_INTERFACE[backend]: interface} if interface else {})
    group, timeout = dist.PrefixStore("group", store), timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group(backend, store=group, timeout=timeout, rank=info.rank, world_size=info.size)
    except RuntimeError as error:
        raise LostRankError(f"the ranks could not connect to each other ({error})") from error


def addresses_towards(host: str, port: int) -> tuple[str, str]:
    """Our own address on the route to a host, and the host's; nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return probe.getsockname()[0], probe.getpeername()[0]


def own_address(host: str, port: int) -> str:
    """The address on which to listen for those who know us as `host`; empty, meaning all, if that is a name.

    >>> own_address("127.0.0.1", 1), own_address("a-name.invalid", 1)
    ('127.0.0.1', '')
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ""
    return host if host == addresses_towards(host, port)[0] else ""


def interface_of(address: str) -> str | None:
    """The name of the network interface that has this address; None if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if address in [entry.address for entry in entries]), None)
