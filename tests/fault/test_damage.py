"""Damaged files of a run are never believed: whatever is done to one file, the next step refuses it by name, or ends in
the bytes of the undamaged run.

This file is both the test and the child that runs the cases, many in one process: it says which case it begins, so that
a crash names its case. A case is a number: it decides how far the run had come, the file, what is done to it and what
comes next.
"""

import json
import os
import random
import re
import shutil
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers import planted_graph, report_case, small_config
from same_bytes import artifacts

from hcm_scale.graph import Graph
from hcm_scale.report import page
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun

OPTIONS = {"posterior.checkpoint_every": 2}
OPTIONS |= {"world.threads": 1}
NODE = "node 7"
REMEDY = re.compile(r"remove \S+ to have it made again|hcm-scale run|or move them")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", [range(6), pytest.param(range(6, 60), marks=pytest.mark.audit)])
def test_damaged_file__is_refused_by_name_or_harmless(tmp_path, go_through, cases):
    assert go_through(__file__, tmp_path, cases) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damaged_files__are_refused_by_name_or_harmless(tmp_path, go_through):
    assert go_through(__file__, tmp_path, range(60, 1060)) == []


def damage(path: Path, others: list[Path], draw: random.Random) -> str:
    """Hurts one file; the times that the system tells of it stay."""
    times, data = path.stat(), bytearray(path.read_bytes())
    how = draw.choice(("bit", "cut", "longer", "zeros", "swapped", "gone"))
    if how == "swapped":
        other = draw.choice(others)
        other.rename(path.with_name("swapped"))
        path.rename(other)
        path.with_name("swapped").rename(path)
        return f"swapped with {other}"
    path.unlink()
    if how == "gone":
        return how
    at = draw.randrange(max(1, len(data)))
    if how == "bit" and data:
        data[at] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "longer":
        data += draw.randbytes(draw.randrange(1, 100))
    elif how == "zeros":
        page_of = slice(at // 4096 * 4096, at // 4096 * 4096 + 4096)
        data[page_of] = bytes(len(data[page_of]))
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return how


def prepare(whole: Path, run_dir: Path, case: int) -> tuple[bool, list[str], str]:
    """The run of one case: whether it is to be explained, the names of the damaged files, and what was done."""
    draw = random.Random(case)
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(whole, run_dir)
    stages = [stage["name"] for stage in json.loads((run_dir / "stages.json").read_text())["stages"]]
    explains = draw.random() < 0.3
    num_stages = len(stages) if explains else draw.randint(1, len(stages))
    for name in stages[num_stages:]:
        shutil.rmtree(run_dir / name)
        (run_dir / "records" / f"{name}.json").unlink()
    paths = sorted(path for path in run_dir.rglob("*") if path.is_file() and path.suffix != ".lock")
    path, *others = draw.sample(paths, len(paths))
    how = damage(path, others, draw)
    names = [str(path.relative_to(run_dir)), *([str(Path(how.split()[-1]).relative_to(run_dir))] if " " in how else [])]
    step = "explain" if explains else f"run after {stages[num_stages - 1]}"
    return explains, names, f"{names[0]} {how.replace(str(run_dir) + '/', '')}, then {step}"


def outcome(explains: bool, names: list[str], run_dir: Path, given: Graph, expected: tuple) -> str:
    config = small_config(run_dir, **OPTIONS)
    try:
        text = FinishedRun(config.run_dir).explained_text([NODE]) if explains else pipeline.run(config, graph=given)
    except (ValueError, OSError, FloatingPointError) as error:  # what the command line tells as an error
        named = any(str(run_dir / name) in str(error) for name in names) and REMEDY.search(str(error))
        return "refused" if named else f"unnamed\t{error!r}"
    except Exception:
        return f"traceback\t{traceback.format_exc(limit=-1)}"
    try:
        same = found(run_dir, text if explains else None) == expected[explains]
    except Exception as error:  # what cannot be read was not refused either
        return f"silent\t{error!r}"
    return "same" if same else "silent"


def found(run_dir: Path, explanation: str | None) -> tuple:
    """What a step ended in, but for clocks."""
    if explanation is not None:
        return (explanation,)
    report = run_dir / "report"
    drawn = page.render(json.loads((report / "report.json").read_text())) == (report / "report.html").read_text()
    for folder in run_dir.glob("*/checkpoints"):  # read by nobody once the training is finished
        shutil.rmtree(folder)
    return artifacts(run_dir), drawn


def main() -> None:
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ids = pa.array([f"node {i}" for i in range(300)])
    whole, run_dir, given = folder / "whole", folder / "hurt", replace(planted_graph(300, clique_size=5), ids=ids)
    config = small_config(whole, **OPTIONS)
    pipeline.run(config, graph=given)
    again = shutil.copytree(whole, folder / "again", dirs_exist_ok=True)
    expected = found(again, None), found(again, FinishedRun(config.run_dir).explained_text([NODE]))
    for case in range(first, last):
        explains, names, what = prepare(whole, run_dir, case)
        report_case(case, what, lambda: outcome(explains, names, run_dir, given, expected))  # noqa: B023


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
