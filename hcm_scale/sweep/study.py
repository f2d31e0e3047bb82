"""A search with Optuna: trials are drawn and judged until there are `tune.num_trials`, and the best is written down.

The study is Optuna's journal, lines of JSON, in `tune.folder`. One driver at a time holds the folder, so a trial found
running was killed: it is finished first, and its finished stages are not made again. The draw of a trial depends only
on its number and on the trials before it, so a search that was stopped ends where it would have. A failed trial is
noted and the search goes on. A search for something else in the same folder is refused.

A trial is worth the ROC-AUC of its ranking score, over nodes that no reported number is made from:

    planted   the graph's own labels are removed, and anomalies planted with separate seeds are to be found: no label
              is looked at, and the draws differ from those of an experiment
    labels    the known anomalies and normal nodes are halved once; trials see one half, and the other is looked at
              once, at the end, for the best trial only
"""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.rng import key
from hcm_scale.config import Config, InjectConfig
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.metrics import roc_auc
from hcm_scale.sweep.search import Search

log = logging.getLogger(__name__)
_BEST = "best.json"
_PURPOSE = 0x7E57  # separates these draws from those of the runs that are reported
_NODES_PER_CLIQUE = 500  # if the configuration plants nothing itself


def tune(search: Search) -> str:
    """Runs the missing trials, writes best.json, and returns the result as text."""
    try:
        import optuna
    except ImportError as error:
        raise ValueError("sweep=optuna needs Optuna: pip install 'hcm-scale[tune]'") from error
    search.folder.mkdir(parents=True, exist_ok=True)
    with files.file_lock(search.folder / ".lock"):
        study = _open_study(search)
        trials = Trials(search, _read_unlabelled(search) if search.options.objective == "planted" else None)
        space = search.distributions()
        for killed in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            _finish(study, trials, killed.number, killed.params)
        seed = search.config({}).seed
        while (number := len(study.trials)) < search.options.num_trials:
            study.sampler = optuna.samplers.TPESampler(seed=key(seed, _PURPOSE, number) % 2**32)
            _finish(study, trials, number, study.ask(space).params)
        return _conclude(study, trials)


