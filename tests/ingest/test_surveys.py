"""Claims about counting distinct values in bounded memory."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hcm_scale.ingest import encode
from hcm_scale.ingest.encode import Distinct


@given(st.lists(st.lists(st.text(max_size=2), max_size=20), max_size=5))
def test_distinct__is_exact_while_they_are_few(batches):
    seen = Distinct()
    for batch in batches:
        seen.add(np.array([xxhash.xxh3_64_intdigest(text) for text in batch], np.uint64))
    assert seen.count() == len({text for batch in batches for text in batch})


@pytest.mark.parametrize("num_distinct", [2_000, 50_000])
def test_distinct__is_near_where_they_are_many_whatever_their_order(monkeypatch, num_distinct):
    monkeypatch.setattr(encode, "_NUM_HASHES", 1_000)
    hashes = np.array([xxhash.xxh3_64_intdigest(str(i)) for i in range(num_distinct)], np.uint64)
    counts = []
    for order in (np.arange(num_distinct), np.random.default_rng(0).permutation(num_distinct)):
        seen = Distinct()
        for part in np.array_split(np.r_[hashes[order], hashes[order][::3]], 7):
            seen.add(part)
        counts.append(seen.count())
    assert counts[0] == counts[1]
    assert abs(counts[0] - num_distinct) < 0.1 * num_distinct
