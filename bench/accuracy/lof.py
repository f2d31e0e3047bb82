"""LOF (Breunig et al. 2000) on the features alone, by scikit-learn at its own settings: twenty nearest rows."""

from sklearn.neighbors import LocalOutlierFactor

from bench.accuracy.problem import Problem
from bench.accuracy.trivial import Scores


def run(problem: Problem, device: str) -> Scores:
    """The local outlier factor of every row; about 1 where a row lies as dense as its neighbours."""
    detector = LocalOutlierFactor(n_neighbors=min(20, len(problem.x) - 1), n_jobs=-1)
    detector.fit(problem.x)
    return {"LOF": -detector.negative_outlier_factor_.astype(float)}
