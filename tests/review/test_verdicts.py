"""The file of verdicts: what is added is there, whoever else writes and whatever was killed; tables of verdicts."""

import dataclasses
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import small_graph

from hcm_scale.base.files import FolderError
from hcm_scale.ingest.policy import InputError
from hcm_scale.review import verdicts


def given(run_dir):
    return verdicts.latest(run_dir).by_id()


def test_latest__of_several_verdicts_the_last_counts_and_is_told(tmp_path):
    verdicts.append(tmp_path, [("a", "bad"), ("b", "good"), ("c", "bad"), ("a", "good"), ("c", "none")], "anna")
    found = verdicts.latest(tmp_path)
    assert found.by_id() == {"b": "good", "a": "good"}
    assert found.table["by"].to_pylist() == ["anna", "anna"]
    assert found.notes == ["different verdicts on the same node, of which the last one counts: a"]


def test_latest__is_empty_without_a_file(tmp_path):
    assert given(tmp_path) == {}
    assert not (tmp_path / verdicts.FILE).exists()


def test_latest__equals_a_plain_pass_over_the_lines(tmp_path, monkeypatch):
    """Slices of any size against ten obvious lines."""
    rng, names, slow = np.random.default_rng(0), [f"n{i}é#torn" for i in range(40)], {}
    for _ in range(60):
        verdicts.append(tmp_path, [(names[rng.integers(len(names))], verdicts.NAMES[rng.integers(4)])], "b")
    for line in map(json.loads, (tmp_path / verdicts.FILE).read_text().splitlines()):
        slow[line["id"]] = line["verdict"]
    slow = {name: verdict for name, verdict in slow.items() if verdict != "none"}
    for size in (100, 1000, 1 << 26):
        monkeypatch.setattr(verdicts, "_SLICE_BYTES", size)
        assert given(tmp_path) == slow


def test_append__a_full_disk_or_a_kill_loses_nothing_earlier(tmp_path):
    """Another process dies of a file that may not grow, in the middle of a line: what came before is all there."""
    verdicts.append(tmp_path, [(f"a{i}", "bad") for i in range(5)], "anna")
    limit = (tmp_path / verdicts.FILE).stat().st_size + 100
    code = "import resource, sys; from pathlib import Path; from hcm_scale.review import verdicts\n"
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    code += "verdicts.append(Path(sys.argv[1]), [('b', 'good'), ('c', 'good')], 'bert')"
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "OSError" in ended.stderr
    earlier = {f"a{i}": "bad" for i in range(5)}
    found = verdicts.latest(tmp_path)
    assert found.by_id() == earlier | {"b": "good"}  # which was whole
    assert found.notes == ["verdicts.jsonl: unfinished lines that a stopped program left (1); all others are read"]
    verdicts.append(tmp_path, [("c", "bad")], "anna")
    assert given(tmp_path) == earlier | {"b": "good", "c": "bad"}
    assert "unfinished" in verdicts.latest(tmp_path).notes[0]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_append__after_a_torn_line_loses_that_line_alone(tmp_path, cut):
    verdicts.append(tmp_path, [("a", "bad"), ("b", "good")], "anna")
    path = tmp_path / verdicts.FILE
    os.truncate(path, path.stat().st_size - cut)
    whole = {"a": "bad", "b": "good"} if cut == 1 else {"a": "bad"}  # a missing line break tears nothing
    assert given(tmp_path) == whole
    verdicts.append(tmp_path, [("c", "unsure")], "anna")
    found = verdicts.latest(tmp_path)
    assert found.by_id() == whole | {"c": "unsure"}
    assert [note for note in found.notes if "unfinished" in note] == ([] if cut == 1 else found.notes)


@pytest.mark.parametrize(
    "line",
    [
        '{"id":"b","verdict":"go',
        '{"id":7,"verdict":"bad"}',
        '{"id":"b"}',
        '{"id":"b","verdict":"awful"}',
        "[]",
        "null",
        "null null",
    ],
)
def test_latest__names_a_damaged_line_and_changes_nothing(tmp_path, line):
    verdicts.append(tmp_path, [("a", "bad")], "anna")
    path = tmp_path / verdicts.FILE
    path.write_text(f"{path.read_text()}{line}\n{path.read_text()}")
    before = path.read_bytes()
    with pytest.raises(FolderError, match="line 2 is damaged"):
        verdicts.latest(tmp_path)
    assert path.read_bytes() == before


def test_latest__reads_lines_of_any_length(tmp_path):
    verdicts.append(tmp_path, [("a", "bad"), ("x" * 3_000_000, "good"), ("b", "unsure")])
    assert list(verdicts.latest(tmp_path).by_id().values()) == ["bad", "good", "unsure"]


def test_latest__refuses_bytes_that_are_no_text(tmp_path):
    (tmp_path / verdicts.FILE).write_bytes(b'{"id":"a","verdict":"bad"}\n{"id":"\xff","verdict":"bad"}\n')
    with pytest.raises(FolderError, match="line 2 is damaged"):
        verdicts.latest(tmp_path)


