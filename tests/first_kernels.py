"""Writes the list of a first run's kernels: `python tests/first_kernels.py`, where all of them are compiled."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from hcm_scale.base import ahead, jit
from hcm_scale.cli.main import main
from hcm_scale.synthetic.payments import payments


def call(words: list[str]) -> list[str]:
    """What a run calls from Python, in order: module, name and types of each kernel; in a process of its own."""
    seen, load = [], jit._Cache.load_overload

    def record(self, signature, target_context):
        seen.append((self._py_func, signature))
        return load(self, signature, target_context)

    jit._Cache.load_overload = record
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert main(["run", "world.device=cpu", *words]) == 0
    return [json.dumps([each.__module__, each.__qualname__, [*map(ahead.as_json, kinds)]]) for each, kinds in seen]


def recorded(folder: Path) -> list[str]:
    """The lines of the list: what runs on three graphs call, one of them with rows, in an order that suits all."""
    pq.write_table(payments(2_000)[0], folder / "payments.parquet")

    def lines(name: str, *words: str) -> list[str]:
        command = [sys.executable, __file__, f"run_dir={folder / name}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    every = lines("rows", str(folder / "payments.parquet"))
    others = lines("default"), lines("small", "graph=community", "graph.num_nodes=1000")
    for run in others:
        for before, line in zip(["", *run], run, strict=False):
            if line not in every:
                every.insert(every.index(before) + 1 if before else 0, line)
    plain = set().union(*others)
    return [json.dumps([*json.loads(line), line not in plain]) for line in every]


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(call(sys.argv[1:])))
    else:
        with tempfile.TemporaryDirectory() as made:
            ahead.LIST.write_text("\n".join(recorded(Path(made))) + "\n")
