"""The result of a run for other programs: `hcm-scale export RUN FILE [--top K] [--flagged] [--since OLD]`.

    FILE.csv, FILE.parquet     the ranked table, or the part of it that is chosen; `reason` says in words why a node is
                               where it is: of all that were chosen (at most 10,000), else of the flagged and the
                               first 100
    FILE.graphml, FILE.gexf    the first K nodes (20 where not said) with their neighbours and the edges among them, for
                               Gephi, Cytoscape or networkx: rank, score, evidence and flag of every node, and of every
                               edge the mean predicted hop and the weight, where edges have one

A node with many neighbours brings the 50 that seem farthest. Rows of a table are chosen by

    --top K                    the first K nodes
    --flagged                  the flagged nodes; with --top K the first K of them
    --since OLD                the flagged nodes that OLD, an earlier run, has not flagged
    --top K --since OLD        those of the first K nodes that are not among the first K of OLD, flagged or not
    --flagged --top K --since OLD   the first K of the flagged nodes that OLD has not flagged
"""

from pathlib import Path

from hcm_scale.base import files
from hcm_scale.commands.arguments import parser

TABLES, GRAPHS = (".csv", ".parquet"), (".graphml", ".gexf")


def main(arguments: list[str]) -> str:
    """Writes the file and says what is in it."""
    words = parser("export", __doc__)
    words.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    words.add_argument("file", type=Path, metavar="FILE", help="what to write; its ending chooses the format")
    words.add_argument("--top", type=int, metavar="K", help="only the first K nodes")
    words.add_argument("--flagged", action="store_true", help="only nodes that stand out at score.fdr")
    since = "only flagged nodes that the run OLD has not flagged; with --top K those of the first K not among its own"
    words.add_argument("--since", type=Path, metavar="OLD", help=since)
    given = words.parse_args(arguments)
    if given.file.suffix not in TABLES + GRAPHS:
        raise ValueError(f"{given.file} must end in one of {', '.join(TABLES + GRAPHS)}")
    if given.top is not None and given.top < 1:
        raise ValueError(f"--top {given.top} must be at least 1")
    if not given.file.parent.is_dir():
        raise ValueError(f"{given.file}: there is no folder {given.file.parent}")
    if (given.flagged or given.since is not None) and given.file.suffix not in TABLES:
        raise ValueError(f"--flagged and --since are for tables; {given.file} must end in one of {', '.join(TABLES)}")
    _refuse_stage(given.file)
    from hcm_scale.commands.exported import export_graph, export_table

    if given.file.suffix in TABLES:
        flagged = given.flagged or (given.since is not None and given.top is None)
        return export_table(given.run, given.file, given.top, flagged, given.since)
    return export_graph(given.run, given.file, given.top)


def _refuse_stage(file: Path) -> None:
    """Refuses a file in the folder of a stage, of this run or of another: runs check every file there."""
    from hcm_scale import records

    for folder in files.resolved(file).parents:
        is_set_aside = folder.parent.name == records.RECORDS and folder.suffix == ".before"
        if is_set_aside or records.beside(folder).is_file():
            raise ValueError(f"{file} is in {folder}, a folder of a run, which checks its files; name another place")
