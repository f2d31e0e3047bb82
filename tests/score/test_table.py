"""scores.parquet: what is in it, in which order, and back again."""

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.base.files import FolderError
from hcm_scale.base.threads import kernel_threads
from hcm_scale.graph import Graph
from hcm_scale.score import nodes, threshold
from hcm_scale.score import table as ranked_table
from hcm_scale.score.kinds.all import GRAPH_KINDS as KINDS


def scores_table(graph, scores, rank_by):
    return pa.concat_tables(make() for make in ranked_table.row_groups(graph, scores, rank_by))


def four_nodes(**parts) -> Graph:
    return Graph(np.array([0, 1, 2, 3, 3]), np.array([1, 0, 1], np.int32), **parts)


def scores_of(ahp, hav=None, flags=(0, 0, 0, 0)) -> nodes.NodeScores:
    ahp = np.array(ahp, float)
    hav = ahp if hav is None else np.array(hav, float)
    numbers = {"ahp": ahp, "iv": ahp / 10, "hav": hav, "closure": ahp / 2, "strange": ahp, "context": -ahp}
    numbers |= {"context_closure": ahp / 3, "residual": ahp**2, "cohesion": ahp / 5}
    added_up = {"score": ahp / 4, "places": np.ones((len(KINDS), len(ahp)), np.int32)}
    flags = np.array(flags, np.uint8)
    return nodes.NodeScores(tuple(KINDS.values()), numbers, np.arange(len(ahp)), flags, **added_up)


def test_scores_table__is_sorted_by_rank_with_ties_by_node():
    table = scores_table(four_nodes(), scores_of([2, 3, 2, 1]), rank_by="ahp")
    assert table["node"].to_pylist() == [1, 0, 2, 3]
    assert table["rank"].to_pylist() == [1, 2, 3, 4]
    assert table["ahp"].to_pylist() == [3, 2, 2, 1]
    evidence = ["ahp", "iv", "hav", "closure", "strange", "context", "context_closure", "residual"]
    evidence += ["cohesion", "score"]
    ranks = [f"{kind}_rank" for kind in KINDS]
    assert table.column_names == ["id", "node", *evidence, "evidence", *ranks, "rank", "degree", "flags"]


def test_scores_table__ranks_by_the_chosen_score_and_says_so():
    table = scores_table(four_nodes(), scores_of([4, 3, 2, 1], hav=[1, 2, 3, 4]), rank_by="hav")
    assert table["node"].to_pylist() == [3, 2, 1, 0]
    assert table.schema.metadata == {b"rank_by": b"hav", b"kinds": ",".join(KINDS).encode()}


def test_scores_table__joins_back_to_the_users_ids_and_labels():
    ids = pa.array(["a", "<script>", "ü", "d" * 200])
    graph = four_nodes(ids=ids, y=np.array([0, 1, 0, 1], np.uint8), kind=np.array([0, 2, 0, 1], np.uint8))
    table = scores_table(graph, scores_of([1, 4, 2, 3]), rank_by="ahp")
    assert table["id"].to_pylist() == ["<script>", "d" * 200, "ü", "a"]
    assert table["y"].to_pylist() == [1, 1, 0, 0]
    assert table["kind"].to_pylist() == [2, 1, 0, 0]


def test_scores_table__without_ids_gives_node_numbers():
    assert scores_table(four_nodes(), scores_of([1, 4, 2, 3]), rank_by="ahp")["id"].to_pylist() == [1, 3, 2, 0]


