"""The command line: `hcm-scale COMMAND [FILE ...] [KEY=VALUE ...]`, from its words to an exit status.

    words -> files and node ids among them -> overrides, checked     `overrides.read_words`
          -> Hydra composes `conf/` and the overrides -> `Config`    `overrides.compose_config`
          -> the pipeline runs, or a node is explained -> text       `_work`

A plain run composes and logs by itself (`_run_once`). With flags or `hydra.*` among the words, as in a sweep, Hydra
runs the jobs (`_run_with_hydra`, `_job`). Commands that need no configuration are functions of their words
(`cli/commands.py`). Errors and signals become one line on stderr and an exit
status in `main` (`cli/errors.py`).

Anything heavy is imported inside the functions: help must come at once.
"""

import contextlib
import functools
import gc
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcm_scale import __version__
from hcm_scale.base import console, files, remote, signals
from hcm_scale.cli import errors, help
from hcm_scale.cli.imports import quickly
from hcm_scale.config import Config, conf_dir

if TYPE_CHECKING:
    from hcm_scale.cli.overrides import Request


def main(words: list[str] | None = None) -> int:
    """Runs a command, by default that of `sys.argv`, and returns its exit status."""
    words = sys.argv[1:] if words is None else words
    signals.install_handlers()
    console.writes_json = False
    try:
        _dispatch(words)
        sys.stdout.flush()
        return 0
    except SystemExit as ended:  # argparse, after --help
        return int(ended.code or 0)
    except errors.LoggedError as error:
        return error.status
    except BrokenPipeError:  # what Hydra prints
        _discard_output()
        return 0
    except KeyboardInterrupt as stopped:
        text = f"stopped by {str(stopped) or 'SIGINT'}; to go on from here: {shlex.join(['hcm-scale', *words])}"
        return _complain(text, words, "stopped", 128 + getattr(stopped, "signum", 2))
    except errors.USER_ERRORS as error:
        return _complain(f"error: {errors.error_line(error)}", words, "error", errors.status_of(error))
    finally:
        gc.enable()
        signals.use_default_handlers()


def _complain(text: str, words: list[str], event: str, status: int) -> int:
    """The status, after a line on stderr that says why; JSON where the words, or option files of theirs, ask for it."""
    option_files = (Path(f"conf/{word.replace('=', '/', 1)}.yaml") for word in words if "=" in word)
    texts = (file.read_text(errors="replace") for file in option_files if os.access(file, os.R_OK))
    if console.writes_json or "log=json" in words or any(re.search(r"(?m)^log:\s*json\b", text) for text in texts):
        text = console.json_line("error", text, console.event(event, status=status))
    print(text, file=sys.stderr)
    return status


def _dispatch(words: list[str]) -> None:
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command == "help" and rest:
        command, rest = rest[0], ["--help"]
    if not words:
        _show(help.FIRST)
    elif command in ("help", "-h", "--help"):
        _show(help.full_page())
    elif {"-sc", "--shell-completion"} & {*words}:
        _complete(words)
    elif "--version" in words:
        _show(__version__)
    elif command in help.COMMANDS:
        for word in rest:
            remote.refuse_secrets(command, word)
        with _telling_of_kernels():
            _show(help.COMMANDS[command](rest))
    elif command in help.STAGES and {"-h", "--help"} & {*rest}:
        _show(help.page_of(command))
    elif command == "demo":
        _demo(rest)
    elif command == "explain" and (asked := _asked_of_run(rest)):
        _explain(*asked)
    elif command in help.STAGES:
        _run(command, rest)
    else:
        legal = console.legal_names(command, [*help.STAGES, *help.COMMANDS])
        raise ValueError(f"{command!r} is not a command; {legal}")


def _asked_of_run(words: Sequence[str]) -> tuple[str, list[str], list[str], list[str]] | None:
    """Folder, nodes, edges and cases of `explain RUN ID ...`; None where other words want a configuration."""
    if not words or not (Path(words[0]) / console.STAGES_FILE).is_file():
        return None
    named = ("node=", "edge=", "case=")
    nodes, edges, cases = ([word[5:] for word in words if word.startswith(kind)] for kind in named)
    rest = [word for word in words[1:] if not word.startswith(named)]
    if any("=" in word or word.startswith("-") for word in rest):
        return None
    return words[0], nodes + rest, edges, cases


def _explain(run_dir: str, *asked: Sequence[str]) -> None:
    """Explains nodes, edges and cases."""
    from hcm_scale.base.memory import check_start, raising_out_of_memory

    check_start()
    with raising_out_of_memory("explain"):
        with quickly():
            from hcm_scale.run.finished import FinishedRun
        _show(FinishedRun(run_dir).explained_text(*asked))


def _demo(words: list[str]) -> None:
    if files := [word for word in words if "=" not in word]:
        raise ValueError(f"demo takes no {files[0]!r}, it has its own data; a table of yours: {help.OWN_TABLES}")
    _run("run", ["run_dir=runs/demo", *words])
    _show(f"\nwith tables of your own: {help.OWN_TABLES}")


