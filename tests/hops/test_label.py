"""Hop labels against a distance matrix, for every width, thread count and split; and the sample's uniformity."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats
from scipy.sparse import csgraph

from hcm_scale.base.threads import kernel_threads
from hcm_scale.hops import choose_sources, label, label_hops, largest_usable_classes
from hcm_scale.synthetic.families import rmat


def make_csr(num_nodes, num_edges, seed, directed=False):
    """A random simple graph; hypothesis cannot use a function-scoped fixture."""
    u, v = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
    u, v = u[u != v], v[u != v]
    if not directed:
        u, v = np.r_[u, v], np.r_[v, u]
    matrix = sparse.csr_array((np.ones(len(u), np.int8), (u, v)), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    matrix.sort_indices()
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)


def pairs_by_matrix(indptr, indices, sources, classes, directed):
    """The obvious slow twin: all distances by scipy, all pairs one by one, as (hop, u, v)."""
    num_nodes = len(indptr) - 1
    graph = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(num_nodes, num_nodes))
    hops = np.minimum(csgraph.dijkstra(graph, unweighted=True, indices=sources), classes).astype(int)
    is_source = np.isin(np.arange(num_nodes), sources)
    return sorted(
        (hops[i, v], u, v)
        for i, u in enumerate(sources.tolist())
        for v in range(num_nodes)
        if v != u and (directed or not is_source[v] or u < v)
    )


def as_pairs(blocks: list):
    return [pair for b in blocks for pair in zip(b.hop.tolist(), b.u.tolist(), b.v.tolist(), strict=True)]


def same(left: list, right: list) -> bool:
    names = ("first", "last", "u", "v", "hop", "counts")
    return len(left) == len(right) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in zip(left, right, strict=True) for name in names
    )


@st.composite
def cases(draw):
    num_nodes = draw(st.integers(2, 260))
    num_edges = draw(st.integers(1, 400))
    directed = draw(st.booleans())
    indptr, indices = make_csr(num_nodes, num_edges, draw(st.integers(0, 9999)), directed)
    if len(indices) == 0:
        indptr, indices = make_csr(3, 9, 0, directed)
    num_sources = draw(st.one_of(st.none(), st.integers(1, num_nodes)))
    sources = choose_sources(indptr, num_sources=num_sources, seed=draw(st.integers(0, 9)))
    return indptr, indices, sources, draw(st.integers(2, 16)), directed, draw(st.integers(1, 150))


@given(case=cases(), words=st.sampled_from([None, 1, 8]))
def test_label_hops__keeps_exactly_the_pairs_of_the_distance_matrix(case, words):
    indptr, indices, sources, classes, directed, step = case
    options = {"classes": classes, "directed": directed, "sources_per_block": step, "words": words}
    blocks = list(label_hops(indptr, indices, sources, pairs_per_class=None, seed=0, **options))
    expected = pairs_by_matrix(indptr, indices, sources, classes, directed)
    assert sorted(as_pairs(blocks)) == expected
    counts = np.bincount([hop for hop, _, _ in expected], minlength=classes + 1)[1:]
    np.testing.assert_array_equal(sum(b.counts for b in blocks), counts)
    bare = label_hops(indptr, indices, sources, pairs_per_class=0, seed=0, **options)  # the search alone
    np.testing.assert_array_equal(sum(b.counts for b in bare), counts)
    for b in blocks:
        assert as_pairs([b]) == sorted(as_pairs([b]))
        assert b.u.dtype == b.v.dtype == indices.dtype
        assert b.hop.dtype == np.uint8


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_edges", [900, 15_000])  # frontiers that stay small, and ones that are most of the graph
@pytest.mark.parametrize("words", [None, 1, 8])
def test_label_hops__is_right_on_many_groups_of_nodes_whichever_way_a_level_goes(words, num_edges, directed):
    indptr, indices = make_csr(1500, num_edges, seed=4, directed=directed)
    sources = choose_sources(indptr, num_sources=70, seed=0)
    options = {"classes": 4, "directed": directed, "sources_per_block": 64, "words": words}
    blocks = list(label_hops(indptr, indices, sources, pairs_per_class=None, seed=0, **options))
    everything = pairs_by_matrix(indptr, indices, sources, 4, directed)
    assert sorted(as_pairs(blocks)) == everything
    sample = as_pairs(list(label_hops(indptr, indices, sources, pairs_per_class=3, seed=0, **options)))
    assert len(set(sample)) == len(sample)
    assert set(sample) <= set(everything)


@given(case=cases(), pairs=st.integers(1, 40), words=st.sampled_from([1, 8]), threads=st.sampled_from([1, 2]))
def test_label_hops__is_the_same_for_any_width_and_thread_count(case, pairs, words, threads):
    indptr, indices, sources, classes, directed, step = case
    options = {"classes": classes, "directed": directed, "sources_per_block": step, "pairs_per_class": pairs, "seed": 3}
    reference = list(label_hops(indptr, indices, sources, **options))
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        assert same(list(label_hops(indptr, indices, sources, words=words, **options)), reference)
    finally:
        numba.set_num_threads(before)


@given(case=cases(), pairs=st.integers(1, 40), words=st.sampled_from([None, 1]))
def test_label_hops__sample_is_a_subset_of_at_most_q_with_exact_counts(case, pairs, words):
    indptr, indices, sources, classes, directed, step = case
    options = {"classes": classes, "directed": directed, "sources_per_block": step, "seed": 1, "words": words}
    blocks = list(label_hops(indptr, indices, sources, pairs_per_class=pairs, **options))
    everything = pairs_by_matrix(indptr, indices, sources, classes, directed)
    kept = as_pairs(blocks)
    assert len(set(kept)) == len(kept)
    assert set(kept) <= set(everything)
    sizes, kept_sizes = {}, {}
    for members, out in ((everything, sizes), (kept, kept_sizes)):
        for hop, u, _ in members:
            out[hop, u] = out.get((hop, u), 0) + 1
    assert kept_sizes == {key: min(size, pairs) for key, size in sizes.items()}
    assert sum(b.counts.sum() for b in blocks) == len(everything)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num_sources", [64, 150, None])
@pytest.mark.parametrize("directed", [False, True])
def test_label_hops__of_hubs_is_the_same_in_blocks_of_one_thread_and_of_all(threads, num_sources, directed):
    """Rows that fill up early, isolated nodes, a last block that is not full; every width by its room."""
    graph = rmat(9, num_attributes=1)
    keep = np.random.default_rng(0).random(graph.num_arcs) < (0.7 if directed else 2)
    indptr = np.r_[0, np.cumsum(keep)][graph.indptr]
    indices = graph.indices[keep]
    sources = choose_sources(indptr, num_sources=num_sources, seed=2)
    options = {"classes": 4, "directed": directed, "sources_per_block": 100, "seed": 0}
    reference = list(label_hops(indptr, indices, sources, pairs_per_class=9, words=1, **options))
    everything = pairs_by_matrix(indptr, indices, sources, 4, directed)
    sizes = np.bincount([hop for hop, _, _ in everything], minlength=5)[1:]
    np.testing.assert_array_equal(sum(b.counts for b in reference), sizes)
    assert set(as_pairs(reference)) <= set(everything)
    rooms = [1, *(-(-label.wide_bytes(512, words, 512) // threads) for words in (2, 8))]
    with kernel_threads(threads):
        for room in rooms:
            blocks = list(label_hops(indptr, indices, sources, pairs_per_class=9, state_bytes=room, **options))
            assert same(blocks, reference)
        blocks = list(label_hops(indptr, indices, sources, pairs_per_class=None, state_bytes=rooms[-1], **options))
    assert sorted(as_pairs(blocks)) == everything


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("pairs", [0, 3, 40, None])
@pytest.mark.parametrize("threads", [1, 2])
def test_label_hops__of_a_thin_graph_is_the_same_source_by_source_and_in_blocks(directed, pairs, threads):
    """Many components, isolated nodes, and sources that are each other's neighbours."""
    indptr, indices = make_csr(3_000, 2_400, 5, directed)
    sources = choose_sources(indptr, num_sources=400, seed=1)
    options = {"classes": 5, "pairs_per_class": pairs, "seed": 3, "directed": directed, "sources_per_block": 90}
    assert not label.sharing_pays(indptr, indices, sources, classes=5)
    with kernel_threads(threads):
        alone = list(label_hops(indptr, indices, sources, **options))
    assert same(alone, list(label_hops(indptr, indices, sources, words=1, **options)))
    assert (alone[0].counts > 0).all()


