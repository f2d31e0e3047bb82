"""Which case is which of the run before: ids last, are never shared, and what has happened to them is told."""

import numpy as np
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.cases.changes import Known, changes_line, changes_text, match, read_known, with_lasting_ids, write_known
from hcm_scale.cases.find import GROUP, Case
from hcm_scale.cases.store import Cases, as_cases
from hcm_scale.graph import Graph

NONE = np.zeros(0, np.int64)
GRAPH = Graph(np.zeros(1001, np.int64), np.zeros(0, np.int32))


def cases_of(*groups: list[int], flagged: int | None = None) -> Cases:
    found = [Case(np.array(sorted(group)), NONE, NONE, GROUP, 50.0) for group in groups]
    return as_cases(GRAPH, found, len(found) if flagged is None else flagged)


def following(before: Cases, after: Cases) -> Cases:
    return with_lasting_ids(GRAPH, after, Known.of(GRAPH, before), "yesterday")


def test_ids__last_while_members_come_and_go():
    first = cases_of([1, 2, 3, 4], [10, 11, 12])
    second = following(first, cases_of([12, 10, 13], [2, 3, 4, 5, 6]))
    assert (second.id_of(0), second.id_of(1)) == (first.id_of(1), first.id_of(0))
    (grown,) = second.changes["grown"]
    assert (grown["id"], grown["entered"], grown["left"]) == (first.id_of(0), ["5", "6"], ["1"])
    (changed,) = second.changes["changed"]
    assert (changed["entered"], changed["left"]) == (["13"], ["11"])
    assert changes_line(second.changes) == "1 grown, 1 changed"


def test_changes__new_gone_and_the_same_are_told():
    cases = following(cases_of([1, 2, 3], [20, 21, 22]), cases_of([1, 2, 3], [30, 31]))
    told = cases.changes
    assert [one["members"] for one in told["new"]] == [["30", "31"]]
    assert [one["members"] for one in told["gone"]] == [["20", "21", "22"]]
    assert told["num_same"] == 1
    lines = changes_text(told, cases)
    assert lines[0] == f"case 2 ({told['new'][0]['id']}) new: 30, 31"


def test_changes__splits_and_joins_are_told():
    whole = cases_of([1, 2, 3, 4, 5, 6, 7])
    parts = following(whole, cases_of([1, 2, 3, 4], [5, 6, 7]))
    assert parts.id_of(0) == whole.id_of(0)
    assert parts.changes["new"][0]["split_from"] == [whole.id_of(0)]
    again = with_lasting_ids(GRAPH, cases_of([1, 2, 3, 4, 5, 6, 7]), Known.of(GRAPH, parts), "yesterday")
    (joined,) = again.changes["grown"]
    assert joined["joined_by"] == [parts.id_of(1)]
    assert again.id_of(0) == parts.id_of(0)


def test_changes__a_case_that_comes_back_keeps_its_id(tmp_path):
    first = cases_of([1, 2, 3], [50, 51, 52])
    known = Known.of(GRAPH, first)
    for day in range(3):
        today = with_lasting_ids(GRAPH, cases_of([1, 2, 3]), known, f"day {day}")
        folder = tmp_path / str(day)
        folder.mkdir()
        write_known(folder, Known.of(GRAPH, today), known)
        known = read_known(folder)
    last = with_lasting_ids(GRAPH, cases_of([1, 2, 3], [50, 51, 52, 53]), known, "day 3")
    assert last.id_of(1) == first.id_of(1)
    (back,) = last.changes["grown"]
    assert back["back_after"] == 3


def test_ids__hold_through_a_month_in_which_members_come_and_go():
    rng = np.random.default_rng(0)
    truth = [set(rng.choice(1000, size, replace=False).tolist()) for size in rng.integers(4, 15, 40)]
    known, names, kept, days, owner = None, {}, 0, 0, {}
    for _ in range(30):
        for group in truth:  # one member in ten changes a day
            for node in [node for node in group if rng.random() < 0.05]:
                group.discard(node)
            if rng.random() < 0.5 or len(group) < 4:
                group.add(int(rng.integers(1000)))
        order = rng.permutation(len(truth))
        today = cases_of(*(sorted(truth[at]) for at in order))
        today = today if known is None else with_lasting_ids(GRAPH, today, known, "before")
        known = Known.of(GRAPH, today)
        ids = {at: today.id_of(place) for place, at in enumerate(order.tolist())}
        assert len({*ids.values()}) == len(ids)
        assert all(owner.setdefault(name, at) == at for at, name in ids.items())  # never that of another
        kept += sum(names.get(at, name) == name for at, name in ids.items())
        days += len(ids)
        names = ids
    assert kept / days >= 0.95


def test_match__does_not_depend_on_the_order_of_cases():
    before, after = cases_of([1, 2, 3], [4, 5, 6], [3, 4, 7]), [[1, 2, 9], [4, 5, 3], [6, 7]]
    ids = []
    for order in ([0, 1, 2], [2, 0, 1]):
        found = following(before, cases_of(*(after[at] for at in order)))
        ids.append({tuple(after[at]): found.id_of(place) for place, at in enumerate(order)})
    assert ids[0] == ids[1]
    assert match(Known.of(GRAPH, before), Known.of(GRAPH, before)).same == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("damage", [b"", b"PAR1", None])
def test_read_known__refuses_a_file_that_is_none(tmp_path, damage):
    if damage is not None:
        (tmp_path / "known.parquet").write_bytes(damage)
    with pytest.raises(FolderError, match="what a run remembers of its cases"):
        read_known(tmp_path)
