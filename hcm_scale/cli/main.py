"""The command line: `hcm-scale COMMAND [key=value ...]`.

Hydra composes the configuration from `conf/` and the words; where flags or `hydra.*` are among them, as under `-m`, it
also runs the jobs. This file finds `conf/`, registers the typed schema, keeps the log of a run, and turns errors and
signals into one readable line on stderr and an exit status (`cli/errors.py`). The rest happens in `run/pipeline.py`.
"""

import contextlib
import functools
import gc
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hcm_scale import __version__
from hcm_scale.base import console as json_log
from hcm_scale.base import console as near
from hcm_scale.base import kernel_cache, signals
from hcm_scale.base.console import Printable, printable
from hcm_scale.cli import errors, help
from hcm_scale.cli import overrides as brought
from hcm_scale.cli.overrides import SWEEPS, check_overrides, hydra_error_text, is_flag, quote_text_values
from hcm_scale.config import SOURCES, Config
from hcm_scale.options import conf_dir, quote_sources, refuse_urls, to_config

log = logging.getLogger("hcm_scale")


def register() -> None:
    """Makes the typed schema, the `slug` resolver and the user's own option files known to Hydra."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from hcm_scale.base.files import slug
    from hcm_scale.cli import overrides as own_options

    own_options.register()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, node in SOURCES.items():
        store.store(group="graph/schema", name=name, node=node)
    OmegaConf.register_new_resolver("slug", slug, replace=True)


class Asked(NamedTuple):
    """What a command is to do beside its configuration."""

    command: str
    nodes: tuple[str, ...]  # to explain
    words: tuple[str, ...]  # those beside which files were brought, whose columns may have to be guessed; else none


def _job(asked: Asked, composed: Any) -> None:
    """One job that Hydra runs, of a sweep or of a command with flags: as `_alone`, in the folder that Hydra made."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    swept = hydra.mode == RunMode.MULTIRUN
    try:
        config = _over_trained(to_config(composed), list(hydra.overrides.task))
        if config.log == "json":
            json_log.use_json_lines(logging.getLogger().handlers)
        config.run_dir = hydra.runtime.output_dir
        if swept and config.share_dir is None:
            config.share_dir = str(Path(hydra.sweep.dir).resolve() / "stages")
        _work(asked, config, swept=swept)
    except errors.USER_ERRORS as error:
        log.error("error: %s", errors.error_line(error, hydra.runtime.output_dir))
        raise errors.LoggedError(error) from error  # under -m Hydra notes the job as failed and goes on


def _alone(asked: Asked, words: list[str]) -> None:
    """One run, or a command that reads only: our own log, and no folder where nothing came of it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = _over_trained(to_config(compose("config", words)), words)
    if asked.command in help.READING:
        _work(asked, config)
        return
    if not config.run_dir:
        raise ValueError("run_dir is empty; it names the folder of the run")
    run_dir = Path(config.run_dir)
    with errors.removing_empty_run(run_dir), _logging_to(run_dir / "log", config.log):
        try:
            _work(asked, config)
        except errors.USER_ERRORS as error:
            log.error("error: %s", errors.error_line(error, config.run_dir))
            raise errors.LoggedError(error) from error


def _over_trained(config: Config, words: list[str]) -> Config:
    """The configuration of these words; with `trained=RUN` they are put over the options of that run."""
    if config.trained is None:
        return config
    from hydra import compose
    from hydra.core.config_store import ConfigStore

    from hcm_scale.run.trained import as_trained

    store = ConfigStore.instance()
    store.store(name="schema", node=as_trained(Config(trained=config.trained)))
    try:
        return to_config(compose("config", words))
    finally:
        store.store(name="schema", node=Config)


def _work(asked: Asked, config: Config, *, swept: bool = False) -> None:
    """Runs the pipeline up to the command's stage, or explains a node, and prints what was found."""
    from hcm_scale.base.memory import check_start, raising_out_of_memory

    check_start()
    with raising_out_of_memory(asked.command):
        if asked.command == "explain":
            _show(_import_pipeline()[0].explain(config, asked.nodes))
            return
        if asked.command == "plan":
            _show(_import_pipeline()[0].foresee(_name_columns(asked, config)))
            return
        kernel_cache.start_precompiling()
        pipeline, launch = _import_pipeline()
        pipeline.check_folder(config)
        _name_columns(asked, config)
        _show(launch.run(config, until="report" if asked.command == "run" else asked.command, swept=swept))


