"""A stranger's finished run, every hash and seal in it right: whatever one of its files holds, each way to read the run
refuses it by name in one line, or answers.

This file is both the test and the child that runs the cases, many in one process, as in `test_damage.py`; a crash or a
hang is told with its case. A case is a number: it decides the run, the file and what is changed in it.
"""

import contextlib
import faulthandler
import json
import logging
import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import report_case, small_config, small_graph
from safetensors.numpy import load, save
from strangers import CHANGES, KINDS, NUM_NODES, ODD_VALUES, OPTIONS, graphs, repair, saved_run

from hcm_scale import HCM
from hcm_scale.base import files
from hcm_scale.cli import commands
from hcm_scale.cli.errors import USER_ERRORS
from hcm_scale.config import TablesGraph, stored_options
from hcm_scale.posterior.samples import open_samples
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.result import open_scores
from hcm_scale.serve.mcp import Tools
from hcm_scale.serve.server import Views
from hcm_scale.shards import open_labels
from hcm_scale.stages.purify import open_purified

SECONDS = 300  # of a case
ONLY = [name for name in os.environ.get("HCM_DOORS", "").split(",") if name]  # to look at some doors alone
WILD = (-1, 0, NUM_NODES, 10**12, -(2**62), 2**31, np.nan, np.inf, -np.inf, 1e38, -1e300)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cases", [range(1), pytest.param(range(1, 12), marks=pytest.mark.audit)])
def test_hostile_run__is_refused_by_name_or_read(tmp_path, go_through, cases):
    assert go_through(__file__, tmp_path, cases) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_hostile_runs__are_refused_by_name_or_read(tmp_path, go_through):
    assert go_through(__file__, tmp_path, range(12, 600)) == []


# What is changed in a file: each a function of a path and a random source that returns what it did.


def change_npy(path: Path, draw: random.Random, number: int) -> str:
    arrays = {path.stem: np.load(path)}
    chosen = WILD_ARRAYS[number % len(WILD_ARRAYS)]
    with contextlib.suppress(ValueError, TypeError, IndexError), np.errstate(all="ignore"):
        chosen(arrays, path.stem, draw)
    array = np.asarray(arrays.get(path.stem, np.zeros(0)))
    if array.dtype.hasobject:
        array = array.astype("S1")
    np.save(path, array)
    return f"change {number}, {array.dtype} {array.shape}"


