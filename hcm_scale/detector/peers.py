"""What PyGOD, PyOD and scikit-learn call things: our word for each of theirs, or why there is none.

`unknown` speaks of keywords that `HCM` does not have, `MISSING` of methods and attributes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hcm_scale.base.near import legal_names
from hcm_scale.config import Config, TablesGraph, walk

_NO_EMBEDDING = "every sample of the posterior has an embedding of its own, and none is kept"
KEYWORDS = {
    "act": "there is no choice: the encoder is a GCN with ReLU",
    "backbone": "there is no choice: the encoder is a GCN with ReLU",
    "batch_size": 'options={"sampling.batch_pairs": ...} says how many pairs of nodes a step has',
    "compile_model": "there is nothing to switch on: kernels are compiled, and kept",
    "dropout": "there is none: samples of the posterior are averaged",
    "epoch": 'options={"posterior.burn_in_steps": ...} and num_samples say how long a chain is',
    "epochs": 'options={"posterior.burn_in_steps": ...} and num_samples say how long a chain is',
    "gan": "there is none: nothing is trained against an adversary",
    "gpu": 'device="cuda" or device="cpu" says it, and CUDA_VISIBLE_DEVICES which of several GPUs',
    "hid_dim": "width says it",
    "lr": 'options={"posterior.step_size": ...} says it',
    "n_jobs": "threads says it",
    "num_neigh": 'options={"sampling.fan_out": [...]} says it',
    "random_state": "seed says it",
    "save_emb": f"there is none: {_NO_EMBEDDING}",
    "weight_decay": 'options={"posterior.prior": ...} says it',
}
MISSING = {
    "compute_rejection_stats": "predict_confidence(data) has the numbers to reject by",
    "emb": _NO_EMBEDDING,
    "fit_predict_score": "fit(data, label), then sklearn.metrics.roc_auc_score(label, scores)",
    "forward_model": "its model is not made by subclassing",
    "init_model": "its model is not made by subclassing",
    "offset_": "threshold_ is the score above which nodes are labelled",
    "predict_with_rejection": "predict_confidence(data) has the numbers to reject by",
    "process_graph": "fit(data) reads the graph",
    "score_samples": "decision_function(data) is larger for stranger nodes, where scikit-learn's is smaller",
}


def unknown(others: Mapping[str, Any], known: Iterable[str]) -> str:
    """Says of keywords that are none of ours what to write in their place.

    >>> unknown({"hid_dim": 64, "trim": 0.1}, ["width"])
    'hid_dim=64 is no parameter of HCM: width says it; trim=0.1 is none: options={"score.trim": 0.1} says it'
    """
    told = [f"{name}={value!r} is none: {_hint(name, value, list(known))}" for name, value in others.items()]
    return "; ".join(told).replace("is none", "is no parameter of HCM", 1)


def _hint(name: str, value: Any, known: list[str]) -> str:
    if name in KEYWORDS:
        return KEYWORDS[name]
    keys = [key for key, _, _ in walk(Config(graph=TablesGraph())) if name in (key, key.split(".")[-1])]
    if keys:
        return " or ".join(f'options={{"{key}": {value!r}}}' for key in keys) + " says it"
    return legal_names(name, known)
