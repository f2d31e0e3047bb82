"""Cases that somebody else wrote, or of very many members: refused by name, told in lines, compared in linear time."""

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
from hcm_scale.cases.changes import Known, changes_text, read_known, shared_members
from hcm_scale.cases.describe import links_of, roles_of
from hcm_scale.cases.find import Case
from hcm_scale.cases.store import as_cases, open_cases
from hcm_scale.cli import commands

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
    assert read_known(tmp_path).members()(0) == ["a", "b"]
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
