"""`python -m bench.accuracy --teach`: what verdicts are worth, on graphs with known bad nodes and on organic worlds.

A problem is a data set with labels, or a world of `worlds.py` with a rule of who is bad that no detector can know
beforehand (`RULES`: the bad copy their neighbours, share a column, are busy, or stick together), `weak:copy`. The
default settings rank its nodes once; then every learner gets the same verdicts, true ones:

    found    bad nodes among 200 looked at in ten rounds of 20. `taught` looks at what `hcm-scale review` draws,
             `taught head` and all others at the head of their list; the first round is the untaught head for all
    ROC-AUC, average precision
             of the nodes not looked at after 50 verdicts, half of the head and half at random
    shuffled, coin
             change of ROC-AUC where the 50 verdicts are exchanged among their nodes, or given by a coin
    changes  of ROC-AUC by 5 to 20 verdicts, true ones, exchanged ones and those of a coin, and by 30 bad nodes alone:
             known ones, or nodes drawn at random that are called bad
    inside   how often the true share of bad among the first 50, 100, 200 and 500, before and after, lies in the 90 %
             interval that is estimated on the way

Learners beside ours: `trees`, extremely randomised trees on attributes and their means over one and two steps (the
winner of GADBench is gradient boosting on such columns), `logistic` on the attributes alone, and `propagation` of
labels along the edges; 200 nodes drawn at random are good for them.
"""

import json
import logging
import tempfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression

from bench.accuracy.problem import DATA, open_problem, prepare
from bench.accuracy.worlds import make_problem
from bench.accuracy.zoo import adjacency
from bench.harness import RESULTS
from bench.page import commit, hardware, machine_name, versions
from hcm_scale.base.rng import key
from hcm_scale.detector import HCM
from hcm_scale.graph import Graph
from hcm_scale.review.draw import draw
from hcm_scale.review.estimate import Estimates
from hcm_scale.review.learn import Inputs, learn
from hcm_scale.review.teach import inputs_of
from hcm_scale.run.finished import FinishedRun
from hcm_scale.score.metrics import evaluate, ranking, roc_auc

ORGANIC = ("Amazon", "Enron", "Reddit", "tolokers")
PLANTED = ("BlogCatalog", "Flickr", "inj_cora", "dblp")
RULES = ("copy", "shift", "risk", "busy", "gang")
WORLDS_TAUGHT = ("follow", "weak", "unrelated", "few_columns", "hubs", "sparse_edges")
ROUNDS, SIZE, FEW = 10, 20, 50
FIRSTS = (50, 100, 200, 500)
SIZES, KNOWN = (5, 8, 10, 12, 20), 30
_RULE, _LOOKED, _FEW, _BACKGROUND = (0x310 + i for i in range(4))  # uses of the seed
Nodes = NDArray[np.int64]
Learner = Callable[["Subject", Nodes, NDArray[np.bool_], int], NDArray[np.float64]]


class Subject(NamedTuple):
    """A ranked graph whose bad nodes are known."""

    name: str
    graph: Graph
    inputs: Inputs
    bad: NDArray[np.bool_]


