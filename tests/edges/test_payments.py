"""Rows that are judged by themselves: ranks, sentences, and their way back to the user's table."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bench.accuracy.payment_world import payments
from hcm_scale.base.text import p_text
from hcm_scale.cli.export import export_edges
from hcm_scale.config import Config, TablesGraph, with_options
from hcm_scale.detector import HCM
from hcm_scale.detector.inputs import read_input
from hcm_scale.report.card import card
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun

FEW = {"posterior.burn_in_steps": 10, "posterior.num_samples": 2, "posterior.thin_steps": 2, "world.device": "cpu"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A world of payments as a CSV, its accounts called A00000 and on, and whether each row is of a scheme."""
    made = payments(0)
    names = np.array([f"A{number:05d}" for number in range(made.num_accounts)])
    when = pd.to_datetime(made.time + 1.6e9, unit="s").round("s")
    table = pd.DataFrame({"date": when, "payer": names[made.payer], "payee": names[made.payee]})
    table["amount"] = made.amount.round(2)
    path = tmp_path_factory.mktemp("world") / "payments.csv"
    order = np.random.default_rng(0).permutation(len(table))
    table.loc[order[made.scheme[order] == 0][:3], "date"] = pd.NaT
    table.iloc[order].to_csv(path, index=False)
    return path, made, names, (made.scheme > 0)[order]


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    config = with_options(Config(run_dir=str(folder)), FEW)
    config.graph = TablesGraph(path=str(world[0]), source_column="payer", target_column="payee")
    pipeline.run(config)
    return FinishedRun(folder)


