"""What `hcm-scale` says about itself: the first page, the full one of --help, a page for every command, every option.

Commands of `STAGES` compose a configuration (`cli/main.py`); those of `COMMANDS` are functions of their words.
"""

import inspect

from hcm_scale import __version__, plugins
from hcm_scale.base.console import suggest
from hcm_scale.cli import commands
from hcm_scale.config import Option, conf_dir, describe, option_names, options

STAGES = {
    "demo": "a run of the embedded data set in runs/demo: needs no file, no option and no network",
    "run": "everything, from the input to the report; until=STAGE ends with one of the stages before",
    "plan": "what a run with the same words would do, keep and take, without doing it",
    "explain": "why nodes, edges or cases are where they are: hcm-scale explain RUN ID ... edge=A,B case=N",
}
UNTIL = {  # stages of a run, in their order
    "ingest": "read or make the graph, check it, inject anomalies if asked to",
    "purify": "transform the attributes and drop the least similar edges",
    "label": "hop labels of node pairs, written to Parquet shards",
    "train": "sample the posterior of the hop-count model",
    "score": "score every edge and node under the samples",
    "report": "the ranked list as Parquet, JSON and one HTML page",
}
OWN_TABLES = "hcm-scale run edges.csv nodes.csv"
READING = ("plan", "explain")  # of STAGES: they make nothing
TITLE = f"hcm-scale {__version__}: hop-count based anomaly detection on attributed graphs"
FIRST = f"""{TITLE}

It ranks the nodes of a graph by how little they fit to where they are, and says why. Begin with

  hcm-scale demo                          the embedded data set: 20,000 nodes with planted anomalies
  hcm-scale run edges.csv nodes.csv       your own tables; runs/edges/report/report.html is the result
  hcm-scale explain runs/edges ID         why one node of that run is where it is
  hcm-scale review runs/edges             nodes to label, then run hcm-scale teach runs/edges

hcm-scale doctor looks at this machine. hcm-scale --help lists every command and option,
hcm-scale COMMAND --help tells of one command."""
EXAMPLES = """examples:
  hcm-scale run edges.parquet nodes.parquet graph.id_column=account
  hcm-scale run BlogCatalog.mat inject=paper attributes=log1p_pca
  hcm-scale run -m seed=0,1,2 purify.ratio=0,0.2,0.4         a sweep; stages with equal inputs are made once
  hcm-scale explain runs/default 42                          why node 42 of that run is strange"""
STATUS = "exit status: 0 done, 2 wrong input, 3 done and fail_on holds, 1 anything else, 128 + n stopped by signal n"
ALL_KEYS = """  hcm-scale options            every key, its default, what is legal and what it is for
  hcm-scale run --cfg job      every key with its value
  eval "$(hcm-scale -sc install=bash)"   in ~/.bashrc has TAB complete them; so do zsh and fish
  conf/GROUP/NAME.yaml         in the working folder is an option file of your own: GROUP=NAME"""


def full_page() -> str:
    """The page of --help: commands, option groups and examples."""
    lines = [TITLE, "", "usage: hcm-scale COMMAND [FILE ...] [GROUP=OPTION ...] [KEY=VALUE ...] [-m]", "", "commands:"]
    pages = {name: (inspect.getdoc(command) or "").splitlines()[0] for name, command in COMMANDS.items()}
    pages = {name: f"{page[0].lower()}{page[1:].rstrip('.')}".replace("`", "") for name, page in pages.items()}
    lines += [f"  {name:<13}{text}" for name, text in (STAGES | pages).items()]
    return "\n".join([*lines, "", *_options(), "", EXAMPLES, "", STATUS])


