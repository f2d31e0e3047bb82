"""Work side by side: at the same time, all or the first error, and nobody works on for nothing."""

import os
import signal
import threading
import time

import numba
import pytest

from hcm_scale.base.threads import CancelledError, check_cancelled, kernel_threads, run_concurrently


def until_unwanted(seen: list[str]):
    def work() -> None:
        try:
            while True:
                check_cancelled()
                time.sleep(0.001)
        except CancelledError:
            seen.append("stopped")
            raise

    return work


def test_tasks__run_at_the_same_time_and_answer_in_order():
    meet = threading.Barrier(3, timeout=30)
    assert run_concurrently([lambda n=n: (meet.wait(), n)[1] for n in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("failing", [0, 1])
def test_error_of_one__ends_the_others_and_is_raised(failing):
    def fail() -> None:
        raise ValueError("this one")

    seen: list[str] = []
    tasks = [until_unwanted(seen), until_unwanted(seen)]
    tasks[failing] = fail
    with pytest.raises(ValueError, match="this one"):
        run_concurrently(tasks)
    assert seen == ["stopped"]


def test_interrupt__while_waiting_for_the_others_ends_them(interrupts):
    seen: list[str] = []

    def work() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        until_unwanted(seen)()

    with pytest.raises(KeyboardInterrupt):
        run_concurrently([lambda: None, work])
    assert seen == ["stopped"]


def test_check_wanted__alone_says_nothing():
    run_concurrently([lambda: None])
    check_cancelled()


def test_tasks__use_as_many_threads_for_kernels_as_their_caller():
    had = numba.get_num_threads()
    with kernel_threads(1):
        assert run_concurrently([numba.get_num_threads] * 3) == [1, 1, 1]
    assert numba.get_num_threads() == had
