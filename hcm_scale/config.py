"""The configuration: typed options, option files, and their checks.

`Config` has one dataclass per section. The command line fills it through Hydra, Python through `with_options`; keys are
the same, dotted or as nested mappings, and a whole section may be the name of one of its option files, as in
`purify=jaccard`. OmegaConf refuses unknown keys and wrong types, `check` refuses values outside the range that a field
states; every message names the key, the value and what is legal. Nothing below `run/stages.py` reads a configuration.

Hydra and OmegaConf are imported when something is composed, so that `hcm-scale --help` starts without them.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hcm_scale import plugins
from hcm_scale.base import names as tables
from hcm_scale.base import remote
from hcm_scale.base.console import legal_names, suggest


def number(default: Any, low: float | None = None, high: float | None = None) -> Any:
    """A number between `low` and `high`, both legal; None is no bound."""
    return field(default=default, metadata={"low": low, "high": high})


def fixed(default: str) -> Any:
    """A name that only option files set."""
    return field(default=default, metadata={"fixed": True})


def choice(default: str, names: tuple[str, ...]) -> Any:
    """One name from a closed table."""
    return field(default=default, metadata={"names": names})


def plugin(default: str | list[str] | None, group: str) -> Any:
    """The name of a plug-in, or a list of them; those of the package are among them."""
    rule: Any = {"metadata": {"plugins": group, "may_be_empty": True}}
    return (
        field(default_factory=lambda: list(default), **rule)
        if isinstance(default, list)
        else field(default=default, **rule)
    )


def names(default: list[str], table: tuple[str, ...] | None = None) -> Any:
    """A list of names, from a closed table if one is given; it may be empty if its default is."""
    return field(default_factory=lambda: list(default), metadata={"each": table, "may_be_empty": not default})


@dataclass
class GraphConfig:
    """Where the graph comes from; the options of a source are in its own class."""

    source: str = fixed("default")
    name: str = "graph"


@dataclass
class DefaultGraph(GraphConfig):
    """The embedded data set: 20,000 nodes in communities, with planted anomalies."""

    name: str = "default"


@dataclass
class SyntheticGraph(GraphConfig):
    """A seeded graph of any size; a grid rounds `num_nodes` up to a square."""

    source: str = fixed("synthetic")
    family: str = choice("community", tables.FAMILIES)
    num_nodes: int = number(20_000, 2, 1 << 30)
    edges_per_node: int = number(8, 1)
    num_attributes: int = number(20, 1)
    attributes_dtype: str = choice("float32", ("float32", "float16"))


@dataclass
class PolicyGraph(GraphConfig):
    """What to do with input that is not clean; shared by all files that users bring."""

    path: str = ""
    directed: bool = False
    unknown: str = choice("error", tables.POLICIES["unknown"])
    nonfinite: str = choice("error", tables.POLICIES["nonfinite"])
    featureless: str = choice("error", tables.POLICIES["featureless"])


@dataclass
class TablesGraph(PolicyGraph):
    """Parquet or CSV tables: an edge table at `path` and optionally a node table, or several: `users.csv,shops.csv`."""

    source: str = fixed("tables")
    name: str = "tables"
    nodes: str | None = None
    source_column: str = "source"
    target_column: str = "target"
    id_column: str = "id"
    label_column: str | None = None
    node_type_column: str | None = None  # of the node table, at most 64 values: nodes are compared with their own type
    type_column: str | None = None  # of the edge table, at most 16 values: told in explanations
    weight_column: str | None = None  # of the edge table, numbers above 0: heavier neighbours count for more
    time_column: str | None = None  # of the edge table: when a row was; None: as types and names of columns say
    amount_column: str | None = None  # of the edge table: how much a row is, as a payment; None: as names say
    currency_column: str | None = None  # of the edge table: what the amount is in; None: as names say
    category_column: str | None = None  # of the edge table: the sort of each row, at most 64; None: as names say
    step_seconds: float | None = number(None, 0.001, 1e9)  # of a time in numbers; None: as its name and values say
    id_type: str = choice("auto", tables.ID_TYPES)
    dates: str = choice("auto", tables.DATES)  # what 03/04/2024 is; auto: as the column shows it, else text
    include: list[str] | None = None
    exclude: list[str] = names([])
    categorical: list[str] = names([])
    numbers: list[str] = names([])  # columns of numbers where a text that is none is a gap
    repeated: str = choice("error", tables.POLICIES["repeated"])
    edge_attributes: str = choice("auto", tables.POLICIES["edge_attributes"])  # auto: where there are no others


@dataclass
class SqlGraph(TablesGraph):
    """Queries in the place of tables: `edges` and optionally `nodes` of the database at `path`."""

    source: str = fixed("sql")
    name: str = "sql"
    edges: str = ""


@dataclass
class ReaderGraph(TablesGraph):
    """A file of a format that a plug-in reads into tables; None: the plug-in named as the ending of `path`."""

    source: str = fixed("reader")
    name: str = "reader"
    reader: str | None = plugin(None, "readers")


@dataclass
class MatrixGraph(PolicyGraph):
    """One .mat, .npz or .npy file; `keys` maps adjacency, attributes and label to the file's own names."""

    source: str = fixed("matrix")
    name: str = "matrix"
    keys: dict[str, str] = field(default_factory=dict)
    weights: bool = False  # the values of the matrix, or edge_weight, are weights of edges
    num_nodes: int | None = number(None, 1, 1 << 31)  # None: as many as the file says, if its edges make it plausible


