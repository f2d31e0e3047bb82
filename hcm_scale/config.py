"""The configuration as types: one dataclass per room, checked when it is composed.

Hydra refuses unknown keys and wrong types against these classes; `check` refuses values outside the range that a field
states, naming the key, the value and what is legal. Nothing below `run/stages.py` reads a configuration.
"""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hcm_scale.base import names as tables
from hcm_scale.base.console import legal_names, suggest


def number(default: Any, low: float | None = None, high: float | None = None) -> Any:
    """A number between `low` and `high`, both legal; None is no bound."""
    return field(default=default, metadata={"low": low, "high": high})


def fixed(default: str) -> Any:
    """A name that option files set and nobody else."""
    return field(default=default, metadata={"fixed": True})


def choice(default: str, names: tuple[str, ...]) -> Any:
    """One name from a closed table."""
    return field(default=default, metadata={"names": names})


def names(default: list[str], table: tuple[str, ...] | None = None) -> Any:
    """A list of names, each from a closed table where one is given; it may be empty where its default is."""
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
    seed: int = number(0, 0)


@dataclass
class SyntheticGraph(GraphConfig):
    """A seeded graph of any size; R-MAT rounds `num_nodes` up to a power of two, a grid to a square."""

    source: str = fixed("synthetic")
    family: str = choice("community", tables.FAMILIES)
    num_nodes: int = number(20_000, 2)
    edges_per_node: int = number(8, 1)
    num_attributes: int = number(20, 1)
    seed: int = number(0, 0)


@dataclass
class PolicyGraph(GraphConfig):
    """What to do with input that is not clean; shared by all files that users bring."""

    path: str = ""
    directed: bool = False
    unknown: str = choice("error", tables.POLICIES["unknown"])
    nonfinite: str = choice("error", tables.POLICIES["nonfinite"])
    featureless: str = choice("error", tables.POLICIES["featureless"])
    max_bytes: int = number(4 << 30, 1)  # that a file which grows over a hundred times may unpack to; a .mat at all


@dataclass
class TablesGraph(PolicyGraph):
    """Parquet or CSV tables: an edge table at `path` and optionally a node table."""

    source: str = fixed("tables")
    name: str = "tables"
    nodes: str | None = None
    source_column: str = "source"
    target_column: str = "target"
    id_column: str = "id"
    label_column: str | None = None
    type_column: str | None = None  # of the edge table, at most 16 values: told in explanations
    weight_column: str | None = None  # of the edge table, numbers above 0: heavier neighbours count for more
    id_type: str = choice("auto", tables.ID_TYPES)
    include: list[str] | None = None
    exclude: list[str] = names([])
    categorical: list[str] = names([])
    repeated: str = choice("error", tables.POLICIES["repeated"])


@dataclass
class SqlGraph(TablesGraph):
    """Queries in the place of tables: `edges` and optionally `nodes` of the database `uri`; `path` is not used."""

    source: str = fixed("sql")
    name: str = "sql"
    uri: str = ""
    edges: str = ""


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
    """A torch_geometric data set by name, kept under `path`."""

    source: str = fixed("pyg")
    dataset: str = ""
    weights: bool = False  # edge_weight, or an edge_attr of one column, are weights of edges
    trust_pickle: bool = False  # lets files of the data set run code; without it arrays and tensors alone are read


@dataclass
class FolderGraph(GraphConfig):
    """A graph folder that was written before."""

    source: str = fixed("folder")
    name: str = "folder"
    path: str = ""


@dataclass
class InjectConfig:
    """Anomalies planted for an experiment; None attribute anomalies are as many as there are nodes in cliques."""

    num_cliques: int = number(0, 0)
    clique_size: int = number(15, 2)
    candidates: int = number(50, 1)
    num_attribute_anomalies: int | None = number(0, 0)
    seed: int = number(0, 0)


@dataclass
class AttributesConfig:
    scale: str = choice("auto", tables.SCALINGS)
    pca: int | None = number(None, 1)  # with auto: of each group that is reduced; None: as many as its rule says
    standardise: bool = True  # no effect with auto


@dataclass
class PurifyConfig:
    similarity: str = choice("euclidean", tables.SIMILARITIES)
    ratio: float = number(0.2, 0.0, 0.99)
    attributes: str = choice("transformed", ("transformed", "raw"))


@dataclass
class HopsConfig:
    classes: int = number(4, *tables.MODEL_SIZES["num_classes"])
    num_sources: int | None = number(4_096, 1)  # None: every node
    pairs_per_class: int | None = number(256, 1)  # of a source; None: every pair


