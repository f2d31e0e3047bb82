"""Fuzzed manifests, records, configurations, saved models, verdicts and lessons of a run, every hash and seal right.

Readers refuse them by name or read them; nothing is written outside of the run, and no option that names a place to
write to, an address or a command comes in with a saved detector. `test_hostile_runs.py` has the other files, and whole
commands.
"""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import small_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load, save
from strangers import ODD_VALUES, OPTIONS, repair, saved_run

from hcm_scale import HCM
from hcm_scale.base import files
from hcm_scale.cli import inspect
from hcm_scale.config import inert_options
from hcm_scale.detector.parameters import SECTIONS
from hcm_scale.posterior import samples
from hcm_scale.review import teach, verdicts
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun, open_trained, with_trained_options
from hcm_scale.score import table
from hcm_scale.shards import open_labels
from hcm_scale.stages import purify, score

HOW = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ODD_VALUES)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
TENSORS = arrays.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "<i4", "|u1", "|b1"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
PLACES = {"share_dir": "/elsewhere", "track.uri": "http://thief"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return saved_run("tables", tmp_path_factory.mktemp("fuzzed"))


@settings(max_examples=3, **HOW)
@given(data=st.data())
def test_fuzzed_folder__is_refused_by_name_or_read(saved, data):
    fuzz(saved, data)


@pytest.mark.audit
@pytest.mark.timeout(900)
@settings(max_examples=25, **HOW)
@given(data=st.data())
def test_some_fuzzed_folders__are_refused_by_name_or_read(saved, data):
    fuzz(saved, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5_000, **HOW | {"derandomize": False})
@given(data=st.data())
def test_fuzzed_folders__are_refused_by_name_or_read(saved, data):
    fuzz(saved, data)


def fuzz(saved: Path, data: st.DataObject) -> None:
    """Changes a file or two of a copy of the run, and reads it in every way that starts no work."""
    place = saved.parent / "fuzz"
    run, names = place / "run", [path.relative_to(saved).as_posix() for path in sorted(saved.rglob("*"))]
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(saved, run)
    (place / "notes.txt").write_text("mine")
    legal = [name for name in names if Path(name).suffix in CHANGES]
    for name in data.draw(st.lists(st.sampled_from(legal), min_size=1, max_size=2)):
        CHANGES[Path(name).suffix](run / name, data)
    repair(run)
    before = listing(place)
    for read in readers(run):
        told = str(run)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                read()
        except ValueError as error:
            told = str(error)
        assert str(run) in told
        assert "\n" not in told
        assert {name: text for name, text in listing(place).items() if not name.startswith("out/")} == before


def listing(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def readers(run: Path) -> Iterator[Callable[[], Any]]:
    out = run.parent / "out"
    yield lambda: load_and_save(run, out)
    yield lambda: inspect.inspect(run)
    yield lambda: learned(run)
    yield lambda: open_labels(run / "labels", verify=True)
    yield lambda: verdicts.latest(run)
    yield lambda: teach.inputs_of(FinishedRun(run))
    yield lambda: lesson(run)
    yield lambda: pipeline.changed(run, small_config(run))


def load_and_save(run: Path, out: Path) -> None:
    detector = HCM.load(run)
    parameters = detector.get_params()
    assert (parameters["run_dir"], parameters["callback"], parameters["verbose"]) == (None, None, None)
    for key, value in (parameters["options"] or {}).items():
        assert key in {*inert_options(), *SECTIONS}
        assert "${" not in json.dumps(value)
    _ = detector.labels_, detector.threshold_
    detector.save(out)


def learned(run: Path) -> None:
    """What a run with `trained=` reads."""
    config = with_trained_options(small_config(run.parent / "other", **OPTIONS, trained=str(run)))
    trained = open_trained(config)
    assert config.share_dir is None
    score.open_reference(trained.folders["scores"])
    purify.open_purified(trained.folders["purified"]).fitted()
    for sample in samples.open_samples(trained.folders["train-purified"] / "samples"):
        assert sample


def lesson(run: Path) -> None:
    taught = teach.open_taught(run, run / "scores")
    if taught is not None:
        teach.taught_text(taught)
        assert len(taught.table) == table.RankedFile(run / "scores" / table.FILE).num_rows


# What is changed.


def change_json(path: Path, data: st.DataObject) -> None:
    value = files.read_sealed(path)
    if path.name == files.MANIFEST and "parameters" in value and data.draw(st.booleans()):
        value["parameters"]["options"] = data.draw(st.dictionaries(st.sampled_from([*PLACES]), VALUES)) | PLACES
        value["parameters"]["run_dir"] = str(path.parent.parent / "elsewhere")
    else:
        change_value(value, data)
    with contextlib.suppress(ValueError):  # two of a kind
        files.write_sealed(path, value)


def change_value(value: Any, data: st.DataObject) -> None:
    place, name = {"": value}, ""
    while (
        isinstance(place[name], dict | list) and len(place[name]) and (place[name] is value or data.draw(st.booleans()))
    ):
        place = place[name]
        name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    if isinstance(place, dict) and data.draw(st.integers(0, 4)) == 0:
        del place[name]
    else:
        place[name] = data.draw(VALUES)


def change_tensors(path: Path, data: st.DataObject) -> None:
    raw = path.read_bytes()
    about = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__")
    found = load(raw)
    if about and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(about)))
        inner = json.loads(about[name])
        change_value(inner, data)
        about[name] = json.dumps(inner)
    elif found:
        name = data.draw(st.sampled_from(sorted(found)))
        found[name] = np.ascontiguousarray(data.draw(TENSORS))
        if data.draw(st.integers(0, 4)) == 0:
            del found[name]
    path.write_bytes(save(found, about))


def change_lines(path: Path, data: st.DataObject) -> None:
    lines = path.read_bytes().splitlines() or [b""]
    at = data.draw(st.integers(0, len(lines) - 1))
    verdict = {"id": data.draw(VALUES), "verdict": data.draw(st.sampled_from(["bad", "none"]) | VALUES)}
    odd = data.draw(st.sampled_from([json.dumps(verdict).encode(), data.draw(st.binary(max_size=40))]))
    lines[at] = odd
    path.write_bytes(b"\n".join(lines) + b"\n" * data.draw(st.integers(0, 1)))


CHANGES = {".json": change_json, ".safetensors": change_tensors, ".jsonl": change_lines}