@dataclass
class PygGraph(PolicyGraph):
    """A torch_geometric `Data` in memory."""

    source: str = fixed("pyg")
    weights: bool = False  # edge_weight, or an edge_attr of one column, are weights of edges


@dataclass
class FolderGraph(GraphConfig):
    """A graph folder that was written before."""

    source: str = fixed("folder")
    name: str = "folder"
    path: str = ""
    featureless: str = choice("error", tables.POLICIES["featureless"])


@dataclass
class InjectConfig:
    """Anomalies planted for an experiment; None attribute anomalies are as many as there are nodes in cliques."""

    num_cliques: int = number(0, 0)
    num_attribute_anomalies: int | None = number(0, 0)
    seed: int = number(0, 0)


@dataclass
class AttributesConfig:
    scale: str = choice("auto", tables.SCALINGS)
    pca: int | None = number(None, 1)  # with auto: of each group that is reduced; None: as many as its rule says


@dataclass
class PurifyConfig:
    similarity: str = plugin("euclidean", "similarities")
    ratio: float = number(0.2, 0.0, 0.99)
    attributes: str = choice("transformed", ("transformed", "raw"))


@dataclass
class HopsConfig:
    classes: int | None = number(None, *tables.MODEL_SIZES["num_classes"])  # None: 4, or as many as all have pairs
    num_sources: int | None = number(4_096, 1)  # None: every node
    pairs_per_class: int | None = number(256, 1)  # of a source; None: every pair


@dataclass
class SamplingConfig:
    batch_pairs: int | None = number(512, 2)  # None: all pairs of an epoch
    ratio: float = number(0.3, 0.0001, 1.0)
    fan_out: list[str] = names(["all"])
    hub_cap: int | None = number(256, 1)
    backend: str = choice("numba", tables.BACKENDS)


@dataclass
class ModelConfig:
    encoder: str = plugin("gcn", "encoders")
    num_layers: int = number(2, *tables.MODEL_SIZES["num_layers"])
    width: int = number(64, *tables.MODEL_SIZES["width"])
    head_width: int = number(64, *tables.MODEL_SIZES["head_width"])


@dataclass
class PosteriorConfig:
    kernel: str = choice("psgld", tables.KERNELS)
    schedule: str = choice("polynomial", tables.SCHEDULES)
    step_size: float = number(0.02, 1e-12, 10.0)
    prior: float = number(5e-8, 0.0)
    temperature: float | None = number(None, 0.0)
    burn_in_steps: int = number(100, 0)
    num_samples: int | None = number(None, 1)  # None: until one more no longer moves the ranking, at most ten
    thin_steps: int = number(10, 1)
    checkpoint_every: int = number(200, 1)


