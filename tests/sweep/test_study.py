"""The search: judged by what is never reported, resumable, and outliving trials that fail."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import planted_graph

optuna = pytest.importorskip("optuna")

from hcm_scale.cli.overrides import compose_config, composing  # noqa: E402
from hcm_scale.run import pipeline  # noqa: E402
from hcm_scale.run.finished import FinishedRun  # noqa: E402
from hcm_scale.sweep.search import read_search  # noqa: E402
from hcm_scale.sweep.study import tune, validation_half  # noqa: E402

FIXED = ["posterior.step_size=0.01", "score.views=[purified]", "score.far_share=0.4", "hops.classes=3"]
Search = Any


@pytest.fixture
def search(tmp_path, tiny) -> Iterator[Callable[..., Search]]:
    def make(*words: str, graph: Path | None = None) -> Search:
        of_run = tiny if graph is None else ["graph=folder", f"graph.path={graph}", *tiny[5:]]
        given = ["-m", "sweep=optuna", *of_run, *FIXED, f"tune.folder={tmp_path}/search", *words]
        return read_search(given, compose_config)

    with composing():
        yield make


def values_of(search: Search) -> list[float | None]:
    """The value of every trial in the journal, None for those that failed."""
    journal = optuna.storages.journal.JournalFileBackend(str(search.folder / "study.journal"))
    study = optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(journal))
    return [trial.value for trial in study.trials]


def repeats(search: Search) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Configuration and scores in node order of each repeat of the first trial."""
    folders = sorted((search.folder / "trial-0000").iterdir())
    tables = [FinishedRun(folder).table.sort_by("node") for folder in folders]
    scores = [{name: table[name].to_numpy() for name in ("y", "score")} for table in tables]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    return list(zip(configs, scores, strict=True))


def test_search__takes_the_file_s_options_less_those_that_are_fixed(search):
    assert set(search().space) == {"purify.ratio", "score.trim"}
    assert search("score.trim=0.1", "seed=choice(1,2)").space == {
        "purify.ratio": "interval(0.0, 0.5)",
        "seed": "choice(1,2)",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("interval(0.0,0.5)", optuna.distributions.FloatDistribution(0.0, 0.5)),
        ("int(interval(1,5))", optuna.distributions.IntDistribution(1, 5)),
        ("tag(log,interval(0.001,1.0))", optuna.distributions.FloatDistribution(0.001, 1.0, log=True)),
        ("range(3,6)", optuna.distributions.CategoricalDistribution(["3", "4", "5"])),
        ("choice([x],[x,y])", optuna.distributions.CategoricalDistribution(["[x]", "[x,y]"])),
    ],
)
def test_distributions__follow_hydras_words(search, values, expected):
    found = search(f"score.trim={values}").distributions()
    assert found["score.trim"] == expected
    assert found["purify.ratio"] == optuna.distributions.FloatDistribution(0.0, 0.5)


def test_tune__finds_the_best_trial_and_writes_it_down(search, tiny):
    asked = search("tune.num_trials=2")
    said = tune(asked)
    best = json.loads((asked.folder / "best.json").read_text())
    assert best["auc"] == max(value for value in values_of(asked) if value is not None)
    assert best["held_out_auc"] is None
    assert f"trial {best['trial']}" in said
    assert all(word in said for word in tiny[:3])


@pytest.mark.slow
def test_tune__stopped_and_gone_on_with__ends_where_it_would_have(search, tmp_path):
    whole = search("tune.num_trials=2", f"tune.folder={tmp_path}/whole")
    tune(whole)
    tune(search("tune.num_trials=1"))
    parts = search("tune.num_trials=2")
    tune(parts)
    assert values_of(parts) == values_of(whole)


def test_tune__a_killed_trial_is_finished_not_forgotten(search, monkeypatch):
    asked = search("tune.num_trials=1")

    def killed(config, until, **_):
        if until == "score":
            raise KeyboardInterrupt
        return whole(config, until=until)

    whole = pipeline.run
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(asked)
    assert values_of(asked) == [None]
    tune(asked)
    assert None not in values_of(asked)
    assert len(values_of(asked)) == 1


def test_tune__a_failed_trial_does_not_lose_the_others(search):
    asked = search("purify.ratio=choice(0.2,1.5,1.6)", "score.trim=0.1", "seed=1", "tune.num_trials=4")
    said = tune(asked)
    values = values_of(asked)
    assert None in values
    assert f"{len([v for v in values if v is not None])} of 4 trials finished" in said


def test_tune__all_failed__says_so(search):
    with pytest.raises(ValueError, match="none of 1 trials finished"):
        tune(search("purify.ratio=choice(1.5,1.6)", "tune.num_trials=1"))


def test_tune__another_question_in_the_same_folder_is_refused(search):
    tune(search("tune.num_trials=1"))
    with pytest.raises(ValueError, match="holds a search for something else"):
        tune(search("tune.num_trials=1", "seed=5"))


def test_planted__never_shows_the_graphs_labels_nor_a_reported_draw(search, tmp_path):
    labelled = planted_graph()
    labelled.save(tmp_path / "labelled")
    asked = search("tune.num_seeds=2", "tune.num_trials=1", graph=tmp_path / "labelled")
    tune(asked)
    (first, found), (second, again) = repeats(asked)
    assert first["inject"]["seed"] != second["inject"]["seed"]
    assert min(config["inject"]["seed"] for config in (first, second)) > 1000
    for config, scores in ((first, found), (second, again)):
        num_planted = 2 * config["inject"]["num_cliques"] * config["inject"]["clique_size"]
        assert scores["y"].sum() == num_planted
        assert not np.array_equal(scores["y"], labelled.y)


def test_labels__are_judged_by_one_half_and_reported_on_the_other(search):
    asked = search("tune.objective=labels", "tune.num_trials=1", "tune.num_seeds=2", "seed=4")
    tune(asked)
    best = json.loads((asked.folder / "best.json").read_text())
    assert [config["seed"] for config, _ in repeats(asked)] == [4, 5]
    for name, judged in (("auc", validation_half), ("held_out_auc", lambda y: ~validation_half(y))):
        aucs = []
        for _, found in repeats(asked):
            y, score, half = found["y"], found["score"], judged(found["y"])
            above = score[half & (y == 1)][:, None] - score[half & (y == 0)][None, :]
            aucs.append((above > 0).mean() + (above == 0).mean() / 2)
        assert np.isclose(best[name], np.mean(aucs))


def test_labels__of_a_graph_without_them_are_asked_for(search, tmp_path, caplog):
    dataclasses.replace(planted_graph(), y=None, kind=None).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="none of 1 trials finished"):
        tune(search("tune.objective=labels", "tune.num_trials=1", graph=tmp_path / "plain"))
    assert "needs a graph with known anomalies; planted needs none" in caplog.text


def test_validation_half__splits_both_kinds_evenly():
    y = np.r_[np.zeros(100, np.uint8), np.ones(10, np.uint8)]
    mine = validation_half(y)
    assert (mine[:100].sum(), mine[100:].sum()) == (50, 5)
    assert np.array_equal(mine, validation_half(y))
    with pytest.raises(ValueError, match="two nodes of each kind"):
        validation_half(np.array([0, 0, 1]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune.num_trials=0"], r"tune\.num_trials=0 is out of range"),
        (["tune.objective=auc"], r"tune\.objective=auc is not known; legal are planted, labels"),
        (["tune.num_trial=1"], r"legal are tune\.num_trials"),
        (["hydra/launcher=joblib"], "one after the other"),
    ],
)
def test_bad_words__are_named(search, words, said):
    with pytest.raises(ValueError, match=said):
        search(*words)
