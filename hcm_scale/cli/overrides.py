"""From the words of a command line to a configuration: files and node ids are taken out, the rest goes to Hydra.

Hydra has a grammar of its own for values, appends a key that it does not know if the word begins with +, and reports
errors in terms of its internals. So every word is checked here against the schema and the option files first, and text
(paths, names of columns) is quoted: `run_dir=a=b,{c}` is a folder of that name. Under `-m` commas separate the values
of a sweep, and only queries and URLs are quoted.

Files become options: `hcm-scale run edges.csv nodes.csv` means `graph=tables graph.path=edges.csv
graph.nodes=nodes.csv graph.name=edges` unless the user sets these. Columns that nobody named are guessed after the
configuration is composed, as `HCM.fit` does, and logged.
"""

import contextlib
import dataclasses
import glob
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError
from yaml import YAMLError

from hcm_scale import config as schema
from hcm_scale.base import console, remote
from hcm_scale.base.files import slug
from hcm_scale.cli.help import UNTIL
from hcm_scale.config import Config, GraphConfig, TablesGraph, no_option, options
from hcm_scale.sweep.words import MULTIRUN, finish_sweep_options, split

_CONF_FLAGS = ("-cd", "--config-dir", "-cp", "--config-path")  # option files from elsewhere, which are not checked
_FLAGS_WITHOUT_VALUE = (*MULTIRUN, "-r", "--run", "--resolve", "--experimental-rerun")
_FLAGS = (  # the flags of Hydra that make sense here
    *(*_CONF_FLAGS, *_FLAGS_WITHOUT_VALUE, "-c", "--cfg", "-p", "--package", "-cn", "--config-name", "-i", "--info"),
    *("--hydra-help", "-h", "--help"),
)
_COLUMNS = ("source_column", "target_column", "id_column")
_QUERY_OR_URL = re.compile(
    r"^(graph\.(?:edges|nodes|path)=)((?:select|with|from|values|table)\s.*|[a-z0-9+.-]+://[^,]*)", re.I | re.S
)


@dataclass(frozen=True)
class Request:
    """The checked words of a command line."""

    command: str
    words: tuple[str, ...]  # with the options of files, before sweeps are completed and text is quoted
    overrides: tuple[str, ...] = ()  # for Hydra
    nodes: tuple[str, ...] = ()  # to explain
    edges: tuple[str, ...] = ()  # to explain, `A,B` each
    has_files: bool = False  # their columns are guessed unless named
    until: str = "report"  # the last stage to run
    cases: tuple[str, ...] = ()  # to explain, by number or id


def read_words(command: str, words: Sequence[str]) -> Request:
    """The request that the words behind a command make; ValueError names the first word that is wrong."""
    for word, (key, value) in zip(words, map(split, words), strict=True):
        remote.refuse_secrets(*(("graph.path", word) if remote.is_url(word) else (key, value.strip("'\""))))
        if key in ("run_dir", "share_dir"):
            remote.refuse_url(key, value.strip("'\""))
    until, words = _take_until(words) if command == "run" else ("report", words)
    edges = [word.removeprefix("edge=") for word in words if word.startswith("edge=")] if command == "explain" else []
    cases = [word.removeprefix("case=") for word in words if word.startswith("case=")] if command == "explain" else []
    words = [word for word in words if not word.startswith(("edge=", "case="))] if edges or cases else words
    nodes, rest = _take_nodes(words) if command == "explain" else ([], list(words))
    files = [word for before, word in zip(["", *rest], rest, strict=False) if _is_input_file(before, word)]
    rest = [word for word in rest if word not in files]
    is_sweep = bool({*MULTIRUN} & {*rest})
    of_files = _file_options(files, rest)
    rest = [*(map(_quote_text, of_files) if is_sweep else of_files), *rest]
    rest += [_AT_THE_END] * is_sweep
    _check_keys(rest, is_sweep)
    overrides = [_quote_source(word) if is_sweep else _quote_text(word) for word in finish_sweep_options(rest)]
    _check_syntax(overrides, is_sweep)
    return Request(command, tuple(rest), tuple(overrides), tuple(nodes), tuple(edges), bool(files), until, tuple(cases))


_FOLDERS = {"graph": "ingest", "purified": "purify", "labels": "label", "scores": "score"}  # as the log calls stages


