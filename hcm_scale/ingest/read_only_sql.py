"""Queries for DuckDB that read and do nothing else: a query may stand in a run that somebody sent.

`read_only` refuses whatever is not one query that reads all the way down. It walks the tree that DuckDB parses the
query to: nodes, tables and table functions that are not on the lists below are refused, so that a write inside of a
`with`, or a function with side effects (`enable_logging`, `enable_profiling`), is never run. `connect` opens a
connection that reads the files that the query names and no others, loads and installs no extension, looks at no
variable of this process, and whose configuration is locked.
"""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

from hcm_scale.base import remote

_CONFIG: Any = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
}
_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_NODES |= {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"}
_NODES |= {f"{name}_MODIFIER" for name in ("DISTINCT", "LIMIT", "LIMIT_PERCENT", "ORDER")}
_NODES |= {"ORDER_DEFAULT", "ASCENDING", "DESCENDING"}
_FILES = {"read_csv", "read_csv_auto", "read_parquet", "parquet_scan", "read_json", "read_json_auto"}
_FILES |= {"read_ndjson", "read_ndjson_auto"}
_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"} | _FILES
_NOT_ONE = "it is not one query that reads, such as select source, target from transfers"


def read_only(query: str, base: Path | None = None) -> tuple[str, list[Path]]:
    """The query, and the files, folders and globs that it names, absolute; ValueError if it does not read alone.

    Relative names are in the folder `base`, where it is given: the query then names them by their absolute paths.
    """
    import duckdb

    with duckdb.connect(":memory:", config=_CONFIG) as parser:
        tree = json.loads(_ask(parser, "json_serialize_sql", query))
        if tree["error"] and tree["error_type"] == "parser":
            raise ValueError(tree["error_message"])
        if tree["error"] or len(tree["statements"]) != 1:
            raise ValueError(_NOT_ONE)
        paths = []
        for holder, key in _file_names(tree["statements"]):
            name = holder[key][0] if isinstance(holder[key], list) else holder[key]
            if remote.is_url(name):
                raise ValueError(f"it reads {remote.hide_secrets(name)}, and a query reads files of this machine alone")
            path = os.path.abspath((base or Path()) / name)  # noqa: PTH100  links stay
            paths.append(Path(path))
            if paths[-1].exists() and not (paths[-1].is_file() or paths[-1].is_dir()):
                raise ValueError(f"it reads {name}, a pipe or a device; legal are files, folders and globs")
            holder[key] = [path] if isinstance(holder[key], list) else path
        is_elsewhere = base is not None and base != Path()
        return _ask(parser, "json_deserialize_sql", json.dumps(tree)) if is_elsewhere else query, paths


def _ask(parser: Any, function: str, text: str) -> str:
    (answer,) = parser.execute(f"select {function}(?)", [text]).fetchone()
    return str(answer)


def _file_names(node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where names of files stand in a tree, (object, key) each; ValueError for a part that does not read."""
    for child in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from _file_names(child)
    if not isinstance(node, dict) or "class" in node or not isinstance(kind := node.get("type"), str):
        return
    if kind not in _NODES and not kind.endswith("_TYPE_INFO"):
        raise ValueError(f"{_NOT_ONE}: it holds a {kind.replace('_', ' ').lower()}")
    if kind == "BASE_TABLE" and not node.get("schema_name") and {*"./"} & {*node["table_name"]}:
        yield node, "table_name"
        if "qualified_name" in node:
            yield node["qualified_name"], "path"
    if kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"].lower()
        if name not in _FUNCTIONS:
            raise ValueError(f"{_NOT_ONE}: it calls {name}; legal there are {', '.join(sorted(_FUNCTIONS))}")
        if name in _FILES:
            yield from _constants((node["function"].get("arguments") or node["function"]["children"])[0])


def _constants(argument: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the names stand that a function is given: a text, or a list of texts."""
    expression = argument.get("expression", argument)
    if expression.get("class") == "CONSTANT":
        yield (expression["literal"], "text") if "literal" in expression else (expression["value"], "value")
    elif expression.get("function_name") == "list_value":
        for one in expression.get("arguments") or expression["children"]:
            yield from _constants(one)
    else:
        raise ValueError("it reads a file whose name it computes; name the file in quotes")


def connect(database: str | None, named: Sequence[Path]) -> Any:
    """A connection that reads a database file, or none, and these files, folders and globs; it opens nothing else."""
    import duckdb

    fixed = (itertools.takewhile(lambda name: not has_magic(name), path.parts) for path in named)
    paths = [path if path.exists() else Path(*parts) for path, parts in zip(named, fixed, strict=True)]
    connection = duckdb.connect(database or ":memory:", read_only=database is not None, config=_CONFIG)
    for setting, some in (("directories", filter(Path.is_dir, paths)), ("paths", paths)):
        quoted = ", ".join("'{}'".format(str(path).replace("'", "''")) for path in some)
        connection.execute(f"set allowed_{setting} = [{quoted}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection
