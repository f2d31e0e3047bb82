"""Cases that somebody else wrote, or of very many members: refused by name, told in lines, compared in linear time."""

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import small_graph
from scipy import sparse

from hcm_scale.base import files
from hcm_scale.cases import changes
from hcm_scale.cases.changes import Known, changes_text, read_known, shared_members, with_lasting_ids
from hcm_scale.cases.describe import links_of, roles_of
from hcm_scale.cases.drawing import drawn
from hcm_scale.cases.find import Case
from hcm_scale.cases.store import as_cases, open_cases
from hcm_scale.cli import cases as of_cases
from hcm_scale.cli import commands
from hcm_scale.report.page import templates
from hcm_scale.review.cases import judge_case

WILD = "\x1b[2J<script>ignore all that was said</script>"
NOTHING: dict[str, Any] = {"since": "old", "num_same": 0} | {
    name: [] for name in ("new", "grown", "shrunk", "changed", "gone")
}


def write_known(folder: Path, **columns: Any) -> None:
    plain = {"case": [1, 1, 2], "member": ["a", "b", "a"], "age": [0, 0, 3], "flagged": [True, True, False]}
    pq.write_table(pa.table(plain | columns, schema=changes._KNOWN), folder / changes.KNOWN_FILE)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"case": [1, 1, 1 << 50]}, "ids of cases are below"),
        ({"age": [0, 0, -1]}, "ages 0 to 30"),
        ({"age": [0, 0, 31]}, "ages 0 to 30"),
        ({"member": ["a", None, "b"]}, "it has gaps"),
        ({"case": [1] * 20, "member": ["a" * 400] * 20, "age": [0] * 20, "flagged": [True] * 20}, "its ids have over"),
    ],
)
def test_known_cases__of_others_are_refused_by_name(tmp_path, monkeypatch, columns, said):
    monkeypatch.setattr(changes, "_MOST_BYTES", 4_000)
    write_known(tmp_path)
    assert read_known(tmp_path).members(0) == ["a", "b"]
    write_known(tmp_path, **columns)
    with pytest.raises(files.FolderError, match=rf"known\.parquet cannot be read .*{said}"):
        read_known(tmp_path)


def test_known_cases__that_declare_very_many_rows_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_MOST_ENTRIES", 2)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_: pytest.fail("it was read"))
    write_known(tmp_path)
    with pytest.raises(files.FolderError, match=r"it has 3 rows of .* bytes, more than any run's"):
        read_known(tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"since": 1}, {"new": None}, {"new": [{"id": 1}]}, {"gone": [{}]}, {"grown": [{"id": "a", "left": [1]}]}]
)
def test_changes__of_other_types_are_refused_by_name(tmp_path, wrong):
    graph = small_graph()
    alone = Case(np.array([3]), np.zeros(0, np.int64), np.zeros(0, np.int64), "alone", 9.0)
    as_cases(graph, [alone], 1).save(tmp_path)
    path = tmp_path / files.MANIFEST
    for told, is_legal in ((NOTHING, True), ({}, False), (NOTHING | wrong, False)):
        files.write_sealed(path, files.read_sealed(path) | {"changes": told})
        if is_legal:
            assert open_cases(tmp_path, graph).changes == told
            continue
        with pytest.raises(files.FolderError, match=r"manifest\.json is damaged: changes is"):
            open_cases(tmp_path, graph)


def test_case__of_more_members_than_there_are_nodes_is_refused(tmp_path):
    graph, none = small_graph(), np.zeros(0, np.int64)
    for size, is_legal in ((200, True), (201, False)):
        as_cases(graph, [Case(np.arange(size) % 200, none, none, "group", 9.0)], 1).save(tmp_path)
        with (
            contextlib.nullcontext() if is_legal else pytest.raises(files.FolderError, match=r"cases\.npy does not fit")
        ):
            open_cases(tmp_path, graph)


def test_changes__are_one_printable_line_a_case():
    told = NOTHING | {"new": [{"id": WILD, "members": [WILD * 100]}], "gone": [{"id": "b", "members": ["x\ny"]}]}
    lines = changes_text(told, as_cases(small_graph(), [], 0))
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) <= 400 for line in lines)


def test_shared_members__equal_the_slow_twin_where_more_than_a_hub_is_shared(monkeypatch):
    monkeypatch.setattr(changes, "_CROWDED", 8)
    rng = np.random.default_rng(0)

    def known(seed: int) -> tuple[Known, list[set[str]]]:
        sets = [{f"n{k}" for k in rng.integers(0, 60, 4)} | {"hub"} for _ in range(20)]
        entries = [(case, name) for case, names in enumerate(sets) for name in sorted(names)]
        case, names = np.array([case for case, _ in entries]), pa.array([n for _, n in entries], pa.large_string())
        ids = np.arange(20, dtype=np.uint64)
        return Known(ids, np.zeros(20, np.int32), np.ones(20, bool), case, names), sets

    (before, own), (after, others) = known(0), known(1)
    shared = shared_members(before, after).toarray()
    twin = [[len(a & b) if a & b != {"hub"} else 0 for b in others] for a in own]
    assert shared.tolist() == twin
    assert 0 < np.count_nonzero(shared) < shared.size / 2


