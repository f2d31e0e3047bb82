"""Memory that stages are estimated to take, and runs in little memory: what is refused, what is said, same bytes."""

import contextlib
import dataclasses
import gc
import io
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.base.memory import anonymous_bytes, release_unused
from hcm_scale.config import Config, SyntheticGraph, with_options
from hcm_scale.graph import Graph, SparseRows
from hcm_scale.graph.size import Size
from hcm_scale.graph.store import GraphRows, NodeTypes
from hcm_scale.ingest.tables import read_tables
from hcm_scale.run import memory, pipeline
from hcm_scale.run.stages import RunContext, label_options, recipe_of, stages
from hcm_scale.run.workspace import Workspace, read_stages
from hcm_scale.stages import ingest
from hcm_scale.stages.label import label as make_labels
from hcm_scale.stages.label import ways_to_search
from hcm_scale.synthetic import families as synthetic

MIB, GIB = 2**20, 2**30
EVERY = {"purified", "labels", "propagated", "train", "scores", "report"}


def foresee(size, num_features=20, **options):
    config = with_options(Config(), {"score.views": ["purified"], **options})
    return memory.Foresight(config, label_options(config), recipe_of(config), size, num_features)


def sparse_size(num_nodes, num_columns, per_row, edges_per_node=8):
    return Size.made(num_nodes, edges_per_node, num_columns)._replace(num_values=per_row * num_nodes)


@pytest.mark.parametrize("num_columns", [0, 1, 20, 300])
def test_needs__grow_with_the_graph_and_no_faster(num_columns):
    sizes = [Size.made(n, 8, num_columns) for n in (1_000, 30_000, 1_000_000, 30_000_000)]
    needs = [foresee(size, max(1, num_columns)).least_needs() for size in sizes]
    of_graph = [ingest.needed_bytes(size, generates=True, injects=True) for size in sizes]
    for name in EVERY:
        held = [of_size[name].held for of_size in needs]
        assert held == sorted(held)
        assert held[-1] < 31 * held[-2]
    assert of_graph == sorted(of_graph)
    assert of_graph[-1] < 31 * of_graph[-2]


@pytest.mark.parametrize(
    ("size", "num_features", "most_gib"),
    [
        (sparse_size(81_306, 216_839, 40), 256, 4.0),
        (sparse_size(80_000, 200_000, 30), 256, 4.0),
        (sparse_size(20_000, 20_000, 30), 256, 1.0),
        (Size.made(100_000, 8, 300), 64, 0.6),
        (Size.made(300, 8, 100_000), 64, 1.0),
        (Size.made(1_000_000, 8, 0), 1, 1.0),
        (sparse_size(1_773_230, 273, 3, edges_per_node=2), 64, 2.0),
        (Size.made(10_000_000, 8, 20), 20, 6.0),
    ],
    ids=str,
)
def test_needs__of_graphs_that_people_have_stay_within_what_was_measured_twice(size, num_features, most_gib):
    """Of some of these over five hundred GiB were asked for once: features are counted, not columns."""
    needs = foresee(size, num_features).least_needs()
    assert max(need.held for need in needs.values()) < most_gib * GIB
    assert needs.keys() == EVERY


def test_scores__on_disk_save_the_embeddings_and_the_moments_of_edges():
    wide = Size.made(10**6, 1, 20)
    (_, in_memory), (_, on_disk) = foresee(wide, **{"model.width": 1_024}).scores()
    assert in_memory.held - on_disk.held >= (8 * 1_024 - 400) * 10**6
    (_, in_memory), (_, on_disk) = foresee(Size.made(1_000, 10**5, 20)).scores()
    assert in_memory.held - on_disk.held == 8 * 10**8
    held = foresee(Size.made(10**7, 8, 20), **{"model.width": 128, "model.head_width": 256}).scores()[0][1].held
    assert 10.2e9 + 0.64e9 < held < 1.1 * (10.2e9 + 0.64e9)  # two layers of embeddings and 8 bytes an edge


