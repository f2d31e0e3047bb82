"""`HCM`, the detector in Python. It runs the stages of the command line in a folder and reads their files.

A fitted detector is its finished run (`Fitted`) and holds no model in memory. `save` copies that run into a folder
beside a manifest of the parameters, without pickles; a copy or pickle of a detector holds the files of such a folder:

    folder/  manifest.json  stages.json  config.json  records/  graph/  purified/  ...  scores/
             trained/    of a detector made by `apply`: as much of the run that was trained as its results need

Stages are copied with their records, so that `load` checks every file against its hash. A folder may come from
anybody: `load` takes nothing from it that names a place to write to or an address.
"""

import contextlib
import dataclasses
import json
import logging
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from hcm_scale import __version__, plugins
from hcm_scale.base import console, files
from hcm_scale.config import Config, as_plain, inert_options
from hcm_scale.detector import inputs
from hcm_scale.detector.parameters import SECTIONS, Parameters, dotted, not_searched, with_python_names
from hcm_scale.detector.results import Fitted, Results
from hcm_scale.ingest.readers import column_encodings
from hcm_scale.report.wording import TIED, ties_text
from hcm_scale.review import teach, verdicts
from hcm_scale.run import pipeline, workspace
from hcm_scale.run.finished import TRAINED, FinishedRun
from hcm_scale.score.table import ranked_by

log = logging.getLogger(__name__)
KIND, FORMAT = "hcm_scale detector", 1
_SAVED: dict[str, Any] = {"parameters": dict[str, Any], "fingerprint": str, "columns": dict[str, str]}
_SAVED |= {"contamination": float | None, "taught": bool | None}
_NOT_SAVED = ("run_dir", "callback", "verbose")  # parameters that mean nothing in another process
_MAX_PICKLED, _PICKLED = 1 << 30, "files of the run"  # bytes; the place of the files in a pickled state
_BY_FIT = "fit(y=...)"  # whose verdicts those given to `fit` are
_SCRATCH = ".given"  # in the folder of the run: data that were in memory, until the run has its own graph


