"""`python -m bench THEME [--full | --smoke] [--repeats N]`, `all` for every theme. Exits 1 where a claim fails."""

import argparse
import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from bench import page
from bench.harness import RESULTS, Case, Table, as_table

THEMES = {
    "bfs": "hop counts from many sources: scipy, igraph, networkx, graphblas",
    "labels": "the label stage: BFS, sampling, Parquet, fsync, against the BFS alone",
    "purify": "edge similarities a second",
    "pairs": "labelled pairs a second from shards",
    "sampler": "neighbour sampling: PyG NeighborLoader",
    "train": "pairs trained a second: PyG LinkNeighborLoader and GCNConv",
    "products": "sparse x dense: torch CSR, torch-sparse, scipy",
    "score": "the edge pass, against its matrix product alone",
    "foreseen": "what each stage was foreseen to take of memory, against what it took",
    "limits": "whether runs keep world.memory_gib, at many limits",
    "end_to_end": "the whole run: PyGOD's detectors, time and memory",
    "face": "processor seconds of help, options, a wrong option, explain and the first page of serve",
    "quality": "ROC-AUC and stability of the ranking against seconds, chains of several lengths",
    "convergence": "split R-hat and effective sample size of predicted hops, by chains of several lengths",
    "convergence_suite": "the same of default runs on the graphs of the accuracy tables, by two seeds",
    "tomorrow": "nodes that were not there in training: ROC-AUC and seconds by a trained run",
    "weights": "weights of edges that tell something and that tell nothing: ROC-AUC by several rules",
    "teach": "a million nodes ranked again by 200 verdicts: scikit-learn's gradient boosting; ten million verdicts",
    "cases": "planted groups and schemes among the first cases: components, Leiden and peeling of the flagged",
    "score_edges": "a million new edges by a finished run: all of the graph scored anew, cosine of embeddings",
    "payments": "rows a second of each kind of evidence about payments; whom they find: Isolation Forest, LOF, MIDAS",
}
NEEDS_GPU = {
    "gpu": "the edge pass on a CUDA device",
    "precision": "bfloat16 products over edges against float32: ROC-AUC and agreement of rankings",
}
REPEATS = {"smoke": 1, "quick": 3, "full": 5, "huge": 1}


def main(arguments: list[str] | None = None) -> int:
    """Runs the themes; 0 when every stated claim held."""
    themes = "\n".join(f"  {name:<12}{text}" for name, text in (THEMES | NEEDS_GPU).items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"themes:\n{themes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("theme", choices=[*THEMES, *NEEDS_GPU, "all"], metavar="THEME")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="full size, up to hours")
    size.add_argument("--huge", action="store_true", help="of gpu alone: a hundred million nodes, ten minutes, 60 GB")
    size.add_argument("--smoke", action="store_true", help="tiny data, no claim judged, nothing written")
    parser.add_argument("--repeats", type=int, default=None, help="timed runs of each contender")
    options = parser.parse_args(arguments)
    chosen = "full" if options.full else "smoke" if options.smoke else "huge" if options.huge else "quick"
    if options.huge and options.theme != "gpu":
        parser.error("--huge is a size of the theme gpu")
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats} must be at least 1")
    themes_to_run = THEMES if options.theme == "all" else (options.theme,)
    held = [holds(theme, chosen, options.repeats or REPEATS[chosen]) for theme in themes_to_run]
    return 0 if all(held) else 1


def holds(theme: str, size: str, repeats: int) -> bool:
    """Runs one theme; a theme that breaks does not keep the others from running."""
    try:
        return run_theme(theme, size, repeats)
    except Exception:
        traceback.print_exc()
        return False


def run_theme(theme: str, size: str, repeats: int, out: Path = RESULTS) -> bool:
    """Measures a theme, prints and writes its page, and says whether every claim held.

    A smoke run only shows that everything runs: it judges no claim and writes nothing.
    """
    stream: Iterator[Case | Table] = importlib.import_module(f"bench.{theme}").cases(size)
    tables = []
    for item in stream:
        print(f"{theme}: {item.title}", file=sys.stderr, flush=True)
        tables.append(as_table(item, repeats) if isinstance(item, Case) else item)
    if size == "smoke":
        print(page.markdown(theme, size, tables))
        return True
    print(page.write(theme, size, tables, out))
    return all(verdict.holds for table in tables for verdict in table.verdicts)


if __name__ == "__main__":
    sys.exit(main())
