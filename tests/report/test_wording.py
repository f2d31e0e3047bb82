"""Reasons in words: which kind, its numbers, the user's own names."""

from dataclasses import replace
from typing import Any

import pytest

from hcm_scale.base import text
from hcm_scale.edges.payments import edge_lines
from hcm_scale.report import wording
from hcm_scale.report.explain import Difference, EdgeExplanation, EdgeWeight, Explanation, Neighbor
from hcm_scale.score.kinds.all import KINDS
from hcm_scale.score.kinds.kind import Reason

ODD = Reason("attributes", 3, 20_000)


def made(*why: Reason, **changes: Any) -> Explanation:
    """An explanation written by hand."""
    neighbors = tuple(Neighbor(f"n{i}", i, hop, 0.1, i < 2) for i, hop in enumerate((3.6, 3.1, 3.0, 1.2, 1.1)))
    base = Explanation("A", 7, 3, 20_000, {"ahp": 2.4, "score": 20.0}, None, neighbors, (), why, "score")
    return replace(base, **{"num_dropped": 2} | changes)


def told(*why: Reason, **changes: Any) -> list[str]:
    return [f"{reason.title}: {reason.text}" for reason in wording.reason_texts(made(*why, **changes))]


def test_reasons__every_kind_in_words_with_its_numbers_and_its_rank():
    found = told(
        Reason("hop", 2, 19_990, 3.61, 1.42, 5),
        Reason("closure", 1, 19_990, 3.4, 1.42, 4, 5, 3),
        Reason("context", 12, 19_990, 0.97, 0.31, 5),
        Reason("context_closure", 40, 19_990, 0.9, 0.31, 5, 10, 10),
        Reason("cohesion", 1, 19_990, 9, 0.27, 5),
        Reason("cohesion", 1, 19_990, 4, 0.27, 5, 7),
        Reason("cohesion", 1, 19_990, 5, 12.4, 5, 1),
        Reason("cohesion", 1, 19_990),
    )
    assert found == [
        "neighbours seem far: its 5 neighbours look 3.6 hops away to the model, on average, where 1.4 is usual for "
        "nodes with 4 to 7 neighbours (rank 2 of 19,990 by hop)",
        "group of strangers: 5 of the 6 pairs among 4 of its 5 neighbours are joined, although 3 of these pairs look "
        "3.4 hops apart to the model, on average, where 1.4 is usual for two neighbours (rank 1 of 19,990 by closure)",
        "unlike its neighbours: its attributes differ from those around it by 0.97 on a scale from 0 to 2, on average, "
        "where 0.31 is usual for nodes with 4 to 7 neighbours (rank 12 of 19,990 by context)",
        "group of unlike nodes: all 10 pairs among its 5 neighbours are joined, although these pairs differ in "
        "attributes by 0.90 on a scale from 0 to 2, on average, where 0.31 is usual for two neighbours "
        "(rank 40 of 19,990 by context_closure)",
        "tight group: 9 of the 10 pairs among its 5 neighbours are joined, where their degrees lead to expect 0.3 such "
        "pairs (rank 1 of 19,990 by cohesion)",
        "tight group: it shares 4 or more of its 5 neighbours with each of 7 others, where degrees lead to expect 0.3 "
        "(rank 1 of 19,990 by cohesion)",
        "tight group: it shares all its 5 neighbours with another, where degrees lead to expect 12.4 "
        "(rank 1 of 19,990 by cohesion)",
        "tight group: more of its neighbours are joined to each other, or to the same others, than their degrees "
        "explain (rank 1 of 19,990 by cohesion)",
    ]


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference("amount", 9310.0, 120.2, 7.0), "`amount` = 9,310 where the mean around it is 120"),
        (Difference("colour=red", 1.0, 0.02, 7.0), "`colour` is `red`, which is so of 2% around it"),
        (Difference("colour=red", 0.0, 0.98, -7.0), "`colour` is not `red`, which is so of 2% around it"),
        (Difference("age is null", 1.0, 0.1, 3.0), "`age` is missing, which is so of 10% around it"),
        (
            Difference("since", 405.0, 53.3, 4.1, first_day="2024-01-01"),
            "`since` = 2025-02-09 where the mean around it is 2024-02-23",
        ),
        (Difference("age", 95.0, None, 9.0), "`age` = 95 where nothing around it has one"),
        (Difference("name", 1.0, 0.0, 9.0, is_text=True), "text in `name` unlike that around it"),
        (Difference("rows, as payer", 0.0, 3.0, -4.0, usual=2.0), "it is never `payer`"),
        (
            Difference("largest sum, as Payer IBAN", 9.0, 1.0, 4.0),
            "`largest sum` when it is `Payer IBAN` = 9 where the mean around it is 1",
        ),
        (
            Difference("rows, as payee", 2196.0, 0.0, 9.0, usual=0.0, never=("neighbors", "usual")),
            "`rows` when it is `payee` = 2,196 where most nodes and all around it are never `payee`",
        ),
        (
            Difference("rows, as payee", 2196.0, 0.1, 9.0, usual=0.0, never=("usual",)),
            "`rows` when it is `payee` = 2,196 where 0.1 is the mean around it and most nodes are never `payee`",
        ),
    ],
)
def test_reasons__attributes_as_values_categories_gaps_and_text(difference: Difference, words: str):
    assert told(ODD, differences=(difference,)) == [f"odd attributes: {words} (rank 3 of 20,000 by attributes)"]


