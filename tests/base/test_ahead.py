"""Kernels that a process beside a first run compiles."""

import json
import sys

import pytest
from first_kernels import recorded
from numba import types

from hcm_scale.base import ahead, kernel_cache
from hcm_scale.base.rng import bits
from hcm_scale.graph.build import drop_repeats

LINES = [json.loads(line) for line in ahead.LIST.read_text().splitlines()]


@pytest.mark.parametrize("kind", [kind for _, _, kinds, _ in LINES for kind in kinds if not isinstance(kind, str)][:60])
def test_types__are_read_as_they_are_written(kind):
    assert ahead.as_json(ahead.from_json(kind)) == kind


def test_compile_all__begins_at_the_end_and_leaves_out_what_rows_need_and_what_is_unknown(tmp_path, monkeypatch):
    array = ["uint64", 1, "C", True]
    lines = [
        ["hcm_scale.graph.build", "drop_repeats", [array], False],
        ["hcm_scale.graph.build", "no_such_kernel", [], False],
        ["hcm_scale.base.rng", "bits", ["uint64", "int64"], True],
        ["hcm_scale.graph.build", "drop_repeats", [["no such type", 1, "C", True]], False],
        ["hcm_scale.base.rng", "bits", ["uint64", "uint64"], False],
    ]
    compiled = []
    for kernel in (bits, drop_repeats):
        monkeypatch.setattr(type(kernel), "compile", lambda self, kinds: compiled.append((self.__name__, kinds)))
    (tmp_path / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(ahead, "LIST", tmp_path / "list")
    ahead.compile_all(has_rows=False)
    expected = [("bits", (types.uint64, types.uint64)), ("drop_repeats", (types.Array(types.uint64, 1, "C"),))]
    assert compiled == expected
    ahead.compile_all(has_rows=True)
    assert len(compiled) == 5
    for turn in (1, 0):
        ahead.compile_all(has_rows=False, turn=turn, count=2)
    assert sorted(compiled[5:], key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("is_compiled", "cores", "count"), [(True, 4, 0), (False, 1, 0), (False, 2, 1), (False, 16, 3)]
)
def test_processes__run_beside_where_kernels_are_missing_and_cores_are_free(is_compiled, cores, count, monkeypatch):
    started = []

    class Process:
        def __init__(self, command, **_):
            started.append(command)

        def terminate(self):
            started.append("terminated")

        def wait(self):
            started.append("waited for")

    monkeypatch.setattr(ahead, "is_compiled", lambda: is_compiled)
    monkeypatch.setattr(ahead, "num_cores", lambda: cores)
    monkeypatch.setattr(ahead.subprocess, "Popen", Process)
    with ahead.compiling_ahead(has_rows=True):
        pass
    command = [sys.executable, "-P", "-m", "hcm_scale.base.ahead"]
    expected = [[*command, str(turn), str(count), "rows"] for turn in range(count)]
    assert started == [*expected, *["terminated"] * count, *["waited for"] * count]


@pytest.mark.gate
def test_list__has_what_a_default_run_calls(tmp_path):
    assert kernel_cache.is_compiled()
    called, listed = (set(lines) for lines in (recorded(tmp_path), map(json.dumps, LINES)))
    assert called == listed, "run tests/first_kernels.py"
