"""Whether work fits, and which way of doing it does."""

import resource
import subprocess
import sys

import pytest

from hcm_scale.base.memory import Budget, Free, Need, shortfall

MIB, GIB = 2**20, 2**30
WAYS = [("fast", Need(400 * MIB)), ("slower", Need(200 * MIB)), ("least", Need(100 * MIB))]


@pytest.mark.parametrize(("allowed", "way"), [(500, "fast"), (300, "slower"), (150, "least"), (50, "least")])
def test_choose__takes_the_first_that_fits_and_else_the_last(allowed, way):
    assert Budget(allowed * MIB).choose(WAYS)[0] == way


def test_lacks__adds_up_what_is_held_at_the_same_time():
    budget = Budget(500 * MIB)
    assert not budget.lacks(Need(300 * MIB))
    assert budget.lacks(Need(300 * MIB), Need(300 * MIB)).startswith("about 0.59 GiB of memory are needed and 0.49 GiB")


def test_ranks__share():
    assert Budget(500 * MIB, sharers=2).lacks(Need(300 * MIB))


def test_lack__counts_mapped_files_where_the_address_space_is_bounded():
    need = Need(GIB, 2 * GIB)
    assert not shortfall(need, Free(4 * GIB, "free"))
    assert not shortfall(need, Free(4 * GIB, "free", 4 * GIB))
    said = shortfall(need, Free(4 * GIB, "free", 2 * GIB))
    assert said == "about 3.00 GiB of address space are needed and `ulimit -v` leaves 2.00 GiB"


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is kept on Linux alone")
def test_command__refuses_limits_in_which_not_even_its_libraries_fit(tmp_path):
    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (700 * MIB, 700 * MIB))

    command = [sys.executable, "-m", "hcm_scale", "run", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "of address space are needed and `ulimit -v` leaves" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