def test_attributes__of_an_end_that_nodes_never_are_at_are_never_in_the_table():
    difference = Difference("sum of amount, as payee", 9.0, 0.0, 4.0, never=("neighbors",))
    page = wording.explanation_text(made(ODD, differences=(difference,)))
    assert page.splitlines()[-1].split()[-3:] == ["9", "never", "+4.0"]


@pytest.mark.parametrize(
    ("numbers", "never", "words"),
    [
        ((3502.0, 0.0), ("neighbors", "usual"), "`largest` when it is `payer` is 3,502 for A, and B is never `payer`"),
        ((0.0, 3502.0), ("value",), "`largest` when it is `payer` is 3,502 for B, and A is never `payer`"),
        ((9.0, 3502.0), (), "`largest` when it is `payer` is 9 for A and 3,502 for B"),
    ],
)
def test_edge__an_end_that_is_never_payer_has_no_number(numbers: tuple[float, float], never: tuple[str, ...], words):
    difference = Difference("largest, as payer", *numbers, 4.0, never=never)
    edge = EdgeExplanation(("A", "B"), (3, 3), 90, 0.9, 1.0, None, 0.1, None, (), (difference,))
    assert words in " ".join(wording.edge_text(edge).split())


def test_attributes__of_a_node_without_neighbours_are_held_against_all_nodes():
    alone = made(ODD, neighbors=(), differences=(Difference("amount", 9.0, 1.0, 4.0),))
    assert "its value      all nodes   deviations" in wording.explanation_text(alone)


def test_reasons__the_usual_value_is_not_called_odd():
    usual, odd = Difference("a", 0.0, 5.0, -4.0, usual=0.0), Difference("b", 9.0, 1.0, 2.5, usual=1.0)
    (found,) = told(ODD, differences=(usual, odd))
    assert "`a`" not in found
    assert "`b` = 9 where 1 is usual" in found
    assert "`a` = 0, as is usual" in told(ODD, differences=(usual,))[0]


def test_reasons__a_share_within_one_row_of_the_usual_is_not_called_odd():
    none = Difference("round value, as payer", 0.0, 0.3, -4.0, usual=0.00127, counts=(0, 10))
    many = Difference("round value, as payee", 1.0, 0.3, 4.0, usual=0.00027, counts=(40, 40))
    (found,) = told(ODD, differences=(none, many))
    assert "payer" not in found
    assert "`round value` when it is `payee`: 40 of its 40 rows, where hardly any is usual" in found
    assert (
        "4 of its 40 rows, where 10% is usual" in told(ODD, differences=(replace(many, counts=(4, 40), usual=0.1),))[0]
    )