def test_write_scores__reads_back_equal_and_the_same_bytes(tmp_path):
    table = scores_table(
        four_nodes(), scores_of([1, 4, 2, 3], flags=(0, nodes.ISOLATED, nodes.NO_OUT_NEIGHBORS, 0)), rank_by="ahp"
    )
    ranked_table.write_scores(tmp_path / "scores.parquet", [lambda: table])
    assert ranked_table.read_scores(tmp_path / "scores.parquet").equals(table, check_metadata=True)
    first = (tmp_path / "scores.parquet").read_bytes()
    ranked_table.write_scores(tmp_path / "scores.parquet", [lambda: table])
    assert (tmp_path / "scores.parquet").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_write_scores__a_failure_leaves_the_old_file_alone(tmp_path):
    table = scores_table(four_nodes(), scores_of([1, 4, 2, 3]), rank_by="ahp")
    ranked_table.write_scores(tmp_path / "scores.parquet", [lambda: table])
    first = (tmp_path / "scores.parquet").read_bytes()
    with pytest.raises(AttributeError):
        ranked_table.write_scores(tmp_path / "scores.parquet", [lambda: "not a table"])
    assert (tmp_path / "scores.parquet").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def many_groups(num_nodes: int, size: int) -> list[Callable[[], pa.Table]]:
    rng = np.random.default_rng(num_nodes)
    ids = pa.array([f"node {i}" for i in range(num_nodes)], pa.string())
    graph = Graph(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32), ids=ids)
    places = rng.integers(1, min(9, num_nodes + 2), (len(KINDS), num_nodes)).clip(max=num_nodes).astype(np.int32)
    scores = replace(scores_of(rng.random(num_nodes), flags=rng.integers(0, 3, num_nodes)), places=places)
    verdict = threshold.Verdict(rng.random(num_nodes), rng.random(num_nodes) < 0.1, 0.05)
    return ranked_table.row_groups(graph, scores, "ahp", verdict, size)


@pytest.mark.parametrize(("num_nodes", "size"), [(0, 10), (1, 10), (10, 10), (11, 10), (3_000, 1_000), (3_000, 70)])
def test_write_scores__any_number_of_threads_writes_what_one_writer_would(tmp_path, num_nodes, size):
    groups = many_groups(num_nodes, size)
    tables = [make() for make in groups]
    with kernel_threads(1):
        ranked_table.write_scores(tmp_path / "alone", groups)
    ways = {"double": "BYTE_STREAM_SPLIT", "int32": "DELTA_BINARY_PACKED", "int64": "DELTA_BINARY_PACKED"}
    options = {
        "compression": "zstd",
        "write_page_checksum": True,
        "write_page_index": False,
        "column_encoding": {f.name: ways[str(f.type)] for f in tables[0].schema if str(f.type) in ways},
        "use_dictionary": ["evidence", "flags"],
    }
    with pq.ParquetWriter(tmp_path / "plain", tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table, max(1, len(table)))
    with kernel_threads(2):
        ranked_table.write_scores(tmp_path / "shared", groups)
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "shared").read_bytes() == (tmp_path / "plain").read_bytes()
    assert ranked_table.read_scores(tmp_path / "shared").equals(pa.concat_tables(tables), check_metadata=True)


@pytest.mark.parametrize("bad", [0, 1, 25, 49])
def test_write_scores__an_error_in_a_thread_leaves_no_file(tmp_path, bad):
    groups = many_groups(100, 2)
    groups[bad] = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        ranked_table.write_scores(tmp_path / "scores.parquet", groups)
    assert list(tmp_path.iterdir()) == []


def test_write_scores__an_error_while_joining_leaves_no_file_and_no_thread(tmp_path):
    groups, threads = many_groups(100, 2), threading.active_count()
    groups[7] = lambda: pa.table({"other": [1]})
    with pytest.raises(ValueError, match="row group 7 has other columns") as error, kernel_threads(2):
        ranked_table.write_scores(tmp_path / "scores.parquet", groups)
    assert error.traceback  # which holds all that was in use
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_write_scores__a_signal_ends_it_after_the_groups_in_hand(tmp_path, interrupts):
    groups, made, threads = many_groups(10_000, 10), [], threading.active_count()

    def made_and_told(make, at):
        made.append(at)
        if at == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return make()

    with pytest.raises(KeyboardInterrupt), kernel_threads(2):
        ranked_table.write_scores(
            tmp_path / "scores.parquet", [partial(made_and_told, make, at) for at, make in enumerate(groups)]
        )
    assert 20 in made
    assert len(made) < 100
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


def test_read_scores__refuses_a_flipped_bit(tmp_path):
    ahp = np.random.default_rng(0).random(5000)
    graph = Graph(np.zeros(5001, np.int64), np.empty(0, np.int32))
    ranked_table.write_scores(
        tmp_path / "scores.parquet",
        ranked_table.row_groups(graph, scores_of(ahp, flags=np.zeros(5000)), rank_by="ahp", size=999),
    )
    data = bytearray((tmp_path / "scores.parquet").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "scores.parquet").write_bytes(data)
    with pytest.raises(OSError):
        ranked_table.read_scores(tmp_path / "scores.parquet")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [0, 21, 42])
