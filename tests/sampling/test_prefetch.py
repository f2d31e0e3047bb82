"""Order, bounds, exceptions and clean endings of work prepared ahead."""

import threading
import time

import pytest

from hcm_scale.sampling import prefetch


@pytest.mark.parametrize(("depth", "workers"), [(1, 1), (4, 1), (2, 2), (6, 3)])
def test_prefetch__keeps_the_order_whatever_finishes_first(depth, workers):
    def make(item):
        time.sleep(0.002 * (item % 3))
        return item

    assert list(prefetch(range(40), make, depth=depth, workers=workers)) == list(range(40))


def test_prefetch__of_nothing_is_nothing():
    assert list(prefetch([], str, depth=2, workers=2)) == []


@pytest.mark.parametrize(("depth", "workers"), [(1, 1), (3, 2)])
def test_prefetch__prepares_at_most_depth_ahead_of_the_consumer(depth, workers):
    made = []
    results = prefetch(range(30), lambda item: made.append(item) or item, depth=depth, workers=workers)
    for item in results:
        time.sleep(0.002)
        assert len(made) <= item + 1 + depth
    assert sorted(made) == list(range(30))


def test_prefetch__raises_an_error_of_make_in_its_place():
    def make(item):
        return 1 // (5 - item)

    results = prefetch(range(9), make, depth=4, workers=2)
    assert [next(results) for _ in range(5)] == [0, 0, 0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == []


def test_prefetch__raises_an_error_of_the_items_in_its_place():
    def items():
        yield from range(3)
        raise OSError("torn file")

    seen = []
    with pytest.raises(OSError, match="torn file"):
        seen.extend(iter_into(seen, prefetch(items(), str, depth=4, workers=2)))
    assert seen == ["0", "1", "2"]


def iter_into(seen, results):
    """Collects one by one, so that what came before an error is kept."""
    for result in results:
        seen.append(result)
    return []


@pytest.mark.parametrize("num_taken", [1, 3])
def test_prefetch__closing_early_stops_the_threads_and_the_items(num_taken):
    closed = []

    def endless():
        try:
            item = 0
            while True:
                yield item
                item += 1
        finally:
            closed.append(True)

    before = set(threading.enumerate())
    results = prefetch(endless(), str, depth=3, workers=2)
    assert [next(results) for _ in range(num_taken)] == [str(item) for item in range(num_taken)]
    results.close()
    assert set(threading.enumerate()) <= before
    assert closed == [True]


def test_prefetch__a_consumer_that_fails_leaves_no_thread():
    before = set(threading.enumerate())

    def consume():
        for item in prefetch(range(100), str, depth=3, workers=3):
            if item == "4":
                raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    assert set(threading.enumerate()) <= before