@dataclass
class ScoreConfig:
    views: list[str] = names(["purified", "original"], ("purified", "original"))
    evidence: list[str] = plugin([], "evidence")
    hop: str = choice("expected", tables.HOPS)
    trim: float = number(0.2, 0.0, 0.95)
    far_share: float = number(0.4, 0.001, 1.0)  # of the edges: those that count as far
    rank_by: str = choice("score", tables.RANKINGS)
    fdr: float = number(0.1, 1e-6, 0.999)  # the share of false flags to put up with among the flagged
    precision: str = choice("auto", tables.PRECISIONS)  # of the products over edges, on a GPU


@dataclass
class WorldConfig:
    """Where a run computes; a rank is one process, and all of them share every heavy stage."""

    device: str = choice("auto", ("auto", "cpu", "cuda"))
    threads: int | None = number(None, 1)  # of each process; None: an even share of the cores
    processes: int | None = number(1, 1, 4_096)  # on each machine; None: one per GPU, or one where there is none
    max_restarts: int = number(3, 0, 1_000)  # after a rank is lost, from the last checkpoint
    memory_gib: float | None = number(None, 0.001)  # that the ranks of one machine may take; None: what is free
    timeout_seconds: float = number(300.0, 5.0, 86_400.0)  # for a rank that does not answer


