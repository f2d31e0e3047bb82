"""What is free: cgroups of both versions, as files that a kernel would show, and limits of a real process."""

import json
import resource
import subprocess
import sys

import pytest

from hcm_scale.base.memory import anonymous_bytes, cgroup_limits, free_memory

GIB = 2**30


def group(folder, limit, used, *, version, cached=0):
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(
        f"anon 5\n{'inactive_file' if version == 2 else 'total_inactive_file'} {cached}\n"
    )


def limits(tmp_path, line):
    (tmp_path / "own").write_text(f"12:cpuset:/x\n{line}\n")
    return list(cgroup_limits(tmp_path / "own", tmp_path / "fs"))


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
    assert list(cgroup_limits(tmp_path / "missing", tmp_path)) == []


def test_free_memory__is_shared_by_ranks_and_bounded_by_the_user():
    free = free_memory()
    assert 0 < free.held < 2**50
    assert free_memory(3 * GIB, sharers=3).held == GIB
    assert free_memory(3 * GIB, sharers=3).bound == "this rank's share of 3.00 GiB allowed by world.memory_gib"


def test_free_memory__knows_the_address_space_that_is_left():
    code = "import json; from hcm_scale.base.memory import free_memory as f; print(json.dumps(f().address))"

    def left(limit):
        def bound():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        done = subprocess.run([sys.executable, "-c", code], preexec_fn=bound, capture_output=True, check=True)
        return json.loads(done.stdout)

    assert left(resource.RLIM_INFINITY) is None
    assert GIB < left(2 * GIB) < 2 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_anonymous_bytes__grow_with_what_is_held():
    before = anonymous_bytes()
    held = bytearray(b"x") * (32 << 20)
    assert anonymous_bytes() - before > 24 << 20
    del held