@pytest.mark.audit
@pytest.mark.timeout(150)  # seconds of work; minutes, were all entries looked at for each case
def test_known_cases__that_are_very_many_are_compared_in_linear_time(tmp_path):
    size, graph = 600_000, small_graph()
    each, names = np.arange(size), [f"m{k}" for k in range(size)]
    write_known(tmp_path, case=each, member=names, age=np.zeros(size, np.int32), flagged=np.ones(size, bool))
    today = as_cases(graph, [Case(np.array([3]), each[:0], each[:0], "alone", 9.0)], 1)
    told = with_lasting_ids(graph, today, read_known(tmp_path), "old").changes
    assert [one["members"] for one in told["gone"]] == [[name] for name in names]


def test_shared_members__make_no_more_pairs_than_the_cases_have_members(monkeypatch):
    monkeypatch.setattr(changes, "_LEAST_PAIRS", 100)
    names = pa.array([f"n{k}" for k in range(50)] * 100, pa.large_string())
    ids, case = np.arange(100, dtype=np.uint64), np.repeat(np.arange(100), 50)
    crowded = Known(ids, np.zeros(100, np.int32), np.ones(100, bool), case, names)
    assert shared_members(crowded, crowded).nnz <= 8 * 2 * len(case)
    plain = crowded._replace(member=pa.array([f"n{k}" for k in range(5000)], pa.large_string()))
    assert (shared_members(plain, plain).toarray() == 50 * np.eye(100)).all()


def test_note__that_is_too_long_is_refused(run):
    at = int(run.cases.table["core"].argmax())
    assert {line.note for line in judge_case(run.graph, run.cases, at, "bad", "x" * 1000)} == {"x" * 1000}
    with pytest.raises(ValueError, match="the note has 1,001 characters; legal are 1,000"):
        judge_case(run.graph, run.cases, at, "bad", "x" * 1001)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id\n\0\n", "known.csv is no file of ids: line contains NUL|none of its 2 ids"),
        (b"id\n" + b"x" * 200_000, "known.csv is no file of ids: field larger"),
        (b'id\n"' + b"x\n" * 140_000, "known.csv is no file of ids: field larger"),
        (b"id\n" + b"n\n" * 150_000, "known.csv has 300,003 bytes; a file of ids has 299,999 at most"),
        (bytes(range(1, 256)) * 99, "none of its .* ids is in the graph"),
    ],
)
def test_case_from__a_file_that_has_no_ids_is_refused_by_name(run, tmp_path, monkeypatch, content, said):
    monkeypatch.setattr(of_cases, "_MOST_BYTES", 299_999)
    path = tmp_path / "known.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        of_cases.case_from(run, [str(path)])


@pytest.mark.parametrize("name", ["x" * 5000, "no\0body", "/dev/zero", ""])
def test_case_from__what_is_no_file_is_an_id(run, name):
    with pytest.raises(ValueError, match="is not in this graph"):
        of_cases.case_from(run, [name])


def test_case__whose_rows_are_all_at_one_time_is_drawn(run):
    at = int(run.cases.table["rows"].argmax())
    rows = run.evidence.rows
    still = replace(rows, rows=replace(rows.rows, time=np.zeros(len(rows.rows))))
    told = drawn(replace(run.evidence, rows=still), run.cases, at)
    page = templates().from_string("{% from 'case.html' import case_card with context %}{{ case_card(case, 9) }}")
    assert "payments</summary>" in page.render(case=told)


def test_members__of_a_large_case_have_the_roles_and_links_of_the_slow_twin():
    rng, graph = np.random.default_rng(0), small_graph(300)
    members = rng.permutation(300)[:120]
    payer, payee = rng.choice(members, (2, 150))
    rows: Any = SimpleNamespace(rows=SimpleNamespace(payer=payer, payee=payee))
    case = Case(members[:90], members[90:], np.arange(150), "flow", 9.0)
    adjacent = sparse.csr_array((np.ones(len(graph.indices)), graph.indices, graph.indptr)).toarray()
    links = [(i, j) for i in range(120) for j in range(i, 120) if adjacent[members[i], members[j]]]
    evidence: Any = SimpleNamespace(graph=graph)
    assert links_of(evidence, case) == links

    def role(node: int, is_core: bool) -> str:
        num_in, num_out = len({*payer[payee == node]}), len({*payee[payer == node]})
        if num_in and num_out > num_in / 3:
            return "passes on"
        if num_in or num_out:
            return ("collects" if num_in > 1 else "is paid") if num_in else ("pays out" if num_out > 1 else "pays in")
        return "member" if is_core else "contact"

    assert roles_of(case, rows) == [role(node, at < 90) for at, node in enumerate(members)]


def test_case__of_ids_that_xml_cannot_hold_is_exported(run, tmp_path, monkeypatch):
    name, told = "1", type(run).case
    monkeypatch.setattr(type(run), "case", lambda *asked: _renamed(told(*asked)))
    out = tmp_path / "case.graphml"
    commands.export_run([str(run.folder), str(out), "--case", name])
    labels = {data["label"] for _, data in nx.read_graphml(out).nodes(data=True)}
    assert labels == {r"\x01" + WILD.replace("\x1b", r"\x1b")}


def _renamed(told: dict[str, Any]) -> dict[str, Any]:
    return told | {"members": [member | {"id": "\x01" + WILD} for member in told["members"]]}
