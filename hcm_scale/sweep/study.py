"""The study: Optuna asks for trials and is told what they are worth, until there are `num_trials`.

It stands in `tune.folder` as Optuna's journal, lines of JSON. One driver at a time holds the folder, so a trial found
running was killed: it is gone on with, and its finished stages are not made again. The draw of a trial depends on its
number and on the trials before it alone, so a search that was stopped ends where it would have. A trial that fails is
noted and the search goes on. A search for something else in the same folder is refused.
"""

import logging
from dataclasses import asdict
from typing import Any

from hcm_scale.base import files
from hcm_scale.base.rng import key
from hcm_scale.sweep.objectives import OBJECTIVES, PURPOSE, Objective, judge, kept_back
from hcm_scale.sweep.search import Search, distribution

log = logging.getLogger(__name__)
JOURNAL, BEST = "study.journal", "best.json"


def tune(search: Search) -> str:
    """Runs the trials that are missing, writes best.json, and returns what was found, to print."""
    try:
        import optuna
        from optuna.trial import TrialState
    except ImportError as error:
        raise ValueError("sweep=optuna needs Optuna: pip install 'hcm-scale[tune]'") from error
    search.folder.mkdir(parents=True, exist_ok=True)
    with files.locked(search.folder / ".lock"):
        study = open_study(search)
        objective = OBJECTIVES[search.options.objective](search)
        space = {name: distribution(name, values) for name, values in search.space.items()}
        for killed in study.get_trials(states=(TrialState.RUNNING,)):
            _finish(search, study, objective, killed.number, killed.params)
        seed = search.config({}).seed
        while (number := len(study.trials)) < search.options.num_trials:
            study.sampler = optuna.samplers.TPESampler(seed=key(seed, PURPOSE, number) % 2**32)
            _finish(search, study, objective, number, study.ask(space).params)
        return _conclude(search, study, objective)


def open_study(search: Search) -> Any:
    """The study in the folder, new or gone on with."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(search.folder / JOURNAL)))
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    base = asdict(search.config({})) | {"run_dir": None, "share_dir": None}
    asked = files.hash_value([base, search.options.objective, search.options.num_seeds, search.space])
    if study.user_attrs.get("asked", asked) != asked:
        raise ValueError(f"tune.folder={search.folder} holds a search for something else; name another or remove it")
    study.set_user_attr("asked", asked)
    return study


def _finish(search: Search, study: Any, objective: Objective, number: int, chosen: dict[str, Any]) -> None:
    """Runs one trial and tells the study what came of it."""
    from optuna.trial import TrialState

    words = " ".join(f"{name}={value}" for name, value in chosen.items())
    try:
        if set(chosen) != set(search.space):
            raise ValueError("stopped before all of its options were drawn")
        value = judge(search, objective, number, chosen)
    except (ValueError, RuntimeError, ArithmeticError) as error:
        log.error("trial %d failed: %s   %s", number, error, words)
        study.tell(number, state=TrialState.FAIL)
        return
    study.tell(number, value)
    log.info("trial %d   ROC-AUC %.4f   %s", number, value, words)


def _conclude(search: Search, study: Any, objective: Objective) -> str:
    """Writes best.json and says what was found."""
    from optuna.trial import TrialState

    done = study.get_trials(states=(TrialState.COMPLETE,))
    if not done:
        raise ValueError(f"none of {len(study.trials)} trials finished; the lines above say why")
    best = study.best_trial
    held_out = kept_back(search, objective, best.number, best.params)
    words = [*search.fixed, *(f"{name}={value}" for name, value in best.params.items())]
    by = search.options.objective
    facts = {"trial": best.number, "objective": by, "auc": best.value, "held_out_auc": held_out, "overrides": words}
    files.write_json(search.folder / BEST, facts)
    lines = [f"{len(done)} of {len(study.trials)} trials finished; the best is trial {best.number}"]
    lines.append(f"ROC-AUC that it was chosen by ({by})   {best.value:.4f}")
    if held_out is not None:
        lines.append(f"ROC-AUC on the half that was kept back   {held_out:.4f}")
    quoted = " ".join(f"'{word}'" if "[" in word else word for word in words)
    return "\n".join([*lines, f"hcm-scale run {quoted}", str(search.folder / BEST)])