def _name_columns(asked: Asked, config: Config) -> Config:
    """The configuration, with the columns of files that were brought."""
    if asked.words:
        config.graph = brought.name_columns(config.graph, asked.words)
    return config


@contextlib.contextmanager
def _logging_to(path: Path, kind: str) -> Iterator[None]:
    """What is logged goes to stderr, and with its time to a file; as JSON to both where `kind` says so."""
    console, file = logging.StreamHandler(), logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    console.setFormatter(Printable())
    file.setFormatter(Printable("%(asctime)s %(message)s"))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in (console, file):
        root.addHandler(handler)
    if kind == "json":
        json_log.use_json_lines([console, file])
    try:
        yield
    finally:
        for handler in (console, file):
            root.removeHandler(handler)
        file.close()


def _import_pipeline() -> tuple[Any, Any]:
    """What runs need, torch and numba among it: nothing that Python need search for garbage, now or at the end."""
    gc.disable()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # reads every installed package's entry points
    from hcm_scale.base.parquet import leave_pandas_out
    from hcm_scale.run import launch, pipeline

    leave_pandas_out()
    gc.freeze()
    gc.enable()
    return pipeline, launch


def _show(text: str) -> None:
    """Prints; whoever reads the output may stop when they have seen enough."""
    try:
        print(printable(text), end="\n" if text else "", flush=True)
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        _forget_output()
        raise OSError(error.errno, error.strerror, errors.STDOUT) from error


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_hydra(asked: Asked, words: list[str]) -> None:
    """Leaves the jobs to Hydra: it knows sweeps, launchers and its own flags."""
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, and not as Hydra's own text
    sys.argv = ["hcm-scale", *sorted(words, key=lambda word: "=" in word and not word.startswith("-"))]  # flags first
    job = functools.partial(_job, asked)
    job.__module__, job.__name__ = __name__, "run"  # type: ignore[attr-defined]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()


def _complete(words: list[str]) -> int:
    """Hydra's own completion, `-sc install=bash` and what shells then ask; a command is no word of Hydra's."""
    command = rf"^(\s*\S+\s+)(?:{'|'.join(help.STAGES)})(?=\s)"
    os.environ["COMP_LINE"] = re.sub(command, r"\1", os.environ.get("COMP_LINE", ""))
    register()
    try:
        _with_hydra(Asked("run", (), ()), [word for word in words if word not in help.STAGES])
    except ValueError as error:
        return errors.print_error(error)
    return 0


def _tune(asked: Asked, overrides: list[str]) -> None:
    """`sweep=optuna`: our own driver composes the trials, because Hydra's plugin does not work with today's Optuna."""
    from hydra import compose, initialize_config_dir

    from hcm_scale.sweep.search import read_search
    from hcm_scale.sweep.study import tune

    def configured(words: list[str]) -> Config:
        return _name_columns(asked, _over_trained(to_config(compose("config", words)), words))

    console = logging.StreamHandler()
    console.setFormatter(Printable())
    logging.basicConfig(level=logging.INFO, handlers=[console])
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        _show(tune(read_search(overrides, configured)))


