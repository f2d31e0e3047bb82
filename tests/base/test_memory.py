"""Free memory, whether work fits into it, and every way in which libraries say that it ran out."""

import gc
import json
import resource
import subprocess
import sys
import threading

import numba
import numpy as np
import pyarrow as pa
import pytest
import torch

from hcm_scale.base import memory

MIB, GIB = 2**20, 2**30


def group(folder, limit, used, *, version, cached=0):
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    prefix, active = "" if version == 2 else "total_", cached // 4
    lists = f"{prefix}inactive_file {cached - active}\n{prefix}active_file {active}\n"
    (folder / "memory.stat").write_text(f"anon 5\nfile {used}\nshmem {used}\n{lists}")


def limits(tmp_path, line):
    (tmp_path / "own").write_text(f"12:cpuset:/x\n{line}\n")
    return list(memory.cgroup_limits(tmp_path / "own", tmp_path / "fs"))


def test_cgroup_2__counts_every_group_above_and_not_the_file_cache(tmp_path):
    group(tmp_path / "fs" / "user" / "job", 4 * GIB, 3 * GIB, version=2, cached=GIB)
    group(tmp_path / "fs" / "user", 6 * GIB, 5 * GIB, version=2)
    assert limits(tmp_path, "0::/user/job") == [(4 * GIB, 2 * GIB), (6 * GIB, 5 * GIB)]


def test_cgroup_2__max_is_no_limit(tmp_path):
    group(tmp_path / "fs" / "job", "max", 3 * GIB, version=2)
    assert limits(tmp_path, "0::/job") == []


def test_cgroup_1__is_found_under_its_own_mount(tmp_path):
    group(tmp_path / "fs" / "memory" / "job", 4 * GIB, 3 * GIB, version=1, cached=GIB)
    group(tmp_path / "fs" / "memory", 2**63 - 4096, 9 * GIB, version=1)
    assert limits(tmp_path, "5:cpu,memory:/job") == [(4 * GIB, 2 * GIB)]


def test_cgroup__in_a_container_is_the_mount_itself(tmp_path):
    group(tmp_path / "fs", 2 * GIB, GIB, version=2)
    assert limits(tmp_path, "0::/docker/not-to-be-seen-from-here") == [(2 * GIB, GIB)]


def test_cgroup__that_cannot_be_read_bounds_nothing(tmp_path):
    assert list(memory.cgroup_limits(tmp_path / "missing", tmp_path)) == []


def test_free_memory__is_shared_by_ranks_and_bounded_by_the_user():
    assert 0 < memory.Budget().free().held < 2**50
    free = memory.Budget(30 * GIB, sharers=3).free()
    assert 7 * GIB < free.held < 10 * GIB  # less what this process and the one that started the ranks hold
    assert free.bound == "left of what is this rank's share of 30.00 GiB allowed by world.memory_gib"


def test_smallest_limit__is_one_in_which_the_need_fits_and_a_smaller_one_is_not():
    need = memory.Need(GIB)
    for sharers in (1, 2):
        least = memory.Budget(1, sharers).least_gib(need)
        assert not memory.Budget(int(least * GIB), sharers).lacks(need)
        assert memory.Budget(int((least - 0.05 * sharers) * GIB), sharers).lacks(need)


def test_released_memory__goes_back_to_the_system():
    pieces = [bytes(100_000) for _ in range(2_000)]  # below the size that malloc maps by itself
    kept = pieces[-1]
    full = memory.anonymous_bytes()
    del pieces
    memory.release_unused()
    assert memory.anonymous_bytes() < full - 100 * MIB
    assert len(kept) == 100_000