def _take_until(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The stage that `until=STAGE` names, the last one if none does, and the other words.

    >>> _take_until(["edges.csv", "until=scores"])
    ('score', ['edges.csv'])
    """
    named = [word.removeprefix("until=") for word in words if word.startswith("until=")]
    named = [_FOLDERS.get(name, name) for name in named]
    for name in named:
        if name not in UNTIL:
            raise ValueError(f"until={name} is not known; {console.legal_names(name, list(UNTIL))}")
    return named[-1] if named else "report", [word for word in words if not word.startswith("until=")]


def _take_nodes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids to explain and the other words; ids never reach Hydra, since they may hold signs of its grammar.

    They are given as `node=ID`, or after the folder of a run: `explain runs/edges ID ID`.

    >>> _take_nodes(["node=/usr/bin/[", "seed=1", "node=5"])
    (['/usr/bin/[', '5'], ['seed=1'])
    """
    ids = [word.removeprefix("node=") for word in words if word.startswith("node=")]
    rest = [word for word in words if not word.startswith("node=")]
    if rest and (Path(rest[0]) / console.STAGES_FILE).is_file():
        ids += [word for word in rest[1:] if "=" not in word]
        return ids, [f"run_dir={rest[0]}", *(word for word in rest[1:] if "=" in word)]
    if rest and "=" not in rest[0] and not rest[0].startswith("-") and not _is_input_file("", rest[0]):
        raise ValueError(console.missing_run_text(Path(rest[0])))
    return ids, rest


def _is_input_file(before: str, word: str) -> bool:
    """Whether a word names an input: a URL, or existing paths or globs, that is no flag's value and no option.

    >>> [_is_input_file("", word) for word in ("s3://bucket/day=1/edges.csv", "seed=1", "-m", "nowhere.csv")]
    [True, False, False, False]
    """
    key, equals, _ = word.partition("=")
    if not word or word[0] in "+~" or _is_flag(before, word) or (equals and "/" not in key):
        return False
    if remote.is_url(word):
        return True
    is_there = lambda name: glob.has_magic(name) and glob.glob(name, recursive=True)  # noqa: E731, PTH207
    return Path(word).exists() or all(Path(part).exists() or is_there(part) for part in word.split(","))


def _is_flag(before: str, word: str) -> bool:
    """Whether a word is a flag of Hydra, or the value of the flag before it.

    >>> _is_flag("", "-m"), _is_flag("-m", "edges.csv"), _is_flag("--cfg", "job")
    (True, False, True)
    """
    return word.startswith("-") or ("=" not in word and before.startswith("-") and before not in _FLAGS_WITHOUT_VALUE)


def _file_options(files: Sequence[str], words: Sequence[str]) -> list[str]:
    """The options that the files stand for, except those that other words set.

    >>> _file_options(["a/edges.csv.gz", "nodes.csv"], ["graph.name=mine"])
    ['graph=tables', 'graph.path=a/edges.csv.gz', 'graph.nodes=nodes.csv']
    """
    if not files:
        return []
    from hcm_scale.ingest.readers import kind_of

    kind, given = kind_of(remote.local_path(files[0])), {split(word)[0] for word in words}
    if len(files) > (2 if kind in ("tables", "reader") else 1):
        legal = (
            "an edge table and a node table" if kind in ("tables", "reader") else f"one, since {files[0]} is no table"
        )
        raise ValueError(f"{' '.join(files)}: {len(files)} files; legal are {legal}")
    if "graph.path" in given:
        raise ValueError(f"{files[0]} and graph.path=... both name the graph; say one of them")
    nodes = files[1] if len(files) == 2 else None
    found = {"graph": kind, "graph.path": files[0], "graph.nodes": nodes, "graph.name": _stem(files[0])}
    return [f"{key}={value}" for key, value in found.items() if value is not None and key not in given]


def _stem(where: str) -> str:
    """The name of a file without its endings; of a glob, the last folder without wildcards.

    >>> _stem("https://x.org/a/edges.csv.gz?key=1"), _stem("out/day=*/*.parquet"), _stem("..")
    ('edges', 'out', 'graph')
    """
    path = PurePosixPath(where.partition("?")[0] if where.startswith("http") else where)
    parts = [part for part in path.parts if not glob.has_magic(part) and part.strip("./")]
    name = parts[-1] if parts else "graph"
    return name.split(".")[0] or name


def _check_keys(words: Sequence[str], is_sweep: bool) -> None:
    has_other_conf = any(word.startswith(_CONF_FLAGS) or "hydra.searchpath" in word for word in words)
    for before, word in zip(["", *words], words, strict=False):
        sign, key, value = _parts(word)
        if _is_flag(before, word):
            _check_flag(word)
        elif value is None and sign != "~":
            if "/" in word or "." in word:
                raise ValueError(console.missing_file_text(word))
            raise ValueError(f"{word!r} is neither an option, KEY=VALUE, a file that is there, nor a flag such as -m")
        elif key.partition(".")[0] == "hydra" or "@" in key or key.startswith("hydra/"):
            continue
        elif sign == "+" and key in options():
            raise ValueError(f"{key!r} is an option of ours: leave out the + before it")
        elif has_other_conf:
            continue
        elif key and schema.group_folders(key):
            for name in value.split(",") if value and is_sweep else [value]:
                _check_option_file(key, name)
        elif key not in options() and not _is_dict_entry(key):
            raise ValueError(no_option(key))


def _parts(word: str) -> tuple[str, str, str | None]:
    """Sign (+, ++ or ~), key and value of an override; None if it has no value."""
    key, equals, value = word.partition("=")
    name = key.lstrip("+~")
    return key[: len(key) - len(name)], name, value if equals else None


def _check_flag(word: str) -> None:
    flag = word.partition("=")[0]
    if word.startswith("-") and flag not in _FLAGS and not re.match("-(cd|cp|cn|[cpi])[^-]", word):
        names = [*(known.strip("-") for known in _FLAGS), *options()]
        meant = console.suggest(flag.strip("-").replace("-", "_"), names) or "; hcm-scale --help lists both"
        raise ValueError(f"{flag} is not a flag (options are KEY=VALUE, files are named alone){meant}")


def _check_option_file(group: str, name: str | None) -> None:
    if name == "null":
        raise ValueError(f"{group}=null cannot be read; ~{group} is none of its option files")
    if name and re.fullmatch(r"[\w./-]+", name) and schema.option_file(group, name) is None:
        raise ValueError(f"{group}={name} is not known; {console.legal_names(name, schema.option_names(group))}")


def _is_dict_entry(key: str) -> bool:
    """Whether a key is an entry of an option that is a mapping: graph.keys.label of graph.keys."""
    outer = options().get(key.rpartition(".")[0])
    return outer is not None and outer.field.type == dict[str, str]


def _quote_text(word: str) -> str:
    """The word with the value of a text option in quotes; interpolations, ${...}, keep their meaning.

    >>> [_quote_text(word) for word in ("run_dir=a=b, {c}", "graph.nodes=null", "seed=1")]
    ["run_dir='a=b, {c}'", 'graph.nodes=null', 'seed=1']
    """
    sign, key, value = _parts(word)
    if key == "fail_on" and re.fullmatch("\"[^\"]*\"|'[^']*'", value or ""):  # in quotes already, as Hydra asks for
        return word
    kind = options()[key].field.type if key in options() else None
    if value is None or kind not in (str, str | None) or (value == "null" and kind is not str):
        return word
    return f"{sign}{key}='{schema.escape_quotes(value)}'"


def _quote_source(word: str) -> str:
    """The word with a query or URL of the graph in quotes.

    >>> [_quote_source(word) for word in ("graph.edges=select a, b from t", "graph.path=a.csv,b.csv")]
    ["graph.edges='select a, b from t'", 'graph.path=a.csv,b.csv']
    """
    return _QUERY_OR_URL.sub(lambda found: f"{found[1]}'{schema.escape_quotes(found[2])}'", word)


def _check_syntax(overrides: Sequence[str], is_sweep: bool) -> None:
    parser = OverridesParser.create()
    for before, word in zip(["", *overrides], overrides, strict=False):
        if _is_flag(before, word):
            continue
        try:
            is_swept = parser.parse_override(word).is_sweep_override()
        except HydraException as error:
            if listed := re.fullmatch(r"(.*?)=\[([^\"']*)\]", word):
                quoted = f"""'{listed[1]}=[{",".join(f'"{name.strip()}"' for name in listed[2].split(","))}]'"""
                how = f"names of other signs than English letters, digits and _ are quoted: {quoted}"
            else:
                how = "a value with any of , = [ ] { } ( ) in it has to be quoted: KEY='VALUE'"
            raise ValueError(f"{word!r} cannot be read; {how}") from error
        if is_swept and not is_sweep:
            raise ValueError(f"{word} names several values: -m runs them all, quotes make them one text: KEY='VALUE'")


# Hydra composes the configuration.


class _OwnOptionFiles(SearchPathPlugin):
    """Lets Hydra find `conf/GROUP/NAME.yaml` of the working folder, after the option files of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it begins to compose."""
        own = schema.own_conf_dir()
        if own is not None:
            search_path.append("own", f"file://{own}")


_AT_THE_END = "+hydra.callbacks.after_sweep._target_=hcm_scale.cli.overrides.AfterSweep"


class AfterSweep(Callback):
    """Says at the end of a sweep how its jobs are gathered."""

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        where = shlex.quote(config.hydra.sweep.dir)
        print(f"the jobs as one table: hcm-scale collect {where}", file=sys.stderr, flush=True)


def register() -> None:
    """Makes the typed schema, the `slug` resolver and the user's own option files known to Hydra."""
    Plugins.instance().register(_OwnOptionFiles)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, node in schema.SOURCES.items():
        store.store(group="graph/schema", name=name, node=node)
    OmegaConf.register_new_resolver("slug", slug, replace=True)


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Lets `compose_config` compose within the block."""
    register()
    with initialize_config_dir(str(schema.conf_dir()), version_base="1.3"):
        yield


def compose_config(words: Sequence[str], composed: Any = None) -> Config:
    """The checked configuration of these overrides; with `trained=RUN` they change the options of that run."""
    config = schema.to_config(compose("config", list(words)) if composed is None else composed)
    if config.trained is None:
        return config
    from hcm_scale.run.finished import as_trained

    store = ConfigStore.instance()
    store.store(name="schema", node=as_trained(Config(trained=config.trained)))
    try:
        return schema.to_config(compose("config", list(words)))
    finally:
        store.store(name="schema", node=Config)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turns errors of Hydra, OmegaConf and YAML into ValueError with a line that names the key and what is legal."""
    try:
        yield
    except YAMLError as error:  # of an option file
        raise ValueError(" ".join(str(error).split())) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_error_text(error)) from error