def test_read_scores__looks_at_the_values_of_every_row_group(tmp_path, threads, bad):
    tables, path = [make() for make in many_groups(3_000, 70)], tmp_path / "scores.parquet"
    whole, at = pa.concat_tables(tables), tables[0].column_names.index("p")
    tables[bad] = tables[bad].set_column(at, "p", [np.linspace(0.5, 2.0, len(tables[bad]))])
    ranked_table.write_scores(path, [partial(tables.__getitem__, i) for i in range(len(tables))])
    with kernel_threads(threads):
        with pytest.raises(FolderError, match=r"scores.parquet is damaged: its column p holds .* legal are 0.0 to 1.0"):
            ranked_table.read_scores(path)
        some = ranked_table.read_scores(path, ["flags", "ahp", "none"])
    assert some.equals(whole.select(["ahp", "flags"]), check_metadata=True)
    assert ranked_table.RankedFile(path)["ahp"].num_chunks == 1  # which numpy takes as it is


def test_node_scores__is_the_table_in_node_order():
    flags = np.arange(8, dtype=np.uint8) % 4  # every combination
    scores = scores_of([1, 4, 2, 3, 8, 7, 6, 5], hav=np.arange(8), flags=flags)
    places = np.random.default_rng(0).integers(1, 9, (len(KINDS), 8)).astype(np.int32)
    graph = Graph(np.zeros(9, np.int64), np.empty(0, np.int32))
    given = replace(scores, places=places)
    back = ranked_table.node_scores(scores_table(graph, given, rank_by="ahp"))
    for name in ("score", "degree", "flags", "places"):
        assert np.array_equal(getattr(back, name), getattr(given, name))
    assert list(back.numbers) == list(given.numbers)
    assert all(np.array_equal(back.numbers[name], given.numbers[name]) for name in given.numbers)


ABOUT = {"title": "hums\x1b", "short": "Hum", "help": "", "words": "", "identity": "hum@a 1", "columns": {"hum": "hum"}}
ABOUT |= {"ranks_all_nodes": True, "zero_says_nothing": False}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"hum": ABOUT}, None),
        ({"hum": {}}, "title is None"),
        ({"hum": ABOUT | {"words": 3}}, "words is 3"),
        ({"hum": ABOUT | {"columns": {}}}, None),
        ({"hum": ABOUT | {"columns": {"hertz": "Hz"}}}, "no column hertz"),
        ({"hum": ABOUT | {"columns": {"degree": "Hz"}}}, "degree is no name for a kind of evidence"),
        ({"hop": ABOUT}, "hop is no name for a kind of evidence"),
        ({"buzz": ABOUT}, "no column buzz_rank"),
        (["hum"], "damaged"),
    ],
)
def test_read_scores__believes_of_a_plug_in_only_what_can_be(tmp_path, own, said):
    table, path = scores_table(four_nodes(), scores_of([1, 4, 2, 3]), rank_by="ahp"), tmp_path / "scores.parquet"
    table = table.append_column("hum", [np.arange(4.0)]).append_column("hum_rank", [np.arange(4, 0, -1, np.int32)])
    table = table.replace_schema_metadata({**table.schema.metadata, "own": json.dumps(own)})
    ranked_table.write_scores(path, [lambda: table])
    if said is not None:
        with pytest.raises(FolderError, match=said):
            ranked_table.read_scores(path)
        return
    kind = ranked_table.kinds_of(ranked_table.read_scores(path))["hum"]
    assert (kind.title, kind.column, kind.identity) == ("hums\ufffd", "hum", "hum@a 1")  # no cursor is moved


@pytest.mark.parametrize("by", ["id", "p", "rank", "evidence", "nothing", b"\xff"])
def test_read_scores__refuses_to_be_ranked_by_what_is_no_score(tmp_path, by):
    table, path = scores_table(four_nodes(), scores_of([1, 4, 2, 3]), rank_by="ahp"), tmp_path / "scores.parquet"
    table = table.replace_schema_metadata({**table.schema.metadata, b"rank_by": by})
    ranked_table.write_scores(path, [lambda: table])
    for open_scores in (ranked_table.read_scores, ranked_table.RankedFile):
        with pytest.raises(FolderError, match="is damaged"):
            open_scores(path)


def test_scores_table__refuses_what_cannot_be_ranked():
    with pytest.raises(ValueError, match="1 of 4 scores are NaN"):
        scores_table(four_nodes(), scores_of([1, np.nan, 2, 3]), rank_by="ahp")
