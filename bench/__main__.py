"""`python -m bench THEME [--full | --smoke] [--repeats N]`; `all` runs every theme. Exits 1 where a floor does not hold."""

import argparse
import sys

from bench.harness import run_theme

THEMES = ("bfs", "labels", "pairs", "sampler", "train", "score", "memory", "end_to_end")
EXTRA = ("gpu",)


def main(arguments: list[str] | None = None) -> int:
    """Runs the themes; 0 when every stated floor held."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("theme", choices=[*THEMES, *EXTRA, "all"])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="full size, many minutes")
    size.add_argument("--smoke", action="store_true", help="tiny data, floors not judged, nothing written")
    parser.add_argument("--repeats", type=int, default=None)
    options = parser.parse_args(arguments)
    chosen = "full" if options.full else "smoke" if options.smoke else "quick"
    repeats = options.repeats or {"smoke": 1, "quick": 3, "full": 5}[chosen]
    themes = THEMES if options.theme == "all" else (options.theme,)
    held = [run_theme(theme, chosen, repeats) for theme in themes]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
