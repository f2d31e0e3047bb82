"""A user's own option files: Hydra finds `conf/GROUP/NAME.yaml` in the working folder, after those of the package."""

import dataclasses
import glob
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from hcm_scale.base import console, remote
from hcm_scale.config import GraphConfig, TablesGraph, describe, no_option, options
from hcm_scale.ingest.readers import kind_of
from hcm_scale.options import escaped, group_folders, option_file, option_names, own_conf_dir

# ----------------------------------------------------------------------------
# The words of a command line, looked at before Hydra reads them.
#
# Hydra has a grammar of its own for values, appends what it does not know where a word begins with +, and speaks of
# its own inner life where something is wrong. Here every word is held against the schema and the option files first,
# and text (paths, names of columns) is quoted, so that it means what it says: `run_dir=a=b,{c}` is a folder of that
# name. Under `-m` commas are a sweep and nothing is quoted. `in_words` turns what Hydra still refuses into one line.


SWEEPS = ("-m", "--multirun")
_OWN_FOLDERS = ("-cd", "--config-dir", "-cp", "--config-path")
_NO_VALUE = (*SWEEPS, "-r", "--run", "--resolve", "--experimental-rerun")
_FLAGS = (  # of Hydra's, those that make sense here
    *(*_OWN_FOLDERS, *_NO_VALUE, "-c", "--cfg", "-p", "--package", "-cn", "--config-name", "-i", "--info"),
    *("--hydra-help", "-h", "--help"),
)
_WORD = re.compile(r"(?P<sign>[+~]*)(?P<key>[^=]*)(=(?P<value>.*))?", re.DOTALL)


def check_overrides(words: Sequence[str]) -> None:
    """ValueError for the first word that names no option of ours, or an option file that is not there."""
    known = options()
    swept = bool(set(SWEEPS) & set(words))
    is_ours = not any(word.startswith(_OWN_FOLDERS) or "hydra.searchpath" in word for word in words)
    for before, word in zip(["", *words], words, strict=False):
        if is_flag(before, word):
            _check_flag(word)
            continue
        sign, key, value = _parts(word)
        if value is None and sign != "~":
            if "/" in word or "." in word:
                raise ValueError(console.missing_file_text(word))
            raise ValueError(f"{word!r} is neither an option, KEY=VALUE, a file that is there, nor a flag such as -m")
        if key.partition(".")[0] in ("hydra", "tune") or "@" in key or key.startswith("hydra/"):
            continue
        if sign == "+" and key in known:
            raise ValueError(f"{key!r} is an option of ours: leave out the + before it")
        if key and group_folders(key):
            _check_group(key, value, swept) if is_ours else None
        elif key not in known and not _is_entry(key) and is_ours:
            raise ValueError(no_option(key))


def _check_flag(word: str) -> None:
    """Refuses a flag that there is not, with the nearest flag or option."""
    flag = word.partition("=")[0]
    if word.startswith("-") and flag not in _FLAGS and not re.match("-(cd|cp|cn|[cpi])[^-]", word):
        names = [*(known.strip("-") for known in _FLAGS), *options()]
        meant = console.suggest(flag.strip("-").replace("-", "_"), names) or "; hcm-scale --help lists both"
        raise ValueError(f"{flag} is not a flag (options are KEY=VALUE, files are named alone){meant}")


def is_flag(before: str, word: str) -> bool:
    """Whether a word is one of Hydra's flags, or the value of the flag before it.

    >>> is_flag("", "-m"), is_flag("-m", "edges.csv"), is_flag("--cfg", "job")
    (True, False, True)
    """
    return word.startswith("-") or ("=" not in word and before.startswith("-") and before not in _NO_VALUE)


def _is_entry(key: str) -> bool:
    """Whether a key is an entry of an option that holds several: graph.keys.label of graph.keys."""
    outer = options().get(key.rpartition(".")[0])
    return outer is not None and outer.field.type == dict[str, str]