@pytest.mark.parametrize(
    ("kind", "count", "details", "words"),
    [
        ("history", 60, {"twice": 1}, "1 of its 60 payments repeats an amount to the same payee within a day"),
        ("history", 60, {"twice": 2}, "2 of its 60 payments repeat an amount to the same payee within a day"),
        ("history", 60, {"negative": 1}, "1 of its 60 payments is negative"),
        ("passed_on", 12, {"received": 44}, "of 44 amounts received 12 left within 15 minutes, 2 % smaller"),
        (
            "passed_on",
            2,
            {"received": 9, "least": 0.01},
            "of 9 amounts received 2 left within 15 minutes, 1 to 2 % smaller",
        ),
    ],
)
def test_reasons__of_rows_are_grammar(kind: str, count: int, details: dict[str, Any], words: str):
    none = {"paid": 0, "received": 0, "twice": 0, "negative": 0}
    left = {"delay": 900.0, "steps": 0.0, "least": 0.02, "most": 0.02}
    reason = Reason(kind, 2, 100, 3.0, None, count, details=(none if kind == "history" else left) | details)
    assert KINDS[kind].say(made(reason), reason) == words


def test_edge_lines__of_equal_payments_tell_them_apart_by_their_time():
    ends, about = [{"id": "a"}, {"id": "b"}], {"amount": "12.44", "evidence": "history"}
    edges = [{"rank": 1 + step, "ends": ends, "when": f"step {step}"} | about for step in range(2)]
    lines = edge_lines({"edges": edges, "of_rows": True})
    assert [line.split("  ")[2] for line in lines[1:]] == ["a to b, 12.44, step 0", "a to b, 12.44, step 1"]


def test_reasons__hashed_text_is_cited_only_where_no_column_differs():
    hashed, plain = Difference("name", 1.0, 0.0, 9.0, is_text=True), Difference("amount", 9.0, 1.0, 4.0)
    assert "name" not in told(ODD, differences=(hashed, plain))[0]
    assert "amount" not in told(ODD, differences=(hashed, replace(plain, deviations=1.0)))[0]


def test_reasons__attributes_are_not_told_where_they_are_not_the_evidence():
    found = told(Reason("hop", 2, 100, 3.0, 1.4, 5), differences=(Difference("amount", 9.0, 1.0, 8.0),))
    assert "amount" not in " ".join(found)


def test_lead__says_that_nothing_stands_out_or_that_there_are_no_neighbours():
    nothing = "No kind of evidence ranks it among the first 5%. What comes nearest:"
    assert wording.opening_text(made(Reason("hop", 700, 1000, 1.5, 1.4, 5))) == nothing
    assert wording.opening_text(made(Reason("hop", 7, 1000, 3.5, 1.4, 5))) == ""
    assert wording.opening_text(made(ODD, neighbors=())) == "No edge leads from it to another node."


@pytest.mark.parametrize(
    ("value", "usual", "words"),
    [
        (2.54, 2.47, "although they look 2.54 hops apart to the model, where 2.47 is usual for two neighbours"),
        (2.4701, 2.4702, "and they look 2.470 hops apart to the model, as is usual for two neighbours"),
        (2.2, 2.47, "and they look 2.2 hops apart to the model, where 2.5 is usual for two neighbours"),
    ],
)
def test_reasons__numbers_against_each_other_have_digits_that_tell_them_apart(value: float, usual: float, words: str):
    (line,) = told(Reason("closure", 1, 100, value, usual, 2, 1, 1))
    assert line == (
        f"group of strangers: 2 of its 5 neighbours are joined to each other, {words} (rank 1 of 100 by closure)"
    )


def test_reasons__what_is_not_notable_has_no_title():
    (line,) = wording.reason_texts(made(Reason("context", 700, 1000, 0.82, 0.84, 5)))
    assert line.line.startswith("Its attributes differ from those around it by 0.82")


def test_reasons__of_a_merchant_say_that_nobody_is_like_it():
    (line,) = told(Reason("hop", 1, 1000, 2.7, None, 5))
    assert "on average; too few nodes have as many neighbours to say what is usual" in line


def test_dropped__is_told_where_many_edges_went():
    assert (
        wording.dropped_text(made())
        == "Before learning 2 of its 5 edges were dropped, because their ends are so unlike."
    )
    assert wording.dropped_text(made(num_dropped=0)) == ""


