"""The commands that take no configuration: each is a function of its words that returns the text to print.

The docstring of a function is the help page of its command, and its first line stands in `hcm-scale --help`. Anything
heavier than argparse is imported after the words are parsed, so that help comes at once.
"""

import argparse
import importlib.util
import inspect
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from hcm_scale import __version__
from hcm_scale.base.names import CASE_CHANGES
from hcm_scale.cli.imports import quickly


class Parser(argparse.ArgumentParser):
    """The parser of `hcm-scale COMMAND`, with a docstring as its help page; raises ValueError for wrong words."""

    def __init__(self, command: str, page: str | None) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        text = inspect.cleandoc(page or "")
        super().__init__(prog=f"hcm-scale {command}", description=text, formatter_class=layout, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {' '.join(self.format_usage().split())}")


def clean(arguments: list[str]) -> str:
    """What in a run or a sweep can go: `hcm-scale clean FOLDER [--keep AGE] [--yes]`.

        set aside     finished stages of other options, which a run keeps in case they are asked for again
        unused        stages that runs of a sweep shared and that none links to any more
        checkpoints   of trainings that are finished: nothing reads them
        embeddings    of `hcm-scale score-edges`, which makes them again
        old run       with `--keep 30d` (12h, 8w): a whole run that was last run longer ago; not one that a younger run
                      of FOLDER was scored by (trained=), that has verdicts, or that a link in FOLDER leads to

    Without `--yes` nothing is removed: the list says what would be, and how much room it takes.
    """
    parser = Parser("clean", clean.__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of runs")
    parser.add_argument("--keep", metavar="AGE", help="runs of the last 12h, 30d or 8w stay, older ones can go")
    parser.add_argument("--yes", action="store_true", help="remove what is listed")
    given = parser.parse_args(arguments)
    from hcm_scale.base import files

    if not given.folder.is_dir():
        raise ValueError(f"{given.folder} is not a folder; clean takes a run, a sweep, or a folder of runs")
    old = [] if given.keep is None else _old_runs(given.folder, given.keep)
    inside = [(why, path) for why, path in _removable(given.folder) if not {*path.parents} & {*old}]
    removable = [(why, path, files.size_of(path)) for why, path in (*(("old run", run) for run in old), *inside)]
    if not removable:
        return f"{given.folder}: nothing to remove"
    lines = [f"{why:<13}{size / 1e6:>12.1f} MB   {path}" for why, path, size in removable]
    total = f"{sum(size for _, _, size in removable) / 1e6:,.1f} MB"
    if not given.yes:
        keep = f" --keep {given.keep}" if given.keep else ""
        return "\n".join([*lines, f"{total}; hcm-scale clean {given.folder}{keep} --yes removes them"])
    for _, path, _ in removable:
        _remove(path)
    return "\n".join([*lines, f"removed {total}"])


def _old_runs(root: Path, age: str) -> list[Path]:
    """The folders of runs below a folder that were last run longer ago than `age`, and that nothing known needs."""
    from hcm_scale.base import console, files
    from hcm_scale.review.verdicts import FILE
    from hcm_scale.run.finished import FinishedRun
    from hcm_scale.run.workspace import RECORDS

    parts = re.fullmatch(r"(\d{1,6})([hdw])", age)
    if parts is None:
        raise ValueError(f"--keep {age} is not legal: a whole number of hours, days or weeks, such as 12h, 30d or 8w")
    before = time.time() - int(parts[1]) * {"h": 3_600, "d": 86_400, "w": 604_800}[parts[2]]
    runs = [path.parent for path in sorted(root.rglob(console.STAGES_FILE)) if (path.parent / RECORDS).is_dir()]
    old = [run for run in runs if (run / console.STAGES_FILE).stat().st_mtime < before]
    models = [Path(str(where)) for run in runs if run not in old and (where := FinishedRun(run).options.get("trained"))]
    needed = {name for path in models for name in (path.name, files.resolved(path).name)}  # from whatever folder it ran
    linked = {files.resolved(path) for path in root.rglob("*") if path.is_symlink()}
    linked |= {inner for path in linked for inner in path.parents}
    free = [run for run in old if run.name not in needed and files.resolved(run) not in linked]
    free = [run for run in free if not (run / FILE).is_file()]
    held = {folder for run in runs for folder in run.parents}  # a folder that holds other runs stays for them
    return [run for run in free if run not in held]


def _removable(root: Path) -> Iterator[tuple[str, Path]]:
    """(reason, folder) of everything below a folder that can go."""
    from hcm_scale.base import files
    from hcm_scale.run.workspace import RECORDS

    linked = {files.resolved(path) for path in root.rglob("*") if path.is_symlink()}
    for place, inside, _ in os.walk(root):
        records = Path(place) / RECORDS
        if not records.is_dir() or records.is_symlink():  # nothing is removed through a link
            continue
        inside.remove(RECORDS)
        if (Path(place) / "embeddings" / files.MANIFEST).is_file():
            yield "embeddings", Path(place) / "embeddings"
        yield from (("set aside", path) for path in sorted(records.glob("*.before")) if path.is_dir())
        is_shared = Path(place).name == "stages"
        for record in sorted(records.glob("*.json")):
            folder = Path(place) / record.stem
            if not folder.is_dir() or folder.is_symlink() or record.name.endswith(".before.json"):
                continue
            if is_shared and folder.resolve() not in linked:
                yield "unused", folder
            elif (folder / "samples" / files.MANIFEST).is_file() and (folder / "checkpoints").is_dir():
                yield "checkpoints", folder / "checkpoints"


def _remove(path: Path) -> None:
    """Removes a folder; of a stage first the record, under its lock, so that no run takes the stage for finished."""
    from hcm_scale.base.files import file_lock, path_inside
    from hcm_scale.run.workspace import RECORDS

    if (path / RECORDS).is_dir():  # a run
        with file_lock(path / ".lock", wait=False) as is_held:
            if not is_held:
                raise ValueError(f"{path} is in use by a run, and stays; the same command later removes it")
            shutil.rmtree(path)
        return
    stage = path.parent.parent / path.name.removesuffix(".before") if path.name.endswith(".before") else path
    records = stage.parent / RECORDS
    if not records.is_dir():  # checkpoints
        shutil.rmtree(path)
        return
    with file_lock(path_inside(stage.parent, f"{RECORDS}/{stage.name}.lock")):
        (records / f"{path.name}.json").unlink(missing_ok=True)
        shutil.rmtree(path)


def collect(arguments: list[str]) -> str:
    """The runs of a sweep as a table: `hcm-scale collect FOLDER`."""
    parser = Parser("collect", collect.__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a sweep, such as multirun/blogcatalog")
    given = parser.parse_args(arguments)
    from hcm_scale.sweep.collect import collect as gather

    return gather(given.folder)


REQUIRED = ("torch", "torch-geometric", "numba", "numpy", "scipy", "pyarrow", "hydra-core", "safetensors")
EXTRAS = {  # the extra that brings it: (a module of it, what it is for)
    "sweeps": ("submitit", "sweeps on SLURM and in parallel"),
    "sparse": ("torch_sparse", "sampling.backend=torch_sparse"),
    "excel": ("openpyxl", "tables as .xlsx"),
    "agent": ("mcp", "hcm-scale mcp"),
}
_GIB = 2**30


def doctor(arguments: list[str]) -> str:
    """What this machine has and lacks, or whether a folder is whole: `hcm-scale doctor [PATH]`.

    Of PATH, a run or a folder with a graph, it says what it holds, once every byte was compared with its hash.
    """
    parser = Parser("doctor", doctor.__doc__)
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="a run, or a folder with a graph")
    if (path := parser.parse_args(arguments).path) is not None:
        return _inspected(path)
    from hcm_scale.base.kernel_cache import is_compiled

    kernels = "compiled" if is_compiled() else "not compiled: hcm-scale warm, about a minute"
    parts = {"versions": _versions(), "machine": _machine(), "GPU": _gpus(), "kernels": [kernels]}
    parts["optional"] = []
    for extra, (module, use) in EXTRAS.items():
        has = importlib.util.find_spec(module) is not None
        advice = "" if has else f": pip install 'hcm-scale[{extra}]'"
        parts["optional"].append(f"{'has' if has else 'no '} {module:<15} for {use}{advice}")
    return "\n".join(f"{'' if i else title:<10}{line}" for title in parts for i, line in enumerate(parts[title]))


def _inspected(path: Path) -> str:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; doctor takes a run or a graph")
    with quickly():
        from hcm_scale.cli.inspect import inspect

    return inspect(path)


def _versions() -> list[str]:
    import importlib.metadata

    versions = []
    for name in REQUIRED:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} is MISSING: pip install hcm-scale again")
    own = f"hcm-scale {__version__}, Python {platform.python_version()}, {platform.platform()}"
    return [own, *(", ".join(versions[at : at + 4]) for at in range(0, len(versions), 4))]


def _machine() -> list[str]:
    import psutil

    from hcm_scale.base.threads import num_cores

    usable, memory, disk = num_cores(), psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    limited = f" of {os.cpu_count()}" if usable != os.cpu_count() else ""
    return [
        f"{usable}{limited} cores to use (world.threads=N takes fewer)",
        f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB of memory free",
        f"{disk.free / _GIB:.1f} of {disk.total / _GIB:.1f} GiB of disk free in {Path.cwd()}",
    ]


def _gpus() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return ["torch is missing, so none can be used"]
    import torch

    if not torch.cuda.is_available():
        build = "is a CPU build" if torch.version.cuda is None else f"(CUDA {torch.version.cuda}) finds no device"
        hint = "; install torch's CUDA build" if torch.version.cuda is None and shutil.which("nvidia-smi") else ""
        return [f"none: torch {torch.__version__} {build}{hint}"]
    devices = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        devices.append(f"{torch.cuda.get_device_name(index)}, {free / _GIB:.0f} of {total / _GIB:.0f} GiB free")
    triton = importlib.util.find_spec("triton") is not None
    return [*devices, "Triton is there" if triton else "Triton is missing: score.precision=bfloat16 will be slower"]


_TABLES, _SHEETS, _GRAPHS = (".csv", ".parquet"), (".csv", ".parquet", ".xlsx"), (".graphml", ".gexf")
_MOST_REVIEWED = 10_000  # nodes of one review, each with a reason in words


def export_run(arguments: list[str]) -> str:
    """The result of a run for other programs: `hcm-scale export RUN FILE`, with any of the choices below.

        FILE.csv, FILE.parquet,    the ranked table, or the chosen part of it; `reason` says in words why a node is
        FILE.xlsx                  where it is: for all chosen nodes (at most 10,000), else for the flagged and the
                                   first 100
        FILE.graphml, FILE.gexf    the first K nodes (20 if not given) with their neighbours and the edges among
                                   them, for Gephi, Cytoscape or networkx: rank, score, evidence and flag of every
                                   node, mean predicted hop and, where there is one, weight of every edge

    A node with many neighbours brings the 50 that seem farthest. Rows of a table are chosen by

        --top K                    the first K nodes
        --flagged                  the flagged nodes; with --top K the first K of them
        --since OLD                the flagged nodes that OLD, an earlier run, has not flagged; with --top K the first K
        --type T                   any of these among the nodes of type T

        --edges                    rows of your own edge table instead of nodes, all of its columns, the strangest first
                                   where --top K or --flagged is said, else in the order of the table: where rows have
                                   times or amounts with rank, p, flag and reason of each row, else of its edge
        --edges --pairs            one row an edge, the strangest first, with the ids of its ends; so always where the
                                   run was not made from a table or a query
        --trust-queries            runs the query, or fetches the table, of a run that was not made in this place: it
                                   does so with your permissions

        --cases                    cases instead of nodes: one row a member, with its role; with --top K, --flagged.
                                   A .xlsx has sheets of members, cases and rows
        --case N FILE.graphml      the members of one case and what is between them

    A run that verdicts have taught (`hcm-scale teach --help`) has the columns taught, taught_rank and verdict too;
    `--taught` sorts by what was taught, so that `--top K` are the first K of that list.

    In a .csv text that a spreadsheet would run as a formula has a ' before it; `--raw` writes it as it is. A .xlsx has
    ids as text, so that they keep their zeros.
    """
    parser = Parser("export", export_run.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument("file", type=Path, metavar="FILE", help="what to write; its ending chooses the format")
    parser.add_argument("--top", type=int, metavar="K", help="only the first K nodes")
    parser.add_argument("--flagged", action="store_true", help="only nodes that stand out at score.fdr")
    parser.add_argument("--since", type=Path, metavar="OLD", help="only flagged nodes that the run OLD has not flagged")
    parser.add_argument("--type", default="", metavar="T", help="only nodes of the type T")
    parser.add_argument("--taught", action="store_true", help="in the order that verdicts have taught")
    parser.add_argument("--edges", action="store_true", help="strange edges: rows of your edge table with their ranks")
    parser.add_argument("--cases", action="store_true", help="cases: one row a member")
    parser.add_argument("--case", default="", metavar="N", help="one case, by number or id, as .graphml or .gexf")
    parser.add_argument("--pairs", action="store_true", help="with --edges: one row an edge, not of your table")
    parser.add_argument("--trust-queries", action="store_true", help="run the query of a run that was not made here")
    parser.add_argument("--raw", action="store_true", help="a .csv for programs: no ' before what looks like a formula")
    given = parser.parse_args(arguments)
    _check_choices(given)
    with quickly():
        from hcm_scale.cli.cases import export_case_graph, export_cases
        from hcm_scale.cli.export import export_edges, export_graph, export_table
        from hcm_scale.run.finished import FinishedRun

    run = FinishedRun(given.run)
    run.check_output(given.file)
    if given.edges:
        options = {"pairs": given.pairs, "raw": given.raw, "trusts_queries": given.trust_queries}
        return export_edges(run, given.file, given.top, given.flagged, **options)
    if given.cases:
        return export_cases(run, given.file, given.top, given.flagged, given.raw)
    if given.case:
        return export_case_graph(run, given.file, given.case)
    if given.file.suffix not in _SHEETS:
        return export_graph(run, given.file, given.top)
    since = None if given.since is None else FinishedRun(given.since)
    choice = given.top, given.flagged or since is not None, since, given.type, given.taught
    return export_table(run, given.file, *choice, raw=given.raw)


def _check_choices(given: argparse.Namespace) -> None:
    """Raises ValueError where choices of `export` do not go together."""
    _check_file(given.file, _SHEETS + _GRAPHS)
    if given.raw and given.file.suffix != ".csv":
        raise ValueError(f"--raw is for .csv; {given.file} holds text as it is")
    if given.top is not None and given.top < 1:
        raise ValueError(f"--top {given.top} must be at least 1")
    only_tables = given.flagged or given.since is not None or given.type or given.taught
    if only_tables and given.file.suffix not in _SHEETS:
        which = f"{given.file} must end in one of {', '.join(_SHEETS)}"
        raise ValueError(f"--flagged, --since, --type and --taught are for tables; {which}")
    if (given.pairs or given.trust_queries) and not given.edges:
        raise ValueError("--pairs and --trust-queries go with --edges: they are about the rows of your table")
    if given.edges and (given.since is not None or given.type or given.taught):
        raise ValueError("--edges goes with --top K, --flagged and --pairs; the other choices are for nodes")
    if given.cases and (given.edges or given.case or given.since is not None or given.type or given.taught):
        raise ValueError("--cases goes with --top K and --flagged; the other choices are for nodes and edges")
    if given.edges or given.cases:
        _check_file(given.file, _SHEETS)
    if given.case and given.file.suffix not in _GRAPHS:
        raise ValueError(f"--case N is for {' and '.join(_GRAPHS)}, not {given.file}; --cases writes tables")


def show_cases(arguments: list[str]) -> str:
    """What belongs together among the nodes that stand out: `hcm-scale cases RUN [K]`, the first K.

    A case is one finding: a dense group, payments that are strange together, or a node by itself. Its p is that of the
    whole. `hcm-scale case RUN 7` tells all of one; `hcm-scale export RUN cases.xlsx --cases` writes them.
    """
    parser = Parser("cases", show_cases.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    parser.add_argument("count", type=int, nargs="?", default=20, metavar="K", help="how many; 20 if not given")
    given = parser.parse_args(arguments)
    if given.count < 1:
        raise ValueError(f"{given.count} cases are not legal: a whole number from 1 on")
    with quickly():
        from hcm_scale.cli.cases import list_cases
        from hcm_scale.run.finished import FinishedRun

    return list_cases(FinishedRun(given.run), given.count)


def show_case(arguments: list[str]) -> str:
    """One case, or what nodes that you know are part of: `hcm-scale case RUN N`, `hcm-scale case RUN --from ID ...`.

    N is the number of a case or its id. `--verdict bad` keeps a verdict on it, which is one on the nodes of its core
    that counts as one when the list is taught; a case that has more of them in a later run is open again. `--merge M`
    puts it together with another, `--apart` undoes that, `--out ID` takes members out and `--in ID` back in. With
    `--from` it is told which cases these nodes are part of, given by their ids or by a file with an id a line, or a
    .csv with ids in its first column. Around those in none of several nodes it is the most surprising set, grown node
    by node as long as its surprise rises, and why each was taken; nothing where nothing holds.
    """
    parser = Parser("case", show_case.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    parser.add_argument("case", nargs="?", metavar="N", help="the number of a case, or its id")
    parser.add_argument("--from", nargs="+", dest="clue", metavar="ID", help="nodes to begin with, or a file of ids")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept with the verdict")
    parser.add_argument("--by", metavar="NAME", help="who says so; by default the name of the login")
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--verdict", choices=("bad", "good", "unsure", "none"), help="say so of case N; none: take back")
    said.add_argument("--merge", nargs="+", metavar="M", help="put case N together with others")
    said.add_argument("--apart", action="store_const", const=[], help="case N is told by itself again")
    said.add_argument("--out", nargs="+", metavar="ID", help="members that do not belong to case N")
    said.add_argument("--in", nargs="+", metavar="ID", help="members that were taken out of it, and belong to it")
    given = parser.parse_args(arguments)
    changes = {how: values for how in CASE_CHANGES if (values := vars(given)[how]) is not None}
    if (given.case is None) == (given.clue is None):
        raise ValueError("case takes the number or id of a case, or --from ID: one of them")
    if given.verdict is None and (given.note or (given.by and not changes)):
        raise ValueError("--note goes with --verdict, and --by with whatever is said of case N")
    if given.case is None and changes:
        raise ValueError(f"--{next(iter(changes))} changes case N: hcm-scale case RUN N --{next(iter(changes))}")
    if given.case is None and given.verdict:
        raise ValueError("--verdict is on case N, not on nodes: hcm-scale teach takes a table of verdicts on nodes")
    with quickly():
        from hcm_scale.cli.cases import case_from
        from hcm_scale.run.finished import FinishedRun

    run = FinishedRun(given.run)
    if given.verdict:
        return run.judge_case(given.case, given.verdict, given.by, given.note)
    for how, values in changes.items():
        run.change_case(how, given.case, values, given.by)
    return case_from(run, given.clue) if given.clue else run.explained_text((), (), [given.case])


def diff_runs(arguments: list[str]) -> str:
    """What has changed from one run to another: `hcm-scale diff OLD NEW [--json]`.

    Cases that are new, grown, shrunk, split, joined or gone, with who came and left, and nodes that entered or left the
    flags. Cases are the same where they share half of their members; run with since=OLD to keep their ids.
    """
    parser = Parser("diff", diff_runs.__doc__)
    parser.add_argument("old", type=Path, metavar="OLD", help="the folder of a finished run")
    parser.add_argument("new", type=Path, metavar="NEW", help="that of a later one, with ids of the same kind")
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(arguments)
    with quickly():
        from hcm_scale.cli.cases import diff
        from hcm_scale.run.finished import FinishedRun

    return diff(FinishedRun(given.old), FinishedRun(given.new), given.json)


def _check_file(file: Path, endings: tuple[str, ...] = _TABLES) -> None:
    """Raises ValueError for a file that cannot be written: its ending, its folder, or that this is a stage of a run."""
    if file.suffix not in endings:
        raise ValueError(f"{file} must end in one of {', '.join(endings)}")
    if file.suffix == ".xlsx" and importlib.util.find_spec("xlsxwriter") is None:
        raise ValueError(f"{file} needs XlsxWriter: pip install 'hcm-scale[excel]'; .csv needs nothing")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}")
    from hcm_scale.base import files
    from hcm_scale.run import workspace

    for folder in files.resolved(file).parents:
        is_set_aside = folder.parent.name == workspace.RECORDS and folder.suffix == ".before"
        if is_set_aside or workspace.record_path(folder).is_file():
            raise ValueError(f"{file} is in {folder}, a folder of a run, which checks its files; name another place")


def review_run(arguments: list[str]) -> str:
    """The next nodes worth a verdict: `hcm-scale review RUN [N] [--csv FILE] [--given FILE]`.

    Most are the first of the list, some are nodes on which kinds of evidence disagree, and some are drawn at random:
    verdicts on these tell how good the list is. Every line says why the node is there. Three steps make the list yours:

        hcm-scale review RUN --csv review.csv    writes the nodes, 20 unless said, with an empty column verdict
        (fill in: bad, good or unsure; leave empty what you have not looked at)
        hcm-scale teach RUN review.csv           keeps the verdicts and ranks all nodes again, in seconds

    Repeat as long as it pays. Verdicts are kept in RUN/verdicts.jsonl, whatever is run again in RUN;
    `--given FILE` writes those given so far as a table, to be edited, or taught to another run.
    """
    parser = Parser("review", review_run.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    parser.add_argument("count", type=int, nargs="?", default=20, metavar="N", help="how many nodes; 20 if not given")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write them to this .csv, .xlsx or .parquet, to be filled in"
    )
    parser.add_argument("--given", type=Path, metavar="FILE", help="write the verdicts given so far instead")
    given = parser.parse_args(arguments)
    if not 1 <= given.count <= _MOST_REVIEWED:
        raise ValueError(f"{given.count} nodes are not legal: a whole number from 1 to {_MOST_REVIEWED:,}")
    for file in filter(None, (given.csv, given.given)):
        _check_file(file, _SHEETS)
    with quickly():
        from hcm_scale.cli.export import export_verdicts, review_nodes
        from hcm_scale.run.finished import FinishedRun

    run = FinishedRun(given.run)
    for file in filter(None, (given.csv, given.given)):
        run.check_output(file)
    if given.given is not None:
        return export_verdicts(run, given.given)
    return review_nodes(run, given.count, given.csv)


def teach_run(arguments: list[str]) -> str:
    """Ranks a finished run again by verdicts: `hcm-scale teach RUN [VERDICTS] [--worth 0.2] [--out FILE]`.

    VERDICTS is a .csv, .tsv, .xlsx or .parquet with a column of ids and one of verdicts: bad, good or unsure, or 1 and
    0, yes and no, fraud and ok; empty ones are left out. They are added to those that RUN has, from `hcm-scale review`,
    from the page of `hcm-scale serve`, or from earlier tables; of two verdicts on a node the later one counts, and
    `none` takes one back. A list of known cases, all of them bad, is enough. Nothing is trained again.

    The new list stands beside the old one, in RUN/taught/taught.parquet and in what `hcm-scale export` writes, as the
    columns taught and taught_rank; score, p and flagged stay as they were. Where the verdicts show no gain, or are
    fewer than five, the order stays as it was, and that is said. Printed are

        what the verdicts taught, in words
        the share of bad nodes among the first 50, 100, ... of the list, before and after, as verdicts let it be known
        down to which rank reading pays if as many as --worth of the nodes are to be bad: 0.2 is one in five
    """
    parser = Parser("teach", teach_run.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    parser.add_argument("verdicts", type=Path, nargs="?", metavar="VERDICTS", help="a table with ids and verdicts")
    parser.add_argument("--worth", type=float, default=0.2, metavar="SHARE", help="of bad nodes that makes reading pay")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the new list to this .csv or .parquet too")
    parser.add_argument("--by", metavar="NAME", help="whose verdicts these are; by default the name of the login")
    given = parser.parse_args(arguments)
    if not 0.0 < given.worth <= 1.0:
        raise ValueError(f"--worth {given.worth:g} is not legal: a share above 0 and at most 1, such as 0.2")
    if given.out is not None:
        _check_file(given.out)
    with quickly():
        from hcm_scale.cli.export import export_table
        from hcm_scale.review import teach
        from hcm_scale.run.finished import FinishedRun

    run = FinishedRun(given.run)
    if given.out is not None:
        run.check_output(given.out)
    notes = [] if given.verdicts is None else run.import_verdicts(given.verdicts, given.by)
    taught = teach.teach(run, given.worth)
    where = [f"the new list  {taught.folder / teach.FILE}"]
    where += [] if given.out is None else [export_table(run, given.out, None, by_lesson=True)]
    return "\n".join([*notes, teach.taught_text(taught), *where])


def score_edges(arguments: list[str]) -> str:
    """Scores the edges of a new table by a finished run: `hcm-scale score-edges RUN TABLE [-o FILE]`, in seconds.

    TABLE is a .csv, .tsv or .parquet, a folder or a glob, with columns called as in the table of the run. Its rows come
    out in their order, with all columns, and rank, p, flag and numbers of the edge among those of the run, as in
    `hcm-scale export RUN FILE --edges`. `edge_status` is

        edge             the run has this edge, and its numbers are those
        new              it has both ends
        new account      it has not all ends; one that it has not is known by those that TABLE joins it to
        unknown, self    an end has no such partner, or both ends are one: nothing is told

    Where the run keeps rows, of payments, each row is judged by itself: by its payer's history, the burst that it is
    part of and the chain that it extends. Rows of the last two weeks stay in RUN/stream: daily files give the numbers
    of one table.

    The first call keeps embeddings of all nodes in RUN/embeddings, for the next. TABLE may be larger than memory, but
    for 300 bytes a row where rows are judged; the same command after a kill goes on where it was.
    """
    parser = Parser("score-edges", score_edges.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/payments")
    parser.add_argument("table", metavar="TABLE", help="the new edges")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=".csv or .parquet; else TABLE-scored.csv")
    parser.add_argument("--source-column", metavar="NAME", help="of one end, where the run calls it otherwise")
    parser.add_argument("--target-column", metavar="NAME", help="of the other end")
    given = parser.parse_args(arguments)
    from hcm_scale.base import files

    ending = ".parquet" if given.table.endswith((".parquet", ".pq")) else ".csv"
    out = given.out or Path(f"{files.slug(Path(given.table).name.split('.')[0])}-scored{ending}")
    _check_file(out)
    with quickly():
        from hcm_scale.edges.new import open_new_edges, write_scored
        from hcm_scale.run.finished import FinishedRun

    run = FinishedRun(given.run)
    run.check_output(out)
    edges = open_new_edges(run, given.table, given.source_column, given.target_column)
    num_rows, num_kept = write_scored(edges, out)
    kept = f" ({num_kept:,} of them written before)" if num_kept else ""
    stored = f"embeddings of the run: {edges.folder}, {files.size_of(edges.folder) / 1e6:,.1f} MB"
    return f"{num_rows:,} row{'s' * (num_rows != 1)}{kept} in {out}, in the order of the table\n{stored}"


def serve_page(arguments: list[str]) -> str:
    """A local page over every node of a finished run: `hcm-scale serve RUN [--port N] [--by NAME]`, until Ctrl-C.

    It answers this machine alone, at an address that it prints. Verdicts given on it are added to RUN/verdicts.jsonl.
    `--trust-queries` runs the query of a run that was not made in this place, to count the rows of strange edges.
    """
    parser = Parser("serve", serve_page.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    parser.add_argument("--port", default="0", metavar="N", help="0, which is the default, is any free one")
    parser.add_argument("--by", metavar="NAME", help="who gives the verdicts; by default the name of the login")
    parser.add_argument("--trust-queries", action="store_true", help="run the query of a run that was not made here")
    given = parser.parse_args(arguments)
    port = _port(given.port, 0)
    with quickly():
        from hcm_scale.serve.server import serve
    serve(given.run, port, given.by, given.trust_queries)
    return ""


def _port(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 1 << 16):
        free = "" if least else ", any free one,"
        raise ValueError(f"--port {text} is not legal: a whole number from {least}{free} to 65535")
    return int(text)


def serve_tools(arguments: list[str]) -> str:
    """A finished run as tools for an agent: `hcm-scale mcp RUN [--since OLD] [--verdicts [--by NAME]] [--port N]`.

    It speaks the Model Context Protocol on stdin and stdout; a client starts it by this very command. With `--port` it
    answers over HTTP, this machine alone, at an address that it prints. Tools read cases, the ranked list, reasons,
    neighbours and rows of a node, what has changed since an earlier run, and which nodes are worth a verdict;
    `--verdicts` lets the agent add verdicts to RUN/verdicts.jsonl.
    """
    parser = Parser("mcp", serve_tools.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/payments")
    parser.add_argument("--since", type=Path, metavar="OLD", help="an earlier run, that changes are told since")
    parser.add_argument("--verdicts", action="store_true", help="let the agent give verdicts")
    parser.add_argument("--by", default="agent", metavar="NAME", help="who gives them; by default agent")
    parser.add_argument("--port", metavar="N", help="answer over HTTP at this port; by default on stdin and stdout")
    given = parser.parse_args(arguments)
    port = None if given.port is None else _port(given.port, 1)
    if importlib.util.find_spec("mcp") is None:
        raise ValueError("hcm-scale mcp needs the package mcp: pip install 'hcm-scale[agent]'")
    with quickly():
        from hcm_scale.serve.mcp import serve
    serve(given.run, port, writes=given.verdicts, by=given.by, since=given.since)
    return ""


def precompile(arguments: list[str]) -> str:
    """Compiles what the first run would otherwise wait for: `hcm-scale warm`, once after an installation."""
    Parser("warm", precompile.__doc__).parse_args(arguments)
    from hcm_scale.run.warm import warm

    return warm()


COMMANDS: dict[str, Callable[[list[str]], str]] = {
    "case": show_case,
    "cases": show_cases,
    "clean": clean,
    "collect": collect,
    "diff": diff_runs,
    "doctor": doctor,
    "export": export_run,
    "mcp": serve_tools,
    "review": review_run,
    "score-edges": score_edges,
    "serve": serve_page,
    "teach": teach_run,
    "warm": precompile,
}
