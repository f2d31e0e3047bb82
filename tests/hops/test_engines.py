"""Which search is taken, how wide its blocks are, and the memory that they promise."""

import numpy as np
import pytest
from scipy import sparse

from hcm_scale.hops import label
from hcm_scale.hops.wide import wide_scratch


@pytest.mark.parametrize("words", [1, 2, 4, 8])
@pytest.mark.parametrize("num_linked", [1, 64, 1000, 54321])
def test_wide_scratch__holds_three_words_a_node_and_small_buffers(words, num_linked):
    pairs = 17
    state = wide_scratch(num_linked, words, pairs)
    levels = state.seen, state.front, state.new
    rows = sum(level.rows.nbytes for level in levels)
    assert rows == num_linked * 3 * 8 * words
    buffers = (state.chunk_counts, state.group_counts, state.sizes)
    total = rows + sum(level.active.nbytes for level in levels) + sum(array.nbytes for array in buffers)
    if num_linked > 10_000:
        assert total <= 1.1 * rows  # the buffers are under a tenth of the state
    assert total + state.table.nbytes + sum(array.nbytes for array in state.cursor) <= label.wide_bytes(
        num_linked, words, pairs
    )


def test_choose_block__fits_the_budget_and_feeds_every_thread():
    assert label.choose_block(10**6, 4096, 256, threads=2) == (8, False)
    assert label.choose_block(10**6, 4096, 256, threads=16) == (4, False)
    assert label.choose_block(10**6, 10, 256, threads=2) == (1, False)
    assert label.choose_block(10**5, 300, 256, threads=2) == (2, False)


def test_choose_block__is_one_for_all_threads_where_own_ones_would_be_narrow():
    assert label.choose_block(2 * 10**6, 4096, 256, threads=2) == (8, True)
    assert label.choose_block(3 * 10**6, 10**6, 256, threads=1) == (2, False)
    assert label.choose_block(10**9, 10**6, 256, threads=2) == (1, True)
    for num_linked in (3 * 10**6, 10**7, 5 * 10**7):
        words, shared = label.choose_block(num_linked, 10**6, 256, threads=16)
        assert shared
        room = 16 * label.STATE_BYTES
        assert label.search_bytes(num_linked, 10**6, 256, 16, label.STATE_BYTES) <= room
        assert words == 8 or label.wide_bytes(num_linked, 2 * words, 256) > room


def test_sharing_pays__on_a_hub_and_not_on_a_chain():
    ends = np.arange(20_000, dtype=np.int32)
    for u, v, expected in ((ends[:-1], ends[1:], False), (np.zeros(19_999, np.int32), ends[1:], True)):
        matrix = sparse.csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])))
        given = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
        assert label.sharing_pays(*given, ends, classes=4) is expected
