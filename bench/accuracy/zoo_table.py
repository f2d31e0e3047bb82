"""`python -m bench.accuracy.zoo_table FILES...`: what became of the zoo, by kind and by graph, as Markdown.

Rows are methods; a number is the mean ROC-AUC over the graphs, strengths and seeds that were run. `below .5` counts the
problems that a method ranks worse than chance.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from bench.accuracy.problem import parse_name
from bench.accuracy.zoo import KINDS


def markdown(lines: list[dict[str, Any]]) -> str:
    """The table of all lines that are problems of the zoo and came to an end, best method first."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        base, kind, _ = parse_name(line["data"])
        if kind is not None and line["status"] == "ok":
            for column in ("all", kind, base):
                found[line["row"]][column].append(line["auc"])
            found[line["row"]]["below .5"].append(line["auc"] < 0.5)
    graphs = sorted({parse_name(line["data"])[0] for line in lines})
    columns = ["all", *KINDS, *graphs]
    rows = [f"| | {' | '.join(columns)} | below .5 |", "|---" * (len(columns) + 2) + "|"]
    for row, numbers in sorted(found.items(), key=lambda item: -mean(item[1]["all"])):
        cells = [f"{mean(numbers[column]):.3f}" if numbers[column] else "-" for column in columns]
        rows.append(f"| {row} | {' | '.join(cells)} | {sum(numbers['below .5'])} of {len(numbers['all'])} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(markdown([json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]))