def _error_text(error: Exception) -> str:
    text = str(error)
    cause = error if hasattr(error, "full_key") else error.__cause__ or error.__context__  # of OmegaConf: has the key
    key = getattr(cause, "full_key", None) or ""
    file = f"{text.split(chr(39))[1]}.yaml: " if text.startswith("In '") else ""
    if key and isinstance(cause, ConfigKeyError | ConfigAttributeError):
        other = "; `defaults: [override /graph: NAME]` in the file takes another source"
        return f"{file}{no_option(key)}{other if file and key.startswith('graph.') else ''}"
    if key in options() and isinstance(cause, ValidationError):
        entry, value = options()[key].field, "" if file else text.partition("=")[2]
        hint, kind = "", str(entry.type)
        if value and kind.startswith("list"):
            hint = f"; a list is written in brackets: {key}=[{value}]"
        elif "float" in kind and re.fullmatch(r"[0-9.]+%", value):
            hint = f"; {value} is written {key}={float(value[:-1]) / 100:g}"
        return f"{file}{key}{'=' if value else ''}{value} is not legal: {schema.describe(entry)}{hint}"
    lines = text.splitlines()[:1] if key else text.splitlines()  # the others are about types inside of OmegaConf
    return (f"{key}: " if key else "") + " ".join(line.strip() for line in lines if line.strip())


def name_columns(request: Request, graph: GraphConfig) -> GraphConfig:
    """The section with the columns of tables that were given as files: as words or option files say, else guessed."""
    if not request.has_files or type(graph) is not TablesGraph:
        return graph
    given, plain = {split(word)[0] for word in request.words}, TablesGraph()
    values = {name: getattr(graph, name) for name in _COLUMNS}
    known = {k: value for k, value in values.items() if f"graph.{k}" in given or value != getattr(plain, k)}
    if len(known) == len(_COLUMNS):
        return graph
    from hcm_scale.ingest import guess
    from hcm_scale.ingest.remote import fetched_files
    from hcm_scale.ingest.table_files import CSV, PARQUET

    places = {"graph.path": graph.path, "graph.nodes": graph.nodes}
    with (
        tempfile.TemporaryDirectory(prefix="hcm-scale-guess-") as scratch,
        fetched_files(Path(scratch) / "graph", places, PARQUET + CSV) as (edges, nodes),
    ):
        found: dict[str, Any] = guess.guess_columns((edges, nodes), known, "graph.")
    guess.log_guesses({name: value for name, value in found.items() if name not in known})
    return dataclasses.replace(graph, **found)
