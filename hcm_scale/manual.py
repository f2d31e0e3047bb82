"""What `hcm-scale` says about itself: a first page, the full one behind --help, and one for every command.

Commands of `STAGES` compose a configuration (`cli.py`); those of `COMMANDS` are files of `commands/`, where argparse
writes their pages.
"""

from hcm_scale import __version__
from hcm_scale.options import groups, option_names

STAGES = {
    "run": "everything, from the input to the report",
    "ingest": "read or make the graph, check it, inject anomalies if asked to",
    "purify": "transform the attributes and drop the least similar edges",
    "label": "hop labels of node pairs, written to Parquet shards",
    "train": "sample the posterior of the hop-count model",
    "score": "score every edge and node under the samples",
    "report": "the ranked list as Parquet, JSON and one HTML page",
    "plan": "what a run with the same words would do, keep and take, without doing it",
    "explain": "why nodes are where they are: hcm-scale explain RUN ID ...",
}
READING = ("plan", "explain")  # of STAGES: they make nothing
COMMANDS = {
    "serve": "a local page over every node of a finished run: hcm-scale serve RUN [--port N]",
    "export": "the result for other programs: hcm-scale export RUN FILE.csv|.parquet|.graphml|.gexf [--top K]",
    "inspect": "what a folder of ours holds: hcm-scale inspect RUN [--verify]",
    "clean": "what in a run or a sweep can go: hcm-scale clean FOLDER [--yes]",
    "collect": "the runs of a sweep as a table and figures: hcm-scale collect multirun/NAME",
    "options": "every option with its default and what is legal: hcm-scale options [BEGINNING]",
    "doctor": "what this installation and this machine have, and what is missing",
    "warm": "compile what runs need, which the first run would otherwise do: once after an installation",
    "bench": "throughput against the peers: hcm-scale bench THEME (from a checkout)",
}
TITLE = f"hcm-scale {__version__}: hop-count based anomaly detection on attributed graphs"
FIRST = f"""{TITLE}

It ranks the nodes of a graph by how little they fit to where they are, and says why. Begin with

  hcm-scale run                           the embedded data set: 20,000 nodes with planted anomalies
  hcm-scale run edges.csv nodes.csv       your own tables; runs/edges/report/report.html is the result
  hcm-scale explain runs/edges ID         why one node of that run is where it is

hcm-scale doctor looks at this machine. hcm-scale --help lists every command and option,
hcm-scale COMMAND --help tells of one command."""
EXAMPLES = """examples:
  hcm-scale run edges.parquet nodes.parquet graph.id_column=account
  hcm-scale run BlogCatalog.mat inject=paper attributes=log1p_pca
  hcm-scale run -m seed=0,1,2 purify.ratio=0,0.2,0.4         a sweep; stages with equal inputs are made once
  hcm-scale explain runs/default 42                          why node 42 of that run is strange"""
STATUS = "exit status: 0 done, 2 something you said or brought is wrong, 1 anything else, 128 + n stopped by signal n"
ALL_KEYS = """  hcm-scale options            every key, its default, what is legal and what it is for
  hcm-scale run --cfg job      every key with its value
  eval "$(hcm-scale -sc install=bash)"   in ~/.bashrc has TAB complete them; so do zsh and fish
  conf/GROUP/NAME.yaml         in the working folder is an option file of your own: GROUP=NAME"""


def full_page() -> str:
    """The page behind --help: commands, option groups and examples."""
    lines = [TITLE, "", "usage: hcm-scale COMMAND [FILE ...] [GROUP=OPTION ...] [KEY=VALUE ...] [-m]", "", "commands:"]
    lines += [f"  {name:<11}{text}" for name, text in {**STAGES, **COMMANDS}.items()]
    return "\n".join([*lines, "", *_options(), "", EXAMPLES, "", STATUS])


def page_of(command: str) -> str:
    """The page of a command that composes a configuration."""
    flags = "[FILE ...] [GROUP=OPTION ...] [KEY=VALUE ...]"
    if command == "explain":
        usage, example = (
            f"RUN ID [ID ...]\n       hcm-scale explain node=ID {flags}",
            "hcm-scale explain runs/edges 42 43",
        )
        more = "RUN is the folder of a finished run. Without it the words are those of the run: they say where it is."
    else:
        usage, example = f"{flags} [-m]", f"hcm-scale {command} edges.csv nodes.csv purify.ratio=0.1"
        more = "Stages that an earlier run with the same words has finished are not made again; -m is a sweep."
    lines = [f"usage: hcm-scale {command} {usage}", "", STAGES[command], ""]
    lines += [
        "FILE: a table of edges, then one of nodes (.csv, .tsv, .parquet; folders or URLs too), or a .mat, .npz, .npy",
        "or graph folder. Columns are guessed, and the log says how; without files the embedded data set is read.",
        more,
        "",
        "examples:",
        f"  {example}",
        f"  hcm-scale {command} graph=community graph.num_nodes=5000{' node=42' if command == 'explain' else ''}",
        "",
    ]
    return "\n".join([*lines, *_options(), "", STATUS])


def _options() -> list[str]:
    lines = [f"  {group:<11}{' | '.join(option_names(group))}" for group in groups()]
    return ["options, one YAML file each (GROUP=OPTION; ~GROUP: none of them):", *lines, "", ALL_KEYS]