def test_train__workers_batches_widths_and_hubs_count():
    def held(workers=1, indptr=None, **options):
        foresight = dataclasses.replace(foresee(Size.made(10**6, 8, 20), **options), indptr=indptr)
        return dict(foresight.train())[workers].held

    assert held(0) < held()
    assert (
        held() < held(**{"sampling.batch_pairs": 8_192}) < held(**{"sampling.batch_pairs": 8_192, "model.width": 256})
    )
    hubs = np.concatenate([[0], np.cumsum(np.where(np.arange(10**6) % 10**5 == 0, 800_000, 8))])
    assert held(indptr=hubs) > held(indptr=np.arange(0, 16 * 10**6 + 1, 16))


@pytest.fixture(scope="module")
def graph():
    return synthetic.community(600, num_attributes=6, seed=1)


def small(run_dir):
    config = Config(run_dir=str(run_dir))
    config.world.device = "cpu"
    config.hops.num_sources, config.hops.pairs_per_class = 100, 20
    config.model.width = config.model.head_width = 8
    config.posterior.burn_in_steps, config.posterior.num_samples, config.posterior.thin_steps = 4, 2, 1
    return config


def allow(config, num_bytes):
    """Allows so many bytes more than this process holds."""
    gc.collect()
    release_unused()  # what is freed or given back later would be allowed too
    config.world.memory_gib = (anonymous_bytes() + num_bytes) / 2**30


def test_run__is_refused_before_anything_is_written(tmp_path):
    config = Config(graph=SyntheticGraph(num_nodes=10**9), run_dir=str(tmp_path))
    config.world.memory_gib = 2
    with pytest.raises(ValueError, match=r"GiB more memory are needed and .* left of what is allowed by world.memory"):
        pipeline.run(config)
    with pytest.raises(
        ValueError, match=r"^graph: about 24\d.\d\d GiB .*; lower graph.num_nodes, .*, or allow world.mem"
    ):
        pipeline.run(config, until="ingest")
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("options", "until", "said"),
    [
        ({"model.width": 8_192}, "train", "train-purified: about .* lower sampling.batch_pairs, "),
        ({}, "report", "scores: about .* lower model.width, or allow"),
    ],
)
def test_limit__that_a_later_stage_cannot_keep_is_refused_before_the_first(tmp_path, options, until, said):
    config = with_options(small(tmp_path), options)
    config.graph = SyntheticGraph(num_nodes=600, num_attributes=6)
    allow(config, 100 * MIB)
    with pytest.raises(ValueError, match=said) as caught:
        pipeline.run(config, until=until)
    assert not (tmp_path / "graph").exists()
    assert float(re.search(r"world\.memory_gib=(\d+\.\d\d), the least", str(caught.value))[1]) > config.world.memory_gib


SHAPES = {
    "plain": lambda: synthetic.community(2_000, num_attributes=20, seed=1),
    "dense": lambda: synthetic.community(3_000, num_attributes=300, seed=1),
    "no columns": lambda: dataclasses.replace(synthetic.community(2_000, num_attributes=1, seed=1), x=None, columns=()),
    "wide sparse": lambda: with_columns(synthetic.community(2_000, num_attributes=1, seed=1), 5_000),
    "many types": lambda: with_types(synthetic.community(2_000, num_attributes=5, seed=1), 40),
    "payments": lambda: with_rows(synthetic.community(2_000, num_attributes=5, seed=1), 600_000),
    "hubs": lambda: synthetic.rmat(11, edge_factor=16, num_attributes=10, seed=1),
}