def organic(world: str, rule: str, seed: int, num_nodes: int = 5_000) -> Graph:
    """A world in which one node in twenty is bad by a rule; `y` tells which."""
    graph = make_problem(world, "none", seed, num_nodes).graph
    rng = np.random.default_rng(key(seed, _RULE, zlib.crc32(f"{world}:{rule}".encode())))
    x, degrees, joined = np.array(graph.x, np.float64), graph.degrees, adjacency(graph)
    spread, count = x.std(axis=0), num_nodes // 20
    some = rng.permutation(x.shape[1])[: max(1, x.shape[1] // 4)]
    if rule == "copy":  # attributes of the surroundings: more usual than others
        bad = rng.permutation(np.flatnonzero(degrees > 2))[:count]
        around = joined @ x / np.maximum(degrees, 1)[:, None]
        x[bad] = around[bad] + 0.4 * spread * rng.standard_normal((count, x.shape[1]))
    elif rule == "shift":
        bad = rng.permutation(num_nodes)[:count]
        x[np.ix_(bad, some)] += spread[some] * rng.choice([-1, 1], len(some))
    elif rule == "risk":  # nothing is changed: the largest of a sum of three columns and noise
        risk = ((x - x.mean(axis=0)) / spread)[:, some[:3]] @ rng.standard_normal(len(some[:3]))
        bad = np.argsort(-(risk + 0.7 * rng.standard_normal(num_nodes)))[:count]
    elif rule == "busy":
        bad = rng.choice(num_nodes, count, replace=False, p=degrees / degrees.sum())
        x[np.ix_(bad, some)] += 0.5 * spread[some]
    elif rule == "gang":
        leaders = rng.permutation(np.flatnonzero(degrees > 3))[: count // 5]
        chance = 0.02 + (joined @ np.isin(np.arange(num_nodes), leaders) > 0)
        chance[leaders] = 0.0
        members = rng.choice(num_nodes, count - len(leaders), replace=False, p=chance / chance.sum())
        bad = np.concatenate([leaders, members])
        x[np.ix_(bad, some)] += 0.5 * spread[some]
    else:
        raise ValueError(f"rule={rule!r} is unknown; it is one of {', '.join(RULES)}")
    y = np.isin(np.arange(num_nodes), bad).astype(np.uint8)
    return replace(graph, x=x.astype(np.float32), y=y, path=None)


def subject(name: str, seed: int, data_dir: Path) -> Subject:
    """The problem of this name, ranked by the default settings."""
    world, _, rule = name.partition(":")
    if rule:
        graph = organic(world, rule, seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, seed, data_dir, Path(folder))
            graph = open_problem(Path(folder)).graph
            graph = replace(graph, x=graph.x, path=None)
    assert graph.y is not None
    with tempfile.TemporaryDirectory() as folder:
        HCM(seed=seed, device="cpu", run_dir=folder).fit(replace(graph, y=None, kind=None))
        inputs = inputs_of(FinishedRun(folder))
        inputs = inputs._replace(features=np.array(inputs.features), indptr=graph.indptr, indices=graph.indices)
    return Subject(name, graph, inputs, graph.y == 1)


def _untaught(about: Subject, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    return about.inputs.score


def _taught(about: Subject, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    return learn(about.inputs, nodes, is_bad, seed).taught


def _supervised(make: Callable[[int], Any], steps: int) -> Learner:
    """A classifier of scikit-learn on the features and their means over so many steps."""

    def fit(about: Subject, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
        if not is_bad.any():
            return about.inputs.score
        joined, degrees = adjacency(about.graph), np.maximum(about.graph.degrees, 1)[:, None]
        parts = [about.inputs.features]
        for _ in range(steps):
            parts.append(joined @ parts[-1] / degrees)
        columns = np.column_stack([*parts, *([degrees] if steps else [])])
        rows, label = _with_background(about, nodes, is_bad, seed)
        return make(seed).fit(columns[rows], label).predict_proba(columns)[:, 1]

    return fit


def _propagation(about: Subject, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    rows, label = _with_background(about, nodes, is_bad, seed)
    start = np.zeros(len(about.bad))
    start[rows] = np.where(label, 1.0 / max(1, label.sum()), -1.0 / max(1, (~label).sum()))
    joined, degrees = adjacency(about.graph), np.maximum(about.graph.degrees, 1)
    found = start
    for _ in range(10):
        found = 0.1 * start + 0.9 * (joined @ (found / degrees))
    return found if is_bad.any() else about.inputs.score


def _with_background(
    about: Subject, nodes: Nodes, is_bad: NDArray[np.bool_], seed: int
) -> tuple[Nodes, NDArray[np.bool_]]:
    drawn = np.random.default_rng(key(seed, _BACKGROUND)).permutation(len(about.bad))[:200]
    rest = np.setdiff1d(drawn, nodes)
    return np.concatenate([nodes, rest]), np.concatenate([is_bad, np.zeros(len(rest), bool)])


LEARNERS: dict[str, Learner] = {
    "untaught": _untaught,
    "taught": _taught,
    "taught head": _taught,
    "trees": _supervised(lambda seed: ExtraTreesClassifier(100, class_weight="balanced", random_state=seed), 2),
    "logistic": _supervised(lambda seed: LogisticRegression(class_weight="balanced", max_iter=500), 0),
    "propagation": _propagation,
}


def review(about: Subject, name: str, seed: int) -> dict[str, Any]:
    """Bad nodes found in ten rounds; of `taught` also how often the true shares lay in their intervals."""
    reviewed, nodes, current = np.zeros(len(about.bad), bool), np.zeros(0, np.int64), about.inputs.score
    places = list(about.inputs.ranks.values())
    inside: list[bool] = []
    for at in range(ROUNDS):
        if name == "taught":
            share = float(about.bad[nodes].mean()) if len(nodes) else 0.0
            new = [each.node for each in draw(current, places, reviewed, SIZE, key(seed, _LOOKED, at), share)]
        else:
            order = ranking(current)
            new = order[~reviewed[order]][:SIZE].tolist()
        nodes = np.concatenate([nodes, new])
        reviewed[nodes] = True
        current = LEARNERS[name](about, nodes, about.bad[nodes], seed)
        if name == "taught" and at % 3 == 0:
            inside += _inside(about, {"after": ranking(current), "before": ranking(about.inputs.score)}, nodes)
    return {"found": int(about.bad[nodes].sum())} | ({"inside": float(np.mean(inside))} if inside else {})


def _inside(about: Subject, lists: dict[str, Nodes], nodes: Nodes) -> Iterator[bool]:
    estimates = Estimates.of(lists, nodes, about.bad[nodes])
    for name, order in lists.items():
        for share in estimates.shares(name, FIRSTS):
            true = about.bad[order[: share.first]].mean()
            yield bool(share.low - 1e-9 <= true <= share.high + 1e-9)


def after_few(about: Subject, name: str, seed: int) -> dict[str, Any]:
    """ROC-AUC and average precision after 50 verdicts, and the change by verdicts that mean nothing."""
    rng = np.random.default_rng(key(seed, _FEW))
    nodes = _looked_at(about, FEW, rng)
    left = np.ones(len(about.bad), bool)
    left[nodes] = False
    if not about.bad[left].any():
        return {}
    true = about.bad[nodes]
    found = evaluate(about.bad[left], LEARNERS[name](about, nodes, true, seed)[left])
    out = {"auc": found["roc_auc"], "ap": found["average_precision"]}
    if name in ("taught", "trees"):
        for how, given in (("shuffled", rng.permutation(true)), ("coin", rng.random(FEW) < 0.5)):
            out[how] = _change(about, name, nodes, given, seed)
    if name == "taught":
        out["changes"] = changes(about, seed)
    return out


def changes(about: Subject, seed: int) -> dict[str, float]:
    """Change of ROC-AUC by a few verdicts of several kinds and sizes."""
    out, rng = {}, np.random.default_rng(key(seed, _FEW, 1))
    for size in SIZES:
        nodes = _looked_at(about, size, rng)
        true = about.bad[nodes]
        for how, given in (("true", true), ("shuffled", rng.permutation(true)), ("coin", rng.random(size) < 0.5)):
            if np.delete(about.bad, nodes).any():
                out[f"{how} {size}"] = _change(about, "taught", nodes, given, seed)
    for how, of in (("known bad", np.flatnonzero(about.bad)), ("called bad", np.arange(len(about.bad)))):
        nodes = rng.permutation(of)[: min(KNOWN, about.bad.sum() // 2)]  # some are left to be found
        out[f"{how} {KNOWN}"] = _change(about, "taught", nodes, np.ones(len(nodes), bool), seed)
    return out


def _looked_at(about: Subject, count: int, rng: np.random.Generator) -> Nodes:
    """Half from the head of the list, half at random."""
    order = ranking(about.inputs.score)
    return np.concatenate([order[: count // 2], rng.permutation(order[count // 2 :])[: count - count // 2]])


def _change(about: Subject, name: str, nodes: Nodes, given: NDArray[np.bool_], seed: int) -> float:
    """Of ROC-AUC among the nodes not looked at, by these verdicts."""
    left = ~np.isin(np.arange(len(about.bad)), nodes)
    before, after = about.inputs.score[left], LEARNERS[name](about, nodes, given, seed)[left]
    return roc_auc(about.bad[left], after) - roc_auc(about.bad[left], before)


def main(options: Namespace) -> int:
    """Adds a line for every problem, learner and draw to the output file, and prints the table."""
    logging.disable(logging.WARNING)
    out: Path = options.out or RESULTS / f"teach_{machine_name()}.jsonl"
    names = options.data or [*(name for name in DATA if name in (*ORGANIC, *PLANTED)), *worlds_taught()]
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    with open(out, "a") as stream:
        for name in names:
            if any(line["problem"] == name for line in done):
                continue
            about = subject(name, 0, options.data_dir)
            for learner in LEARNERS:
                for seed in options.seeds if learner != "untaught" else [0]:
                    line = {"problem": name, "learner": learner, "seed": seed, "bad": int(about.bad.sum())}
                    done.append(line | review(about, learner, seed) | after_few(about, learner, seed))
                    print(json.dumps(done[-1]), file=stream, flush=True)
    about_run = f"{hardware()}. {versions()}. Commit {commit()}."
    page = f"{markdown(done)}\n\n{markdown_changes(done)}\n\n{about_run}"
    out.with_suffix(".md").write_text(page + "\n")
    draw_figure(done, out.with_suffix(".svg"))
    print(page)
    return 0


def worlds_taught() -> list[str]:
    """The organic worlds, on which the method was chosen.

    >>> worlds_taught()[0], len(worlds_taught())
    ('follow:copy', 30)
    """
    return [f"{world}:{rule}" for world in WORLDS_TAUGHT for rule in RULES]


def markdown(lines: list[dict[str, Any]]) -> str:
    """A row for every problem: found / ROC-AUC / average precision of every learner, mean (and spread) over draws."""
    head = ["problem (bad)", *LEARNERS, "shuffled", "coin", "inside"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in dict.fromkeys(line["problem"] for line in lines):
        mine = [line for line in lines if line["problem"] == name]
        cells = [f"{name} ({mine[0]['bad']})"]
        for learner in LEARNERS:
            of = [line for line in mine if line["learner"] == learner]
            found = [line["found"] for line in of]
            spread = f" ± {np.std(found):.0f}" if len(found) > 1 else ""
            cells.append(f"{np.mean(found):.0f}{spread} / {_mean(of, 'auc')} / {_mean(of, 'ap')}")
        ours = [line for line in mine if line["learner"] == "taught"]
        rows.append(f"| {' | '.join([*cells, *(_mean(ours, part) for part in ('shuffled', 'coin', 'inside'))])} |")
    return "\n".join(rows)


def markdown_changes(lines: list[dict[str, Any]]) -> str:
    """A row for every kind and size of verdicts: mean and worst change of ROC-AUC, and how often it is below -.03."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for how, change in line.get("changes", {}).items():
            found.setdefault(how, []).append(change)
    rows = ["| verdicts | mean change | worst | below -.03 | changed |", "|---|---|---|---|---|"]
    for how, values in found.items():
        made = np.array(values)
        cells = f"{made.mean():+.3f} | {made.min():+.3f} | {np.mean(made < -0.03):.2f} | {np.mean(made != 0):.2f}"
        rows.append(f"| {how} | {cells} |")
    return "\n".join(rows)


def draw_figure(lines: list[dict[str, Any]], path: Path) -> None:
    """Bad nodes found and average precision by every learner, a line for each data set, spread over draws as a bar."""
    from matplotlib import pyplot as plt

    names = [name for name in (*ORGANIC, *PLANTED) if any(line["problem"] == name for line in lines)]
    panels = {"found": f"bad nodes among {ROUNDS * SIZE} looked at", "ap": f"average precision after {FEW} verdicts"}
    made, axes = plt.subplots(1, len(panels), figsize=(10, 0.55 * len(names) + 1.4), sharey=True)
    for (part, title), axis in zip(panels.items(), axes, strict=True):
        for place, learner in enumerate(LEARNERS):
            of = [[line[part] for line in lines if (line["problem"], line["learner"]) == (n, learner)] for n in names]
            height = np.arange(len(names)) + 0.11 * (place - 2.5)
            style = {"label": learner, "fmt": "o" if "taught" in learner else "s", "markersize": 5, "capsize": 2}
            axis.errorbar([np.mean(each) for each in of], height, xerr=[np.std(each) for each in of], **style)
        axis.set(title=title, xlim=(0, None))
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[1].legend(fontsize=8)
    made.tight_layout()
    made.savefig(path, metadata={"Date": None})
    plt.close(made)


def _mean(lines: list[dict[str, Any]], part: str) -> str:
    values = [line[part] for line in lines if part in line]
    return f"{np.mean(values):.3f}" if values else ""
