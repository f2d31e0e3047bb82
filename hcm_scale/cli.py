"""The command line: `hcm-scale COMMAND [key=value ...]`.

Hydra composes the configuration from `conf/` and the overrides, once per job, and under `-m` once per point of a sweep.
This file finds `conf/`, registers the typed schema, picks the run directory and turns errors into one readable line.
Everything else happens in `pipeline.py`.
"""

import functools
import gc
import logging
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hcm_scale import __version__
from hcm_scale.base import ahead
from hcm_scale.config import SOURCES, Config
from hcm_scale.options import conf_dir, refuse_renamed, to_config

log = logging.getLogger("hcm_scale")

STAGE_COMMANDS = {
    "run": "everything, from the input to the report",
    "ingest": "read or make the graph, check it, inject anomalies if asked to",
    "purify": "transform the attributes and drop the least similar edges",
    "label": "hop labels of node pairs, written to Parquet shards",
    "train": "sample the posterior of the hop-count model",
    "score": "score every edge and node under the samples",
    "report": "the ranked list as Parquet, JSON and one HTML page",
}
OTHER_COMMANDS = {
    "explain": "why one node is where it is: hcm-scale explain node=ID",
    "collect": "gather the runs of a sweep into a table and figures: hcm-scale collect multirun/NAME",
    "warm": "compile what runs need, which the first run would otherwise do: once after an installation",
    "bench": "throughput against the peers: hcm-scale bench THEME (from a checkout)",
}
EXAMPLES = """examples:
  hcm-scale run                                              the embedded data set: 20,000 nodes with planted anomalies
  hcm-scale run graph=tables graph.path=edges.parquet graph.nodes=nodes.parquet graph.id_column=account
  hcm-scale run graph=matrix graph.path=BlogCatalog.mat inject=paper attributes=log1p_pca
  hcm-scale run -m seed=0,1,2 purify.ratio=0,0.2,0.4         a sweep; stages with equal inputs are made once
  hcm-scale explain node=42                                  why node 42 of the last such run is strange"""


def slug(text: str) -> str:
    """A folder name from the overrides of a job.

    >>> slug("purify.ratio=0.2,graph.path=/data/a.mat")
    'purify.ratio=0.2,graph.path=-data-a.mat'
    """
    from hcm_scale.base.files import hash_value

    name = re.sub(r"[^\w.,=+-]+", "-", text) or "defaults"
    return name if len(name) <= 150 else f"{name[:130]}-{hash_value(text)[:12]}"


def register() -> None:
    """Makes the typed schema and the `slug` resolver known to Hydra."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, node in SOURCES.items():
        store.store(group="graph/schema", name=name, node=node)
    OmegaConf.register_new_resolver("slug", slug, replace=True)


def help_text() -> str:
    """The page behind --help: commands, option groups and examples."""
    lines = [f"hcm-scale {__version__}: hop-count based anomaly detection on attributed graphs", ""]
    lines += ["usage: hcm-scale COMMAND [GROUP=OPTION ...] [KEY=VALUE ...] [-m]", "", "commands:"]
    lines += [f"  {name:<9}{text}" for name, text in {**STAGE_COMMANDS, **OTHER_COMMANDS}.items()]
    lines += ["", "options, one YAML file each (GROUP=OPTION):"]
    root = conf_dir()
    for group in sorted(path for path in root.iterdir() if path.is_dir()):
        options = sorted(str(path.relative_to(group))[:-5] for path in group.rglob("*.yaml"))
        lines.append(f"  {group.name:<11}{' | '.join(options)}")
    lines += ["", "  hcm-scale run --cfg job      every key with its value", "", EXAMPLES]
    return "\n".join(lines)


def _job(command: str, node: str | None, composed: Any) -> None:
    """One Hydra job: check, run the pipeline up to the command's stage, print the summary; or explain `node`."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    swept = hydra.mode == RunMode.MULTIRUN
    try:
        config = to_config(composed)
        config.run_dir = hydra.runtime.output_dir
        if swept and config.share_dir is None:
            config.share_dir = str(Path(hydra.sweep.dir).resolve() / "stages")
        if command != "explain":
            ahead.start()
        pipeline, launch = _import_pipeline()
        if command == "explain":
            config.node = config.node if node is None else node
            text = pipeline.explain(config)
        else:
            text = launch.run(config, until="report" if command == "run" else command, swept=swept)
        _show(text)
    except (ValueError, OSError, FloatingPointError) as error:
        log.error("error: %s", error)
        if swept:
            raise  # Hydra notes the job as failed and goes on with the others
        raise SystemExit(2 if isinstance(error, ValueError | FileNotFoundError) else 1) from error