@dataclass
class ShardsConfig:
    shard_pairs: int = number(1_000_000, 1_024)


@dataclass
class SamplingConfig:
    batch_pairs: int | None = number(512, 2)  # None: all pairs of an epoch
    ratio: float = number(0.3, 0.0001, 1.0)
    fan_out: list[str] = names(["all"])
    hub_cap: int | None = number(256, 1)
    first_hop: str = choice("exact", ("exact", "sampled"))
    backend: str = choice("numba", tables.BACKENDS)
    workers: int = number(1, 0, 64)
    whole_graph: bool = True  # steps on all nodes where a batch's neighbourhood would be most of them


@dataclass
class ModelConfig:
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
    burn_in_steps: int | None = number(None, 0)  # None: five epochs, but 100 to 200 steps
    num_samples: int | None = number(None, 1)  # None: until one more no longer moves the ranking, at most ten
    thin_steps: int = number(10, 1)
    checkpoint_every: int = number(200, 1)
    log_every: int = number(20, 1)
    trend_every: int | None = number(None, 1)
    tensorboard: bool = False


@dataclass
class ScoreConfig:
    views: list[str] = names(["purified", "original"], ("purified", "original"))
    hop: str = choice("expected", tables.HOPS)
    trim: float = number(0.2, 0.0, 0.95)
    far_share: float = number(0.4, 0.001, 1.0)  # of the edges: those that count as far
    rank_by: str = choice("score", tables.RANKINGS)
    fdr: float = number(0.1, 1e-6, 0.999)  # the share of false flags to put up with among the flagged
    max_neighbors: int | None = number(None, 1)
    chunk_edges: int | None = number(None, 256)
    state: str = choice("auto", tables.STATES)  # where embeddings and moments of edges are; auto: in memory if they fit
    precision: str = choice("auto", tables.PRECISIONS)  # of the products over edges, on a GPU
    csv: bool = False  # write report/scores.csv, the whole list as text
    explained: int = number(10, 0, 100)
    copy_to: str | None = None  # a URL or folder that gets the ranked list and the report once they are made


@dataclass
class WorldConfig:
    """Where a run computes; a rank is one process, and all of them share every heavy stage."""

    device: str = choice("auto", ("auto", "cpu", "cuda"))
    threads: int | None = number(None, 1)  # of each process; None: an even share of the cores
    processes: int | None = number(1, 1, 4_096)  # on each machine; None: one per GPU, or one where there is none
    nodes: int = number(1, 1, 65_536)  # machines
    rendezvous: str | None = None  # HOST:PORT on one of the machines, where there are several
    max_restarts: int = number(3, 0, 1_000)  # after a rank is lost, from the last checkpoint
    memory_gib: float | None = number(None, 0.001)  # that the ranks of one machine may take; None: what is free
    timeout_seconds: float = number(300.0, 5.0, 86_400.0)  # for a rank that does not answer


@dataclass
class TrackConfig:
    """Experiment trackers that are told of a finished run."""

    to: list[str] = names([], tables.TRACKERS)
    project: str = "hcm_scale"


