"""From options as people and files give them to a checked `Config`: typed, every key known, every value legal.

Keys are those of the command line, dotted or as sections in sections; a whole section may be the name of one of its
files in `conf/`, as in purify=none. What is refused is named with its key, its value and what is legal, before anything
is made.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hcm_scale.base.console import legal_names
from hcm_scale.base.files import read_sealed, write_sealed
from hcm_scale.base.remote import refuse_url
from hcm_scale.config import Config, check, describe, no_option

_SOURCE = re.compile(
    r"^(graph\.(?:edges|nodes|path)=)((?:select|with|from|values|table)\s.*|[a-z0-9+.-]+://[^,]*)", re.I | re.S
)
WHOLE = "# @package _global_"  # the first line of an option file that speaks of several sections


def conf_dir() -> Path:
    """The folder of YAML options: inside an installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"conf/ is missing beside {here}: the installation is incomplete")


def own_conf_dir() -> Path | None:
    """The folder `conf/` in the working folder, where it is the user's own: option files beside ours."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != conf_dir() else None


def groups() -> list[str]:
    """The groups of options, each a folder of YAML files."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def group_folders(group: str) -> list[Path]:
    """The folders of a group that are there: that of the package, then the user's own."""
    return [conf / group for conf in (conf_dir(), own_conf_dir()) if conf is not None and (conf / group).is_dir()]


def option_names(group: str) -> list[str]:
    """The options of a group: those of the package, and the user's own."""
    found = ((place, path) for place in group_folders(group) for path in place.rglob("*.yaml"))
    return sorted({path.relative_to(place).with_suffix("").as_posix() for place, path in found})


def option_file(group: str, name: str) -> Path | None:
    """The file of an option, None where there is none; ValueError where one of the user's is named as one of ours."""
    found = [place / f"{name}.yaml" for place in group_folders(group) if (place / f"{name}.yaml").is_file()]
    if len(found) > 1:
        raise ValueError(f"{found[1]} has the name of an option of the package, {group}={name}: give it another")
    return found[0] if found else None


def to_config(composed: Any) -> Config:
    """An OmegaConf configuration over the schema, as checked dataclasses."""
    from omegaconf import OmegaConf

    config = OmegaConf.to_object(composed)
    if not isinstance(config, Config):
        raise TypeError(f"a configuration must start from the schema, got {type(config).__name__}")
    _refuse_added(config)
    check(config)
    return config


def _refuse_added(section: Any, prefix: str = "") -> None:
    """Raises ValueError for a key that `+` added on the command line, or a file beside the schema: `_target_`, say."""
    known = [entry.name for entry in dataclasses.fields(section)]
    for name in vars(section):
        if name not in known:
            raise ValueError(no_option(prefix + name))
        if dataclasses.is_dataclass(getattr(section, name)):
            _refuse_added(getattr(section, name), f"{prefix}{name}.")


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """The configuration with these options in the place of its own; values become the types of their fields.

    >>> changed = with_options(Config(), {"purify": {"ratio": 0}, "sampling.fan_out": [10, "all"]})
    >>> changed.purify.ratio, changed.sampling.fan_out
    (0.0, ['10', 'all'])
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    filled = OmegaConf.structured(config)
    for key, entry, value in _entries(config, options):
        try:
            OmegaConf.update(filled, key, plain(value), merge=False)
        except OmegaConfBaseException as error:
            raise ValueError(f"{key}={value!r} is not legal: {describe(entry)}") from error
    try:
        return to_config(filled)
    except OmegaConfBaseException as error:  # of ??? and ${}, which it takes as its own
        raise ValueError(f"{error.full_key} is not legal: {str(error).splitlines()[0]}") from error


def plain(value: Any) -> Any:
    """The value in types that YAML and JSON have: of numpy's numbers and arrays, tuples, paths and torch's devices.

    >>> plain({"a": (1, Path("b"))})
    {'a': [1, 'b']}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _entries(
    section: Any, options: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(dotted key, field, value) of every option; ValueError for a key that no section has."""
    known = {entry.name: entry for entry in dataclasses.fields(section) if not entry.metadata.get("fixed")}
    for key, value in options.items():
        name, _, rest = key.partition(".")
        inner = getattr(section, name, None) if name in known else None
        if dataclasses.is_dataclass(inner) and not rest and isinstance(value, str):
            yield from _entries(section, _choice(prefix + name, value), prefix)
        elif dataclasses.is_dataclass(inner) and (rest or isinstance(value, Mapping)):
            yield from _entries(inner, {rest: value} if rest else value, f"{prefix}{name}.")
        elif name not in known or rest:
            raise ValueError(no_option(prefix + key))
        else:
            yield prefix + name, known[name], value


def _choice(group: str, name: str) -> Mapping[str, Any]:
    """What the file of a group in `conf/`, the package's or the user's own, says, as sections.

    >>> _choice("purify", "none"), list(_choice("hops", "all"))
    ({'purify': {'ratio': 0.0}}, ['hops', 'shards'])
    """
    from omegaconf import OmegaConf

    path = option_file(group, name) if name in (legal := option_names(group)) else None
    if path is None:
        raise ValueError(f"{group}={name} is not known; a section of values, or {legal_names(name, legal)}")
    said: Any = OmegaConf.to_container(OmegaConf.load(path))
    if "defaults" in said:
        return _composed(f"{group}/{name}")
    return said if path.read_text().startswith(WHOLE) else {group: said}


def _composed(name: str) -> Any:
    """What an option file with a list of defaults says, as sections: Hydra puts them together."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    places = [f"hydra.searchpath=['file://{escaped(str(conf_dir()))}']"]  # where the defaults may be
    try:
        with initialize_config_dir(str(own_conf_dir() or conf_dir()), version_base="1.3"):
            return OmegaConf.to_container(compose(name, places))
    except HydraException as error:
        raise ValueError(f"{name}.yaml: {error}") from error


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Sections in sections as full keys.

    >>> dict(flat({"hops": {"classes": 4}, "seed": 0}))
    {'hops.classes': 4, 'seed': 0}
    """
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def store_options(run_dir: Path, config: Config) -> None:
    """Writes the config.json of a run, with a seal of what it says."""
    write_sealed(run_dir / "config.json", dataclasses.asdict(config))


def stored_options(run_dir: Path) -> dict[str, Any]:
    """What the config.json of a run says, by full key; nothing where there is none, FolderError where it is damaged."""
    path = run_dir / "config.json"
    if not path.exists():
        return {}
    return dict(flat(read_sealed(path, "remove it, and hcm-scale run writes it again")))


def refuse_urls(overrides: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError for a run_dir that is a URL, before Hydra makes a folder of that name."""
    for key, value in overrides:
        if key in ("run_dir", "share_dir", "data_dir"):
            refuse_url(key, value.strip("'\""))


def quote_sources(overrides: Iterable[str]) -> list[str]:
    """The overrides with queries and URLs of graphs in quotes, for they may hold what Hydra's grammar takes as its own.

    >>> quote_sources(["graph.edges=select a, b from t", "graph.path=s3://b/day=*/x.csv", "graph.path=a.csv,b.csv"])
    ["graph.edges='select a, b from t'", "graph.path='s3://b/day=*/x.csv'", 'graph.path=a.csv,b.csv']
    """
    return [_SOURCE.sub(lambda found: f"{found[1]}'{escaped(found[2])}'", word) for word in overrides]


def escaped(text: str) -> str:
    """A text as it stands between single quotes in Hydra's grammar."""
    return re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
