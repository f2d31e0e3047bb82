"""The pieces of the bit-parallel search, each against ten obvious lines; and the memory that the modules promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from hcm_scale.hops import engines
from hcm_scale.hops.label import count_hops
from hcm_scale.hops.layout import (
    NOT_A_SOURCE,
    Rows,
    degree_layout,
    original_layout,
    source_order,
    with_in_arcs,
    write_pairs,
)
from hcm_scale.hops.plain import _MOST_MARKS, IS_SOURCE, fresh_marks
from hcm_scale.hops.sample import bit_of, bits_before, count_chunk, draw_ranks, sum_groups
from hcm_scale.hops.wide import clear_rows, count_arcs, pull, push, settle, start_search


def lanes(words):
    return (np.uint64(0),) * words


def as_matrix(rows):
    """Words to booleans, (nodes, 64 W), columns in source order."""
    columns = [(rows[:, j // 64] >> np.uint64(bit_of(j))) & np.uint64(1) for j in range(64 * rows.shape[1])]
    return np.array(columns, bool).T


def random_words(shape, seed, density=0.5):
    bits = np.random.default_rng(seed).random((*shape, 64)) < density
    return (bits.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=-1, dtype=np.uint64)


def dense(indptr, indices):
    return sparse.csr_array((np.ones(len(indices), bool), indices, indptr), shape=(len(indptr) - 1,) * 2).toarray()


@pytest.mark.parametrize("directed", [False, True])
def test_by_degree__is_the_same_graph_by_falling_degree(directed, random_csr):
    indptr, indices = random_csr(300, 400, seed=2, directed=directed)
    layout = with_in_arcs(degree_layout(indptr, indices, directed=directed))
    original, m = dense(indptr, indices), layout.num_linked
    renamed = original[np.ix_(layout.names, layout.names)]
    np.testing.assert_array_equal(dense(layout.out_indptr, layout.out_indices), renamed[:m, :m])
    np.testing.assert_array_equal(dense(layout.in_indptr, layout.in_indices), renamed[:m, :m].T)
    assert not renamed[m:].any()
    assert not renamed[:, m:].any()
    np.testing.assert_array_equal(layout.names[layout.places], np.arange(300))
    degrees = (renamed.sum(axis=1) + renamed.sum(axis=0) * directed)[: m + 1]
    assert (np.diff(degrees) <= 0).all()


def test_source_order__gives_positions_on_undirected_graphs_only(random_csr):
    layout = degree_layout(*random_csr(50, 80, seed=1))
    sources = np.array([3, 8, 20])
    order = source_order(layout, sources, directed=False)
    assert order[layout.places[sources]].tolist() == [0, 1, 2]
    assert (order == NOT_A_SOURCE).sum() == 47
    assert (source_order(layout, sources, directed=True) == NOT_A_SOURCE).all()


def test_bits_before__holds_the_first_sources_of_a_lane():
    assert sorted(int(bit_of(i)) for i in range(64)) == list(range(64))
    for num in (-(10**9), -1, 0, 1, 7, 8, 9, 63, 64, 65, 10**9):
        expected = sum(1 << int(bit_of(i)) for i in range(min(max(num, 0), 64)))
        assert int(bits_before(num)) == expected


@given(
    words=st.sampled_from([1, 8]),
    num=st.integers(1, 64),
    seed=st.integers(0, 99),
    density=st.sampled_from([0.03, 0.5, 1]),
)
def test_count_chunk__counts_columns_and_leaves_earlier_sources_out(words, num, seed, density):
    first, start = 64, 100
    rows = random_words((first + num, words), seed, density)
    order = np.full(first + num, NOT_A_SOURCE, np.int32)
    some = np.random.default_rng(seed).integers(0, first + num, seed % 20)
    order[some] = np.random.default_rng(seed).integers(0, start + 100 * words, len(some))
    masked, counts = np.empty((64, words), np.uint64), np.empty(8 * words, np.uint64)
    count_chunk(rows, first, order, start, lanes(words), masked, counts)
    keep = order[:, None] > start + np.arange(64 * words)
    np.testing.assert_array_equal(counts.view(np.uint8), (as_matrix(rows) & keep)[first:].sum(axis=0))


def test_sum_groups__skips_empty_chunks():
    chunk_counts = np.random.default_rng(0).integers(0, 65, (21, 64)).astype(np.uint8)
    active = np.arange(21, dtype=np.uint64) % np.uint64(3)
    groups, sizes = np.empty((3, 64), np.uint16), np.empty(64, np.int64)
    sum_groups(active, chunk_counts, groups, sizes)
    chunk_counts[active == 0] = 0
    np.testing.assert_array_equal(sizes, chunk_counts.sum(axis=0, dtype=np.int64))
    np.testing.assert_array_equal(groups[1], chunk_counts[8:16].sum(axis=0, dtype=np.int64))


@pytest.mark.parametrize("words", [1, 8])
@pytest.mark.parametrize("directed", [False, True])
def test_push_and_pull__reach_the_same_nodes(words, directed, random_csr):
    layout = with_in_arcs(degree_layout(*random_csr(500, 900, seed=3, directed=directed), directed=directed))
    m = layout.num_linked
    roots = np.random.default_rng(1).choice(m, 64 * words, replace=True).astype(np.int32)
    seen, front, pushed, pulled = (np.ones((m, words), np.uint64) for _ in range(4))
    active, pushed_active = (np.zeros((m + 63) // 64, np.uint64) for _ in range(2))
    start_search(roots, seen, front, active, pushed, pushed_active)
    matrix = as_matrix(front)
    np.testing.assert_array_equal(np.argmax(matrix, axis=0), roots)
    assert count_arcs(layout.out_indptr, active) == np.diff(layout.out_indptr)[matrix.any(axis=1)].sum()

    push(layout.out_indptr, layout.out_indices, front, active, pushed, pushed_active, lanes(words))
    pull(layout.in_indptr, layout.in_indices, front, 0, m, pulled, lanes(words))
    expected = dense(layout.out_indptr, layout.out_indices).T.astype(int) @ matrix > 0
    np.testing.assert_array_equal(as_matrix(pushed), expected)
    np.testing.assert_array_equal(pushed, pulled)

    for chunk, touched in enumerate(pushed_active):
        pushed_active[chunk] = settle(touched, 64 * chunk, seen, pushed, lanes(words))
    np.testing.assert_array_equal(as_matrix(pushed), expected & ~matrix)
    np.testing.assert_array_equal(as_matrix(seen), expected | matrix)
    on = (pushed_active[np.arange(m) // 64] >> (np.arange(m) % 64).astype(np.uint64)) & np.uint64(1)
    np.testing.assert_array_equal(on.astype(bool), pushed.any(axis=1))
    clear_rows(pushed, pushed_active)
    assert not pushed.any()
    assert not pushed_active.any()


@given(num=st.integers(1, 300), more=st.integers(1, 2000), seed=st.integers(0, 2**62))
def test_draw_ranks__are_sorted_distinct_and_in_range(num, more, seed):
    ranks = np.empty(num, np.int64)
    draw_ranks(np.uint64(seed), 5, 2, num + more, ranks, np.empty(3 * num, np.int64))
    assert (np.diff(ranks) > 0).all()
    assert ranks[0] >= 0
    assert ranks[-1] < num + more


def test_draw_ranks__are_uniform():
    ranks, table, seen = np.empty(7, np.int64), np.empty(21, np.int64), np.zeros(50)
    for source in range(3000):
        draw_ranks(np.uint64(1), source, 1, 50, ranks, table)
        seen[ranks] += 1
    expected = 3000 * 7 / 50
    statistic = 49 / 43 * ((seen - expected) ** 2 / expected).sum()
    assert 0.001 < stats.chi2.sf(statistic, 49) < 0.999


def test_write_pairs__orders_by_class_then_source_then_node():
    rows = Rows(np.zeros((2, 2), int), np.array([[2, 1], [0, 2]]), np.array([[0, 1, 2, 0], [3, 0, 0, 0]], np.int32))
    u, v, hop = write_pairs(rows, np.array([9, 8, 7, 6], np.int32), np.array([4, 5]))
    assert (u.tolist(), v.tolist(), hop.tolist()) == ([4, 4, 4, 5, 5], [8, 9, 7, 6, 9], [1, 1, 2, 2, 2])


@pytest.mark.parametrize("words", [1, 2, 4, 8])
@pytest.mark.parametrize("num_linked", [1, 64, 1000, 54321])
def test_wide_scratch__holds_three_words_a_node_and_small_buffers(words, num_linked):
    pairs = 17
    scratch = engines.wide_scratch(num_linked, words, pairs)
    wide = sum(array.nbytes for array in (scratch.seen, scratch.front, scratch.new))
    assert wide == num_linked * 3 * 8 * words
    total = sum(array.nbytes for array in scratch)
    assert wide < total <= engines.wide_bytes(num_linked, words, pairs)
    per_node = (total - sum(array.nbytes for array in (scratch.ranks, scratch.table, scratch.cursor))) / num_linked
    if num_linked > 10_000:
        assert per_node <= 1.1 * 3 * 8 * words  # the buffers are under a tenth of the state


def test_choose_words__fits_the_budget_and_feeds_every_thread():
    assert engines.choose_words(10**6, 4096, 256, threads=2) == 8
    assert engines.choose_words(10**6, 4096, 256, threads=16) == 4
    assert engines.choose_words(10**6, 10, 256, threads=2) == 1
    assert engines.choose_words(10**9, 10**6, 256, threads=2) == 1
    words = engines.choose_words(3 * 10**6, 10**6, 256, threads=2)
    assert (
        engines.wide_bytes(3 * 10**6, words, 256) <= engines.STATE_BYTES < engines.wide_bytes(3 * 10**6, 2 * words, 256)
    )


def test_sharing_pays__on_a_hub_and_not_on_a_chain():
    ends = np.arange(20_000, dtype=np.int32)
    for u, v, expected in ((ends[:-1], ends[1:], False), (np.zeros(19_999, np.int32), ends[1:], True)):
        matrix = sparse.csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])))
        given = original_layout(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
        assert engines.sharing_pays(given, ends, classes=4) is expected


def test_fresh_marks__wipes_all_marks_and_no_source_when_they_run_out():
    visited, spent = np.array([7 << 1 | IS_SOURCE, 9 << 1], np.uint16), np.array([_MOST_MARKS - 2])
    assert fresh_marks(visited, spent, 4) == 0
    assert (visited.tolist(), spent.tolist()) == ([IS_SOURCE, 0], [4])


def test_plain_searches__count_rightly_after_their_marks_ran_out():
    """A ring: every source has two nodes at each hop, however many searches came before."""
    around = np.arange(40_000)
    indices = np.sort(np.stack([(around - 1) % 40_000, (around + 1) % 40_000], 1), 1).ravel().astype(np.int32)
    counts = count_hops(np.arange(0, 80_001, 2), indices, around, classes=4).sum(0)
    assert counts[:3].tolist() == [40_000] * 3