class HCM(Results, Parameters):
    """Anomaly detector for attributed graphs, by hop counts.

    Neighbours whose attributes differ most are cut off, a Bayesian graph network learns to predict how many hops apart
    two nodes are, and nodes whose hops, triangles or attributes it finds surprising are ranked first. Graphs may be
    larger than memory; the same seed, parameters and data give the same bytes.

    Parameters
    ----------
    options : mapping, optional
        Any other option of the command line: ``{"sampling.fan_out": [10]}``, ``{"sampling": {"fan_out": [10]}}``, or
        the name of an option file for a group, ``{"sampling": "fast"}``. Options of ``graph.`` say how data are read.
    classes : int or None, default None
        Hop counts to tell apart: 1, 2, ..., and this many or more.
    num_sources : int or None, default 4096
        Nodes from which hops are counted; None is every node.
    drop_ratio : float, default 0.2
        Share of the edges, the least similar, that is dropped before hops are counted.
    similarity : str, default "euclidean"
        Similarity of the two ends of an edge: euclidean, cosine, jaccard, a plug-in by name, or a function of the ends'
        features, (k, q) each, to (k,) numbers.
    scale : str, default "auto"
        How attributes are rescaled; auto decides column by column.
    pca : int or None, default None
        Components to reduce the attributes to; None leaves it to the rule of `scale`.
    encoder : str or class, default "gcn"
        The graph network: gcn, sage, gat, a plug-in by name, or a class like `hcm_scale.encoders.Encoder`.
    num_layers, width : int, default 2 and 64
        Layers of the encoder, and numbers per node in each.
    num_samples : int or None, default None
        Samples of the posterior; None stops when one more no longer changes the ranking.
    views : sequence of str, default ("purified", "original")
        Graphs to train on; "purified" alone takes half of the time.
    evidence : sequence of str or callables, default ()
        More kinds of evidence: plug-ins by name, or functions of (graph, features) to one number a node, larger is
        stranger.
    rank_by : str, default "score"
        The score to rank by: score (all evidence), strange, ahp or hav.
    fdr : float, default 0.1
        Share of false flags to accept among the flagged nodes.
    contamination : float or None, default None
        Share of the nodes to label, above 0 and at most 0.5; None labels the nodes that are flagged at `fdr`.
    seed : int, default 0
        Seed of all random numbers.
    device : str or torch.device, default "auto"
        auto, cpu or cuda.
    threads : int or None, default None
        Threads; None is all cores.
    run_dir : path or None, default None
        Folder of the run; a later fit there recomputes only what changed. None is a temporary folder for each fit.
    verbose : int or None, default None
        1 shows progress and log lines on stderr, 0 does not; None does on a terminal and in a notebook.
    callback : callable or None, default None
        Called with a `Step` (label, done, total, unit) as work proceeds; an exception it raises ends the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> rng = np.random.default_rng(0)
    >>> adjacency = sparse.coo_array((np.ones(800), rng.integers(0, 200, (2, 800))), shape=(200, 200))
    >>> attributes = rng.normal(size=(200, 3))
    >>> attributes[42] = 9
    >>> detector = HCM(views=["purified"], num_samples=2, device="cpu").fit((adjacency, attributes))
    >>> detector.strangest(1)[0]["node"]
    42
    >>> print(detector.explain(42))  # doctest: +ELLIPSIS
    42   rank 1 of 200 ...
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        classes: int | None = None,
        num_sources: int | None = 4_096,
        drop_ratio: float = 0.2,
        similarity: str | Callable[..., Any] = "euclidean",
        scale: str = "auto",
        pca: int | None = None,
        encoder: str | type[Any] = "gcn",
        num_layers: int = 2,
        width: int = 64,
        num_samples: int | None = None,
        views: Sequence[str] = ("purified", "original"),
        evidence: Sequence[str | Callable[..., Any]] = (),
        rank_by: str = "score",
        fdr: float = 0.1,
        contamination: float | None = None,
        seed: int = 0,
        device: str | torch.device = "auto",
        threads: int | None = None,
        run_dir: Path | str | None = None,
        verbose: int | None = None,
        callback: Callable[[console.Step], None] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise TypeError(self._unknown_text(unknown))
        self.options = options
        self.classes, self.num_sources = classes, num_sources
        self.drop_ratio, self.similarity = drop_ratio, similarity
        self.scale, self.pca = scale, pca
        self.encoder, self.num_layers, self.width = encoder, num_layers, width
        self.num_samples, self.views, self.evidence = num_samples, views, evidence
        self.rank_by, self.fdr, self.contamination = rank_by, fdr, contamination
        self.seed, self.device, self.threads = seed, device, threads
        self.run_dir, self.verbose, self.callback = run_dir, verbose, callback
        self._fitted: Fitted | None = None
        self._check()

    @not_searched
    @with_python_names()
    def fit(
        self,
        data: Any,
        label: Any = None,
        *,
        y: Any = None,
        source_column: str | None = None,
        target_column: str | None = None,
        id_column: str | None = None,
        label_column: str | None = None,
        node_type_column: str | None = None,
        node_type: Any = None,
        source: str | None = None,
        target: str | None = None,
        time: str | None = None,
        amount: str | None = None,
        currency: str | None = None,
        category: str | None = None,
    ) -> Self:
        """Scores every node of a graph.

        Parameters
        ----------
        data : graph
            A torch_geometric `Data` with edge_index and x, or `HeteroData`; a networkx graph, whose node attributes are
            used; a table of edges, or a pair of (edges, nodes), in pandas, Polars or Arrow or as paths of Parquet or
            CSV, nodes of several types as a dict of tables or `users.csv,shops.csv`; (scipy sparse adjacency,
            attributes); events as a torch_geometric `TemporalData` or (edge_index, edge_attr, time); a `Graph`; the
            path of a graph folder, .mat or .npz.
        label : array of 0 and 1, optional
            Known anomalies, reported on and never learned from. A pandas Series whose index holds the ids is taken by
            id. `y` of a `Data` is the default if it holds 0 and 1.
        y : array of 1, 0 and -1, optional
            Verdicts: 1 bad, 0 good, -1 unknown. The scores are then those of `teach`; flags and p stay as without. A
            `y` in which nothing is unknown is a `label`.
        source_column, target_column : str, optional
            Of the edge table; else `source` and `target`, names like them, or the columns with most ids in common.
        id_column : str, optional
            Of the node table; else `id`, a column named like an end, or the one that holds their ids.
        label_column : str, optional
            Of the node table, or an attribute of networkx: known anomalies, 0 or 1.
        node_type_column : str, optional
            Of the node table, or an attribute of networkx: the type of each node, such as user or shop. Nodes are
            compared with those of their own type. Else a column `type` or `node_type`.
        node_type : array of text or numbers, optional
            The type of each node, in node order, for other data.
        source, target : str, optional
            Short for source_column and target_column.
        time, amount, currency, category : str, optional
            Columns of the edge table by which its rows, such as payments, are judged by themselves; else as types and
            names say. `edges_` ranks the rows then.
        """
        self._fitted = None
        is_taught = inputs.has_unknown(y)
        label = inputs.find_label(data, label, None if is_taught else y)
        ends = source_column or source, target_column or target
        named = *ends, id_column, label_column, node_type_column, time, amount, currency, category
        columns = dict(zip(inputs.COLUMNS, named, strict=True))
        self._fitted = self._run(inputs.read_input(data), columns, label=label, node_type=node_type)
        run = self._fitted.run
        _take_back(run)
        if is_taught:
            ids = run.table.take(pa.array(np.argsort(run.table["node"].to_numpy())))["id"]
            given = inputs.as_verdicts(y, ids)
            run.import_verdicts(given, _BY_FIT)
            if given["verdict"].unique().to_pylist() != ["none"]:
                self._fitted = dataclasses.replace(self._fitted, taught=teach.teach(run))
        return self

    def fit_predict(self, data: Any, label: Any = None, **columns: Any) -> NDArray[np.int64]:
        """`labels_` after `fit` with the same arguments: 1 for nodes that stand out, else 0, (n,)."""
        return self.fit(data, label, **columns).labels_

    @with_python_names()
    def apply(self, data: Any, *, node_type: Any = None, run_dir: Path | str | None = None) -> Self:
        """Detector fitted to another graph, such as tomorrow's, by what this one has learned; nothing is trained.

        Scores, probabilities and confidences are comparable with those of this one, and with `contamination` so is the
        threshold. `data` is anything that `fit` takes, tables with the same column names.
        """
        fitted = self._require_fitted()
        other = type(self)(**self.get_params() | {"run_dir": run_dir})
        made = other._run(inputs.read_input(data), {}, trained=fitted, node_type=node_type)
        other._fitted = made if fitted.taught is None else dataclasses.replace(made, taught=made.run.taught())
        return other

    def _run(
        self,
        given: inputs.Input,
        columns: Mapping[str, Any],
        *,
        label: Any = None,
        trained: Fitted | None = None,
        node_type: Any = None,
    ) -> Fitted:
        """Finished run over the input, in the folder of this detector."""
        with self._progress():
            config, columns = self._configure(given, columns, trained)
            keeps = None if self.run_dir else _Temporary()
            folder = Path(self.run_dir or keeps.path).absolute()  # type: ignore[union-attr]
            folder.mkdir(parents=True, exist_ok=True)
            config.run_dir = str(folder)
            graph = labelled = encodings = model = None
            if trained is not None:
                model = trained.run.trained or trained.run
                config.trained = str(model.folder)
                encodings = None if given.tables is None else column_encodings(model.graph)
            try:
                if given.in_memory or label is not None or node_type is not None:
                    graph = inputs.with_lines(given.read(folder / _SCRATCH, config.graph, encodings), given.lines)
                    labelled = graph if label is None else inputs.with_label(graph, label)
                    labelled = labelled if node_type is None else inputs.with_types(labelled, node_type)
                pipeline.run(config, until="score", graph=labelled)
            finally:
                shutil.rmtree(folder / _SCRATCH, ignore_errors=True)
            run = FinishedRun(folder, trained=model, keeps=keeps)
            if ties := ties_text(run.table[ranked_by(run.table)].slice(0, TIED).to_numpy()):
                log.info("%s", ties)
        return Fitted(run, (graph or run.graph).fingerprint, columns, self.contamination)

    @with_python_names()
    def _scored(self, data: Any) -> Fitted:
        """The fitted run if `data` is None or the graph of the fit, else that of `apply`."""
        fitted = self._require_fitted()
        if data is None:
            return fitted
        given = inputs.read_input(data)
        config, _ = self._configure(given, {}, fitted)
        with tempfile.TemporaryDirectory(prefix="hcm-scale-") as scratch:
            if given.read(Path(scratch) / "graph", config.graph, None).fingerprint == fitted.fingerprint:
                return fitted
        return self.apply(data)._require_fitted()

    def _configure(
        self, given: inputs.Input, columns: Mapping[str, Any], trained: Fitted | None = None
    ) -> tuple[Config, dict[str, str]]:
        """Configuration to read `given` with, and the columns of its tables: named, of `trained`, or guessed."""
        options = dotted(self.options or {})
        earlier = trained.columns if trained is not None and given.tables is not None else {}
        sources = ({name: options.get(f"graph.{name}") for name in inputs.COLUMNS}, earlier, columns)
        named = {name: value for some in sources for name, value in some.items() if value is not None}
        guessed = inputs.column_options(given, named)
        return self._make_config(given.section, given.what, guessed), guessed

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        """Shows bars as `verbose` says, and log lines unless the program handles those itself."""
        is_interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        shows = is_interactive if self.verbose is None else bool(self.verbose)
        log, handler = logging.getLogger("hcm_scale"), logging.StreamHandler()
        level, logs = log.level, shows and not log.hasHandlers()
        if logs:
            log.addHandler(handler)
            log.setLevel(logging.INFO)
        try:
            with console.showing_progress(shows, self.callback):
                yield
        finally:
            if logs:
                log.removeHandler(handler)
                log.setLevel(level)

    def save(self, folder: Path | str) -> None:
        """Copies the finished run and the parameters to a folder, which is written whole or not at all."""
        folder, fitted = Path(folder), self._require_fitted()
        _check_writable(folder)
        parameters = {name: self._plain(name) for name in self.get_params() if name not in _NOT_SAVED}
        manifest = {
            "parameters": parameters,
            "fingerprint": fitted.fingerprint,
            "columns": fitted.columns,
            "contamination": as_plain(fitted.contamination),
            "taught": fitted.taught is not None,
            "version": __version__,
        }
        run = fitted.run
        with files.replacing_folder(folder) as fresh:
            _copy_run(run.folder, fresh)
            if run.trained is not None:
                (fresh / TRAINED).mkdir()
                _copy_run(run.trained.folder, fresh / TRAINED, run.trained.model(run.config.score.views).keys)
            files.write_manifest(fresh, KIND, FORMAT, manifest)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Detector that `save` wrote, its files checked: the same scores and explanations. It needs the folder."""
        fitted, saved = cls._open_saved(Path(folder).absolute())
        with files.naming_damage(Path(folder) / files.MANIFEST):
            parameters = _safe_parameters(saved)
            parameters |= {"views": tuple(parameters["views"]), "evidence": tuple(parameters.get("evidence", ()))}
            _check_plugins(Path(folder), parameters)
            detector = cls(**parameters)
        detector._fitted = fitted
        return detector

    @staticmethod
    def _open_saved(folder: Path, keeps: Any = None) -> tuple[Fitted, dict[str, Any]]:
        """What `save` wrote, checked: the finished run, and the parameters as they stand there."""
        manifest, run = files.read_manifest(folder, KIND, FORMAT), FinishedRun(folder, keeps=keeps)
        for copied in (run, FinishedRun(files.path_inside(folder, TRAINED))):
            for name in copied.keys:  # none where there is no such run
                files.path_inside(copied.folder, name)  # `save` leaves no links
        with files.naming_damage(folder / files.MANIFEST):
            files.check_types(folder / files.MANIFEST, manifest, _SAVED)
            for name in manifest["columns"]:
                if name not in inputs.COLUMNS:
                    raise ValueError(f"{name!r} is no column of a table")
            saved = {name: manifest[name] for name in ("fingerprint", "columns", "contamination")}
            taught = run.taught() if manifest.get("taught") else None
            if not run.table.num_rows:
                raise ValueError("it has no scores")
            return Fitted(run, **saved, taught=taught), manifest["parameters"]

    def __getstate__(self) -> dict[str, Any]:
        """The parameters and, if it is fitted, the files that `save` writes: for copies, joblib and its workers."""
        if self._fitted is None:
            return self.get_params()
        run = self._fitted.run
        num_bytes = sum(files.size_of(run.folder / name) for name in run.keys)
        if num_bytes > _MAX_PICKLED:
            what = f"a fitted HCM of {num_bytes:,} bytes is not copied or pickled, which would hold it in memory"
            raise TypeError(f"{what}: save(folder) writes it and HCM.load(folder) reads it")
        with tempfile.TemporaryDirectory(prefix="hcm-scale-") as scratch:
            self.save(scratch)
            paths = [path for path in Path(scratch).rglob("*") if path.is_file()]
            held = {path.relative_to(scratch).as_posix(): path.read_bytes() for path in paths}
        return self.get_params() | {_PICKLED: held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**{name: value for name, value in state.items() if name != _PICKLED})  # type: ignore[misc]
        if _PICKLED not in state:
            return
        keeps = _Temporary()
        for name, data in state[_PICKLED].items():
            path = files.path_inside(keeps.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._fitted, _ = self._open_saved(keeps.path, keeps)


class _Temporary:
    """A folder that is removed when nobody holds this object any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="hcm-scale-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _take_back(run: FinishedRun) -> None:
    """Takes back the verdicts that an earlier fit in the same folder was given as `y`: they were of that fit."""
    given = run.verdicts().table
    if len(ids := given.filter(pc.equal(given["by"], _BY_FIT))["id"].to_pylist()):
        verdicts.append(run.folder, ((name, "none") for name in ids), _BY_FIT)


def _copy_run(folder: Path, out: Path, names: Collection[str] | None = None) -> None:
    workspace.copy_run(folder, out, names)
    for name in (verdicts.FILE, *teach.names_in(folder)):
        if (source := files.path_inside(folder, name)).is_file():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, out / name)


def _check_writable(folder: Path) -> None:
    """Raises FolderError if `save` would overwrite something that is not a saved detector."""
    legal = "save writes to a folder that is new, empty, or holds a saved detector, which it replaces"
    if folder.exists() and not folder.is_dir():
        raise files.FolderError(f"{folder} is a file; {legal}")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            files.read_manifest(folder, KIND, FORMAT)
        except files.FolderError as error:
            raise files.FolderError(f"{folder} holds other files, and no saved detector; {legal}") from error


def _check_plugins(folder: Path, parameters: dict[str, Any]) -> None:
    for name, group in (("encoder", "encoders"), ("similarity", "similarities"), ("evidence", "evidence")):
        given = parameters.get(name, [])
        for item in given if isinstance(given, tuple) else [given]:
            if isinstance(item, str) and not plugins.is_known(group, item):
                what = (
                    f"{folder}: the saved detector has {name}={item:.60}, a plug-in that is not known in this process"
                )
                raise files.FolderError(
                    f"{what}: install its package, or hcm_scale.plugins.register({group!r}, ...) it"
                )


def _safe_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Saved parameters without those that could make a fit write elsewhere; a warning names each that is left out.

    Options are kept if they are `inert_options` or the name of an option file, and hold no ${...}, where OmegaConf
    would insert variables of the environment.
    """
    legal, saved = {*inert_options()}, dotted(parameters["options"] or {})
    options = {
        key: value
        for key, value in saved.items()
        if (key in legal or (key in SECTIONS and isinstance(value, str))) and "${" not in json.dumps(value)
    }
    safe = {name: value for name, value in parameters.items() if name not in _NOT_SAVED}
    for name in [*(saved.keys() - options.keys()), *(parameters.keys() - safe.keys())]:
        warnings.warn(f"{name} of the saved detector is left out: set_params sets it, if you trust it", stacklevel=3)
    return safe if options == saved else safe | {"options": options}
