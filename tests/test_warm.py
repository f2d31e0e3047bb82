"""Kernels compiled before they are needed, by `hcm-scale warm`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pacsv
import pytest
from helpers import ROOT, WARMED, compiled_kernels

from hcm_scale.synthetic.payments import payments


@pytest.fixture
def warmed(tmp_path) -> Path:
    """A folder for kernels, with those that `warm` compiled for all tests, but one; empty where it did not."""
    ours = compiled_kernels()
    folder = tmp_path / "kernels" / ours.name
    folder.mkdir(parents=True)
    if (ours / WARMED).exists():
        for name in (ours / WARMED).read_text().split():
            shutil.copy(ours / name, folder)
        next(folder.glob("layout.sort_by_degree*.nbi")).unlink()
    return folder


@pytest.mark.gate
@pytest.mark.timeout(900)
def test_warm__compiles_all_that_a_run_calls_and_says_so(warmed, tmp_path):
    (tmp_path / "tmp").mkdir()
    own = {"NUMBA_CACHE_DIR": str(warmed.parent), "TMPDIR": str(tmp_path / "tmp"), "NUMBA_NUM_THREADS": "2"}

    def said(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *(() if words[0] == "-c" else ("-m", "hcm_scale")), *words]
        surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **own}
        return subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True)

    before, first = len(list(warmed.glob("*.nbi"))), said("warm").stdout
    num_kernels = len(list(warmed.glob("*.nbi")))
    assert f"{num_kernels - before} kernels compiled in" in first
    assert num_kernels >= 90
    assert said("warm").stdout == f"all {num_kernels} kernels are ready, in {warmed}\n"
    assert re.search(r"kernels +compiled", said("doctor").stdout)
    files = sorted(warmed.iterdir())
    table = tmp_path / "payments.csv"
    pacsv.write_csv(payments(500)[0], table)
    run = ["run", str(table), "graph.source_column=payer", "graph.target_column=payee"]
    every = (
        *(["run", f"run_dir={tmp_path / 'run'}"], [*run, f"run_dir={tmp_path / 'a'}"]),
        [*run, f"run_dir={tmp_path / 'b'}", f"trained={tmp_path / 'a'}"],
        ["score-edges", str(tmp_path / "a"), str(table), "-o", str(tmp_path / "out.csv")],
    )
    code = f"from hcm_scale.cli.main import main; raise SystemExit(max(main(words) for words in {every!r}))"
    assert "compiling" not in said("-c", code).stderr
    assert sorted(warmed.iterdir()) == files
    assert not list((tmp_path / "tmp").iterdir())