def test_append__threads_and_processes_lose_nothing(tmp_path):
    code = "import sys; from pathlib import Path; from hcm_scale.review import verdicts\n"
    code += "for i in range(100): verdicts.append(Path(sys.argv[1]), [(f'p{i}', 'bad'), (f'q{i}', 'good')], 'p')"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])

    def write(who):
        for i in range(100):
            verdicts.append(tmp_path, [(f"{who}{i}", "bad")], who)

    threads = [threading.Thread(target=write, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.wait(120) == 0
    assert given(tmp_path).keys() == {f"{who}{i}" for who in "abpq" for i in range(100)}


def test_append__refuses_other_words(tmp_path):
    with pytest.raises(ValueError, match="'awful' on 'a' is not legal; legal are good, bad, unsure, none"):
        verdicts.append(tmp_path, [("a", "awful")])
    assert not (tmp_path / verdicts.FILE).exists()


def test_append_known__keeps_time_and_author(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    verdicts.append(here, [("a", "bad"), ("b", "unsure")], "anna")
    verdicts.append_known(there, verdicts.latest(here).table)
    tables = [verdicts.latest(run_dir).table for run_dir in (here, there)]
    assert tables[0].equals(tables[1])


def codes(source, **names):
    found, _ = verdicts.read_table(source, **names)
    return dict(zip(found["id"].to_pylist(), (verdicts.NAMES[code] for code in found["code"].to_pylist()), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "id,verdict\n007,bad\n8,GOOD\n9,\n10,unsure\n",
        "verdict;score;ID\n1;0.5;007\n0;0.1;8\n;0.2;9\n?;2;10\n",
        "account\tcomment\tfraud\n007\tx\tYes\n8\ty\tno\n9\t\t\n10\tz\tmaybe\n",
        "reason,account,checked\nno friends,007,Fraud\nx,8,ok\ny,9,\nz,10,unclear\n",
        "id,verdict\n007,1.0\n8,0.0\n9,\n10,-1.0\n",
    ],
)
def test_read_table__guesses_columns_and_words(tmp_path, text):
    path = tmp_path / ("v.tsv" if "\t" in text else "v.csv")
    path.write_text(text)
    assert codes(path, id_names=["account"]) == {"007": "bad", "8": "good", "10": "unsure"}


def test_read_table__ids_are_what_stands_there(tmp_path):
    ids = ["null", "NaN", "NA", "-", " a", "a", "a ", "nan", "None"]
    (tmp_path / "v.csv").write_text("id,verdict\n" + "".join(f"{name},bad\n" for name in ids) + "b,NA\nc,-\n")
    assert codes(tmp_path / "v.csv") == dict.fromkeys(ids, "bad")
    assert codes(pa.table({"id": ids, "verdict": ["bad"] * len(ids)})) == dict.fromkeys(ids, "bad")
    (tmp_path / "v.csv").write_text("id,verdict\n  7,bad\n 12,good\n")  # numbers in columns of one width
    assert codes(tmp_path / "v.csv") == {"7": "bad", "12": "good"}


def test_read_table__takes_parquet_and_tables_of_numbers(tmp_path):
    table = pa.table({"id": [7, 8, 9], "y": [1.0, None, 0.0], "size": [0.5, 1.0, 0.0]})
    pq.write_table(table, tmp_path / "v.parquet")
    assert codes(table) == codes(tmp_path / "v.parquet") == {"7": "bad", "9": "good"}
    assert codes(pa.table({"who": ["a", "b"], "verdict": [True, False]})) == {"a": "bad", "b": "good"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,verdict\n1,bad\n2,awful\n", "v.csv, line 3: 'awful' is no verdict; legal are bad, good, unsure"),
        ("id,verdict\n1,bad\n,bad\n", "v.csv, line 3: a verdict without an id"),
        ("verdict\nbad\n", "legal are an id and a verdict"),
        ("id,name\n1,anna\n2,ben\n", "legal is one column named verdict"),
    ],
)
def test_read_table__names_what_is_wrong(tmp_path, text, message):
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        verdicts.read_table(tmp_path / "v.csv")


def test_read_table__an_empty_column_of_verdicts_is_none(tmp_path):
    (tmp_path / "v.csv").write_text("id,verdict,reason\n1,,odd\n2,,odder\n")
    assert codes(tmp_path / "v.csv") == {}


def test_read_table__suggests_a_file_with_a_name_like_it(tmp_path):
    (tmp_path / "verdicts.csv").write_text("id,verdict\n1,bad\n")
    with pytest.raises(InputError, match=r"verdicts\.csv"):
        verdicts.read_table(tmp_path / "verdict.csv")


@pytest.mark.parametrize("ids", [None, pa.array(range(1000, 1200)), pa.array([f"a{i}" for i in range(200)])])
def test_find_nodes__inverts_the_ids(ids):
    graph = small_graph()
    object.__setattr__(graph, "ids", ids)
    nodes = [5, 199, 0]
    wanted = pa.array([*(str(graph.external_id(node)) for node in nodes), "nobody", "-1", "99999999999999999999"])
    assert verdicts.find_nodes(graph, wanted.cast(pa.large_string())).tolist() == [*nodes, -1, -1, -1]


def test_sheet__of_numbers_of_another_graph_is_refused(tmp_path):
    one, other = small_graph(60), small_graph(61)
    table = pa.table({"id": [3], "verdict": ["bad"], verdicts.OF: [verdicts.numbered(one)]})
    assert len(verdicts.read_table(table, of=one)[0]) == 1
    with pytest.raises(InputError, match=r"numbers of nodes of another graph.*hcm-scale review writes a new list"):
        verdicts.read_table(table, of=other)
    named = dataclasses.replace(other, ids=pa.array([f"n{i}" for i in range(other.num_nodes)]))
    assert len(verdicts.read_table(table, of=named)[0]) == 1  # ids of the user's own mean the same everywhere