def _check_group(key: str, value: str | None, swept: bool) -> None:
    """Refuses the name of an option file that is not there; lists and the like are left to Hydra."""
    legal = option_names(key)
    for name in value.split(",") if value and swept else [value]:
        if name == "null":
            raise ValueError(f"{key}=null cannot be read; ~{key} is none of its option files")
        if name and re.fullmatch(r"[\w./-]+", name) and option_file(key, name) is None:
            raise ValueError(f"{key}={name} is not known; {console.legal_names(name, legal)}")


def _parts(word: str) -> tuple[str, str, str | None]:
    found = _WORD.fullmatch(word)
    assert found is not None  # the expression takes anything
    return found["sign"], found["key"], found["value"]


def quote_text_values(words: Sequence[str]) -> list[str]:
    """The words with the values of text options quoted for Hydra; interpolations, ${...}, stay what they are.

    >>> quote_text_values(["run_dir=a=b, {c}", "graph.nodes=null", "seed=1"])
    ["run_dir='a=b, {c}'", 'graph.nodes=null', 'seed=1']
    """
    return [_quoted(word) for word in words]


def _quoted(word: str) -> str:
    sign, key, value = _parts(word)
    kind = options()[key].field.type if key in options() else None
    if value is None or kind not in (str, str | None) or (value == "null" and kind is not str):
        return word
    return f"{sign}{key}='{escaped(value)}'"


def _written(key: str, value: str, entry: dataclasses.Field[Any]) -> str:
    """How a value of another form would be written: one name as a list, per cent as a share.

    >>> _written("score.fdr", "10%", options()["score.fdr"].field)
    '; 10% is written score.fdr=0.1'
    """
    kind = str(entry.type)
    if kind.startswith("list"):
        return f"; a list is written in brackets: {key}=[{value}]"
    if "float" in kind and re.fullmatch(r"[0-9.]+%", value):
        return f"; {value} is written {key}={float(value[:-1]) / 100:g}"
    return ""


