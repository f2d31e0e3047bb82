"""Five schemes in a table of payments, without a table of accounts: each is found, and the explanation says why."""

import pyarrow.parquet as pq

from hcm_scale import HCM
from hcm_scale.synthetic.payments import SCHEMES, payments

SAID = {  # what the explanation of an account of each scheme names
    "ring": "`mean of amount` when it is `payee` =",
    "fan": "`partners` when it is `pay",
    "round": "`round amount` when it is `payer`: ",
    "night": "`time from 0 to 6 h` when it is `payer`: ",
    "dormant": "`longest pause of time, in days",
}


def test_payments__are_those_of_a_seed():
    table, planted = payments(600, seed=3)
    assert table.equals(payments(600, seed=3)[0])
    assert not table.equals(payments(600, seed=4)[0])
    assert {scheme: len(ids) for scheme, ids in planted.items()} == SCHEMES
    assert len({account for ids in planted.values() for account in ids}) == sum(SCHEMES.values())


def test_schemes__are_found_in_payments_alone_and_the_explanation_names_the_column(tmp_path):
    table, planted = payments(5_000, seed=0)
    found = HCM(run_dir=tmp_path / "run").fit(table)
    scores = {row["id"]: row for row in pq.read_table(tmp_path / "run" / "scores" / "scores.parquet").to_pylist()}
    for scheme, ids in planted.items():
        ranks, by_attributes = ([scores[name][rank] for name in ids] for rank in ("rank", "attributes_rank"))
        assert max(by_attributes) <= 100, scheme
        assert max(ranks) <= 100, scheme
        assert SAID[scheme] in " ".join(found.explain(ids[-1]).text.split())