def with_columns(graph, num_columns, per_row=20):
    rng = np.random.default_rng(0)
    steps = rng.integers(1, num_columns // per_row, (graph.num_nodes, per_row), dtype=np.int32)
    columns, indptr = np.cumsum(steps, axis=1, dtype=np.int32) - 1, np.arange(graph.num_nodes + 1) * per_row
    x = SparseRows(indptr, columns.ravel(), np.ones(columns.size, np.float32), num_columns)
    return dataclasses.replace(graph, x=x, columns=())


def with_rows(graph, num_rows):
    """The graph, its edges as payments, each many times."""
    rng = np.random.default_rng(0)
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), np.asarray(graph.indices)
    payer, payee = (end[rng.integers(0, graph.num_arcs, num_rows)] for end in ends)
    columns = payer, payee, np.sort(rng.uniform(0, 1e7, num_rows)), rng.lognormal(4, 1, num_rows)
    payer, payee, time, amount = columns
    ends = payer.astype(np.int32), payee.astype(np.int32)
    rows = GraphRows(*ends, time, amount, np.zeros(num_rows, np.uint8), np.arange(num_rows))
    about = {"time": "when", "amount": "amount", "currency": None, "steps": False, "currencies": []}
    return dataclasses.replace(graph, rows=rows, info={"rows": about})


def with_types(graph, num_types):
    codes, names = np.arange(graph.num_nodes) % num_types, tuple(f"t{k}" for k in range(num_types))
    return dataclasses.replace(graph, node_types=NodeTypes(codes.astype(np.uint8), names))


def least_and_peak(door, path, run_dir):
    """The least memory that refusals name, and the most that a run in it then held, in GiB; in a process of its own."""
    from hcm_scale.cli.main import main
    from hcm_scale.detector import HCM

    def refusal(limit):
        options = {"world.memory_gib": limit, "world.device": "cpu", "graph.featureless": "degree"}
        options |= {"posterior.burn_in_steps": 4, "posterior.num_samples": 2, "hops.num_sources": 200}
        if door == "python":
            try:
                HCM(options, run_dir=run_dir).fit(Graph.open(path))
            except ValueError as error:
                return str(error)
            return ""
        words = [f"{name}={value}" for name, value in options.items()]
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            main(["run", "graph=folder", f"graph.path={path}", f"run_dir={run_dir}", *words])
        return said.getvalue()

    def least_limit():
        limit = 0.1
        while (named := re.search(r"memory_gib=([0-9.]+), the least", refusal(limit))) and float(named[1]) > limit:
            limit = float(named[1])  # the size of a graph in files is known when they are read
        return limit

    limit, peak = most_held(least_limit)
    return limit, peak / GIB


DOORS = ("python", "command")  # by turns in the gate
USUAL = ("plain", "dense")  # graphs, of which all other tests have some


@pytest.mark.parametrize(
    ("shape", "door"),
    [
        pytest.param(shape, door, marks=pytest.mark.slow if (row + column) % 2 or shape in USUAL else pytest.mark.gate)
        for row, shape in enumerate(SHAPES)
        for column, door in enumerate(DOORS)
    ],
)
def test_smallest_limit__that_a_refusal_names_is_then_kept_and_less_than_twice_what_was_needed(tmp_path, shape, door):
    SHAPES[shape]().save(tmp_path / "given")
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}; import test_memory as t; "
    code += f"print(*t.least_and_peak({door!r}, {str(tmp_path / 'given')!r}, {str(tmp_path / 'run')!r}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    least, peak = map(float, said.split()[-2:])
    assert (tmp_path / "run" / "scores" / "scores.parquet").is_file()
    assert peak <= least < 2 * peak


def test_run__in_little_memory_trains_one_after_the_other_and_without_workers(tmp_path, graph, caplog, monkeypatch):
    config = small(tmp_path)
    monkeypatch.setattr(Workspace, "check_all_fit", lambda *_: None)
    allow(config, 110 * MIB)
    caplog.set_level(logging.INFO)
    pipeline.run(config, until="train", graph=graph)
    assert "train-purified, train-original: one after the other, because together about" in caplog.text
    assert (tmp_path / "train-original" / "samples").is_dir()