@pytest.mark.parametrize("words", [None, 1])
def test_label_hops__tells_of_progress_class_by_class(words, random_csr):
    """A block of sources is a large part of all work: had it told at its end alone, no time left could be estimated."""
    indptr, indices = random_csr(900, 9000, seed=5)
    sources, told = choose_sources(indptr, num_sources=300, seed=1), []
    options = {"classes": 4, "pairs_per_class": 5, "seed": 2, "sources_per_block": 300, "words": words}
    list(label_hops(indptr, indices, sources, on_sources=told.append, **options))
    assert sum(told) == 300
    assert min(told) > 0
    columns = 64 * (words or label.choose_block(900, 300, 5, numba.get_num_threads())[0])
    assert max(told) <= columns // 3 + 1


def test_label_hops__any_range_gives_the_same_blocks(random_csr):
    indptr, indices = random_csr(900, 2000, seed=5)
    sources = choose_sources(indptr, num_sources=600, seed=1)
    options = {"classes": 4, "pairs_per_class": 5, "seed": 2, "sources_per_block": 64}
    whole = list(label_hops(indptr, indices, sources, **options))
    split = [
        b
        for i in range(0, 600, 192)
        for b in label_hops(indptr, indices, sources, first=i, last=min(i + 192, 600), **options)
    ]
    assert [b.first for b in whole] == list(range(0, 600, 64))
    assert whole[-1].last == 600
    assert same(whole, split)