@dataclass
class Config:
    """Everything one run is made from."""

    graph: GraphConfig = field(default_factory=GraphConfig)  # every source is a subclass
    inject: InjectConfig = field(default_factory=InjectConfig)
    attributes: AttributesConfig = field(default_factory=AttributesConfig)
    purify: PurifyConfig = field(default_factory=PurifyConfig)
    hops: HopsConfig = field(default_factory=HopsConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    seed: int = number(0, 0, 2**31 - 1)
    run_dir: str = "runs/default"
    share_dir: str | None = None
    log: str = choice("text", ("text", "json"))
    overwrite: bool = False  # replace a finished run of another input in run_dir
    fail_on: str | None = None  # what ends a finished run with status 3, such as drift,stability<0.5; None: nothing
    trained: str | None = None  # the run_dir of a finished run, whose samples score this graph; None: train here
    since: str | None = None  # the run_dir of an earlier run, whose cases keep their ids; None: that of `trained`


_GRAPHS = (DefaultGraph, SyntheticGraph, TablesGraph, SqlGraph, ReaderGraph, MatrixGraph, PygGraph, FolderGraph)
SOURCES: dict[str, type[GraphConfig]] = {graph.source: graph for graph in _GRAPHS}


# The options that the dataclasses define.


class Option(NamedTuple):
    """One option; `sources` are the graph sources that have it, empty for options outside `graph`."""

    key: str
    field: dataclasses.Field[Any]
    default: Any
    sources: tuple[str, ...]


def iter_options(section: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(full key, field, value) of every option that users may set in a configuration or one of its sections.

    >>> [key for key, _, _ in iter_options(PurifyConfig(), "purify.")]
    ['purify.similarity', 'purify.ratio', 'purify.attributes']
    """
    for entry in dataclasses.fields(section):
        value = getattr(section, entry.name)
        if dataclasses.is_dataclass(value):
            yield from iter_options(value, f"{prefix}{entry.name}.")
        elif not entry.metadata.get("fixed"):
            yield prefix + entry.name, entry, value


@functools.cache
def options() -> dict[str, Option]:
    """Every option of every source by key; an option of several sources has the default of `graph=tables`."""
    by_key: dict[str, Option] = {}
    for source in ("tables", *(name for name in SOURCES if name != "tables")):
        for key, entry, default in iter_options(Config(graph=SOURCES[source]())):
            option = by_key.get(key, Option(key, entry, default, ()))
            by_key[key] = option._replace(sources=(*option.sources, source) if key.startswith("graph.") else ())
    return by_key


_DATA_NAMES = ("include", "exclude", "categorical", "numbers", "keys", "fan_out")  # texts that name columns or numbers


def inert_options(section: type = Config, prefix: str = "") -> Iterator[str]:
    """Keys of the options that a file of unknown origin may set: none names a path, an address or a command.

    They take numbers, truth values, names from closed tables and names of columns; of `graph` only those that say how
    data in memory are read.
    """
    for entry in dataclasses.fields(section):
        is_named = any(entry.metadata.get(table) for table in ("names", "each", "plugins"))
        is_text = "str" in str(entry.type) and not is_named
        if entry.name == "graph":
            yield from sorted({*inert_options(TablesGraph, "graph."), *inert_options(MatrixGraph, "graph.")})
        elif isinstance(entry.type, type) and dataclasses.is_dataclass(entry.type):
            yield from inert_options(entry.type, f"{entry.name}.")
        elif not is_text or entry.name.endswith("_column") or entry.name in _DATA_NAMES:
            yield prefix + entry.name


def no_option(key: str) -> str:
    """Message for a key that the configuration does not have: the sources that have it, or the nearest option.

    >>> no_option("exclude")
    "'exclude' is not an option; did you mean 'graph.exclude'?"
    """
    if key in options():
        having = ", ".join(f"graph={name}" for name in options()[key].sources)
        return f"{key!r} is not an option of this source; those that have it: {having}"
    meant = next((name for name in options() if name.endswith(f".{key}")), key)
    return f"{key!r} is not an option{suggest(meant, options()) or '; hcm-scale options lists all of them'}"


def check(config: Any, prefix: str = "") -> None:
    """Raises ValueError for the first value outside what its field states as legal.

    >>> check(PurifyConfig(ratio=1.5), "purify.")
    Traceback (most recent call last):
    ...
    ValueError: purify.ratio=1.5 is out of range: at least 0.0 and at most 0.99
    """
    for key, entry, value in iter_options(config, prefix):
        rule = entry.metadata
        low, high = rule.get("low"), rule.get("high")
        legal: tuple[str, ...] = rule.get("names") or rule.get("each") or ()
        if value is None:
            continue
        if (low is not None and not value >= low) or (high is not None and not value <= high):  # nan is refused too
            raise ValueError(f"{key}={value} is out of range: {_bounds(rule)}")
        if legal and not value and not rule.get("may_be_empty", True):
            raise ValueError(f"{key}=[] is empty; legal are {', '.join(legal)}")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                remote.refuse_secrets(key, item)
            if group := rule.get("plugins"):
                if not plugins.is_known(group, item):
                    raise ValueError(f"{key}={item} is not known; {legal_names(item, plugins.names(group))}")
            elif legal and item not in legal:
                raise ValueError(f"{key}={item} is not known; {legal_names('cuda' if item == 'gpu' else item, legal)}")


def _bounds(rule: Mapping[str, Any]) -> str:
    bounds = (("at least", rule.get("low")), ("at most", rule.get("high")))
    return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)


def describe(entry: dataclasses.Field[Any]) -> str:
    """Type and legal values of a field, in words.

    >>> describe(dataclasses.fields(HopsConfig)[0]), describe(dataclasses.fields(Config)[3])
    ('int or None, at least 2 and at most 16', 'a section with similarity, ratio, attributes')
    """
    if dataclasses.is_dataclass(entry.type):
        return f"a section with {', '.join(inner.name for inner in dataclasses.fields(entry.type))}"
    kind = entry.type.__name__ if isinstance(entry.type, type) else str(entry.type).replace(" | ", " or ")
    rule = entry.metadata
    legal: Any = plugins.names(rule["plugins"]) if "plugins" in rule else rule.get("names") or rule.get("each")
    return ", ".join(filter(None, [kind, legal and f"of {', '.join(legal)}", _bounds(entry.metadata)]))


def parse_fan_out(fan_out: list[str], num_blocks: int) -> list[int | None]:
    """One fan-out per sampled layer, input side first; `all` becomes None; a single entry serves every layer.

    >>> parse_fan_out(["10", "all"], 2), parse_fan_out(["25"], 3)
    ([10, None], [25, 25, 25])
    """
    parsed: list[int | None] = []
    for item in fan_out:
        if item != "all" and not (item.isdigit() and int(item) > 0):
            raise ValueError(f"sampling.fan_out={item} is not legal: a whole number from 1 on, or all")
        parsed.append(None if item == "all" else int(item))
    if len(parsed) == 1:
        return parsed * num_blocks
    if len(parsed) != num_blocks:
        raise ValueError(
            f"sampling.fan_out={fan_out} has {len(parsed)} entries, and {num_blocks} of the model's layers are sampled "
            f"(of a GCN not the first): give {num_blocks}, input side first, or one for all"
        )
    return parsed


FAIL_ON = ("drift", "missing-column", "new-cases", "new-columns", "new-values", "stability<N", "flagged<N", "flagged>N")


def parse_fail_on(text: str | None) -> dict[str, tuple[str, str, float]]:
    """What `fail_on` names, as it is written: (name, sign, bound) of each; without a bound the sign is empty.

    >>> parse_fail_on("drift, stability<.5")
    {'drift': ('drift', '', 0.0), 'stability<.5': ('stability', '<', 0.5)}
    """
    checks = {}
    for item in [] if text is None else map(str.strip, text.split(",")):
        plain = "|".join(name for name in FAIL_ON if not name.endswith("N"))
        match = re.fullmatch(rf"({plain})|(stability(?=<)|flagged)([<>])(\d+\.?\d*|\.\d+)", item)
        if match is None:
            legal = f"{legal_names(item, FAIL_ON)}; N is a number, and several have commas between them"
            raise ValueError(f"fail_on={item} is not known; {legal}")
        checks[item] = match[1] or match[2], match[3] or "", float(match[4] or 0)
    return checks


# The option files: `conf/GROUP/NAME.yaml` of the package, and the user's own in `conf/` of the working folder.

WHOLE = "# @package _global_"  # first line of an option file that sets several sections


def conf_dir() -> Path:
    """The folder of option files: inside an installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"conf/ is missing beside {here}: the installation is incomplete")


def own_conf_dir() -> Path | None:
    """The folder `conf/` in the working folder; None if there is none, or if it is the package's."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != conf_dir() else None


def group_folders(group: str) -> list[Path]:
    """The existing folders of a group: the package's, then the user's own."""
    return [conf / group for conf in (conf_dir(), own_conf_dir()) if conf is not None and (conf / group).is_dir()]


def option_names(group: str) -> list[str]:
    """The names of a group's option files, the package's and the user's own."""
    files = ((folder, path) for folder in group_folders(group) for path in folder.rglob("*.yaml"))
    return sorted({path.relative_to(folder).with_suffix("").as_posix() for folder, path in files})


def option_file(group: str, name: str) -> Path | None:
    """The file of an option, None if there is none; ValueError if the user's own has the name of the package's."""
    paths = [folder / f"{name}.yaml" for folder in group_folders(group) if (folder / f"{name}.yaml").is_file()]
    if len(paths) > 1:
        raise ValueError(f"{paths[1]} has the name of an option of the package, {group}={name}: give it another")
    return paths[0] if paths else None


def _read_option_file(group: str, name: str) -> Mapping[str, Any]:
    """The values that an option file sets, by section.

    >>> _read_option_file("purify", "cosine")
    {'purify': {'similarity': 'cosine'}}
    """
    from omegaconf import OmegaConf

    path = option_file(group, name) if name in (legal := option_names(group)) else None
    if path is None:
        raise ValueError(f"{group}={name} is not known; {legal_names(name, legal)} (or a mapping of its options)")
    values: Any = OmegaConf.to_container(OmegaConf.load(path))
    if "defaults" not in values:
        return values if path.read_text().startswith(WHOLE) else {group: values}
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    package = f"hydra.searchpath=['file://{escape_quotes(str(conf_dir()))}']"  # the files that `defaults` may name
    try:
        with initialize_config_dir(str(own_conf_dir() or conf_dir()), version_base="1.3"):
            return OmegaConf.to_container(compose(f"{group}/{name}", [package]))  # type: ignore[return-value]
    except HydraException as error:
        raise ValueError(f"{group}/{name}.yaml: {error}") from error


def escape_quotes(text: str) -> str:
    """The text as it stands between single quotes in Hydra's grammar."""
    return re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)


