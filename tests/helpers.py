"""Small graphs, and runs and detectors that take about a second, for all tests."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hcm_scale import HCM
from hcm_scale.base.kernel_cache import is_compiled, kernel_folder
from hcm_scale.config import Config, with_options
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.serve.server import Server
from hcm_scale.synthetic.families import community
from hcm_scale.synthetic.inject import inject

ROOT = Path(__file__).resolve().parents[1]
WARMED = "warmed"
FAST: dict[str, Any] = {
    "hops.num_sources": 100,
    "hops.pairs_per_class": 30,
    "sampling.batch_pairs": 256,
    "model.width": 8,
    "model.head_width": 8,
    "posterior.burn_in_steps": 5,
    "posterior.num_samples": 2,
    "posterior.thin_steps": 1,
    "world.device": "cpu",
}


def as_words(options: dict[str, Any]) -> list[str]:
    """Options as arguments of the command line."""
    return [f"{key}={value}" for key, value in options.items()]


def small_graph(num_nodes: int = 200, num_attributes: int = 3, seed: int = 0) -> Graph:
    """Communities with attributes that follow them."""
    return community(num_nodes, num_attributes=num_attributes, seed=seed)


def planted_graph(num_nodes: int = 400, num_attributes: int = 5, clique_size: int = 8, seed: int = 1) -> Graph:
    """`small_graph` with two cliques and as many nodes of odd attributes, labelled in y."""
    graph = small_graph(num_nodes, num_attributes, seed)
    return inject(graph, num_cliques=2, clique_size=clique_size, seed=seed, num_attribute_anomalies=None)


def small_config(run_dir: Path, **options: Any) -> Config:
    return with_options(Config(run_dir=str(run_dir)), FAST | options)


def small_run(run_dir: Path, graph: Graph | None = None, until: str = "report", **options: Any) -> str:
    """Runs the stages over a graph, `small_graph` if none is given; the text that the command line prints."""
    return pipeline.run(small_config(run_dir, **options), until=until, graph=graph or small_graph())


def small_detector(data: Any = None, **parameters: Any) -> HCM:
    """Detector with `FAST` options, fitted to the data if there are any."""
    detector = HCM(FAST, **parameters)
    return detector if data is None else detector.fit(data)


def compiled_kernels() -> Path:
    """The folder of this checkout's compiled kernels; if they are missing, those that `warm` compiles are made first.

    The names of their files are then in `WARMED`, there.
    """
    folder = kernel_folder()
    assert folder is not None
    if not is_compiled():
        subprocess.run([sys.executable, "-m", "hcm_scale", "warm"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (folder / WARMED).write_text("\n".join(path.name for path in folder.glob("*.nb?")))
    return folder


def lend_kernels(python: Path | str, cwd: Path, environment: Mapping[str, str]) -> Path:
    """Gives our compiled kernels to the package that `python` imports there, if its sources are ours; its folder."""
    code = "from hcm_scale.base.kernel_cache import kernel_folder; print(kernel_folder())"
    asked = subprocess.run([python, "-c", code], cwd=cwd, env=environment, check=True, capture_output=True, text=True)
    ours, theirs = compiled_kernels(), Path(asked.stdout.strip())
    if theirs.name.rpartition("-")[2] == ours.name.rpartition("-")[2]:
        shutil.copytree(ours, theirs, dirs_exist_ok=True)
    return theirs


def report_case(case: int, what: str, judge: Callable[[], str]) -> None:
    """Prints a line before and after a case, for the fixture `go_through`; judge() is an outcome, a tab and why."""
    print("begins", case, what, sep="\t", flush=True)
    outcome, _, why = judge().partition("\t")
    print(outcome, case, f"{what} {' '.join(why.split())}", sep="\t", flush=True)


@contextmanager
def serving(run_dir: Path, by: str | None = None) -> Iterator[Server]:
    """A server over a run, at work in a thread; the end waits for its answers."""
    with Server(run_dir, by=by) as made:
        made.daemon_threads = False
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
