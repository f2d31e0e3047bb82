"""A finished run as MLflow's own client reads it back from a local store."""

import pytest
from mlflow.tracking import MlflowClient

from hcm_scale.config import Config, with_options
from hcm_scale.run import pipeline, tracking
from hcm_scale.synthetic import families

FEW = {"hops.num_sources": 20, "hops.pairs_per_class": 5, "sampling.batch_pairs": 32}
FEW |= {"model.width": 8, "model.head_width": 8, "posterior.burn_in_steps": 2, "posterior.num_samples": 1}
FEW |= {"posterior.thin_steps": 1, "world.device": "cpu", "score.views": ["purified"]}


def run(tmp_path, **options):
    config = with_options(Config(run_dir=str(tmp_path / "run")), FEW | options)
    return pipeline.run(config, graph=families.community(80, num_attributes=3, seed=1))


def test_mlflow__has_the_options_the_readings_and_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run(tmp_path, **{"track.to": ["mlflow"]})
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["hops.num_sources"] == "20"
    assert found.data.metrics["seconds/labels"] >= 0
    losses = client.get_metric_history(found.info.run_id, "train-purified/loss")
    assert [reading.step for reading in losses] == [3]
    assert {entry.path for entry in client.list_artifacts(found.info.run_id)} == {"report.html", "scores.parquet"}


def test_tracker__that_cannot_be_reached_costs_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "file").as_uri())
    said = run(tmp_path, **{"track.to": ["mlflow"]})
    assert "mlflow could not be told" in caplog.text
    assert "report.html" in said


def test_tracker__that_is_not_installed_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"track\.to=wandb.*hcm-scale\[track\]"):
        run(tmp_path, **{"track.to": ["wandb"]})
    assert not (tmp_path / "run").exists()
