"""Products in blocks: torch's numbers, and the same bits at any number of threads."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from hcm_scale.base.threads import torch_threads
from hcm_scale.model import affine


def made(multiply, x, weight, bias, gradient):
    """The product and its three gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = multiply(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


@pytest.mark.parametrize("num_rows", [0, 1, 500, 2_049, 20_000])
@pytest.mark.parametrize("widths", [(20, 64), (64, 64), (64, 4), (1, 1), (300, 128)])
def test_affine__is_torchs_and_does_not_depend_on_the_threads(num_rows, widths):
    rng = torch.Generator().manual_seed(0)
    shapes = (num_rows, widths[0]), widths, widths[1:], (num_rows, widths[1])
    parts = [torch.randn(shape, generator=rng) for shape in shapes]
    found = []
    for num_threads in (1, 2, 3):
        with torch_threads(num_threads):
            found.append(made(affine, *parts))
            assert torch.get_num_threads() == num_threads
    expected = made(lambda x, weight, bias: bias + x @ weight, *(part.double() for part in parts))
    for name, one, two, three, exact in zip(("x W + b", "x", "W", "b"), *found, expected, strict=True):
        assert torch.equal(one, two), name
        assert torch.equal(one, three), name
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-4 * max(1, num_rows) ** 0.5)


def test_affine__leaves_other_threads_alone():
    with torch_threads(2):
        affine(torch.ones(20_000, 64), torch.ones(64, 64))
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == [2]


ON_ONE_CORE = """
import os, threading
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
import torch
from hcm_scale import model
torch.set_num_threads(4)
model.affine(torch.ones(20_000, 64), torch.ones(64, 64))
print(sum(thread.name.startswith("product") for thread in threading.enumerate()), model._threads()._max_workers)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
def test_threads__are_as_many_as_the_cores_that_the_process_may_use():
    done = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 1\n", "")
