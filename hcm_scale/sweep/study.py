"""The study: Optuna asks for trials and is told what they are worth, until there are `num_trials`.

It stands in `tune.folder` as Optuna's journal, lines of JSON. One driver at a time holds the folder, so a trial found
running was killed: it is gone on with, and its finished stages are not made again. The draw of a trial depends on its
number and on the trials before it alone, so a search that was stopped ends where it would have. A trial that fails is
noted and the search goes on. A search for something else in the same folder is refused.
"""

import dataclasses
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.rng import key
from hcm_scale.config import Config, InjectConfig
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline
from hcm_scale.score.metrics import roc_auc
from hcm_scale.sweep.search import Search, distribution

# ----------------------------------------------------------------------------
# By what a trial is judged: the ROC-AUC of the ranking score, over nodes that no reported number is made from.
#
# planted   the graph's own labels are removed, and anomalies planted with seeds of their own are to be found: no
#           label is looked at, and the draws are none that an experiment's seeds make
# labels    the known anomalies and normal nodes are halved once; trials see one half, and the other is looked at
#           once, at the end, for the best trial only


PURPOSE = 0x7E57  # separates these draws from those of the runs that are reported
_NODES_PER_CLIQUE = 500  # where the configuration plants nothing itself


class Objective(Protocol):
    """`graph` takes the place of the configured one, unless it is None."""

    graph: Graph | None

    def config(self, search: Search, chosen: dict[str, Any], repeat: int) -> Config:
        """What to run for one repeat of one trial."""

    def judged(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        """The nodes that trials are judged by, (n,)."""


@dataclass(frozen=True)
class Planted:
    """Anomalies of our own in a graph without its labels."""

    graph: Graph

    @staticmethod
    def of(search: Search) -> "Planted":
        """Reads the graph once, without what the configuration would plant."""
        config = search.config({})
        config.inject = InjectConfig()
        config.run_dir = str(search.folder / "source")
        pipeline.run(config, until="ingest")
        graph = Graph.open(Path(config.run_dir) / "graph", verify=False)
        return Planted(dataclasses.replace(graph, y=None, kind=None, path=None))

    def config(self, search: Search, chosen: dict[str, Any], repeat: int) -> Config:
        config = search.config(chosen)
        inject = config.inject
        if inject.num_cliques == 0:
            num_cliques = max(1, min(20, self.graph.num_nodes // _NODES_PER_CLIQUE))
            inject = InjectConfig(num_cliques=num_cliques, num_attribute_anomalies=None)
        config.inject = dataclasses.replace(inject, seed=key(config.seed, PURPOSE, repeat) % 2**31)
        return config

    def judged(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        return np.ones(len(y), bool)


@dataclass(frozen=True)
class KnownAnomalies:
    """One half of the known anomalies; repeats differ in the seed."""

    graph: None = None

    @staticmethod
    def of(search: Search) -> "KnownAnomalies":
        return KnownAnomalies()

    def config(self, search: Search, chosen: dict[str, Any], repeat: int) -> Config:
        config = search.config(chosen)
        return config if repeat == 0 else search.config(chosen, f"seed={config.seed + repeat}")

    def judged(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        return validation_half(y)


OBJECTIVES: dict[str, Any] = {"planted": Planted.of, "labels": KnownAnomalies.of}


def validation_half(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Half of the anomalies and half of the normal nodes, the same for every trial.

    >>> int(validation_half(np.array([0, 0, 0, 0, 1, 1]))[4:].sum())
    1
    """
    mine = np.zeros(len(y), bool)
    rng = np.random.default_rng(key(PURPOSE))
    for members in (np.flatnonzero(y == 0), np.flatnonzero(y != 0)):
        if len(members) < 2:
            raise ValueError(f"tune.objective=labels needs two nodes of each kind at least; {len(members)} found")
        mine[rng.permutation(members)[: len(members) // 2]] = True
    return mine


def judge(search: Search, objective: Objective, trial: int, chosen: dict[str, Any]) -> float:
    """Runs a trial, up to the scores, and returns its mean over the repeats."""
    found = []
    for repeat in range(search.options.num_seeds):
        config = objective.config(search, chosen, repeat)
        config.run_dir = str(run_dir(search, trial, repeat))
        pipeline.run(config, until="score", graph=objective.graph)
        y, score = read_ranking(Path(config.run_dir), config.score.rank_by)
        judged = objective.judged(y)
        found.append(roc_auc(y[judged], score[judged]))
    return float(np.mean(found))


def kept_back(search: Search, objective: Objective, trial: int, chosen: dict[str, Any]) -> float | None:
    """What a trial is worth on the nodes that none was judged by; None where there are no such nodes."""
    found = []
    rank_by = search.config(chosen).score.rank_by
    for repeat in range(search.options.num_seeds):
        y, score = read_ranking(run_dir(search, trial, repeat), rank_by)
        others = ~objective.judged(y)
        if not others.any():
            return None
        found.append(roc_auc(y[others], score[others]))
    return float(np.mean(found))


def run_dir(search: Search, trial: int, repeat: int) -> Path:
    """Where a trial runs."""
    return search.folder / f"trial-{trial:04d}" / f"repeat-{repeat}"


def read_ranking(folder: Path, rank_by: str) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Labels and scores of a finished run, (n,) each, in node order."""
    table = pipeline.read_scores(folder).sort_by("node")
    if "y" not in table.column_names:
        raise ValueError("tune.objective=labels needs a graph with known anomalies; planted needs none")
    return table["y"].to_numpy(), table[rank_by].to_numpy()


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
    with files.file_lock(search.folder / ".lock"):
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
