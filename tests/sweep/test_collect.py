"""A sweep's folder becomes one table, whatever happened to some of its jobs."""

import itertools
import json
import statistics
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from helpers import planted_graph, small_run

from hcm_scale.base import files
from hcm_scale.sweep.collect import collect, differing, varied
from hcm_scale.sweep.jobs import Job


def auc(ratio: float, seed: int) -> float:
    return 0.7 + ratio / 4 + seed / 100


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run: what the jobs of the tests are copied from."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    small_run(folder, planted_graph(), "score", **{"score.views": ["purified"]})
    return folder


@pytest.fixture
def write_job(finished):
    """Writes what a job leaves behind, with numbers that are easy to check."""

    def write(folder: Path, ratio: float, seed: int, *, known: bool = True, **more) -> None:
        (folder / "scores").mkdir(parents=True)
        config = files.read_sealed(finished / "config.json")
        changes = {"purify.ratio": ratio, "seed": seed, "inject.seed": seed, **more}
        for section, name in (key.split(".") for key in changes if "." in key):
            config[section][name] = changes[f"{section}.{name}"]
        files.write_sealed(folder / "config.json", config | {"seed": seed, "run_dir": str(folder)})
        stages = files.read_sealed(finished / "stages.json")
        listed = [stage | {"seconds": 2.0, "peak_rss_bytes": 7} for stage in stages["stages"]]
        files.write_sealed(folder / "stages.json", stages | {"stages": listed})
        scores = files.read_sealed(finished / "scores" / "manifest.json")
        numbers = {"roc_auc": auc(ratio, seed), "average_precision": 0.5}
        metrics = {"score": numbers | {"by_kind": {"structural": numbers}}, "hav": numbers}
        files.write_sealed(folder / "scores" / "manifest.json", scores | {"metrics": metrics if known else None})

    return write


def stop_before_the_scores(folder: Path) -> None:
    stages = files.read_sealed(folder / "stages.json")
    files.write_sealed(folder / "stages.json", stages | {"stages": stages["stages"][:1]})


@pytest.fixture
def sweep(tmp_path, write_job) -> Path:
    for ratio, seed in itertools.product((0.0, 0.1, 0.2), (0, 1)):
        write_job(tmp_path / f"ratio={ratio},seed={seed}", ratio, seed)
    return tmp_path


def test_varied__keeps_every_option_of_a_random_design():
    """Where no two jobs share a value nothing can be told to follow from it, unless it stands beside it."""
    asked = [(4, 0.1, 0.3, "psgld"), (5, 0.2, 0.2, "sgld"), (6, 0.3, 0.2, "adam")]
    keys = ("hops.classes", "purify.ratio", "score.trim", "posterior.kernel")
    jobs = [
        Job("", dict(zip(keys, values, strict=True)) | {"posterior.step_size": i}, {}) for i, values in enumerate(asked)
    ]
    assert set(varied(jobs)) == {*keys}
    assert set(differing(jobs)) == {*keys, "posterior.step_size"}


def test_collect__writes_one_row_a_job_in_both_formats(sweep, finished):
    collect(sweep)
    num_stages = len(files.read_sealed(finished / "stages.json")["stages"])
    table = pq.read_table(sweep / "collected.parquet")
    assert table.num_rows == 6
    for row in table.to_pylist():
        assert row["auc"] == row["score_auc"] == row["score_auc_structural"] == auc(row["purify.ratio"], row["seed"])
        assert (row["all_seconds"], row["scores_seconds"], row["peak_rss_bytes"]) == (num_stages * 2.0, 2.0, 7.0)
    assert pyarrow.csv.read_csv(sweep / "collected.csv").column_names == table.column_names


def test_collect__says_mean_and_deviation_over_seeds(sweep):
    both = [auc(0.1, 0), auc(0.1, 1)]
    assert f"{statistics.fmean(both):.3f} ± {statistics.stdev(both):.3f}" in collect(sweep)


