"""The Python face does what the command line does."""

import copy
import dataclasses
import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import joblib
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import FAST, as_words, small_detector, small_graph
from sklearn.base import is_outlier_detector
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from hcm_scale import HCM, NotFitted
from hcm_scale.base import files
from hcm_scale.base.console import Step
from hcm_scale.cli.overrides import compose_config, composing
from hcm_scale.graph import Graph
from hcm_scale.run import launch


@pytest.fixture(scope="module")
def found(world, tmp_path_factory) -> HCM:
    """A detector fitted on two files, in a folder of its own."""
    folder = tmp_path_factory.mktemp("found")
    world.edges.to_parquet(folder / "edges.parquet")
    world.nodes.to_parquet(folder / "nodes.parquet")
    tables = folder / "edges.parquet", folder / "nodes.parquet"
    return small_detector(tables, seed=1, drop_ratio=0.1, run_dir=folder / "run")


def test_fit__gives_the_bytes_of_the_command_line(found, tmp_path):
    given = {
        "graph.path": found.run_dir.parent / "edges.parquet",
        "graph.nodes": found.run_dir.parent / "nodes.parquet",
    }
    given |= {f"graph.{name}": value for name, value in found.columns_.items()}
    given |= FAST | {"seed": 1, "purify.ratio": 0.1, "run_dir": tmp_path / "run"}
    with composing():
        launch.run(compose_config(["graph=tables", *as_words(given)]), until="score")
    ours, theirs = (run / "scores" / "scores.parquet" for run in (found.run_dir, tmp_path / "run"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert not (found.run_dir / ".given").exists()


def test_results__are_one_under_all_names(found):
    assert found.scores.shape == (200,)
    assert found.strangest(3)[0]["node"] == int(np.argmax(found.scores))
    assert found.ids_[int(np.argmax(found.scores))] == found.strangest(1)[0]["id"]
    for same in (found.decision_score_, found.decision_scores_, found.decision_function()):
        np.testing.assert_array_equal(same, found.scores)
    for same in (found.label_, found.labels_, found.predict()):
        np.testing.assert_array_equal(same, found.to_pandas().sort_values("node")["flagged"])
    labels, scores, chance, sure = found.predict(return_score=True, return_prob=True, return_conf=True)
    assert {part.shape for part in (labels, scores, chance, sure)} == {(200,)}
    np.testing.assert_allclose(found.predict_proba().sum(axis=1), 1.0)
    np.testing.assert_allclose(found.predict_proba(method="p")[:, 0], found.p_values_)
    for same in (found.predict_confidence(), found.predict(return_confidence=True)[1], sure):
        np.testing.assert_array_equal(same, found.predict_proba(return_confidence=True)[1])
    check_is_fitted(found)
    assert is_outlier_detector(found)
    assert isinstance(found.to_pandas(), pd.DataFrame)


def test_explain__prints_as_text_and_holds_numbers(found):
    first = found.explain(found.strangest(1)[0]["id"])
    assert "rank 1 of 200" in str(first)
    assert str(first) == repr(first) == first.text
    assert (first.data["rank"], first.data["num_nodes"]) == (1, 200)
    assert len(first.data["neighbors"]) == first.data["degree"]
    with pytest.raises(ValueError, match="node='nobody' is not in this graph"):
        found.explain("nobody")


def test_notebook__shows_the_table_and_pictures(found):
    shown = found._repr_html_()
    assert shown.count("<tr>") == 11
    assert shown.count('<svg class="chart"') == 2
    assert found.strangest(1)[0]["id"] in shown
    assert HCM()._repr_html_() is None


def test_apply__scores_other_data_without_training_and_on_the_same_scale(found, world, tmp_path):
    np.testing.assert_array_equal(found.predict((world.edges, world.nodes)), found.label_)  # known again
    odd = world.nodes.assign(a0=world.nodes["a0"].where(world.nodes.index != 7, 1e6))
    tomorrow = found.apply((world.edges, odd), run_dir=tmp_path / "tomorrow")
    assert not (tmp_path / "tomorrow" / "labels").exists()
    place = {row["id"]: row["rank"] for row in tomorrow.strangest(200)}
    before = {row["id"]: row["rank"] for row in found.strangest(200)}
    name = world.nodes["account"][7]
    assert place[name] < before[name]
    assert f"rank {place[name]} of 200" in str(tomorrow.explain(name))
    for same in (found.decision_function((world.edges, odd)), found.predict((world.edges, odd), return_score=True)[1]):
        np.testing.assert_array_equal(same, tomorrow.scores)


@pytest.mark.parametrize("views", [["purified"], ["purified", "original"]])
def test_apply__to_the_graph_of_the_fit_gives_its_scores(world, views):
    """So the measures of the scores, which differ with the number of views, come back from their file."""
    detector = small_detector(world.graph, views=views)
    again = detector.apply(world.graph)
    for name in ("score", "strange", "closure", "context", "residual"):
        np.testing.assert_array_equal(
            again.to_pandas().sort_values("node")[name], detector.to_pandas().sort_values("node")[name]
        )


def test_apply__takes_the_rate_that_was_set_since_the_fit(found, world, tmp_path):
    detector = HCM(**found.get_params() | {"fdr": 0.3, "run_dir": tmp_path / "fitted"}).fit((world.edges, world.nodes))
    for fdr in (0.3, 0.1):
        detector.set_params(fdr=fdr).apply((world.edges, world.nodes), run_dir=tmp_path / "new")
        assert json.loads((tmp_path / "new" / "config.json").read_text())["score"]["fdr"] == fdr


def test_apply__keeps_the_threshold_and_works_after_loading(found, world, tmp_path):
    found.save(tmp_path / "kept")
    loaded = HCM.load(tmp_path / "kept").set_params(contamination=0.1)
    loaded._fitted = dataclasses.replace(loaded._fitted, contamination=0.1)
    tomorrow = loaded.apply((world.edges, world.nodes.assign(a0=0.5)))
    assert tomorrow.threshold_ == loaded.threshold_
    np.testing.assert_array_equal(tomorrow.labels_, tomorrow.scores > loaded.threshold_)
    tomorrow.save(tmp_path / "tomorrow")
    assert HCM.load(tmp_path / "tomorrow").threshold_ == loaded.threshold_


def test_save__carries_scores_and_explanations(found, tmp_path):
    found.save(tmp_path / "kept")
    found.save(tmp_path / "kept")
    loaded = HCM.load(tmp_path / "kept")
    np.testing.assert_array_equal(loaded.scores, found.scores)
    assert loaded.explain("n003").data == found.explain("n003").data
    assert loaded.get_params() == found.get_params() | {"run_dir": None}
    assert (loaded.columns_, loaded.threshold_) == (found.columns_, found.threshold_)
    assert "<table>" in loaded._repr_html_()
    manifest = tmp_path / "kept" / "manifest.json"
    sound = manifest.read_text()
    manifest.write_text(sound.replace('"contamination": null', '"contamination": 0.2'))
    with pytest.raises(
        files.FolderError, match=r"kept/manifest\.json is damaged: its seal is missing or not that of its content"
    ):
        HCM.load(tmp_path / "kept")
    manifest.write_text(sound)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(
        files.FolderError, match=r"mine holds other files, .*; save writes to a folder that is new, empty, or"
    ):
        found.save(tmp_path / "mine")
    with pytest.raises(files.FolderError, match=r"file is a file; save writes to a folder"):
        found.save(tmp_path / "mine" / "file")
    with pytest.raises(files.FolderError, match=r"file is a file; a finished hcm_scale detector folder was expected"):
        HCM.load(tmp_path / "mine" / "file")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    scores = tmp_path / "kept" / "scores" / "scores.parquet"
    scores.write_bytes(scores.read_bytes()[:-1] + b"x")
    with pytest.raises(files.FolderError, match=r"scores\.parquet is damaged"):
        HCM.load(tmp_path / "kept")


def reseal(path: Path, change) -> None:
    """Changes a record, a list or a manifest as whoever made the folder could: with a seal that is right."""
    body = files.read_sealed(path)
    for entry in body["stages"] if path.name == "stages.json" else [body]:
        change(entry)
    files.write_sealed(path, body)


def add_file(name: str, path: Path):
    return lambda record: record["files"].update({name: files.hash_file(path)})


@pytest.mark.parametrize("way", ["up", "absolute", "linked", "linked folder", "stage", "linked stage", "config"])
def test_load_and_save__touch_no_file_outside_the_folders(found, tmp_path, way):
    theirs, mine = tmp_path / "a" / "theirs", tmp_path / "b" / "mine"
    found.save(theirs)
    for folder in (theirs.parent, mine.parent):
        folder.mkdir(exist_ok=True)
        (folder / "notes.txt").write_text(f"private to {folder.name}")
    record, notes = theirs / "records" / "scores.json", theirs.parent / "notes.txt"
    if way == "up":
        reseal(record, add_file("../../notes.txt", notes))
    elif way == "absolute":
        reseal(record, add_file(str(mine.parent / "notes.txt"), mine.parent / "notes.txt"))
    elif way == "linked":
        (theirs / "scores" / "notes.txt").symlink_to(notes)
        reseal(record, add_file("notes.txt", notes))
    elif way == "linked folder":
        (theirs / "scores" / "deep").symlink_to(notes.parent)
        reseal(record, add_file("deep/notes.txt", notes))
    elif way == "stage":
        (theirs / "purified").rename(theirs.parent / "out")
        (theirs.parent / "records").mkdir()
        (theirs / "records" / "purified.json").rename(theirs.parent / "records" / "out.json")
        reseal(theirs / "stages.json", lambda stage: stage["name"] == "purified" and stage.update(name="../out"))
    elif way == "linked stage":
        shutil.copytree(theirs, theirs.parent / "other")
        shutil.rmtree(theirs / "purified")
        (theirs / "purified").symlink_to(theirs.parent / "other" / "purified")
    else:
        (theirs / "config.json").unlink()
        (theirs / "config.json").symlink_to(notes)
    with pytest.raises(files.FolderError, match=r"below it|is damaged"):
        HCM.load(theirs).save(mine)
    assert sorted(path.name for path in mine.parent.iterdir()) == ["notes.txt"]
    assert (mine.parent / "notes.txt").read_text() == "private to b"


@pytest.mark.parametrize(
    "options",
    [
        {"share_dir": "{out}"},
        {"graph.label_column": "${oc.env:HOME}"},
        {"run_dir": "{out}"},
    ],
)
def test_load__takes_no_place_to_write_and_no_address_from_the_folder(found, world, tmp_path, options, recwarn):
    found.save(tmp_path / "kept")
    out, asked = tmp_path / "out", json.loads(json.dumps(options).replace("{out}", str(tmp_path / "out")))

    def change(manifest):
        parameters = manifest["parameters"]
        parameters |= asked if "run_dir" in asked else {"options": parameters["options"] | asked}

    reseal(tmp_path / "kept" / "manifest.json", change)
    loaded = HCM.load(tmp_path / "kept")
    assert "is left out" in str(recwarn.pop(UserWarning).message)
    assert loaded.get_params() == found.get_params() | {"run_dir": None}
    out.mkdir()
    loaded.predict((world.edges, world.nodes.assign(a0=0.5)))
    assert list(out.iterdir()) == []


def test_load__takes_columns_of_tables_alone_from_the_folder(found, tmp_path):
    found.save(tmp_path / "kept")
    reseal(tmp_path / "kept" / "manifest.json", lambda manifest: manifest["columns"].update(name="../out"))
    with pytest.raises(files.FolderError, match=r"manifest\.json is damaged: 'name' is no column"):
        HCM.load(tmp_path / "kept")


def joblib_round_trip(detector: HCM, folder: Path) -> HCM:
    joblib.dump(detector, folder / "detector.joblib")
    return joblib.load(folder / "detector.joblib")


@pytest.mark.parametrize("way", [lambda found, _: copy.deepcopy(found), joblib_round_trip], ids=["deepcopy", "joblib"])
def test_copy__has_scores_and_a_folder_of_its_own(found, world, tmp_path, way):
    twin = way(found, tmp_path)
    assert twin.get_params() == found.get_params()
    np.testing.assert_array_equal(twin.scores, found.scores)
    assert twin._require_fitted().run.folder != found._require_fitted().run.folder
    assert twin.explain("n003").data == found.explain("n003").data
    twin.set_params(run_dir=None, seed=2).fit((world.edges, world.nodes))
    assert (twin.scores != found.scores).any()
    assert found.explain(found.strangest(1)[0]["id"]).data["rank"] == 1


def best_of(detector: HCM) -> tuple[int, HCM]:
    return int(np.argmax(detector.scores)), detector


def test_joblib_workers__take_and_give_fitted_detectors(found):
    ((best, back),) = joblib.Parallel(n_jobs=2)(joblib.delayed(best_of)(one) for one in [found])
    assert best == int(np.argmax(found.scores))
    np.testing.assert_array_equal(back.scores, found.scores)


def test_pickle__of_a_large_detector_names_the_way(found, monkeypatch):
    monkeypatch.setattr("hcm_scale.detector.hcm._MAX_PICKLED", 1000)
    with pytest.raises(TypeError, match=r"bytes is not .*save\(folder\) writes it and HCM\.load\(folder\) reads it"):
        pickle.dumps(found)


def test_pickle__of_a_damaged_run_is_refused(found):
    state = found.__getstate__()
    held = state["files of the run"]
    held["scores/scores.parquet"] = held["scores/scores.parquet"][:-1] + b"x"
    with pytest.raises(files.FolderError, match=r"scores\.parquet is damaged"):
        HCM().__setstate__(state)


def test_ties__are_told(world, caplog):
    ring = nx.cycle_graph(60)
    nx.set_node_attributes(ring, {node: float(node % 2) for node in ring}, "a")
    with caplog.at_level("INFO", "hcm_scale"):
        equal = small_detector(ring, drop_ratio=0)
    first = int(np.count_nonzero(equal.scores == equal.scores.max()))
    assert first > 1
    assert f"Ranks 1 to {first}" in caplog.text
    assert "have equal scores" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "hcm_scale"):
        small_detector(world.graph)
    assert "have equal scores" not in caplog.text


def test_before_fit__everything_says_so():
    unfitted = HCM()
    with pytest.raises(NotFitted, match=r"fit\(data\) comes first"):
        unfitted.strangest()
    for name in ("scores", "table", "label_", "decision_score_", "threshold_"):
        with pytest.raises(ValueError, match=r"fit\(data\) comes first"):
            getattr(unfitted, name)
        assert not hasattr(unfitted, name)
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    for call in (unfitted.predict, unfitted.decision_function, lambda: unfitted.explain(3), lambda: unfitted.save("x")):
        with pytest.raises(ValueError, match=r"fit\(data\) comes first"):
            call()


def test_fit__in_one_folder_makes_again_what_changed_and_shows_it(world, capsys, tmp_path):
    known = np.arange(200) < 9
    detector = small_detector(verbose=1, run_dir=tmp_path / "run").fit(world.graph, known)
    before, said = detector.scores, capsys.readouterr().err
    assert "label:" in said
    assert "y" in detector.table.column_names
    again = detector.set_params(fdr=0.5, verbose=0).fit(world.graph, known)
    np.testing.assert_array_equal(again.scores, before)
    assert capsys.readouterr().err == ""


def test_fit_predict__gives_labels_and_nodes_are_named_by_any_number(world):
    detector = small_detector(contamination=0.1)
    labels = detector.fit_predict(world.graph)
    assert labels.sum() == 20
    np.testing.assert_array_equal(labels, detector.labels_)
    for five in (torch.tensor(5), np.int32(5), np.array(5), "5"):
        assert detector.explain(five) == detector.explain(5)


def test_fit__takes_known_anomalies_by_the_word_of_scikit_learn_too(world, tmp_path):
    known = np.arange(200) < 3
    small_detector(run_dir=tmp_path / "run").fit(world.graph, y=known)
    assert Graph.open(tmp_path / "run" / "graph").y.sum() == 3


def test_fit__runs_where_linux_is_not(world, monkeypatch):
    """As on macOS: no /proc, no cgroups, no affinity, no room taken in advance."""
    for name in ("exists", "read_text", "write_text"):
        real = getattr(Path, name)

        def elsewhere(path, *given, real=real, **options):
            hidden = str(path).startswith(("/proc", "/sys"))
            return real(Path("/nowhere") / "file" if hidden else path, *given, **options)

        monkeypatch.setattr(Path, name, elsewhere)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "posix_fallocate")
    assert small_detector(world.graph).scores.shape == (200,)


def test_callback__ends_a_fit_by_raising(world):
    def stop(step: Step) -> None:
        if step.label == "labels":
            raise KeyboardInterrupt

    detector = small_detector(callback=stop)
    with pytest.raises(KeyboardInterrupt):
        detector.fit(world.graph)
    assert not hasattr(detector, "scores")


def first_node(threads: int) -> int:
    return int(np.argmax(small_detector(small_graph(), threads=threads).decision_scores_))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_fit__in_a_process_forked_after_a_fit_has_one_thread_or_says_so():
    first = first_node(2)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(RuntimeError, match=r"spawn.*joblib"):
            pool.apply_async(first_node, (2,)).get(timeout=120)
        assert pool.apply_async(first_node, (1,)).get(timeout=120) == first