def page_of(command: str) -> str:
    """The page of a command that composes a configuration."""
    flags = "[FILE ...] [GROUP=OPTION ...] [KEY=VALUE ...]"
    if command == "demo":
        return f"usage: hcm-scale demo [KEY=VALUE ...]\n\n{STAGES[command]}\n\nTables of your own: {OWN_TABLES}"
    if command == "explain":
        usage = f"RUN [ID ...] [edge=A,B ...]\n       hcm-scale explain node=ID {flags}"
        example = "hcm-scale explain runs/edges 42 43"
        more = "RUN is the folder of a finished run. Without it the words are those of the run: they say where it is."
    else:
        usage, example = f"{flags} [-m]", f"hcm-scale {command} edges.csv nodes.csv purify.ratio=0.1"
        more = "Stages that an earlier run with the same words has finished are not made again; -m is a sweep."
    if command == "run":
        usage = f"{usage} [until=STAGE]"
        more += "\n\nstages, in their order:\n" + "\n".join(f"  {name:<9}{text}" for name, text in UNTIL.items())
    lines = [f"usage: hcm-scale {command} {usage}", "", STAGES[command], ""]
    lines += [
        "FILE: a table of edges, then one of nodes (.csv, .tsv, .xlsx, .parquet; folders, URLs), or a .mat, .npz, .npy",
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
    groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
    lines = [f"  {group:<11}{' | '.join(option_names(group))}" for group in groups]
    lines += ["", "plug-ins (docs/plugins.md):"]
    lines += [f"  {key:<19}{' | '.join(plugins.names(group)) or 'none'}" for group, key in plugins.OPTIONS.items()]
    return ["options, one YAML file each (GROUP=OPTION; ~GROUP: none of them):", *lines, "", ALL_KEYS]


_SECTIONS = {
    "graph": "Where the graph comes from",
    "inject": "Anomalies planted for an experiment",
    "attributes": "Attributes to features",
    "purify": "Which edges are dropped before labelling",
    "hops": "Hop labels",
    "sampling": "Mini-batches",
    "model": "The network",
    "posterior": "Training: the chain of weights",
    "score": "Scores and report",
    "world": "Where a run computes",
    "": "The run",
}


def list_options(arguments: list[str]) -> str:
    """Every option with its default, what is legal and what it is for: `hcm-scale options [BEGINNING]`.

    `hcm-scale options purify` lists those that begin so. Options of a graph's source are listed with every source that
    has them; their defaults are those of `graph=tables` where it has them.
    """
    parser = commands.Parser("options", list_options.__doc__)
    parser.add_argument("beginning", nargs="?", default="", metavar="BEGINNING", help="of the keys to list")
    parser.add_argument("--markdown", action="store_true", help="as a page")
    given = parser.parse_args(arguments)
    found = [option for option in options().values() if option.key.startswith(given.beginning)]
    if not found:
        raise ValueError(f"no option begins with {given.beginning!r}{suggest(given.beginning, WORDS)}")
    by_section = {name: [o for o in found if o.key.rpartition(".")[0] == name] for name in _SECTIONS}
    if not given.markdown:
        listed = [option for section in by_section.values() for option in section]
        return "\n".join(f"{o.key}={_default(o)}\n    {WORDS[o.key]} ({_legal(o)})" for o in listed)
    how = "Made by `hcm-scale options --markdown`. `KEY=VALUE` on the command line, `options={KEY: VALUE}` in Python."
    lines = ["# Options", "", how, ""]
    for name, section in by_section.items():
        if section:
            lines += [f"## {_SECTIONS[name]}", "", "| option | default | legal | |", "|---|---|---|---|"]
            row = "| `{}` | `{}` | {} | {} |"
            lines += [
                row.format(o.key, _default(o) or " ", _legal(o).replace("|", "or"), WORDS[o.key]) for o in section
            ]
            lines.append("")
    return "\n".join(lines).rstrip()


def _legal(option: Option) -> str:
    return describe(option.field) + (f"; of graph={', '.join(option.sources)}" if option.sources else "")


def _default(option: Option) -> str:
    value = option.default
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("'", "")


COMMANDS = {**commands.COMMANDS, "options": list_options}

# What every option is for; its type, default and legal values stand in `config.py`.
WORDS = {
    "graph.name": "name of the graph: of its folder under runs/ and of its report",
    "graph.family": "what a made graph is like: communities, an R-MAT graph with hubs, or a grid",
    "graph.num_nodes": "nodes of a graph that is made; of a matrix, where its edges leave that in doubt",
    "graph.edges_per_node": "edges a node of a graph that is made, before repeats fall out",
    "graph.num_attributes": "attributes of a graph that is made",
    "graph.attributes_dtype": "how attributes of a graph that is made are stored; float16 takes half of the disk",
    "graph.path": "file, folder, glob or URL of edges, matrix or graph folder; of graph=sql the database",
    "graph.directed": "keep the direction of edges: averages then follow out-neighbours, and triangles are not counted",
    "graph.unknown": "edges to nodes that the node table does not have: refuse, drop them, or add the nodes",
    "graph.nonfinite": "attributes that are not finite (NaN in a table is a gap): refuse, take 0, or the column's mean",
    "graph.featureless": "a graph without attributes: refuse, or take degrees as attributes",
    "graph.nodes": "the node table: file, folder, glob, URL, several (users.csv,shops.csv), or with graph=sql a query",
    "graph.source_column": "column of the edge table with one end",
    "graph.target_column": "column of the edge table with the other end",
    "graph.id_column": "column of the node table that names the nodes",
    "graph.label_column": "column with known anomalies, 1 and 0: measures the ranking, decides nothing",
    "graph.node_type_column": "column with types of nodes, such as user and shop: a node is compared with its own type",
    "graph.type_column": "column of the edge table with at most 16 types of edges, told in explanations",
    "graph.weight_column": "column of the edge table with weights above 0: a heavier neighbour counts for more",
    "graph.time_column": "column of the edge table that says when a row was; null: as types and names of columns say",
    "graph.amount_column": "column of the edge table that says how much a row is, as of payments; null: as names say",
    "graph.currency_column": "column of the edge table that says what the amount is in; null: as names say",
    "graph.category_column": "column of the edge table that says which sort each row is of; null: as names say",
    "graph.step_seconds": "seconds of a step, where time_column is numbers: 3600 is an hour; null: by name and values",
    "graph.weights": "take a matrix's values, edge_weight or a single edge_attr as weights of edges",
    "graph.id_type": "how ids are read: as they come, as text, or as whole numbers",
    "graph.dates": "what 03/04/2024 means; auto: as other values of the column show it, else it stays text",
    "graph.include": "columns of the node table to use as attributes; null: all that are left",
    "graph.exclude": "columns to leave out",
    "graph.categorical": "columns whose values are names though they look like numbers or free text",
    "graph.numbers": "columns of numbers where any other text is a gap, such as k.A. or ca. 5",
    "graph.repeated": "a node that the node table has twice: refuse, or take the first row",
    "graph.edge_attributes": "columns of the edge table as attributes of both ends; auto: where there are no others",
    "graph.edges": "the query of the edges",
    "graph.reader": "plug-in that reads graph.path; null: the one named as its ending, such as gexf of a.gexf",
    "graph.keys": "names in the file of adjacency, attributes and label, where they are unusual",
    "inject.num_cliques": "cliques of random nodes to plant, for experiments",
    "inject.num_attribute_anomalies": "nodes that get far attributes; null: as many as are in cliques",
    "inject.seed": "seed of what is planted",
    "attributes.scale": "how attributes become features: by a rule for each column, or one way for all",
    "attributes.pca": "principal components to keep; null: by rule, or none",
    "purify.similarity": "how alike the two ends of an edge are",
    "purify.ratio": "share of the edges to drop before labelling, the least similar first (R of the paper)",
    "purify.attributes": "whether similarity is measured on features or on the attributes as they came",
    "hops.classes": "hop classes: 1, 2, ... and one for all farther (C); null: 4, or as many as have pairs",
    "hops.num_sources": "nodes from which hops are counted; null: every node",
    "hops.pairs_per_class": "pairs kept of each source and class; null: every pair",
    "sampling.batch_pairs": "pairs of a training step; null: all of an epoch, as the paper does, for small graphs",
    "sampling.ratio": "share of the rarest class that every class gives to an epoch (S of the paper)",
    "sampling.fan_out": "neighbours drawn in each sampled layer: a number or all, one for every layer or one each",
    "sampling.hub_cap": "most neighbours drawn where the fan-out is all; null: no bound",
    "sampling.backend": "who draws neighbours: our kernels, or torch-sparse",
    "model.encoder": "the graph network that embeds nodes; plug-ins are listed too (docs/plugins.md)",
    "model.num_layers": "graph convolutions",
    "model.width": "numbers of a node's embedding",
    "model.head_width": "hidden units of the classifier of pairs",
    "posterior.kernel": "how weights move: Langevin dynamics, plain or preconditioned, or an optimiser without noise",
    "posterior.schedule": "how the step size changes over the chain",
    "posterior.step_size": "step size at the beginning",
    "posterior.prior": "weight decay: the precision of a normal prior on the weights",
    "posterior.temperature": "how much noise; null: 1 / number of labelled pairs, the posterior itself",
    "posterior.burn_in_steps": "steps before the first sample",
    "posterior.num_samples": "samples to keep; null: until one more no longer moves the ranking, at most ten",
    "posterior.thin_steps": "steps from one sample to the next",
    "posterior.checkpoint_every": "steps from one checkpoint to the next",
    "score.views": "the graphs on which an encoder is trained, each: the purified one, the given one",
    "score.evidence": "more kinds of evidence, by plug-ins, which are part of score, p and report (docs/plugins.md)",
    "score.hop": "the predicted hop of a pair: its expectation, or the likeliest class",
    "score.trim": "share of a node's neighbours, the farthest, that do not count",
    "score.far_share": "share of the edges that count as far where far triangles are looked for",
    "score.rank_by": "the number that ranks: all evidence (score), or one as in the paper",
    "score.fdr": "share of false flags to put up with among the flagged nodes",
    "score.precision": "of products over edges on a GPU; auto is bfloat16 where its kernel serves, ten times as fast",
    "world.device": "compute on the CPU, on a GPU, or on a GPU where there is one",
    "world.threads": "threads of each process; null: an even share of the cores",
    "world.processes": "processes of each machine; null: one a GPU, or one",
    "world.max_restarts": "how often lost ranks are started again, from the last checkpoint",
    "world.memory_gib": "memory that the processes of one machine may hold, libraries included; null: what is free",
    "world.timeout_seconds": "how long a rank that does not answer is waited for",
    "seed": "of all that is drawn: labels, weights, batches, noise",
    "run_dir": "the folder of the run",
    "overwrite": "replace the finished run in run_dir where it is of another input; without it such a run is refused",
    "share_dir": "a folder in which runs share stages that are equal; null: none, in a sweep its own",
    "log": "how stderr and the run's log are written: for people, or one JSON object a line",
    "fail_on": "what ends a run with status 3: drift,missing-column,new-cases,stability<0.5,flagged>100; null: nothing",
    "trained": "the folder of a finished run whose samples score this graph; null: train",
    "since": "the folder of an earlier run: cases keep their ids, and what has changed is told; null: that of trained",
}