@dataclass
class Config:
    """Everything one run is made from."""

    graph: GraphConfig = field(default_factory=GraphConfig)  # every source is a subclass
    inject: InjectConfig = field(default_factory=InjectConfig)
    attributes: AttributesConfig = field(default_factory=AttributesConfig)
    purify: PurifyConfig = field(default_factory=PurifyConfig)
    hops: HopsConfig = field(default_factory=HopsConfig)
    shards: ShardsConfig = field(default_factory=ShardsConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    seed: int = number(0, 0, 2**31 - 1)
    data_dir: str = "data"
    run_dir: str = "runs/default"
    share_dir: str | None = None
    log: str = choice("text", ("text", "json"))
    overwrite: bool = False  # replace a finished run of another input in run_dir
    trained: str | None = None  # the run_dir of a finished run, whose samples score this graph; None: train here


SOURCES: dict[str, type[GraphConfig]] = {
    "default": DefaultGraph,
    "synthetic": SyntheticGraph,
    "tables": TablesGraph,
    "sql": SqlGraph,
    "matrix": MatrixGraph,
    "pyg": PygGraph,
    "folder": FolderGraph,
}


_NAMES_OF_DATA = ("include", "exclude", "categorical", "keys", "fan_out")  # text that leads nowhere else


def inert_options(section: type = Config, prefix: str = "") -> Iterator[str]:
    """The options that a file of somebody else may set, by full key: none names a place, an address or a command.

    They take numbers, truth values, names from closed tables and names of columns; of graphs, those that say how data
    in memory are read.
    """
    for entry in dataclasses.fields(section):
        is_text = "str" in str(entry.type) and not (entry.metadata.get("names") or entry.metadata.get("each"))
        if entry.name == "graph":
            yield from sorted({*inert_options(TablesGraph, "graph."), *inert_options(MatrixGraph, "graph.")})
        elif isinstance(entry.type, type) and dataclasses.is_dataclass(entry.type):
            yield from inert_options(entry.type, f"{entry.name}.") if entry.type is not TrackConfig else ()
        elif not is_text or entry.name.endswith("_column") or entry.name in _NAMES_OF_DATA:
            yield prefix + entry.name


_MEANT = {"gpu": "cuda"}  # what people say elsewhere


class Option(NamedTuple):
    """One option of the schema; `sources` are the sources of a graph that have it, none where it is not a graph's."""

    key: str
    field: dataclasses.Field[Any]
    default: Any
    sources: tuple[str, ...]


def walk(section: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(full key, field, value) of every option that may be set in a configuration or one of its sections.

    >>> [key for key, _, _ in walk(PurifyConfig(), "purify.")]
    ['purify.similarity', 'purify.ratio', 'purify.attributes']
    """
    for entry in dataclasses.fields(section):
        value = getattr(section, entry.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{entry.name}.")
        elif not entry.metadata.get("fixed"):
            yield prefix + entry.name, entry, value


@functools.cache
def options() -> dict[str, Option]:
    """Every option of every source by its key; where sources have one in common, its default is that of tables."""
    found: dict[str, Option] = {}
    for name in ("tables", *(name for name in SOURCES if name != "tables")):
        for key, entry, default in walk(Config(graph=SOURCES[name]())):
            before = found.get(key, Option(key, entry, default, ()))
            found[key] = before._replace(sources=(*before.sources, name) if key.startswith("graph.") else ())
    return found


def no_option(key: str) -> str:
    """What to say of a key that the configuration does not have: the sources that have it, or the nearest option.

    >>> no_option("exclude")
    "'exclude' is not an option; did you mean 'graph.exclude'?"
    """
    if key in options():
        having = ", ".join(f"graph={name}" for name in options()[key].sources)
        return f"{key!r} is not an option of this source; those that have it: {having}"
    meant = next((known for known in options() if known.endswith(f".{key}")), key)
    return f"{key!r} is not an option{suggest(meant, options()) or '; hcm-scale options lists all of them'}"


def check(config: Any, prefix: str = "") -> None:
    """Raises ValueError for the first value outside what its field states as legal.

    >>> check(PurifyConfig(ratio=1.5), "purify.")
    Traceback (most recent call last):
    ...
    ValueError: purify.ratio=1.5 is out of range: at least 0.0 and at most 0.99
    """
    for key, entry, value in walk(config, prefix):
        if value is not None:
            _check_value(key, value, entry.metadata)


def _check_value(key: str, value: Any, rule: Any) -> None:
    low, high = rule.get("low"), rule.get("high")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        raise ValueError(f"{key}={value} is out of range: {_bounds(rule)}")
    legal = rule.get("names") or rule.get("each")
    if not legal:
        return
    if not value and "each" in rule and not rule["may_be_empty"]:
        raise ValueError(f"{key}=[] is empty; legal are {', '.join(legal)}")
    for item in value if "each" in rule else [value]:
        if item not in legal:
            raise ValueError(f"{key}={item} is not known; {legal_names(_MEANT.get(item, item), legal)}")


def _bounds(rule: Any) -> str:
    said = (("at least", rule.get("low")), ("at most", rule.get("high")))
    return " and ".join(f"{words} {bound}" for words, bound in said if bound is not None)


def describe(entry: dataclasses.Field[Any]) -> str:
    """What a field takes, in words.

    >>> describe(dataclasses.fields(HopsConfig)[0]), describe(dataclasses.fields(Config)[3])
    ('int, at least 2 and at most 16', 'a section with similarity, ratio, attributes')
    """
    if dataclasses.is_dataclass(entry.type):
        return f"a section with {', '.join(inner.name for inner in dataclasses.fields(entry.type))}"
    rule, kind = entry.metadata, entry.type.__name__ if isinstance(entry.type, type) else str(entry.type)
    legal = rule.get("names") or rule.get("each")
    return ", ".join(filter(None, [kind, legal and f"of {', '.join(legal)}", _bounds(rule)]))


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
            f"(not the first with sampling.first_hop=exact): give {num_blocks}, input side first, or one for all"
        )
    return parsed
