"""Work in threads: every part once, all results or the first error, and nobody works on for nothing."""

import os
import signal
import threading
import time

import numba
import numpy as np
import pytest
import torch

from hcm_scale.base import cgroups, threads
from hcm_scale.ranks.world import ALONE
from hcm_scale.run.pipeline import run_threads


@pytest.mark.parametrize(
    ("line", "files", "quota"),
    [
        ("0::/pod/job", {"pod/cpu.max": "150000 100000", "pod/job/cpu.max": "max 100000"}, 1.5),
        ("0::/pod/job", {"pod/cpu.max": "400000 100000", "pod/job/cpu.max": "200000 100000"}, 2.0),
        ("0::/not-to-be-seen-from-here", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/job", {"job/cpu.max": "max 100000"}, None),
        ("4:cpuacct,cpu:/job", {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpuacct,cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/job", {"cpu.max": "200000 100000"}, None),
    ],
)
def test_cpu_quota__is_the_least_of_all_groups(tmp_path, line, files, quota):
    (tmp_path / "own").write_text(f"12:cpuset:/x\n{line}\n")
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cgroups.cpu_quota(tmp_path / "own", tmp_path / "fs") == quota
    assert cgroups.cpu_quota(tmp_path / "missing", tmp_path / "fs") is None


@pytest.mark.parametrize(
    ("cores", "quota", "usable"), [(64, 2.0, 2), (64, 1.5, 2), (64, 0.5, 1), (1, 8.0, 1), (3, None, 3)]
)
def test_cores__are_no_more_than_the_container_may_use(monkeypatch, cores, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert threads.num_cores() == usable


def test_run__takes_no_more_threads_than_the_container_may_use(all_threads, monkeypatch):
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1.0)
    with all_threads(), threads.torch_threads(2):
        with run_threads(None, ALONE):
            assert (numba.get_num_threads(), torch.get_num_threads()) == (1, 1)
        assert (numba.get_num_threads(), torch.get_num_threads()) == (2, 2)


@pytest.mark.parametrize("num_tasks", [0, 1, 2, 5, 1000])
def test_in_threads__makes_every_task_once(all_threads, num_tasks):
    made = np.zeros(num_tasks, int)

    def work(part, out):
        out[part[0] : part[1]] += 1

    threads.run_in_threads(num_tasks, work, made)
    with all_threads():
        threads.run_in_threads(num_tasks, work, made)
    assert (made == 2).all()


def test_in_threads__uses_as_many_threads_as_numba_is_told(all_threads):
    seen, meeting = set(), threading.Barrier(2)

    def work(_part):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            meeting.wait(timeout=60)  # for the other thread, or this test fails

    with all_threads():
        assert numba.get_num_threads() == 2
        threads.run_in_threads(100, work)
    assert len(seen) == 2


def test_share__numbers_its_threads_and_raises_what_one_of_them_raises():
    meeting = threading.Barrier(3)

    def work(me, _part):
        meeting.wait(timeout=60)
        if me == 2:
            raise ValueError("from thread 2")

    with pytest.raises(ValueError, match="from thread 2"):
        threads.share_parts(3, range(3), work)


def test_in_turn__keeps_the_order_whoever_is_first():
    later = threading.Event()

    def work(part):
        later.set() if part else later.wait(timeout=60)
        return -part

    assert list(threads.prefetch(range(50), work, depth=2, workers=2)) == [-part for part in range(50)]


def test_in_turn__makes_no_more_ahead_than_threads_and_one():
    begun = []
    made = threads.prefetch(range(50), begun.append, depth=2, workers=2)
    for taken in range(1, 10):
        next(made)
        assert len(begun) <= taken + 2
    made.close()
    assert len(begun) <= 11


def test_in_turn__an_error_comes_in_its_turn_and_ends_the_others():
    begun = []

    def work(part):
        begun.append(part)
        time.sleep(0.001)
        return 1 // (3 - part)

    made = threads.prefetch(range(50), work, depth=2, workers=2)
    assert [next(made) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(made)
    assert max(begun) <= 5


def until_unwanted(seen: list[str]):
    def work() -> None:
        try:
            while True:
                threads.check_cancelled()
                time.sleep(0.001)
        except threads.CancelledError:
            seen.append("stopped")
            raise

    return work


def test_tasks__run_at_the_same_time_and_answer_in_order():
    meet = threading.Barrier(3, timeout=30)
    assert threads.run_concurrently([lambda n=n: (meet.wait(), n)[1] for n in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("failing", [0, 1])
def test_error_of_one__ends_the_others_and_is_raised(failing):
    def fail() -> None:
        raise ValueError("this one")

    seen: list[str] = []
    tasks = [until_unwanted(seen), until_unwanted(seen)]
    tasks[failing] = fail
    with pytest.raises(ValueError, match="this one"):
        threads.run_concurrently(tasks)
    assert seen == ["stopped"]


def test_interrupt__while_waiting_for_the_others_ends_them(interrupts):
    seen: list[str] = []

    def work() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        until_unwanted(seen)()

    with pytest.raises(KeyboardInterrupt):
        threads.run_concurrently([lambda: None, work])
    assert seen == ["stopped"]


def test_check_wanted__alone_says_nothing():
    threads.run_concurrently([lambda: None])
    threads.check_cancelled()


def test_tasks__use_as_many_threads_for_kernels_as_their_caller():
    had = numba.get_num_threads()
    with threads.kernel_threads(1):
        assert threads.run_concurrently([numba.get_num_threads] * 3) == [1, 1, 1]
    assert numba.get_num_threads() == had
