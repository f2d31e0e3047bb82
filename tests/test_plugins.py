"""Plug-ins: how they are found and named; similarities, kinds of evidence, readers; the template of a package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import FAST, as_words, planted_graph, small_detector, small_run

from hcm_scale import HCM, plugins
from hcm_scale.config import Config, check, with_options
from hcm_scale.features.purify import edge_similarity
from hcm_scale.graph.store import SparseRows
from hcm_scale.run.finished import FinishedRun

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "examples" / "plugin"


def write_distribution(folder: Path, code: str, group: str = "similarities", version: str = "1.0") -> None:
    """A distribution `odd-ones` with the plug-in `odd`, as an installer leaves it."""
    (folder / "odd_ones.py").write_text(code)
    shutil.rmtree(folder / "odd_ones-1.dist-info", ignore_errors=True)
    info = folder / "odd_ones-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: odd-ones\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[hcm_scale.{group}]\nodd = odd_ones:odd\n")
    plugins._listed.cache_clear()


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("odd_ones", None)
    plugins._listed.cache_clear()


def minus_l1(a, b):
    return -np.abs(a - b).sum(axis=1)


def test_entry_point__is_listed_without_being_imported_and_has_its_distributions_version(distribution):
    write_distribution(distribution, "def odd(a, b):\n    return -abs(a - b).sum(axis=1)\n", version="2.5")
    assert "odd" in plugins.names("similarities")
    check(with_options(Config(), {"purify.similarity": "odd"}))
    assert "odd_ones" not in sys.modules
    assert plugins.identity("similarities", "odd") == "odd@odd-ones 2.5"
    assert "odd_ones" not in sys.modules
    assert plugins.load("similarities", "odd@odd-ones 2.5")(np.zeros((2, 3)), np.ones((2, 3))).tolist() == [-3.0, -3.0]
    with pytest.raises(
        ValueError, match=r"purify.similarity=odd: this was made with odd-ones 2.4, and here it is odd-ones 2.5"
    ):
        plugins.load("similarities", "odd@odd-ones 2.4")


def test_entry_point__that_fails_at_import_is_told_by_name_package_and_error(distribution):
    write_distribution(distribution, "raise KeyError('no such thing')\n")
    said = (
        r"purify.similarity=odd: the plug-in odd_ones:odd of odd-ones 1.0 cannot be imported: KeyError: 'no such thing'"
    )
    with pytest.raises(ValueError, match=said):
        plugins.load("similarities", "odd")


def test_name__that_two_have_is_refused(distribution):
    write_distribution(distribution, "def odd(a, b):\n    return a[:, 0]\n")
    plugins.register("similarities", minus_l1, "odd")
    with pytest.raises(ValueError, match=r"purify.similarity=odd is a plug-in of odd-ones too"):
        plugins.load("similarities", "odd")


def test_decorated_entry_point__has_the_identity_of_its_distribution(distribution):
    code = "from hcm_scale.plugins import similarity\n@similarity\ndef odd(a, b):\n    return a[:, 0]\n"
    write_distribution(distribution, code)
    assert plugins.load("similarities", "odd") is plugins.load("similarities", "odd")
    assert plugins.identity("similarities", "odd") == "odd@odd-ones 1.0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model.encoder": "gnn"}, "model.encoder=gnn is not known; legal are gcn, sage, gat"),
        ({"purify.similarity": "cosin"}, "purify.similarity=cosin is not known; legal are jaccard, cosine"),
        ({"score.evidence": ["night"]}, "score.evidence=night is not known; legal are"),
    ],
)
def test_unknown_name__is_refused_with_what_there_is(options, said):
    with pytest.raises(ValueError, match=said):
        check(with_options(Config(), options))


@pytest.mark.parametrize(
    ("plugin", "name", "said"),
    [
        (lambda a, b: a, None, "'<lambda>' is no plug-in: a function or class with a name of letters"),
        (3, "three", "'three' is no plug-in"),
        (minus_l1, "cosine", "purify.similarity=cosine is a name of the package itself"),
    ],
)
def test_register__refuses_what_is_no_plug_in(plugin, name, said):
    with pytest.raises(ValueError, match=said):
        plugins.register("similarities", plugin, name)


def test_identity__of_a_function_follows_its_source_and_the_numbers_around_it():
    def make(power):
        def near(a, b):
            return -(np.abs(a - b) ** power).sum(axis=1)

        return near

    found = []
    for function in (make(1), make(1), make(2), minus_l1):
        plugins.register("similarities", function, "near")
        found.append(plugins.identity("similarities", "near"))
    assert found[0] == found[1]
    assert len({*found}) == 3
    typed: dict = {}
    exec("def near(a, b):\n    return a[:, 0] * 2", typed)
    plugins.register("similarities", typed["near"])
    one = plugins.identity("similarities", "near")
    exec("def near(a, b):\n    return a[:, 0] * 3", typed)
    plugins.register("similarities", typed["near"])
    assert plugins.identity("similarities", "near") != one


# Similarities.


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_similarity__of_a_plug_in_is_that_of_the_kernel(random_csr, directed, is_sparse, monkeypatch):
    monkeypatch.setattr("hcm_scale.features.purify._OWN_EDGES", 37)

    @plugins.similarity
    def distance(a, b):
        return -np.sqrt(((a.astype(np.float64) - b) ** 2).sum(axis=1))

    csr, x = random_csr(80, 300), np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32)
    x[x < 0.3] = 0.0
    given = SparseRows.of(__import__("scipy.sparse").sparse.csr_array(x)) if is_sparse else x
    wanted = edge_similarity(*csr, x, "euclidean", directed=directed)
    name = plugins.identity("similarities", "distance")
    np.testing.assert_allclose(edge_similarity(*csr, given, name, directed=directed), wanted, rtol=1e-5)


@pytest.mark.parametrize("returned", [np.zeros(3), np.full((1, 1), 2.0), [np.nan]])
def test_similarity__must_return_a_finite_number_of_each_edge(returned):
    plugins.register("similarities", lambda a, b: returned, "bad")
    with pytest.raises(ValueError, match=r"purify.similarity=bad must return a finite number"):
        edge_similarity(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones((2, 1), np.float32), "bad")


def test_hcm__takes_a_function_as_similarity_and_drops_other_edges():
    graph = planted_graph()
    own, usual = small_detector(graph, similarity=minus_l1), small_detector(graph, similarity="euclidean")
    assert own.config.purify.similarity == "minus_l1"
    assert not np.array_equal(own.decision_scores_, usual.decision_scores_)
    applied = own.apply(graph)
    assert np.array_equal(applied.decision_scores_, own.decision_scores_)


# Evidence.


def listed(graph, features):
    """Numbers that the first three nodes have most of."""
    assert features.shape[0] == graph.num_nodes
    return np.where(np.arange(graph.num_nodes) < 3, 50.0, np.sin(np.arange(graph.num_nodes)))


listed.words = "It was planted, says a list"


@pytest.fixture
def found(tmp_path) -> HCM:
    return small_detector(planted_graph(), evidence=[listed], run_dir=tmp_path / "run")


def test_evidence__of_a_plug_in_ranks_and_is_part_of_score_and_p(found):
    table, usual = found.table, small_detector(planted_graph()).table
    order, before = np.argsort(table["node"].to_numpy()), np.argsort(usual["node"].to_numpy())
    score, p, rank, number = (table[name].to_numpy()[order] for name in ("score", "p", "listed_rank", "listed"))
    assert np.array_equal(number, listed(planted_graph(), np.zeros((400, 1))))
    assert rank[:3].tolist() == [2, 2, 2]
    for column in ("ahp", "closure", "context", "residual", "cohesion", "hop_rank"):
        assert np.array_equal(table[column].to_numpy()[order], usual[column].to_numpy()[before])
    gain = score - usual["score"].to_numpy()[before]
    assert (gain >= 0).all()
    assert gain[:3].min() > np.sort(gain[3:])[-1]
    assert (p[:3] < usual["p"].to_numpy()[before][:3]).all()
    assert table["evidence"].to_pylist().count("listed") >= 3


def test_evidence__has_its_words_in_explanations_lists_and_the_page(found, tmp_path):
    said = str(found.explain(0))
    assert "Listed: it was planted, says a list: 50 (rank 2 of 400 by listed)" in said
    text = small_run(tmp_path / "run", planted_graph(), **{"score.evidence": ["listed"]})
    assert "listed (listed)" in text
    page = (tmp_path / "run/report/report.html").read_text()
    assert "It was planted, says a list" in page
    assert '<option value="listed">Listed</option>' in page
    report = json.loads((tmp_path / "run/report/report.json").read_text())
    assert report["kind_words"]["listed"]["help"] == "It was planted, says a list"
    assert len(report["kinds"]["listed"]) == 10
    assert report["flagged"]["by_kind"]["listed"] >= 0


def test_evidence__needs_no_plug_in_where_scores_are_read(found, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_registered", {group: {} for group in plugins._registered})
    assert "it was planted, says a list: 50" in FinishedRun(tmp_path / "run").explained_text(["0"])


def test_evidence__of_the_same_graph_by_a_trained_run_is_the_same(found):
    applied = found.apply(planted_graph())
    assert np.array_equal(applied.decision_scores_, found.decision_scores_)
    assert applied.table["listed_rank"].equals(found.table["listed_rank"])
    other = found.apply(planted_graph(seed=4)).table
    own = small_detector(planted_graph(seed=4), evidence=[listed]).table
    assert {*other.column_names} == {*own.column_names}


def test_evidence__of_another_version_than_the_trained_runs_is_refused(found):
    @plugins.evidence("listed", words="Something else:")
    def changed(graph, features):
        return np.arange(graph.num_nodes) * 1.0

    assert np.array_equal(found.apply(planted_graph()).decision_scores_, found.decision_scores_)  # it has its function
    plugins.register("evidence", changed, "listed")
    found.set_params(evidence=["listed"])
    with pytest.raises(ValueError, match=r"score.evidence=listed@source \w+ differs from that of the trained run"):
        found.apply(planted_graph())


def test_evidence__that_changes_makes_scores_again_and_nothing_before_them(found, tmp_path):
    def keys():
        return {
            stage["name"]: stage["key"] for stage in json.loads((tmp_path / "run/stages.json").read_text())["stages"]
        }

    before = keys()
    plugins.register("evidence", lambda graph, features: np.zeros(graph.num_nodes), "listed")
    small_run(tmp_path / "run", planted_graph(), until="score", **{"score.evidence": ["listed"]})
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {"scores"}
    assert set(pq.read_table(tmp_path / "run/scores/scores.parquet")["listed"].to_pylist()) == {0.0}


@pytest.mark.parametrize(
    ("name", "returned", "said"),
    [
        ("short", np.zeros(3), r"score.evidence=short must return a finite number of each node, \(400,\), not \(3,\)"),
        ("gaps", np.full(400, np.nan), r"a finite number of each node, \(400,\), not 400 NaN or infinite ones"),
        ("degree", np.zeros(400), "score.evidence=degree is no name for a kind of evidence"),
        ("hop", np.zeros(400), "score.evidence=hop is no name"),
    ],
)
def test_evidence__that_cannot_be_used_is_refused(name, returned, said):
    plugins.register("evidence", lambda graph, features: returned, name)
    with pytest.raises(ValueError, match=said):
        small_detector(planted_graph(), evidence=[name])


def test_evidence__many_kinds_and_types_of_nodes():
    for number in range(4):
        plugins.register(
            "evidence", lambda graph, features, n=number: np.cos(n + np.arange(graph.num_nodes)), f"k{number}"
        )
    names = [f"k{number}" for number in range(4)]
    graph = planted_graph(900)
    types = np.where(np.arange(900) % 3 == 0, "shop", "user")
    found = HCM(FAST, evidence=names).fit(graph, node_type=types)
    for name in names:
        assert sorted(found.table.column_names).count(f"{name}_rank") == 1
    rank, number, of = (found.table[name].to_numpy(False) for name in ("k2_rank", "k2", "type"))
    assert rank[of == "shop"][np.argmax(number[of == "shop"])] == 1


# Readers, and the command line.


def test_reader__is_found_by_the_ending_and_its_tables_are_read_like_others(tmp_path, monkeypatch):
    @plugins.reader
    def pairs(path):
        rows = [line.split("-") for line in path.read_text().split()]
        return {"from": [a for a, _ in rows], "to": [b for _, b in rows]}

    rng = np.random.default_rng(0)
    lines = [f"n{a}-n{b}" for a, b in rng.integers(0, 90, (400, 2))]
    (tmp_path / "friends.pairs").write_text("\n".join(lines))
    options = FAST | {"graph.featureless": "degree", "graph.edge_attributes": "none"}
    found = HCM(options).fit(str(tmp_path / "friends.pairs"))
    assert {*found.table["id"].to_pylist()} == {end for line in lines for end in line.split("-")}
    (tmp_path / "edges.csv").write_text("from,to\n" + "\n".join(line.replace("-", ",") for line in lines))
    same = HCM(options).fit(str(tmp_path / "edges.csv"))
    assert np.array_equal(same.decision_scores_, found.decision_scores_)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the template installed, as pip does it without a network."""
    target = tmp_path_factory.mktemp("site")
    how = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet", "--target", str(target)]
    copy = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(TEMPLATE, copy)
    done = subprocess.run([sys.executable, "-m", "pip", "install", *how, str(copy)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot build it here: {done.stderr[-300:]}")
    return target


def hcm_scale(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    command = [sys.executable, "-m", "hcm_scale", *words]
    return subprocess.run(command, cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)


def test_template__is_listed_by_help_and_options(installed, tmp_path):
    assert "graphconv" in hcm_scale(installed, "--help", cwd=tmp_path).stdout
    options = hcm_scale(installed, "options", "score.evidence", cwd=tmp_path).stdout
    assert "of hub_share" in options
    wrong = hcm_scale(installed, "run", "model.encoder=graphcov", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'graphconv'" in wrong.stderr


@pytest.mark.slow
def test_template__passes_its_own_tests(installed, tmp_path):
    path = os.pathsep.join([str(installed), str(ROOT)])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(TEMPLATE / "tests"),
        "-c",
        os.devnull,
    ]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gate
def test_run__by_ranks_knows_the_plug_ins_of_packages(installed, tmp_path):
    words = ["graph=community", "graph.num_nodes=400", "model.encoder=graphconv", "score.evidence=[hub_share]"]
    words += [*as_words(FAST), "run_dir=run", "world.processes=2", "world.threads=1", "purify.similarity=overlap"]
    done = hcm_scale(installed, "run", "until=score", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "run/scores/scores.parquet")
    assert {"hub_share", "hub_share_rank"} <= {*table.column_names}
    assert table["hub_share"].null_count == 0
