"""`python -m bench THEME [--full | --smoke] [--repeats N]`, `all` for every theme. Exits 1 where a claim fails."""

import argparse
import sys
import traceback

from bench.harness import run_theme

THEMES = {
    "bfs": "hop counts from many sources: scipy, igraph, networkx, graphblas",
    "labels": "the label stage: BFS, sampling, Parquet, fsync, against the BFS alone",
    "purify": "edge similarities a second",
    "pairs": "labelled pairs a second from shards",
    "sampler": "neighbour sampling: PyG NeighborLoader",
    "train": "pairs trained a second: PyG LinkNeighborLoader and GCNConv",
    "products": "sparse x dense: torch CSR, torch-sparse, scipy",
    "score": "the edge pass, against its matrix product alone",
    "bounds": "each hot kernel and its distance from the machine's bound",
    "memory": "peak memory of the label and train stages",
    "end_to_end": "the whole run: PyGOD's detectors, time and memory",
    "growth": "time and peak memory of each stage from 10^4 nodes on, fitted exponents",
}
NEEDS_GPU = {"gpu": "the edge pass on a CUDA device"}
REPEATS = {"smoke": 1, "quick": 3, "full": 5}


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
    size.add_argument("--smoke", action="store_true", help="tiny data, no claim judged, nothing written")
    parser.add_argument("--repeats", type=int, default=None, help="timed runs of each contender")
    options = parser.parse_args(arguments)
    chosen = "full" if options.full else "smoke" if options.smoke else "quick"
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


if __name__ == "__main__":
    sys.exit(main())
