"""The search: judged by what is never reported, resumable, and outliving trials that fail."""

import json
from dataclasses import replace

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

from hcm_scale.cli.overrides import compose_config, composing  # noqa: E402
from hcm_scale.graph import Graph  # noqa: E402
from hcm_scale.run import pipeline  # noqa: E402
from hcm_scale.sweep.search import Search, distribution, read_search  # noqa: E402
from hcm_scale.sweep.study import (  # noqa: E402  # noqa: E402
    BEST,
    open_study,
    read_objective,
    read_ranking,
    run_dir,
    tune,
    validation_half,
)

TINY = [
    "graph=community",
    "graph.num_nodes=300",
    "inject=paper",
    "inject.num_cliques=1",
    "inject.clique_size=6",
    "hops=all",
    "model.width=8",
    "posterior.burn_in_steps=3",
    "posterior.num_samples=2",
    "posterior.thin_steps=1",
    "sampling.batch_pairs=128",
    "world.device=cpu",
    "posterior.step_size=0.01",
    "score.views=[purified]",
    "score.far_share=0.4",
    "hops.classes=3",
]


@pytest.fixture
def search(tmp_path):
    with composing():

        def make(*words: str) -> Search:
            words_of_trial = [*TINY, f"tune.folder={tmp_path}/search", *words]
            return read_search(["-m", "sweep=optuna", *words_of_trial], compose_config)

        yield make


def values_of(search: Search) -> list[float | None]:
    return [trial.value for trial in open_study(search).trials]


def test_search__takes_the_file_s_options_less_those_that_are_fixed(search):
    assert set(search().space) == {"purify.ratio", "score.trim"}
    assert search("score.trim=0.1", "seed=choice(1,2)").space == {
        "purify.ratio": "interval(0.0, 0.5)",
        "seed": "choice(1,2)",
    }


def test_distribution__follows_hydras_words():
    assert distribution("a", "interval(0.0,0.5)") == optuna.distributions.FloatDistribution(0.0, 0.5)
    assert distribution("a", "int(interval(1,5))") == optuna.distributions.IntDistribution(1, 5)
    assert distribution("a", "tag(log,interval(0.001,1.0))") == optuna.distributions.FloatDistribution(
        0.001, 1.0, log=True
    )
    assert distribution("a", "range(3,6)").choices == ("3", "4", "5")
    assert distribution("a", "choice([x],[x,y])").choices == ("[x]", "[x,y]")


def test_every_listed_option__has_a_distribution(search):
    for name, values in search().space.items():
        assert distribution(name, values) is not None


def test_tune__finds_the_best_trial_and_writes_it_down(search):
    asked = search("tune.num_trials=2")
    said = tune(asked)
    values = values_of(asked)
    best = json.loads((asked.folder / BEST).read_text())
    assert best["auc"] == max(value for value in values if value is not None)
    assert best["held_out_auc"] is None
    assert f"trial {best['trial']}" in said
    assert all(word in said for word in TINY[:3])


@pytest.mark.gate
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


def test_planted__never_shows_the_graphs_labels_nor_a_reported_draw(search):
    asked = search("tune.num_seeds=2", "tune.num_trials=1")
    objective = read_objective(asked)
    assert objective.graph.y is None
    assert objective.graph.kind is None
    seeds = [objective.config(asked, {}, repeat).inject.seed for repeat in range(2)]
    assert len(set(seeds)) == 2
    assert min(seeds) > 1000


def test_planted__in_a_graph_that_comes_with_labels(search, tmp_path):
    config = search().config({})
    config.run_dir = str(tmp_path / "made")
    pipeline.run(config, until="ingest")
    labelled = Graph.open(tmp_path / "made" / "graph")
    assert labelled.y is not None
    replace(labelled, path=None).save(tmp_path / "labelled")
    words = [word for word in TINY if not word.startswith(("graph", "inject"))]
    compose_ = search().compose
    options = search("tune.num_trials=1", f"tune.folder={tmp_path}/own").options
    fixed = (*words, "graph=folder", f"graph.path={tmp_path}/labelled")
    asked = Search(fixed, {"score.trim": "choice(0.0,0.1)"}, options, compose_)
    tune(asked)
    y, _ = read_ranking(run_dir(asked, 0, 0), "ahp")
    assert not np.array_equal(y, labelled.y)


def test_labels__are_judged_by_one_half_and_reported_on_the_other(search):
    asked = search("tune.objective=labels", "tune.num_trials=1")
    tune(asked)
    best = json.loads((asked.folder / BEST).read_text())
    y, score = read_ranking(run_dir(asked, 0, 0), asked.config({}).score.rank_by)
    mine = validation_half(y)
    for half, auc in ((mine, best["auc"]), (~mine, best["held_out_auc"])):
        above = score[half & (y == 1)][:, None] - score[half & (y == 0)][None, :]
        assert np.isclose(auc, (above > 0).mean() + (above == 0).mean() / 2)


def test_labels__repeats_differ_in_seed(search):
    asked = search("tune.objective=labels", "seed=4")
    assert [read_objective(asked).config(asked, {}, repeat).seed for repeat in range(2)] == [4, 5]


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