@pytest.mark.parametrize("words", [None, 8])
def test_label_hops__samples_every_member_of_a_class_equally_often(words, random_csr):
    """One source, many seeds: chi-square over the members of each class, at a fixed list of seeds."""
    indptr, indices = random_csr(400, 500, seed=7)
    source = np.array([np.argmax(np.diff(indptr))])
    options = {"classes": 4, "sources_per_block": 1, "words": words}
    (full,) = label_hops(indptr, indices, source, pairs_per_class=None, seed=0, **options)
    seen = np.zeros((5, 400), int)
    for seed in range(400):
        (block,) = label_hops(indptr, indices, source, pairs_per_class=4, seed=seed, **options)
        np.add.at(seen, (block.hop, block.v), 1)
    for hop in range(1, 5):
        members = full.v[full.hop == hop]
        if len(members) > 4:
            # Draws without replacement vary less than multinomial ones, by (N - q) / (N - 1).
            scale = (len(members) - 1) / (len(members) - 4)
            expected = 400 * 4 / len(members)
            statistic = scale * ((seen[hop, members] - expected) ** 2 / expected).sum()
            assert 0.001 < stats.chi2.sf(statistic, len(members) - 1) < 0.999


def test_label_hops__different_seeds_draw_different_pairs(random_csr):
    indptr, indices = random_csr(300, 900, seed=1)
    sources = choose_sources(indptr, num_sources=10, seed=0)
    options = {"classes": 3, "pairs_per_class": 5, "sources_per_block": 10}
    (a,), (b,) = (list(label_hops(indptr, indices, sources, seed=seed, **options)) for seed in (0, 1))
    assert not np.array_equal(a.v, b.v)
    np.testing.assert_array_equal(a.counts, b.counts)


def test_label_hops__follows_out_arcs_only():
    indptr, indices = np.array([0, 1, 2, 2]), np.array([1, 2], np.int32)  # 0 -> 1 -> 2
    (block,) = label_hops(
        indptr, indices, np.array([0, 1]), classes=3, pairs_per_class=None, seed=0, directed=True, sources_per_block=2
    )
    assert as_pairs([block]) == [(1, 0, 1), (1, 1, 2), (2, 0, 2), (3, 1, 0)]


def test_label_hops__works_on_a_long_grid():
    side = 40
    grid = sparse.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1], shape=(side, side))
    graph = sparse.csr_array(sparse.kronsum(grid, grid))
    graph.sort_indices()
    indptr, indices = graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
    sources = choose_sources(indptr, num_sources=90, seed=0)
    options = {"classes": 16, "pairs_per_class": 7, "seed": 0, "sources_per_block": 32}
    assert same(
        list(label_hops(indptr, indices, sources, **options)),
        list(label_hops(indptr, indices, sources, words=1, **options)),
    )
    row, column = np.divmod(np.arange(side * side), side)
    for b in label_hops(indptr, indices, sources, **options):
        manhattan = abs(row[b.u] - row[b.v]) + abs(column[b.u] - column[b.v])
        np.testing.assert_array_equal(b.hop, np.minimum(manhattan, 16))


def test_choose_sources__never_takes_an_isolated_node():
    indptr = np.array([0, 0, 2, 3, 3, 4])
    assert choose_sources(indptr, num_sources=None, seed=0).tolist() == [1, 2, 4]
    assert choose_sources(indptr, num_sources=99, seed=0).tolist() == [1, 2, 4]
    draws = np.concatenate([choose_sources(indptr, num_sources=2, seed=seed) for seed in range(600)])
    nodes, times = np.unique(draws, return_counts=True)
    assert nodes.tolist() == [1, 2, 4]
    assert stats.chisquare(times).pvalue > 0.001


def test_largest_usable_classes__joins_the_tail():
    assert largest_usable_classes(np.array([5, 5, 5, 5])) == 4
    assert largest_usable_classes(np.array([5, 5, 5, 0])) == 3
    assert largest_usable_classes(np.array([5, 0, 0, 5])) == 2
    assert largest_usable_classes(np.array([0, 0, 0, 5])) == 0