def test_address_space__is_what_the_limit_leaves_and_mapped_files_take_it():
    code = """if True:
        import json
        from hcm_scale.base.memory import Budget, Need
        fits, mapped = Need(1 << 20, 16 << 20), Need(1 << 20, 3 << 30)
        print(json.dumps([Budget().free().address, Budget().lacks(fits), Budget().lacks(fits, mapped)]))
    """

    def under(limit):
        def bound():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        done = subprocess.run([sys.executable, "-c", code], preexec_fn=bound, capture_output=True, check=True)
        return json.loads(done.stdout)

    assert under(resource.RLIM_INFINITY) == [None, "", ""]
    left, fits, lacked = under(2 * GIB)
    assert GIB < left < 2 * GIB
    assert not fits
    assert lacked.startswith("about 3.09 GiB of address space are needed and `ulimit -v` leaves 1.")


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is kept on Linux alone")
def test_address_space__is_not_set_aside_by_libraries_where_it_is_limited():
    code = """if True:
        from hcm_scale.base.memory import Budget, check_start
        check_start()
        import pyarrow as pa, torch
        before = Budget().free().address
        made = torch.ones(1000), pa.array([1.0] * 1000)
        print(before - Budget().free().address)
    """

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (5 * GIB, 5 * GIB))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=bound, capture_output=True, check=True)
    assert int(done.stdout) < 512 * MIB  # a GiB by torch alone, where it brings mimalloc


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_anonymous_bytes__grow_with_what_is_held():
    gc.collect()  # what other tests left would be freed meanwhile
    before = memory.anonymous_bytes()
    held = bytearray(b"x") * (64 << 20)
    assert memory.anonymous_bytes() - before > 24 << 20
    del held


WAYS = [("fast", memory.Need(400 * MIB)), ("slower", memory.Need(200 * MIB)), ("least", memory.Need(100 * MIB))]


@pytest.mark.parametrize(("allowed", "way"), [(500, "fast"), (300, "slower"), (150, "least"), (50, "least")])
def test_choose__takes_the_first_that_fits_and_else_the_last(allowed, way):
    assert memory.Budget(memory.anonymous_bytes() + allowed * MIB).choose(WAYS)[0] == way


def test_lacks__adds_up_what_is_held_at_the_same_time():
    budget = memory.Budget(memory.anonymous_bytes() + 500 * MIB)
    assert not budget.lacks(memory.Need(300 * MIB))
    assert budget.lacks(memory.Need(300 * MIB), memory.Need(300 * MIB)).startswith(
        "about 0.59 GiB more memory are needed and 0.4"
    )


def test_ranks__share():
    assert memory.Budget(500 * MIB, sharers=2).lacks(memory.Need(300 * MIB))


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is kept on Linux alone")
def test_command__refuses_limits_in_which_not_even_its_libraries_fit(tmp_path):
    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (700 * MIB, 700 * MIB))

    command = [sys.executable, "-m", "hcm_scale", "run", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "of address space are needed and `ulimit -v` leaves" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


HUGE = 1 << 50  # bytes: more than any machine gives


@numba.njit
def hold(num_bytes):
    return np.empty(num_bytes, np.uint8)


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    "take",
    [
        lambda: np.empty(HUGE, np.uint8),
        lambda: torch.empty(HUGE, dtype=torch.uint8),
        lambda: pa.allocate_buffer(HUGE),
        lambda: hold(HUGE),
        lambda: raise_error(OSError(12, "Cannot allocate memory")),
        lambda: raise_error(RuntimeError("can't start new thread")),
        lambda: raise_error(RuntimeError("std::bad_alloc")),
        lambda: raise_error(ImportError("libx.so: failed to map segment from shared object")),
    ],
)
def test_shortage__is_told_in_one_way(take):
    with (
        pytest.raises(memory.OutOfMemoryError, match=r"^scores: memory ran out") as caught,
        memory.raising_out_of_memory("scores"),
    ):
        take()
    assert "\n" not in str(caught.value)


def test_shortage__is_told_once():
    with (
        pytest.raises(memory.OutOfMemoryError, match=r"^scores: memory ran out$"),
        memory.raising_out_of_memory("run"),
        memory.raising_out_of_memory("scores"),
    ):
        raise MemoryError


def test_other_errors__are_left_alone():
    error = ValueError("seed=-1 is out of range; not enough memory has nothing to do with it")
    with pytest.raises(ValueError, match=r"^seed=-1") as caught, memory.raising_out_of_memory("scores"):
        raise error
    assert caught.value is error
    with pytest.raises(threading.BrokenBarrierError), memory.raising_out_of_memory("scores"):
        raise threading.BrokenBarrierError