# From composed or given values to a checked `Config`, and to the config.json of a run.

_MADE = "made"  # in config.json, beside the sections


def to_config(composed: Any) -> Config:
    """The checked dataclasses of an OmegaConf configuration that was composed over the schema."""
    from omegaconf import OmegaConf

    config = OmegaConf.to_object(composed)
    if not isinstance(config, Config):
        raise TypeError(f"a configuration must start from the schema, got {type(config).__name__}")
    _refuse_added(config)
    check(config)
    parse_fail_on(config.fail_on)
    return config


def _refuse_added(section: Any, prefix: str = "") -> None:
    """Raises ValueError for a key beside the schema, such as `_target_`, which `+KEY=VALUE` or a file added."""
    legal = [entry.name for entry in dataclasses.fields(section)]
    for name, value in vars(section).items():
        if name not in legal:
            raise ValueError(no_option(prefix + name))
        if dataclasses.is_dataclass(value):
            _refuse_added(value, f"{prefix}{name}.")


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """A copy of the configuration with these options changed; values are converted to the types of their fields.

    >>> changed = with_options(Config(), {"purify": {"ratio": 0}, "sampling.fan_out": [10, "all"]})
    >>> changed.purify.ratio, changed.sampling.fan_out
    (0.0, ['10', 'all'])
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    filled = OmegaConf.structured(config)
    for key, entry, value in _entries(config, options):
        try:
            OmegaConf.update(filled, key, as_plain(value), merge=False)
        except OmegaConfBaseException as error:
            raise ValueError(f"{key}={value!r} is not legal: {describe(entry)}") from error
    try:
        return to_config(filled)
    except OmegaConfBaseException as error:  # OmegaConf interprets ??? and ${}
        raise ValueError(f"{error.full_key} is not legal: {str(error).splitlines()[0]}") from error


def _entries(
    section: Any, options: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(dotted key, field, value) of every given option; ValueError for a key that no section has."""
    legal = {entry.name: entry for entry in dataclasses.fields(section) if not entry.metadata.get("fixed")}
    for key, value in options.items():
        name, _, rest = key.partition(".")
        inner = getattr(section, name, None) if name in legal else None
        if dataclasses.is_dataclass(inner) and not rest and isinstance(value, str):
            yield from _entries(section, _read_option_file(prefix + name, value), prefix)
        elif dataclasses.is_dataclass(inner) and (rest or isinstance(value, Mapping)):
            yield from _entries(inner, {rest: value} if rest else value, f"{prefix}{name}.")
        elif name not in legal or rest:
            raise ValueError(no_option(prefix + key))
        else:
            yield prefix + name, legal[name], value