def _stages(command: str, overrides: list[str]) -> int:
    """A command that composes a configuration: one run, a sweep or a search."""
    gc.disable()  # until the run begins: what is made up to there stays (`_import_pipeline`)
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from hcm_scale.sweep.search import READS_ONLY, finish_sweep_options, named_sweep, split

    try:
        refuse_urls(map(split, overrides))
        nodes, words = _take_nodes(overrides) if command == "explain" else ([], overrides)
        files, words = _take_files(words)
        is_sweep = bool(set(SWEEPS) & set(words))
        named = brought.file_options(files, words)
        words = [*(quote_text_values(named) if is_sweep else named), *words]
        check_overrides(words)
        settled = finish_sweep_options(words)
        settled = quote_sources(settled) if is_sweep else quote_text_values(settled)
        asked = Asked(command, tuple(nodes), tuple(words) if files else ())
        register()
        if command == "run" and named_sweep(words) == "optuna" and not set(READS_ONLY) & set(words):
            _tune(asked, words)
        elif any(word.startswith("-") or split(word)[0].startswith("hydra") for word in settled):
            _with_hydra(asked, [word for word in settled if not word.startswith("tune.")])
        else:
            _alone(asked, settled)
    except errors.LoggedError as error:
        return error.status
    except BrokenPipeError:
        raise
    except YAMLError as error:  # of an option file
        return errors.print_error(ValueError(" ".join(str(error).split())), overrides)
    except (HydraException, OmegaConfBaseException) as error:
        return errors.print_error(ValueError(hydra_error_text(error)), overrides)
    except errors.USER_ERRORS as error:
        return errors.print_error(error, overrides)
    finally:
        gc.enable()
    return 0


def _take_nodes(words: list[str]) -> tuple[list[str], list[str]]:
    """The ids to explain and the other words: an id may hold what Hydra's grammar would read as its own.

    They are said as `node=ID`, or behind the folder of a run: `explain runs/edges ID ID`.

    >>> _take_nodes(["node=/usr/bin/[", "seed=1", "node=5"])
    (['/usr/bin/[', '5'], ['seed=1'])
    """
    ids = [word.removeprefix("node=") for word in words if word.startswith("node=")]
    rest = [word for word in words if not word.startswith("node=")]
    if rest and (Path(rest[0]) / near.STAGES_FILE).is_file():
        ids += [word for word in rest[1:] if "=" not in word]
        return ids, [f"run_dir={rest[0]}", *(word for word in rest[1:] if "=" in word)]
    if rest and "=" not in rest[0] and not (rest[0].startswith("-") or brought.is_input_file(rest[0])):
        raise ValueError(near.missing_run_text(Path(rest[0])))
    return ids, rest


def _take_files(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that name files, and the others."""
    files = [
        w for before, w in zip(["", *words], words, strict=False) if not is_flag(before, w) and brought.is_input_file(w)
    ]
    return files, [word for word in words if word not in files]


def _plain(command: str, arguments: list[str]) -> int:
    """A command without a configuration: argparse reads its words, and prints its help."""
    from hcm_scale.cli.commands import COMMANDS

    try:
        _show(COMMANDS[command](arguments))
    except errors.LoggedError as error:
        return error.status
    except SystemExit as error:  # of argparse, after --help
        return int(error.code or 0)
    except BrokenPipeError:
        raise
    except errors.USER_ERRORS as error:
        return errors.print_error(error)
    return 0


def main() -> int:
    """The entry point of the `hcm-scale` script."""
    arguments = sys.argv[1:]
    signals.install_handlers()
    try:
        status = _command(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # what Hydra prints
        _forget_output()
        return 0
    except KeyboardInterrupt as stopped:
        again = shlex.join(["hcm-scale", *arguments])
        text = f"stopped by {stopped or 'SIGINT'}; to go on from here: {again}"
        print(json_log.json_line("error", text) if "log=json" in arguments else text, file=sys.stderr)
        return 128 + getattr(stopped, "signum", 2)
    finally:
        signals.use_default_handlers()


def _command(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "help" and rest:
        command, rest = rest[0], ["--help"]
    asks = bool({"-h", "--help"} & set(rest))
    if not arguments:
        _show(help.FIRST)
    elif command in ("help", "-h", "--help"):
        _show(help.full_page())
    elif {"-sc", "--shell-completion"} & set(arguments):
        return _complete(arguments)
    elif "--version" in arguments:
        _show(__version__)
    elif command in help.COMMANDS:
        return _plain(command, rest)
    elif command in help.STAGES and asks:
        _show(help.page_of(command))
    elif command in help.STAGES:
        return _stages(command, rest)
    else:
        legal = near.legal_names(command, [*help.STAGES, *help.COMMANDS])
        return errors.print_error(ValueError(f"{command!r} is not a command; {legal}"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