def test_finished_run__is_found_again_in_memory_too_small_to_make_it(tmp_path, graph):
    config = small(tmp_path)
    said = pipeline.run(config, until="score", graph=graph)
    config.world.memory_gib = 0.001
    assert pipeline.run(config, until="score", graph=graph).splitlines()[-1] == said.splitlines()[-1]
    assert all(stage["skipped"] for stage in read_stages(tmp_path))


@pytest.mark.parametrize(("spare", "state"), [(16 * MIB, "disk"), (128 * MIB, "memory")])
def test_score_state__is_chosen_by_what_is_free_and_said(tmp_path, graph, caplog, monkeypatch, spare, state):
    config = small(tmp_path)
    config.score.views, config.model.num_layers, config.model.width = ["purified"], 1, 8_192
    pipeline.run(config, until="train", graph=graph)
    foresight = memory.Foresight(config, label_options(config), recipe_of(config), Size.of(graph), graph.x.shape[1])
    (_, in_memory), (_, on_disk) = foresight.scores()
    assert in_memory.held - on_disk.held == 8 * (graph.num_edges + graph.num_nodes * config.model.width)
    monkeypatch.setattr(Workspace, "check_all_fit", lambda *_: None)  # of which stages is asked elsewhere
    allow(config, on_disk.held + spare)
    caplog.set_level(logging.INFO)
    pipeline.run(config, until="score", graph=graph)
    assert ("scores: disk to save memory" in caplog.text) == (state == "disk")
    assert "memory for scores" not in caplog.text


def test_ways_to_label__end_in_the_same_bytes(tmp_path, graph):
    options = label_options(small(tmp_path))
    ways = ways_to_search(graph, options)
    assert len(ways) > 1
    assert [held for _, held in ways] == sorted([held for _, held in ways], reverse=True)
    made = []
    for number, searches in enumerate((ways[0][0], ways[-1][0])):
        make_labels(graph, tmp_path / str(number), state_bytes=searches.state_bytes, **options)
        made.append({path.name: path.read_bytes() for path in (tmp_path / str(number)).iterdir()})
    assert made[0] == made[1]


def test_graph_in_memory__of_many_sparse_columns_is_judged_by_the_features_that_they_become(tmp_path, graph):
    wide = SparseRows(np.arange(601), np.arange(600, dtype=np.int32), np.ones(600, np.float32), 200_000)
    given = dataclasses.replace(graph, x=wide, columns=())
    context = RunContext(small(tmp_path), Workspace(tmp_path), "cpu", given)
    assert max(need.held for need in context.least_needs(list(stages(context))).values()) < GIB


@pytest.mark.slow
def test_tables__of_many_columns_are_read_a_few_at_a_time(tmp_path):
    """40 MB of numbers took 300 more, of pages, buffers and hashes of every column at once."""
    num_nodes, rng = 20_000, np.random.default_rng(0)
    columns = {f"c{k}": rng.standard_normal(num_nodes, np.float32) for k in range(500)}
    pq.write_table(pa.table({"id": np.arange(num_nodes)} | columns), tmp_path / "nodes.parquet")
    edges = {"source": np.arange(num_nodes), "target": np.roll(np.arange(num_nodes), 1)}
    pq.write_table(pa.table(edges), tmp_path / "edges.parquet")
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}; import test_memory as t; "
    code += f"print(t.growth_of_reading({str(tmp_path)!r}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(said.split()[-1]) < 200 * MIB


def growth_of_reading(folder):
    """Bytes that reading the tables of a folder takes at most beyond what the process holds."""
    before, tables = anonymous_bytes(), [Path(folder) / f"{name}.parquet" for name in ("edges", "nodes")]
    return most_held(lambda: read_tables(Path(folder) / "out", *tables))[1] - before


def most_held(work):
    """What a function returns, and the most anonymous memory that was seen while it ran."""
    held, done = [0], threading.Event()
    watch = threading.Thread(
        target=lambda: [held.append(anonymous_bytes()) for _ in iter(lambda: done.wait(0.01), True)]
    )
    watch.start()
    try:
        made = work()
    finally:
        done.set()
        watch.join()
    return made, max(held)