def test_accounts__of_every_scheme_are_among_the_first(run, world):
    _, made, names, _ = world
    ids = run.table["id"].to_pylist()
    first = {*ids[: len(ids) // 50]}
    found = {kind: np.mean([names[node] in first for node in members]) for kind, members in made.members.items()}
    assert min(found.values()) >= 0.6, found
    assert np.mean([*found.values()]) >= 0.9, found


def test_export__ranks_rows_of_the_table_by_themselves(run, world, tmp_path):
    path, _, _, planted = world
    said = export_edges(run, tmp_path / "rows.parquet", 1_000, False)
    assert said.startswith("1,000 rows in ")
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    assert rows["edge_rank"].tolist() == [*range(1, 1_001)]
    assert (np.diff(rows["edge_surprise"]) <= 0).all()
    assert rows["edge_reason"].notna().all()
    table = pd.read_csv(path).astype({"amount": str})
    table["planted"] = planted
    rows["amount"] = rows["amount"].astype(float).astype(str)
    both = rows.merge(table, on=["date", "payer", "payee", "amount"])
    assert len(both) >= 1_000
    assert both["planted"].mean() > 0.6
    assert {*rows["edge_evidence"]} <= {"history", "burst", "passed_on", "chain"}


def test_export__of_all_rows_keeps_their_order_and_flags_the_planted(run, world, tmp_path):
    path, _, _, planted = world
    said = export_edges(run, tmp_path / "all.parquet", None, False)
    rows = pd.read_parquet(tmp_path / "all.parquet")
    assert said.startswith(f"{len(rows):,} rows in ")
    assert "in the order of the table; 3 have no rank: they have no time" in said
    assert rows["payer"].tolist() == pd.read_csv(path)["payer"].tolist()
    assert sorted(rows["edge_rank"].dropna()) == [*range(1, len(rows) - 2)]
    flagged = rows["edge_flagged"].to_numpy(bool)
    assert planted[flagged].mean() > 0.75
    assert flagged.sum() >= 50


def test_export__of_rows_whose_numbers_are_far_beyond_the_table_takes_no_memory_for_them(run, tmp_path, monkeypatch):
    whole, out = run.evidence.rows.number, tmp_path / "all.parquet"
    export_edges(run, out, None, False)
    before = pd.read_parquet(out)
    far = np.where(np.arange(len(whole)) == 3, 1 << 61, whole)
    monkeypatch.setitem(run.__dict__, "evidence", replace(run.evidence, rows=replace(run.evidence.rows, number=far)))
    monkeypatch.delitem(run.__dict__, "strange_rows", raising=False)
    monkeypatch.delitem(run.__dict__, "edges", raising=False)
    export_edges(run, out, None, False)
    after = pd.read_parquet(out)
    assert after["edge_rank"].isna().sum() == before["edge_rank"].isna().sum() + 1
    is_ranked = after["edge_rank"].notna()
    pd.testing.assert_frame_equal(after[is_ranked], before[is_ranked])


def test_pairs__are_still_ranked_when_they_are_asked_for(run, tmp_path):
    assert "edges" in export_edges(run, tmp_path / "pairs.csv", 10, False, pairs=True)
    assert {"source", "target", "hop"} <= {*pd.read_csv(tmp_path / "pairs.csv").columns}


def test_explanation__says_when_who_and_how_much(run, world):
    _, made, names, _ = world
    texts = {kind: run.explained_text([names[members[0]]]) for kind, members in made.members.items()}
    said = {kind: " ".join(text.split()) for kind, text in texts.items()}
    assert "Chain of payments: " in said["round"]
    assert " paid " in said["round"]
    assert "back where it began" in said["round"]
    assert "payments in from" in said["fan_in"]
    assert "are usual" in said["fan_in"]
    assert "Passed on: of " in said["pass"]
    assert " left within " in said["pass"]


def test_clean_payments__flag_no_row(tmp_path):
    made = payments(3, per_kind=0)
    table = pa.table({"source": made.payer, "target": made.payee, "amount": made.amount, "time": made.time.astype(int)})
    detector = HCM(options=FEW).fit(table)
    assert not detector.edges_["flagged"].to_numpy().any()


def test_detector__takes_events_of_torch_geometric_and_three_arrays():
    temporal = pytest.importorskip("torch_geometric.data").TemporalData
    import torch

    rng = np.random.default_rng(0)
    ends, t, amount = rng.integers(0, 300, (2, 3_000)), np.sort(rng.integers(0, 300, 3_000)), rng.lognormal(3, 1, 3_000)
    tensors = {"src": torch.tensor(ends[0]), "dst": torch.tensor(ends[1]), "t": torch.tensor(t)}
    given = temporal(**tensors, msg=torch.tensor(amount)[:, None])
    fitted = HCM(options=FEW).fit(given)
    one = fitted.edges_
    assert fitted.score_edges(given[-50:]).equals(fitted.score_edges((ends[:, -50:], amount[-50:], t[-50:])))
    two = HCM(options=FEW).fit((ends, amount, t)).edges_
    frame = pd.DataFrame({"from": ends[0], "dest": ends[1], "sum": amount, "t0": t})
    three = HCM(options=FEW).fit(frame, source="from", target="dest", amount="sum", time="t0").edges_
    for other in (two, three):
        assert one["source"].to_pylist() == other["source"].to_pylist()
        np.testing.assert_allclose(one["surprise"].to_numpy(), other["surprise"].to_numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="entries; legal are equal"):
        HCM(options=FEW).fit((ends, amount[:5], t))
    assert read_input(temporal(**tensors)).tables[0].column_names == ["source", "target", "time"]


def test_explanation__of_a_pair_has_the_rows_between_the_two(run):
    rows = run.strange_rows.table().to_pandas()
    one, other = rows.iloc[0][["source", "target"]]
    pair = rows[(rows["source"].isin([one, other])) & (rows["target"].isin([one, other]))]
    text = run.explained_text([], [f"{one},{other}"])
    own = text[text.index("their ") : text.index("The strangest")].splitlines()
    strangest = " ".join(text[text.index("The strangest") : text.index("the pair of them")].split())
    p = rows.iloc[0]["p"]
    assert strangest.startswith(f"The strangest is number 1 of all rows by itself, p {p_text(p)}: ")
    assert strangest.endswith(f": {' '.join(rows.iloc[0]['reason'].split())}.")
    assert own[0].startswith(f"their {len(pair):,} payments; in all {one} " if len(pair) > 1 else "their only payment")
    assert len(own) == 1 + min(20, len(pair))
    assert f"{rows.iloc[0]['amount']:,.2f}   to   {other}" in own[1]


def test_explanation__has_the_accounts_own_rows_and_its_sums(run):
    rows, ids = run.strange_rows.table().to_pandas(), run.table["id"].to_pylist()
    counts = pd.concat([rows["source"], rows["target"]]).value_counts()
    for name in (ids[0], next(name for name in ids[len(ids) // 2 :] if counts[name] > 20)):
        (told,) = run.explain([name])
        own = rows[(rows["source"] == name) | (rows["target"] == name)]
        assert told.own["num_rows"] == len(own)
        paid, received = (own[own[end] == name]["amount"].sum() for end in ("source", "target"))
        assert told.own["paid"][0]["amount"] == pytest.approx(paid)
        assert told.own["received"][0]["amount"] == pytest.approx(received)
        strangest = sorted(own["surprise"], reverse=True)[:20]
        assert [row["surprise"] for row in told.own["rows"]] == pytest.approx(strangest)
        text = run.explained_text([name])
        num_strange = sum(row["evidence"] is not None for row in told.own["rows"])
        most = {20: "the 20 strangest", 0: "20, none of them strange,"}.get(num_strange, f"{num_strange} strange and")
        assert re.search(rf"{most}.* of its {len(own):,} payments; in all paid {paid:,.2f}, received", text)
        for row in told.own["rows"]:
            way, other = ("to", row["payee"]) if row["payer"] == name else ("from", row["payer"])
            assert re.search(rf"{row['amount']:,.2f} +{way} +{other}", text)
        shown = card(run.evidence, told.node, 2, 5)
        assert shown["own_title"] in text
        assert len(shown["own_rows"]) == 20