def test_collect__twice__gives_the_same_bytes(sweep):
    collect(sweep)
    before = {path.name: path.read_bytes() for path in sweep.iterdir() if path.is_file()}
    collect(sweep)
    assert {path.name: path.read_bytes() for path in sweep.iterdir() if path.is_file()} == before


def test_collect__lists_what_failed_and_keeps_the_rest(sweep, write_job):
    write_job(sweep / "stopped", 0.3, 0)
    stop_before_the_scores(sweep / "stopped")
    (sweep / "refused").mkdir()
    (sweep / "refused" / "log").write_text("hello\n2026-01-01 00:00:00,000 error: purify.ratio=1.5 is out of range\n")
    for name, text in {"torn": '{"seed": ', "deep": "[" * 100_000, "a list": "[1]"}.items():
        (sweep / name).mkdir()
        (sweep / name / "config.json").write_text(text)
    said = collect(sweep)
    assert "refused: purify.ratio=1.5 is out of range" in said
    assert "stopped: unfinished: stopped after graph" in said
    assert all(f"{name}: unfinished: " in said for name in ("torn", "deep", "a list"))
    status = pq.read_table(sweep / "collected.parquet")["status"].to_pylist()
    assert sorted(status) == ["failed"] * 5 + ["finished"] * 6


def test_collect__a_link_to_old_scores_does_not_make_a_job_finished(sweep):
    stop_before_the_scores(sweep / "ratio=0.0,seed=0")
    assert "6 jobs, 5 finished" in collect(sweep)


def test_collect__counts_equal_jobs_once(sweep, write_job):
    write_job(sweep / "again", 0.1, 1)
    assert "7 jobs, 6 finished and different" in collect(sweep)
    table = pq.read_table(sweep / "collected.parquet").to_pylist()
    assert [row["job"] for row in table if row["status"] == "repeated"] == ["ratio=0.1,seed=1"]  # "again" is before it


def test_collect__tells_of_jobs_that_never_started(sweep):
    swept = {"sweeper": {"params": {"seed": "range(3)"}}, "overrides": {"task": ["purify.ratio=0,0.1,0.2", "a=[1,2]"]}}
    (sweep / "multirun.yaml").write_text(json.dumps({"hydra": swept}))  # JSON is YAML
    assert "planned 9" in collect(sweep)


def test_collect__works_without_known_anomalies(tmp_path, write_job):
    write_job(tmp_path / "a", 0.1, 0, known=False)
    assert "no job has known anomalies" in collect(tmp_path)


@pytest.mark.parametrize(("make", "said"), [(False, "not a folder"), (True, "holds no jobs")])
def test_collect__refuses_what_is_no_sweep(tmp_path, make, said):
    folder = tmp_path / "x"
    if make:
        folder.mkdir()
    with pytest.raises(ValueError, match=said):
        collect(folder)


def test_collect__skips_shared_stages_and_hidden_folders(sweep):
    for name in ("stages/graph-1", ".submitit/1_0", "ratio=0.0,seed=0/graph"):
        (sweep / name).mkdir(parents=True)
        (sweep / name / "config.json").write_text("{}")
    assert "6 jobs, 6 finished" in collect(sweep)


def test_varied__leaves_out_what_follows_from_another():
    names = {"a": 10, "b": 15}
    jobs = [
        Job("", {"graph.name": name, "inject.num_cliques": cliques, "seed": s, "inject.seed": s, "score.trim": t}, {})
        for (name, cliques), s, t in itertools.product(names.items(), (0, 1), (0.0, 0.2))
    ]
    assert varied(jobs) == ["graph.name", "seed", "score.trim"]


def test_varied__an_option_run_with_one_seed_a_value_was_swept():
    jobs = [Job("", {"seed": s, "purify.ratio": r}, {}) for s, r in ((0, 0.0), (1, 0.2))]
    assert "purify.ratio" in varied(jobs)