def _run(command: str, words: list[str]) -> None:
    """A command that composes a configuration: one run, a sweep, or a look at one of them."""
    gc.disable()  # what is imported and composed up to `_work` is never garbage
    from hcm_scale.cli import overrides
    from hcm_scale.sweep.words import split

    with overrides.readable_errors():
        request = overrides.read_words(command, words)
        if any(word.startswith("-") or split(word)[0].startswith("hydra") for word in request.overrides):
            _run_with_hydra(request)
        else:
            _run_once(request)


def _run_once(request: "Request") -> None:
    from hcm_scale.cli.overrides import compose_config, composing

    with composing():
        config = compose_config(request.overrides)
    if request.command in help.READING:
        _work(request, config)
        return
    if not config.run_dir:
        raise ValueError("run_dir is empty; it names the folder of the run")
    run_dir = Path(config.run_dir)
    with errors.removing_empty_run(run_dir), _logging_to(run_dir / "log", config.log), errors.logging_errors(run_dir):
        _work(request, config)


def _run_with_hydra(request: "Request") -> None:
    """Leaves the jobs to Hydra, which knows sweeps, launchers and its own flags."""
    import hydra

    from hcm_scale.cli.overrides import register

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors are raised, not printed
    sys.argv = [
        "hcm-scale",
        *sorted(request.overrides, key=lambda word: "=" in word and not word.startswith("-")),
    ]  # flags first
    job = functools.partial(_job, request)
    job.__module__, job.__name__ = __name__, "run"  # type: ignore[attr-defined]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()


def _job(request: "Request", composed: Any) -> None:
    """One job that Hydra runs: as `_run_once`, with the folder and the log that Hydra made."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from hcm_scale.cli.overrides import compose_config

    hydra = HydraConfig.get()
    is_sweep = hydra.mode == RunMode.MULTIRUN
    with errors.logging_errors(hydra.runtime.output_dir):  # under -m Hydra notes the job as failed and goes on
        config = compose_config(hydra.overrides.task, composed)
        if config.log == "json":
            console.use_json_lines(logging.getLogger().handlers)
        config.run_dir = hydra.runtime.output_dir
        if is_sweep and config.share_dir is None:
            config.share_dir = str(Path(hydra.sweep.dir).resolve() / "stages")
        _work(request, config, is_sweep=is_sweep)


def _work(request: "Request", config: Config, is_sweep: bool = False) -> None:
    """Runs the pipeline up to the command's stage, or plans that, or explains nodes; prints the result."""
    if request.command == "explain":
        _explain(config.run_dir, request.nodes, request.edges, request.cases)
        return
    from hcm_scale.base.memory import check_start, raising_out_of_memory
    from hcm_scale.cli.overrides import name_columns

    command = request.command
    check_start()
    with raising_out_of_memory(command):
        with quickly():
            from hcm_scale.run import launch, pipeline
            from hcm_scale.run.finished import FinishedRun
        if command != "plan":
            pipeline.check_folder(config)
        config.graph = name_columns(request, config.graph)
        if command == "plan":
            _show(pipeline.plan_text(config))
        else:
            text = launch.run(config, until=request.until, swept=is_sweep)
            _show(FinishedRun(config.run_dir).line() if is_sweep and text else text)
            if failed := FinishedRun(config.run_dir).failed_checks(config.fail_on):
                raise errors.LoggedError(f"fail_on={', '.join(failed)}", status=3)


@contextlib.contextmanager
def _telling_of_kernels() -> Iterator[None]:
    """Shows on stderr that kernels are compiled, which commands that keep no log would wait for in silence."""
    compiler, handler = logging.getLogger("hcm_scale.base.jit"), logging.StreamHandler()
    compiler.addHandler(handler)
    compiler.setLevel(logging.INFO)
    try:
        yield
    finally:
        compiler.removeHandler(handler)
        compiler.setLevel(logging.NOTSET)


@contextlib.contextmanager
def _logging_to(path: Path, kind: str) -> Iterator[None]:
    """Logs to stderr and, with the time, to a file; as JSON lines to both if `kind` is json."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    handlers[0].setFormatter(console.Printable())
    files.open_regular(path, "a").close()  # or it is refused
    handlers.append(logging.FileHandler(path, encoding="utf-8", errors="backslashreplace"))
    handlers[1].setFormatter(console.Printable("%(asctime)s %(message)s"))
    if kind == "json":
        console.use_json_lines(handlers)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _complete(words: list[str]) -> None:
    """Hydra's shell completion: `-sc install=bash`, and the queries of the shell, which carry our command's name."""
    from hcm_scale.cli.overrides import Request, readable_errors

    command = rf"^(\s*\S+\s+)(?:{'|'.join(help.STAGES)})(?=\s)"
    os.environ["COMP_LINE"] = re.sub(command, r"\1", os.environ.get("COMP_LINE", ""))
    with readable_errors():
        _run_with_hydra(Request("run", (), tuple(word for word in words if word not in help.STAGES)))


def _show(text: str) -> None:
    """Prints a result; an error of stdout, such as a full disk, names it."""
    try:
        print(console.printable(text), end="\n" if text else "", flush=True)
    except BrokenPipeError:  # the reader has seen enough
        _discard_output()
    except OSError as error:
        _discard_output()
        raise OSError(error.errno, error.strerror, errors.STDOUT) from error


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