def _open_study(search: Search) -> Any:
    """The Optuna study in the search's folder, created if there is none; ValueError if it searches something else."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(search.folder / "study.journal")))
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)
    base = dataclasses.asdict(search.config({})) | {"run_dir": None, "share_dir": None}
    asked = files.hash_value([base, search.options.objective, search.options.num_seeds, search.space])
    if study.user_attrs.get("asked", asked) != asked:
        raise ValueError(f"tune.folder={search.folder} holds a search for something else; name another or remove it")
    study.set_user_attr("asked", asked)
    return study


def _read_unlabelled(search: Search) -> Graph:
    """The graph of a search without labels, and without what the configuration would plant."""
    config = search.config({})
    config.inject = InjectConfig()
    config.run_dir = str(search.folder / "source")
    pipeline.run(config, until="ingest")
    graph = Graph.open(Path(config.run_dir) / "graph", verify=False)
    return dataclasses.replace(graph, y=None, kind=None, path=None)


@dataclass(frozen=True)
class Trials:
    """The runs of a search, over `graph` if anomalies are planted into it, else judged by one half of the labels."""

    search: Search
    graph: Graph | None

    def run(self, trial: int, chosen: dict[str, Any]) -> None:
        """Runs every repeat of a trial up to the scores."""
        for repeat in range(self.search.options.num_seeds):
            config = self._config(chosen, repeat)
            config.run_dir = str(self._folder(trial, repeat))
            pipeline.run(config, until="score", graph=self.graph)

    def auc(self, trial: int, chosen: dict[str, Any], held_out: bool = False) -> float | None:
        """Mean ROC-AUC of a finished trial over the nodes it is judged by, or over the others; None if none are."""
        found, rank_by = [], self.search.config(chosen).score.rank_by
        for repeat in range(self.search.options.num_seeds):
            table = FinishedRun(self._folder(trial, repeat)).table.sort_by("node")
            if "y" not in table.column_names:
                raise ValueError("tune.objective=labels needs a graph with known anomalies; planted needs none")
            y, scores = table["y"].to_numpy(), table[rank_by].to_numpy()
            judged = validation_half(y) if self.graph is None else np.ones(len(y), bool)
            nodes = ~judged if held_out else judged
            if not nodes.any():
                return None
            found.append(roc_auc(y[nodes], scores[nodes]))
        return float(np.mean(found))

    def _folder(self, trial: int, repeat: int) -> Path:
        return self.search.folder / f"trial-{trial:04d}" / f"repeat-{repeat}"

    def _config(self, chosen: dict[str, Any], repeat: int) -> Config:
        config = self.search.config(chosen)
        if self.graph is None:
            return config if repeat == 0 else self.search.config(chosen, f"seed={config.seed + repeat}")
        inject = config.inject
        if inject.num_cliques == 0:
            num_cliques = max(1, min(20, self.graph.num_nodes // _NODES_PER_CLIQUE))
            inject = InjectConfig(num_cliques=num_cliques, num_attribute_anomalies=None)
        config.inject = dataclasses.replace(inject, seed=key(config.seed, _PURPOSE, repeat) % 2**31)
        return config


def validation_half(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Half of the anomalies and half of the normal nodes, the same for every trial.

    >>> int(validation_half(np.array([0, 0, 0, 0, 1, 1]))[4:].sum())
    1
    """
    half = np.zeros(len(y), bool)
    rng = np.random.default_rng(key(_PURPOSE))
    for members in (np.flatnonzero(y == 0), np.flatnonzero(y != 0)):
        if len(members) < 2:
            raise ValueError(f"tune.objective=labels needs two nodes of each kind at least; {len(members)} found")
        half[rng.permutation(members)[: len(members) // 2]] = True
    return half


def _finish(study: Any, trials: Trials, number: int, chosen: dict[str, Any]) -> None:
    """Runs one trial and tells the study its value, or that it failed."""
    words = " ".join(f"{name}={value}" for name, value in chosen.items())
    try:
        if set(chosen) != set(trials.search.space):
            raise ValueError("stopped before all of its options were drawn")
        trials.run(number, chosen)
        value = trials.auc(number, chosen)
        assert value is not None  # some node is judged
    except (ValueError, RuntimeError, ArithmeticError) as error:
        from optuna.trial import TrialState

        log.error("trial %d failed: %s   %s", number, error, words)
        study.tell(number, state=TrialState.FAIL)
    else:
        study.tell(number, value)
        log.info("trial %d   ROC-AUC %.4f   %s", number, value, words)


def _conclude(study: Any, trials: Trials) -> str:
    """Writes best.json and returns the result as text."""
    num_finished = sum(trial.value is not None for trial in study.trials)
    if not num_finished:
        raise ValueError(f"none of {len(study.trials)} trials finished; the lines above say why")
    search, best = trials.search, study.best_trial
    by, held_out = search.options.objective, trials.auc(best.number, best.params, held_out=True)
    words = [*search.fixed, *(f"{name}={value}" for name, value in best.params.items())]
    facts = {"trial": best.number, "objective": by, "auc": best.value, "held_out_auc": held_out, "overrides": words}
    files.write_json(search.folder / _BEST, facts)
    lines = [f"{num_finished} of {len(study.trials)} trials finished; the best is trial {best.number}"]
    lines.append(f"ROC-AUC that it was chosen by ({by})   {best.value:.4f}")
    if held_out is not None:
        lines.append(f"ROC-AUC on the half that was kept back   {held_out:.4f}")
    quoted = " ".join(f"'{word}'" if "[" in word else word for word in words)
    return "\n".join([*lines, f"hcm-scale run {quoted}", str(search.folder / _BEST)])
