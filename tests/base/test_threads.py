"""Work shared by threads: every task once, each thread its own number, errors told."""

import threading

import numba
import numpy as np
import pytest

from hcm_scale.base.threads import in_threads, share


@pytest.mark.parametrize("num_tasks", [0, 1, 2, 5, 1000])
def test_in_threads__makes_every_task_once(all_threads, num_tasks):
    made = np.zeros(num_tasks, int)

    def work(part, out):
        out[part[0] : part[1]] += 1

    in_threads(num_tasks, work, made)
    with all_threads():
        in_threads(num_tasks, work, made)
    assert (made == 2).all()


def test_in_threads__uses_as_many_threads_as_numba_is_told(all_threads):
    seen, meeting = set(), threading.Barrier(2)

    def work(_part):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            meeting.wait(timeout=60)  # for the other thread, or this test fails

    with all_threads():
        assert numba.get_num_threads() == 2
        in_threads(100, work)
    assert len(seen) == 2


def test_share__numbers_its_threads_and_raises_what_one_of_them_raises():
    meeting = threading.Barrier(3)

    def work(me, _part):
        meeting.wait(timeout=60)
        if me == 2:
            raise ValueError("from thread 2")

    with pytest.raises(ValueError, match="from thread 2"):
        share(3, range(3), work)