def test_text__has_the_score_that_ranks_and_no_other():
    page = wording.explanation_text(made(ODD, differences=(Difference("amount", 9310.0, 120.2, 7.0),)))
    assert "Score 20" in page
    assert "AHP" not in page
    assert page.index("Odd attributes") < page.index("predicted hop")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"flags_end": 6.3e-5}, "p 1e-4, not flagged: at a false-discovery rate of 10% flags end at p 6e-5"),
        ({}, "p 1e-4, not flagged: at a false-discovery rate of 10% no node is flagged"),
        (
            {"p": 1.3e-6, "flagged": True, "flags_end": 6.3e-5},
            "p 1e-6, flagged: at a false-discovery rate of 10% flags end at p 6e-5",
        ),
    ],
)
def test_text__says_below_the_score_why_a_node_is_flagged_or_not(changes: dict[str, Any], line: str):
    judged = {"p": 1.1e-4, "flagged": False, "fdr": 0.1}
    assert wording.explanation_text(made(ODD, **judged | changes)).splitlines()[2] == line
    assert wording.explanation_text(made(ODD)).splitlines()[2] == ""


def test_text__shows_dates_as_dates():
    page = wording.explanation_text(
        made(ODD, differences=(Difference("since", 1.5, 0.0, 4.1, first_day="2024-01-31T08:00"),))
    )
    assert "2024-02-01 20:00   2024-01-31 08:00" in page


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (text.percent(0.25), "25%"),
        (text.fixed(0.5), "0.500"),
        (text.fixed(None), "–"),
        (text.p_text(0.25), "0.250"),
        (text.p_text(2.04e-9), "below 1e-6"),
        (text.sentence("average hop (AHP)"), "Average hop (AHP)"),
        (wording.score_title("ahp"), "AHP"),
        (wording.score_title("far_score"), "Far score"),
        (wording.score_title("residual"), "Odd attributes"),
        (wording.long_name("ahp"), "average hop prediction (AHP)"),
        (wording.long_name("ahp_trend"), "ahp trend"),
        (text.weight(0.00125, 3), "0.00125 (heavier than 3 % of edges)"),
        (wording.headline({"flagged": {"num": 3}, "graph": {"num_nodes": 2000}}), "3 of 2,000 nodes stand out"),
        (wording.headline({"flagged": {"num": 1}, "graph": {"num_nodes": 2000}}), "1 of 2,000 nodes stands out"),
        (
            wording.headline({"flagged": {"num": 0}, "graph": {"num_nodes": 2000}}),
            "None of 2,000 nodes can be named with confidence",
        ),
        (wording.headline({"flagged": None, "graph": {"num_nodes": 2000}}), "2,000 nodes, the oddest first"),
    ],
)
def test_numbers_and_names__as_text(made: str, wanted: str):
    assert made == wanted


@pytest.mark.parametrize(
    ("value", "words"), [(9310.0, "9,310"), (120.25, "120"), (0.0417, "0.0417"), (3.0, "3"), (2.5e9, "2.5e+09")]
)
def test_reasons__quantities_have_a_few_digits(value: float, words: str):
    (line,) = told(ODD, differences=(Difference("amount", value, 1.0, 9.0),))
    assert f"`amount` = {words} where" in line


def test_meaning__is_true_for_every_ranking():
    assert "several find it strange" in wording.meaning("score")
    assert "triangles" in wording.meaning("strange")
    assert "triangles" not in wording.meaning("ahp")
    assert wording.long_name("score") == "score (all kinds of evidence)"
    assert wording.found_text({}) == ""


def test_text__weights_and_types_stand_beside_the_neighbour_on_a_terminal():
    heavy, light = EdgeWeight("am\x1bount", 1200.0, 99), EdgeWeight("am\x1bount", 0.5, 3)
    neighbors = Neighbor("b", 1, 3.0, 0.1, True, weight=heavy), Neighbor("c", 2, 1.0, 0.1, False, weight=light)
    lines = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, neighbors, ())).splitlines()
    assert "neighbour    predicted hop   edge       am\ufffdount" in lines
    assert "b             3.00 ± 0.10    dropped    1,200.00 (heavier than 99 % of edges)" in lines
    assert "c             1.00 ± 0.10    kept       0.50 (heavier than 3 % of edges)" in lines
    typed = (replace(neighbors[0], types=("call", "mail")), neighbors[1])
    lines = wording.explanation_text(Explanation("a", 0, 1, 3, {}, None, typed, ())).splitlines()
    assert "neighbour    predicted hop   edge       type         am\ufffdount" in lines
    assert "c             1.00 ± 0.10    kept                    0.50 (heavier than 3 % of edges)" in lines