def filled(number: float) -> Callable[..., None]:
    """One place, the first, the last or any, holds this number."""

    def change(arrays: dict[str, np.ndarray], name: str, draw: random.Random) -> None:
        array = arrays[name].copy()
        with np.errstate(all="ignore"):
            value = np.clip(number, -(2.0**63), 2.0**63 - 1024) if array.dtype.kind in "iu" else number
            array.flat[draw.choice((0, -1, array.size // 2))] = np.array(value).astype(array.dtype)
        arrays[name] = array

    return change


def everywhere(number: float) -> Callable[..., None]:
    def change(arrays: dict[str, np.ndarray], name: str, draw: random.Random) -> None:
        with np.errstate(all="ignore"):
            arrays[name] = np.full_like(arrays[name], np.array(number).astype(arrays[name].dtype))

    return change


WILD_ARRAYS: list[Callable[..., None]] = [
    *(filled(number) for number in WILD),
    *(everywhere(number) for number in (10**12, -1, np.nan)),
    *CHANGES[6:8],  # two values swapped
    *CHANGES[11:],  # lengths, shapes, orders and types
]


def change_parquet(path: Path, draw: random.Random, number: int) -> str:
    found = pq.read_table(path)
    name = found.column_names[number % found.num_columns]
    at, column = found.column_names.index(name), found[name].combine_chunks()
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    how = draw.choice(
        ("value", "value", "value", "null", "type", "cut", "longer", "gone", "twice", "metadata", "empty")
    )
    if how == "value" and is_number:
        values = column.to_numpy(zero_copy_only=False).copy()
        value, kind = draw.choice(WILD), values.dtype
        if kind.kind in "iu":
            value = int(min(max(np.nan_to_num(value), float(np.iinfo(kind).min)), np.iinfo(kind).max // 2))
        values[draw.choice((0, -1, len(values) // 2))] = value
        found = found.set_column(at, found.schema.field(name), pa.array(values, column.type))
    elif how in ("value", "type"):
        values = [f"odd {i}" if i % 5 else "" for i in range(len(column))]
        found = found.set_column(at, name, pa.array(range(len(column))) if not is_number else pa.array(values))
    elif how == "null":
        found = found.set_column(at, name, pa.nulls(len(column), column.type))
    elif how == "cut":
        found = found.slice(0, len(found) - 1)
    elif how == "longer":
        found = pa.concat_tables([found, found.slice(0, 1)])
    elif how == "gone":
        found = found.drop_columns([name])
    elif how == "twice":
        found = found.append_column(name, column)
    elif how == "empty":
        found = found.slice(0, 0)
    elif how == "metadata":
        odd = [b"", b"\xff", b"odd", b"id", b"nan", b"[[1]]", b"{}", b'[["user", [1]]]', b"[" * 5000]
        found = found.replace_schema_metadata(dict.fromkeys((b"rank_by", b"fdr", b"groups"), draw.choice(odd)))
    pq.write_table(found, path, row_group_size=max(1, len(found)))
    return f"{how} {name}"


def change_tensors(path: Path, draw: random.Random, number: int) -> str:
    data = path.read_bytes()
    size, arrays = int.from_bytes(data[:8], "little"), load(data)
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__")
    if metadata and number % 3 == 0:
        key = draw.choice(sorted(metadata))
        value = json.loads(metadata[key])
        odd = change_value(value, draw)
        metadata[key] = json.dumps(value)
    elif arrays:
        name, how = draw.choice(sorted(arrays)), draw.choice(WILD_ARRAYS)
        with contextlib.suppress(ValueError, TypeError, IndexError), np.errstate(all="ignore"):
            how(arrays, name, draw)
        arrays = {key: np.ascontiguousarray(part) for key, part in arrays.items() if part.dtype.str[1:] in SAFE}
        odd = f"{name} {arrays[name].shape if name in arrays else 'gone'}"
    else:
        odd, arrays = "more", {"more": np.zeros(3)}
    path.write_bytes(save(arrays, metadata))
    return odd


SAFE = ("f4", "f8", "i4", "i8", "u1", "b1", "f2", "i2")


def change_value(value: Any, draw: random.Random) -> str:
    """Changes one value anywhere in nested lists and objects."""
    place, name, trail = {"": value}, "", ""
    while isinstance(place[name], dict | list) and len(place[name]) and (draw.random() < 0.85 or place[name] is value):
        place = place[name]
        name = draw.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        trail += f".{name}"
    if isinstance(place, dict) and draw.random() < 0.2:
        del place[name]
        return f"{trail} is gone"
    place[name] = draw.choice(ODD_VALUES)
    return f"{trail} is {str(place[name])[:40]}"


def change_json(path: Path, draw: random.Random, number: int) -> str:
    value = files.read_sealed(path)
    told = change_value(value, draw)
    files.write_sealed(path, value)
    return told


def change_lines(path: Path, draw: random.Random, number: int) -> str:
    lines = path.read_bytes().splitlines()
    at = draw.randrange(len(lines))
    odd = [b"", b"{}", b"null", b"[1]", b'{"id":1,"verdict":"bad"}', b'{"id":"n1","verdict":"odd"}', b"\xff\xfe", b"{"]
    odd += [b'{"id":"n1","verdict":"bad","time":"never"}', b'{"id":null,"verdict":"bad"}', b'"id"', b"[" * 9999]
    odd += [b'{"step":"x","loss":[1]}', b'{"step":1e999}', b'{"id":"n1","verdict":"bad","by":{"a":1}}', b"\0" * 50]
    lines[at] = odd[number % len(odd)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"line {at} is {lines[at][:40]!r}"


CHANGE_OF = {
    ".npy": (change_npy, 28),
    ".parquet": (change_parquet, 30),
    ".safetensors": (change_tensors, 14),
    ".json": (change_json, 20),
    ".jsonl": (change_lines, 12),
}
SIMILAR = ("sample-00001", "shard-00001", "edges_var", "train-original", "propagated-original", ".lock")


def all_cases(place: Path) -> list[tuple[str, str, int]]:
    """(run, file, number of the change) of every case, in a fixed order that begins with a bit of everything."""
    listed = []
    for kind in KINDS:
        run = saved_run(kind, place)
        names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
        for name in names:
            if not any(part in name for part in SIMILAR):
                listed += [(kind, name, number) for number in range(CHANGE_OF[Path(name).suffix][1])]
    return random.Random(0).sample(listed, len(listed))


# The doors: every way to read a run.


def doors(kind: str, run: Path, place: Path, node: str, edge: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    out = place / "out"
    data = (place / "edges.parquet", place / "nodes.parquet") if kind == "tables" else graphs()["sparse"]
    config = lambda where, **more: small_config(where, **OPTIONS | more)  # noqa: E731
    yield "explain", lambda: FinishedRun(run).explained_text([node])
    yield "explain edge", lambda: FinishedRun(run).explained_text([], [edge])
    for words in ("a.csv", "a.parquet --top 5", "a.csv --flagged", "a.csv --taught", "a.graphml",
                  "a.csv --edges --top 5", "a.parquet --edges", "a.csv --edges --pairs", "a.csv --cases",
                  "a.graphml --case 1"):  # fmt: skip
        name, *more = words.split()
        yield f"export {words}", partial(commands.export_run, [str(run), str(out / name), *more])
    for name, words in (("cases", [run]), ("case", [run, "1"]), ("case from", [run, "--from", node])):
        yield name, partial(commands.COMMANDS[name.split()[0]], [*map(str, words)])
    yield "diff", lambda: commands.diff_runs([str(run), str(saved_run(kind, place))])
    yield "diff back", lambda: commands.diff_runs([str(saved_run(kind, place)), str(run)])
    if kind == "tables":
        yield "score-edges", partial(commands.score_edges, [str(run), str(place / "new.parquet"), "-o", f"{out}/a.csv"])
    yield "doctor", lambda: commands.doctor([str(run)])
    yield "doctor graph", lambda: commands.doctor([str(run / "graph")])
    yield "purified", lambda: open_purified(run / "purified").fitted()
    yield "labels", lambda: open_labels(run / "labels", verify=True)
    yield "scores", lambda: open_scores(run / "scores")
    yield "samples", lambda: list(open_samples(run / "train-purified" / "samples"))
    yield "show", lambda: FinishedRun(run).html()
    yield "load", lambda: use(HCM.load(run), node, edge, out)
    yield "apply", lambda: HCM.load(run).apply(data).scores
    again = place / "again"

    def trained(**more: Any) -> str:
        shutil.rmtree(again, ignore_errors=True)
        made = config(again, trained=str(run), **more)
        if kind == "tables":
            named = {"source_column": "source", "target_column": "target", "weight_column": "amount"}
            made.graph = TablesGraph(path=str(data[0]), nodes=str(data[1]), id_column="id", **named)
        return pipeline.run(made, graph=None if kind == "tables" else data)

    yield "trained=", trained
    yield "plan", lambda: pipeline.plan_text(resumed(run, kind, data))
    yield "serve", lambda: serve(run)
    yield "mcp", lambda: call_tools(run)
    yield "review", lambda: commands.review_run([str(run), "5"])
    yield "teach", lambda: commands.teach_run([str(run)])
    yield "resume", lambda: pipeline.run(resumed(run, kind, data), graph=None if kind == "tables" else data)
    for name, value in (("score.fdr", 0.3), ("posterior.thin_steps", 2), ("hops.pairs_per_class", 20)):
        changed = partial(resumed, run, kind, data, **{name: value})
        yield (
            f"resume {name}",
            lambda changed=changed: pipeline.run(changed(), graph=None if kind == "tables" else data),
        )


def resumed(run: Path, kind: str, data: Any, **more: Any) -> Any:
    """The configuration that the run was made with, as far as it can be told without its files."""
    made = small_config(run, **OPTIONS | {"hops.classes": 3, "score.fdr": 0.2} | more)
    if kind == "tables":
        original = stored_options(Path(sys.argv[1]) / f"saved-{kind}")
        section = {key.removeprefix("graph."): value for key, value in original.items() if key.startswith("graph.")}
        made.graph = TablesGraph(**section)
    return made


def use(found: HCM, node: str, edge: str, out: Path) -> None:
    """Everything that a loaded detector offers."""
    _ = found.scores, found.labels_, found.threshold_, found.ids_, found.edges_, found.p_values_, found._repr_html_()
    found.predict(return_prob=True, return_conf=True)
    found.explain(node)
    found.explain(edge=tuple(edge.split(",")))
    found.review(3)
    found.save(out / "saved")


def serve(run: Path) -> None:
    views = Views(FinishedRun(run))
    views.page()
    for asked in ({}, {"sort": "degree", "down": "true"}, {"query": "n1"}, {"flagged": "true"}, {"kind": "hop"}):
        views.rows(asked)
    views.rows({"verdict": "bad"})
    views.explained({"rank": "1"})
    views.judge({"id": str(views.ranked["id"][1]), "verdict": "bad"})
    views.to_review({})
    views.rank_again({})
    views.rows({"sort": "taught_rank"})


def call_tools(run: Path) -> None:
    tools = Tools(run)
    about = tools.overview()
    if tools.cases()["total"]:
        tools.case(1)
    tools.ranked(flagged=True)
    tools.explain(rank=1)
    tools.neighbors(rank=1)
    if about["keeps_rows"]:
        tools.rows(rank=1)
    tools.review()


def judge(kind: str, run: Path, place: Path, node: str, edge: str) -> str:
    """Tries every door, each on the run as it was changed; the first that breaks a promise, or how many refused."""
    changed, num_refused, wrong = place / "changed", 0, ""
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(run, changed)
    for name, enter in doors(kind, run, place, node, edge):
        shutil.rmtree(place / "out", ignore_errors=True)
        (place / "out").mkdir()
        if ONLY and not any(name.startswith(only) for only in ONLY):
            continue
        print(f"  {name}", flush=True)
        try:
            enter()
        except USER_ERRORS as error:
            num_refused += 1
            text = str(error)
            if ONLY:
                print(f"    {text}", flush=True)
            is_of_data = isinstance(error, FloatingPointError) or "diverged" in text  # legal numbers, far too large
            if str(run) not in text and not text.startswith(("node=", "edge=", "no edge ", "case ")) and not is_of_data:
                wrong += f" UNNAMED {name}: {error!r} {traceback.format_exc(limit=-2)[:900]}"
        except Exception:
            wrong += f" TRACEBACK {name}: {traceback.format_exc(limit=-3)}"
        if name.startswith(("serve", "teach", "resume", "load", "score-edges")):  # these write to the run
            shutil.rmtree(run)
            shutil.copytree(changed, run)
    return f"traceback\t{wrong}" if wrong else f"fine\t{num_refused} refused"


def main() -> None:
    place, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cases = all_cases(place)
    for case in range(first, last):
        kind, name, number = cases[case % len(cases)]
        run = place / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(saved_run(kind, place), run)
        change, _ = CHANGE_OF[Path(name).suffix]
        told = change(run / name, random.Random(case), number)
        repair(run)
        other = int(small_graph(NUM_NODES, 3 if kind == "tables" else 4).indices[0])
        node, edge = ("n1", f"n0,n{other}") if kind == "tables" else ("1001", f"1000,{1000 + other}")
        signal.alarm(SECONDS)  # ends the process, in a kernel too
        report_case(case, f"{kind} {name}, {told}:", partial(judge, kind, run, place, node, edge))
        signal.alarm(0)


if __name__ == "__main__":
    faulthandler.enable()
    logging.disable()
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    main()