def as_plain(value: Any) -> Any:
    """The value in types of YAML and JSON; numpy numbers and arrays, tuples, paths and torch devices are converted.

    >>> as_plain({"a": (1, Path("b"))})
    {'a': [1, 'b']}
    """
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(full key, value) of nested mappings.

    >>> dict(flatten({"hops": {"classes": 4}, "seed": 0}))
    {'hops.classes': 4, 'seed': 0}
    """
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def store_options(run_dir: Path, config: Config) -> None:
    """Writes the config.json of a run, with a hash of its content, and where it was made: what relative paths mean."""
    from hcm_scale.base.files import resolved, write_sealed

    made = {"in": str(Path.cwd()), "folder": str(resolved(run_dir)), "inode": run_dir.stat().st_ino}
    write_sealed(run_dir / "config.json", dataclasses.asdict(config) | {_MADE: made})


def stored_options(run_dir: Path) -> dict[str, Any]:
    """The config.json of a run by full key; empty if there is none, FolderError if it is damaged."""
    return dict(flatten({name: value for name, value in _stored(run_dir).items() if name != _MADE}))


def made_in(run_dir: Path) -> dict[str, Any]:
    """Where a run was made: the working folder (`in`), its own `folder`, the `inode` of that; empty if unknown."""
    made = _stored(run_dir).get(_MADE)
    return made if isinstance(made, dict) else {}


def _stored(run_dir: Path) -> dict[str, Any]:
    from hcm_scale.base.files import read_sealed

    path = run_dir / "config.json"
    return read_sealed(path, "remove it, and hcm-scale run writes it again") if path.exists() else {}
