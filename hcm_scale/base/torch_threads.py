"""How many threads torch works with, for a while.

Threads that share a small product wait for each other longer than they work, and on cores that others use too they wait
for a turn of the scheduler at every product: a step of training then takes ten times as long with two threads as with
one.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Has torch work with so many threads; None leaves it alone."""
    had = torch.get_num_threads()
    if num_threads is None or num_threads == had:  # setting the same number costs as much as a small product
        yield
        return
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(had)
