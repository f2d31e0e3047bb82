"""How the agents that watch over the ranks meet, one on each machine: a rendezvous of torch's under our own name.

One machine has one agent, which meets nobody: no port is opened and nothing is read from outside. Agents of several
machines meet in torch's `c10d`, over a store on the machine of `world.rendezvous`. It listens on that address
alone, and the kernel watches the agents' connections to it. torch puts a pickle into that store: who can reach its port
can run code here (`docs/security.md`).
"""

import socket
from datetime import timedelta

from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from hcm_scale.ranks.wire import listen, watch_port
from hcm_scale.ranks.world import LOOPBACK, own_address

NAME = "hcm_scale"  # under which torch knows `meet`


def meet(parameters: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous of this machine's agent; `is_host` of the parameters says whether the store is here."""
    if parameters.max_nodes == 1:
        return OneMachine(parameters.run_id)
    host, _, port = parameters.endpoint.rpartition(":")
    store = open_store(host.strip("[]"), int(port), bool(parameters.get("is_host")), parameters.get("read_timeout"))
    watch_port(int(port), float(parameters.get("read_timeout")))
    backend = C10dRendezvousBackend(store, parameters.run_id)
    parameters.backend = backend.name  # torch looks whether it got what it asked for
    return create_handler(store, backend, parameters)


def open_store(host: str, port: int, is_host: bool, timeout_seconds: float) -> TCPStore:
    """The store of the agents; RendezvousConnectionError where it cannot be opened or reached."""
    timeout = timedelta(seconds=timeout_seconds)
    try:
        door = listen(own_address(host, port), port).detach() if is_host else None
        return TCPStore(host, port, is_master=is_host, multi_tenant=True, timeout=timeout, master_listen_fd=door)
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no connection to the store at {host}, port {port}: {error}") from error


class OneMachine(RendezvousHandler):
    """The meeting of one agent with itself: what torch wants to keep stays in this process."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._is_closed = False

    def get_backend(self) -> str:
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store for every start of the ranks, and a port that is free for theirs."""
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
