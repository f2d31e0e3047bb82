"""`hcm-scale warm`: small runs in a temporary folder, after which a default run compiles no kernel.

    default   the embedded data set, in a chain of a few steps
    payments  a table of edges with texts as ids, whose columns become attributes; it is scored by a run of it with
              trained=, and its rows by score-edges
    sides     such a table whose ends are of two kinds, as accounts and shops
    numbers   tables of edges and of nodes with numbers as ids, read
    grid      labels of a graph in which what a search reaches is a small part

On a machine with a GPU they run on its cores and then there.
"""

import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from hcm_scale.base import console
from hcm_scale.base.kernel_cache import is_compiled, kernel_folder, num_compiled
from hcm_scale.config import Config, DefaultGraph, PosteriorConfig, SyntheticGraph, TablesGraph, WorldConfig
from hcm_scale.edges.new import open_new_edges
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, as_trained
from hcm_scale.synthetic.payments import payments

_NUM_NODES = 400


def warm() -> str:
    """Compiles what is missing; message saying how many kernels were compiled and where they are kept."""
    began, folder = time.perf_counter(), kernel_folder()
    if folder is None:
        raise ValueError("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one that can")
    before = num_compiled(folder)
    if not is_compiled():
        print(f"compiling kernels into {folder}: about a minute", flush=True)
    console.disable_progress()
    logging.disable(logging.WARNING)  # about these graphs
    try:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            with tempfile.TemporaryDirectory(prefix="hcm-scale-warm-") as scratch:
                for config, until in small_runs(Path(scratch)):
                    config.world = WorldConfig(device=device)
                    pipeline.run(config, until)
                    if config.trained is not None:
                        open_new_edges(FinishedRun(config.trained), payments(_NUM_NODES)[0]).table()
    finally:
        logging.disable(logging.NOTSET)
    num_ready = num_compiled(folder)
    if num_ready == before:
        return f"all {num_ready} kernels are ready, in {folder}"
    seconds = time.perf_counter() - began
    return f"{num_ready - before} kernels compiled in {seconds:.0f} s; all are ready, in {folder}"


def small_runs(scratch: Path) -> Iterator[tuple[Config, str]]:
    """(configuration, last stage) of every run."""
    few = PosteriorConfig(burn_in_steps=1, num_samples=1, thin_steps=1)
    yield Config(graph=DefaultGraph(), posterior=few, run_dir=str(scratch / "default")), "report"
    rows = payments(_NUM_NODES)[0]
    pq.write_table(rows, scratch / "payments.parquet")
    graph = TablesGraph(path=str(scratch / "payments.parquet"), source_column="payer", target_column="payee")
    yield Config(graph=graph, run_dir=str(scratch / "payments")), "report"
    trained = str(scratch / "payments")
    yield as_trained(Config(graph=graph, run_dir=str(scratch / "later"), trained=trained)), "report"
    shops = pc.binary_join_element_wise("shop", rows["payee"], "-")
    pq.write_table(rows.set_column(rows.column_names.index("payee"), "payee", shops), scratch / "sides.parquet")
    graph = replace(graph, path=str(scratch / "sides.parquet"))
    yield Config(graph=graph, posterior=few, run_dir=str(scratch / "sides")), "report"
    ends = [pc.cast(pc.utf8_slice_codeunits(rows[name], 4), pa.int64()) for name in ("payer", "payee")]  # of acc-00017
    pq.write_table(pa.table(ends, names=["source", "target"]), scratch / "edges.parquet")
    nodes = {"id": np.arange(_NUM_NODES), "size": np.arange(_NUM_NODES) % 7}
    pq.write_table(pa.table(nodes), scratch / "nodes.parquet")
    graph = TablesGraph(path=str(scratch / "edges.parquet"), nodes=str(scratch / "nodes.parquet"))
    yield Config(graph=graph, run_dir=str(scratch / "numbers")), "ingest"
    grid = SyntheticGraph(family="grid", num_nodes=5_000)
    yield Config(graph=grid, run_dir=str(scratch / "grid")), "label"