def hydra_error_text(error: Exception) -> str:
    """What Hydra or OmegaConf refused, in our own words: by the key that the error holds, or the word that it names."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, ValidationError

    text, word = str(error), getattr(error, "override", None)
    if word is not None and (listed := re.fullmatch(r"(.*?)=\[([^\"']*)\]", word)):
        names = ",".join(f'"{name.strip()}"' for name in listed[2].split(","))
        quoted = f"'{listed[1]}=[{names}]'"
        return f"{word!r} cannot be read; names of other signs than English letters, digits and _ are quoted: {quoted}"
    if word is not None:
        return f"{word!r} cannot be read; a value with any of , = [ ] {{ }} ( ) in it has to be quoted: KEY='VALUE'"
    if found := re.match(r"Ambiguous value for argument '(.*)'\n", text):
        return f"{found[1]} names several values: -m runs them all, quotes make them one text: KEY='VALUE'"
    cause = error if hasattr(error, "full_key") else error.__cause__ or error.__context__  # of OmegaConf: has the key
    key = getattr(cause, "full_key", None) or ""
    in_file = re.match(r"In '(.*?)'", text)
    where = f"{in_file[1]}.yaml: " if in_file else ""
    if key and isinstance(cause, ConfigKeyError | ConfigAttributeError):
        other = "; `defaults: [override /graph: NAME]` in the file takes another source"
        return f"{where}{no_option(key)}{other if in_file and key.startswith('graph.') else ''}"
    if key in options() and isinstance(cause, ValidationError):
        entry, value = options()[key].field, "" if in_file else text.partition("=")[2]
        said = f"{key}={value} is not legal: {describe(entry)}{_written(key, value, entry)}"
        return said if value else f"{where}{key} is not legal: {describe(entry)}"
    lines = text.splitlines()[:1] if key else text.splitlines()  # the others are about types inside of OmegaConf
    return (f"{key}: " if key else "") + " ".join(line.strip() for line in lines if line.strip())


# ----------------------------------------------------------------------------
# Files among the words of a command line: `hcm-scale run edges.csv nodes.csv`, `hcm-scale run graph.mat`.
#
# They become options, `graph=tables graph.path=edges.csv graph.nodes=nodes.csv graph.name=edges`, where the user did
# not say these. Of tables the columns that nobody named are guessed, as `HCM.fit` does (`ingest/guess.py`), when the
# configuration is composed; the log says what was guessed.


_COLUMNS = ("source_column", "target_column", "id_column")


def is_input_file(word: str) -> bool:
    """Whether a word names a file, and is no option: a URL, or a path or glob that is there.

    >>> [is_input_file(word) for word in ("s3://bucket/day=1/edges.csv", "seed=1", "-m", "nowhere.csv")]
    [True, False, False, False]
    """
    key, equals, _ = word.partition("=")
    if remote.is_url(word):
        return True
    if not word or word[0] in "-+~" or (equals and "/" not in key):
        return False
    return Path(word).exists() or bool(glob.has_magic(word) and glob.glob(word, recursive=True))  # noqa: PTH207


def file_options(files: Sequence[str], words: Sequence[str]) -> list[str]:
    """The options that the files stand for, less those that other words name.

    >>> file_options(["a/edges.csv.gz", "nodes.csv"], ["graph.name=mine"])
    ['graph=tables', 'graph.path=a/edges.csv.gz', 'graph.nodes=nodes.csv']
    """
    if not files:
        return []
    kind, named = kind_of(remote.local_path(files[0])), {word.lstrip("+").partition("=")[0] for word in words}
    most = 2 if kind == "tables" else 1
    if len(files) > most:
        legal = "an edge table and a node table" if kind == "tables" else f"one, since {files[0]} is no table"
        raise ValueError(f"{' '.join(files)}: {len(files)} files; legal are {legal}")
    if "graph.path" in named:
        raise ValueError(f"{files[0]} and graph.path=... both name the graph; say one of them")
    options = {"graph": kind, "graph.path": files[0], "graph.nodes": files[1] if len(files) == 2 else None}
    options["graph.name"] = _stem(files[0])
    return [f"{key}={value}" for key, value in options.items() if value is not None and key not in named]


def _stem(where: str) -> str:
    """What a file is called, without endings; of a glob the folder that it looks into.

    >>> _stem("https://x.org/a/edges.csv.gz?key=1"), _stem("out/day=*/*.parquet"), _stem("..")
    ('edges', 'out', 'graph')
    """
    path = PurePosixPath(where.partition("?")[0] if where.startswith("http") else where)
    plain = [part for part in path.parts if not glob.has_magic(part) and part.strip("./")]
    name = plain[-1] if plain else "graph"
    return name.split(".")[0] or name


def name_columns(graph: GraphConfig, words: Sequence[str]) -> GraphConfig:
    """The section with the columns of its tables: as said in words or option files, else guessed."""
    if type(graph) is not TablesGraph:
        return graph
    said = {word.lstrip("+").partition("=")[0] for word in words}
    plain = TablesGraph()
    known = {
        name: getattr(graph, name)
        for name in _COLUMNS
        if f"graph.{name}" in said or getattr(graph, name) != getattr(plain, name)
    }
    if len(known) == len(_COLUMNS):
        return graph
    from hcm_scale.ingest import guess
    from hcm_scale.ingest import remote as fetched
    from hcm_scale.ingest.table_files import CSV, PARQUET

    places = {"graph.path": graph.path, "graph.nodes": graph.nodes}
    with (
        tempfile.TemporaryDirectory(prefix="hcm-scale-guess-") as scratch,
        fetched.fetched_files(Path(scratch) / "graph", places, PARQUET + CSV) as (edges, nodes),
    ):
        found: dict[str, Any] = guess.guess_columns((edges, nodes), known, graph.max_bytes, "graph.")
    guess.log_guesses({name: value for name, value in found.items() if name not in known})
    return dataclasses.replace(graph, **found)


class OwnOptions(SearchPathPlugin):
    """Adds the folder to where Hydra looks."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it begins to compose."""
        own = own_conf_dir()
        if own is not None:
            search_path.append("own", f"file://{own}")


def register() -> None:
    """Makes the folder known to Hydra."""
    Plugins.instance().register(OwnOptions)