def _import_pipeline() -> tuple[Any, Any]:
    """What runs need, torch and numba among it: nothing that Python need search for garbage, now or at the end."""
    gc.disable()
    from hcm_scale import pipeline
    from hcm_scale.ranks import launch

    gc.freeze()
    gc.enable()
    return pipeline, launch


def _show(text: str) -> None:
    """Prints; whoever reads the output may stop when they have seen enough."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _compose_and_run(command: str, node: str | None, overrides: list[str]) -> None:
    import hydra

    register()
    sys.argv = ["hcm-scale", *overrides]
    job = functools.partial(_job, command, node)
    job.__module__, job.__name__ = __name__, "run"  # type: ignore[attr-defined]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()


def _tune(overrides: list[str]) -> None:
    """`sweep=optuna`: our own driver composes the trials, because Hydra's plugin does not work with today's Optuna."""
    from hydra import compose, initialize_config_dir

    from hcm_scale.sweep.search import read_search
    from hcm_scale.sweep.study import tune

    register()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        print(tune(read_search(overrides, lambda words: to_config(compose("config", words)), conf_dir())))


def _stages(command: str, overrides: list[str]) -> int:
    """A command that composes a configuration: one run, a sweep or a search."""
    from hcm_scale.sweep.named import named_sweep, settle, split

    try:
        refuse_renamed(split(word)[0] for word in overrides)
        node, words = _take_node(overrides) if command == "explain" else (None, overrides)
        settled = settle(words, conf_dir())
        searches = command == "run" and named_sweep(words) == "optuna"
        _tune(words) if searches else _compose_and_run(command, node, settled)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _take_node(overrides: list[str]) -> tuple[str | None, list[str]]:
    """The id of the last `node=ID`, and the other words: an id may hold what Hydra's grammar would read as its own.

    >>> _take_node(["node=/usr/bin/[", "seed=1"])
    ('/usr/bin/[', ['seed=1'])
    """
    ids = [word.removeprefix("node=") for word in overrides if word.startswith("node=")]
    return ids[-1] if ids else None, [word for word in overrides if not word.startswith("node=")]


def _bench(arguments: list[str]) -> int:
    try:
        from bench.__main__ import main as bench_main
    except ImportError as error:
        print(f"error: bench needs a checkout of the project and its dev extra ({error})", file=sys.stderr)
        return 2
    return bench_main(arguments)


def _collect(arguments: list[str]) -> int:
    from hcm_scale.sweep.collect import collect

    if len(arguments) != 1:
        print("usage: hcm-scale collect FOLDER, the folder of a sweep such as multirun/blogcatalog", file=sys.stderr)
        return 2
    try:
        print(collect(Path(arguments[0])))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _warm(arguments: list[str]) -> int:
    from hcm_scale.warm import warm

    if arguments:
        print(f"error: hcm-scale warm takes no arguments, got {arguments[0]!r}", file=sys.stderr)
        return 2
    try:
        print(warm())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """The entry point of the `hcm-scale` script."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help") or "--help" in arguments:
        print(help_text())
        return 0
    command, rest = arguments[0], arguments[1:]
    if command == "--version":
        print(__version__)
    elif command == "collect":
        return _collect(rest)
    elif command == "bench":
        return _bench(rest)
    elif command == "warm":
        return _warm(rest)
    elif command in STAGE_COMMANDS or command == "explain":
        return _stages(command, rest)
    else:
        known = [*STAGE_COMMANDS, *OTHER_COMMANDS]
        close = get_close_matches(command, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; legal are {', '.join(known)}"
        print(f"error: {command!r} is not a command{hint}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
