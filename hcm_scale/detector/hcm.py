"""`HCM`: the detector. It runs the stages of the command line and reads what they left.

    found = HCM(drop_ratio=0.1, seed=0).fit(data)
    found.strangest(10), found.decision_score_, found.label_, print(found.explain(42))

Names are those of PyGOD (`decision_score_`, `label_`, `threshold_`, `predict`: torch tensors) and of scikit-learn and
PyOD (`get_params`, `decision_scores_`, `labels_`: numpy arrays).
"""

import contextlib
import dataclasses
import json
import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hcm_scale import __version__
from hcm_scale.base import console, files
from hcm_scale.config import Config, GraphConfig, inert_options, plain
from hcm_scale.detector import inputs as givens
from hcm_scale.detector.inputs import COLUMNS
from hcm_scale.detector.parameters import (
    KEYS,
    SECTIONS,
    Parameters,
    check_contamination,
    check_options,
    check_place,
    dotted,
    make_config,
    naming_python_options,
    unknown_keywords_text,
)
from hcm_scale.detector.results import Fitted, Results, Training
from hcm_scale.graph import Graph
from hcm_scale.run import pipeline, workspace

# ----------------------------------------------------------------------------
# A fitted detector as a folder, without pickles: its finished run, and a manifest with its parameters.
#
#     folder/  manifest.json  stages.json  config.json  records/  graph/  purified/  ...  scores/
#
# The stages are copied as they stand, with their records, so that what is read back is checked against its hashes.


KIND = "hcm_scale detector"
FORMAT = 1
_TRAINED = "training_scores.npy"  # of a detector that `apply` made: the scores of the run that was trained
_NOT_KEPT = ("run_dir", "callback", "verbose")  # of this process, and of no use in another


def save_detector(folder: Path, fitted: Fitted, parameters: dict[str, Any]) -> None:
    """Writes the folder, whole or not at all; one that is there already must be empty or of a detector."""
    _check_free(folder)
    with files.replacing_folder(folder) as fresh:
        workspace.copy_run(fitted.folder, fresh)
        body = {
            "parameters": {name: plain(value) for name, value in parameters.items() if name not in _NOT_KEPT},
            "fingerprint": fitted.fingerprint,
            "columns": fitted.columns,
            "contamination": plain(fitted.contamination),
            "bound": plain(fitted.bound),
            "version": __version__,
        }
        if fitted.trained is not None:
            np.save(fresh / _TRAINED, fitted.trained.scores)
            body["trained"] = {"num_odd": fitted.trained.num_odd, "hash": files.hash_file(fresh / _TRAINED)}
        files.write_manifest(fresh, KIND, FORMAT, body)


def _check_free(folder: Path) -> None:
    """Refuses to write over what is not ours."""
    legal = "save writes to a folder that is new, empty, or holds a saved detector, which it replaces"
    if folder.exists() and not folder.is_dir():
        raise files.FolderError(f"{folder} is a file; {legal}")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            files.read_manifest(folder, KIND, FORMAT)
        except files.FolderError as error:
            raise files.FolderError(f"{folder} holds other files, and no saved detector; {legal}") from error


def load_detector(folder: Path) -> tuple[dict[str, Any], Fitted]:
    """The parameters and the finished run of a folder, its files checked; FolderError where it is not as it was."""
    manifest = files.read_manifest(folder, KIND, FORMAT)
    for stage in workspace.read_stages(folder):
        files.below(folder, stage["name"])  # `save` leaves no links
    try:
        kept = [manifest[name] for name in ("fingerprint", "columns", "contamination")]
        kept += [manifest["bound"], _trained(folder, manifest)]
        for name in manifest["columns"]:
            if name not in COLUMNS:
                raise files.FolderError(f"{folder / files.MANIFEST} is damaged: {name!r} is no column of a table")
        parameters = _inert(manifest["parameters"]) | {"views": tuple(manifest["parameters"]["views"])}
        return parameters, Fitted(folder, pipeline.read_scores(folder), *kept)
    except (LookupError, TypeError, AttributeError) as error:
        raise files.FolderError(f"{folder / files.MANIFEST} is damaged: {error!r}") from error


def _inert(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a folder, which anybody may have written, without those that could make a fit write elsewhere.

    What is left out is warned of: options but for `inert_options` and names of option files, the folder of the run, and
    text in which OmegaConf would put values of the environment.
    """
    legal, asked = {*inert_options()}, dotted(parameters["options"] or {})
    options = {
        key: value
        for key, value in asked.items()
        if (key in legal or (key in SECTIONS and isinstance(value, str))) and "${" not in json.dumps(value)
    }
    taken = {name: value for name, value in parameters.items() if name not in _NOT_KEPT}
    for name in [*(asked.keys() - options.keys()), *(parameters.keys() - taken.keys())]:
        warnings.warn(f"{name} of the saved detector is left out: set_params sets it, where you trust it", stacklevel=4)
    return taken if options == asked else taken | {"options": options}


def _trained(folder: Path, manifest: dict[str, Any]) -> Training | None:
    """The scores that those of the folder are compared with; None where they are compared with each other."""
    if "trained" not in manifest:
        return None
    num_odd, digest = (manifest["trained"][name] for name in ("num_odd", "hash"))
    files.check_folder(folder, {_TRAINED: digest}, "save the detector again")
    return Training(np.load(folder / _TRAINED, allow_pickle=False), num_odd)


_GIVEN = ".given"  # what was in memory, in the folder of the run, until the run has it


class HCM(Results, Parameters):
    """Hop-count based anomaly detector for attributed graphs.

    options:        any other option of the command line, {"sampling.fan_out": [10]} or {"sampling": {"fan_out": [10]}}
                    or, for a whole group, {"sampling": "fast"}; those of `graph.` say how data are read
    classes:        hop counts that are told apart: 1, 2, ... and this many or more
    num_sources:    nodes from which hops are counted; None is every node
    drop_ratio:     share of the edges, the least similar, that is dropped before hops are counted
    similarity:     of the two ends of an edge: euclidean, cosine, jaccard, ...
    scale:          how attributes are rescaled: auto decides column by column
    pca:            components that attributes are reduced to; None is as the rule says, or no reduction
    num_layers:     layers of the encoder
    width:          numbers a node in each layer
    num_samples:    samples of the posterior; None is until one more no longer moves the ranking
    views:          graphs that encoders run on; "purified" alone takes half of the time
    rank_by:        the score that ranks: score (all evidence), strange, ahp or hav
    fdr:            share of false flags to put up with among the flagged
    contamination:  share of the nodes that `label_` and `predict` mark, above 0 and at most 0.5; None marks those that
                    are flagged at `fdr`
    seed:           the same seed, options and data give the same bytes
    device:         auto, cpu or cuda
    threads:        None is all cores
    run_dir:        folder of the run, which keeps what did not change between fits; None is a temporary one
    verbose:        1 draws bars and log lines on stderr, 0 does not; None does on a terminal and in a notebook
    callback:       called with a `Step` (label, done, total, unit) as work goes on; what it raises ends the fit
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        classes: int = 4,
        num_sources: int | None = 4_096,
        drop_ratio: float = 0.2,
        similarity: str = "euclidean",
        scale: str = "auto",
        pca: int | None = None,
        num_layers: int = 2,
        width: int = 64,
        num_samples: int | None = None,
        views: Sequence[str] = ("purified", "original"),
        rank_by: str = "score",
        fdr: float = 0.1,
        contamination: float | None = None,
        seed: int = 0,
        device: str | torch.device = "auto",
        threads: int | None = None,
        run_dir: Path | str | None = None,
        verbose: int | None = None,
        callback: Callable[[console.Step], None] | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise TypeError(unknown_keywords_text(others, self._defaults()))
        self.options = options
        self.classes, self.num_sources = classes, num_sources
        self.drop_ratio, self.similarity = drop_ratio, similarity
        self.scale, self.pca = scale, pca
        self.num_layers, self.width = num_layers, width
        self.num_samples, self.views = num_samples, views
        self.rank_by, self.fdr, self.contamination = rank_by, fdr, contamination
        self.seed, self.device, self.threads = seed, device, threads
        self.run_dir, self.verbose, self.callback = run_dir, verbose, callback
        self._fitted: Fitted | None = None
        self._temporary: Path | None = None
        self._check()

    @naming_python_options()
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
    ) -> Self:
        """Scores every node of a graph.

        data:     a torch_geometric `Data` with edge_index and x; a networkx graph, whose node attributes are used;
                  a table of edges, or a pair of (edges, nodes), in pandas, Polars or Arrow or as paths of Parquet or
                  CSV; (scipy sparse adjacency, attributes); a `Graph`; the path of a graph folder, .mat or .npz
        label:    known anomalies, 0 or 1 for each node, which are reported on and never learned from; `y` of a `Data`
                  where it holds 0 and 1; a pandas Series whose index holds the ids is taken by id
        y:        scikit-learn's word for `label`
        source_column, target_column:  of the edge table; else `source` and `target`, or its first two
        id_column:     of the node table; else `id`, or a column named as an end is, or one that holds their ids
        label_column:  of the node table, or an attribute of networkx: known anomalies, 0 or 1
        """
        self._fitted = None
        if label is not None and y is not None:
            raise TypeError("label and y are two words for the known anomalies; say one of them")
        label = y if label is None else label
        givens.check_label(label)
        given = givens.read_input(data)
        label = givens.labels_of(data) if label is None else label
        said = dict(zip(givens.COLUMNS, (source_column, target_column, id_column, label_column), strict=True))
        with self._watched():
            config, columns = self._configure(given, said)
            read = given.read or (givens.from_section if label is not None else None)
            with self._scratch() as (folder, scratch):
                graph = None if read is None else read(scratch, config.graph)
                labelled = graph if graph is None or label is None else givens.with_label(graph, label)
                config.run_dir = str(folder)
                pipeline.run(config, until="score", graph=labelled)
        self._fitted = self._read_back(folder, graph, columns)
        return self

    def fit_predict(self, data: Any, label: Any = None, **columns: Any) -> NDArray[np.int64]:
        """`labels_` after `fit`, which takes the same: (n,), 1 for nodes that stand out."""
        return self.fit(data, label, **columns).labels_

    @naming_python_options()
    def apply(self, data: Any, *, run_dir: Path | str | None = None) -> Self:
        """Another graph, such as tomorrow's, scored by what was learned from the fitted one; nothing is trained.

        Returns a detector that is fitted to it: scores, probabilities and confidences are comparable with those of this
        one, and with `contamination` so is the threshold. `data` is anything that `fit` takes, tables with the same
        column names.
        """
        found, given = self._found(), givens.read_input(data)
        other = type(self)(**self.get_params() | {"run_dir": run_dir})
        with self._watched():
            config, columns = self._configure(given, found.columns if given.tables is not None else {})
            with other._scratch() as (folder, scratch):
                graph = givens.read_with_encodings(given, scratch, config.graph, found.folder / "graph")
                config.run_dir, config.trained = str(folder), str(found.folder)
                pipeline.run(config, until="score", graph=graph)
        bound = None if self.contamination is None else found.threshold
        made = other._read_back(folder, graph, columns)
        other._fitted = dataclasses.replace(made, bound=bound, trained=found.training)
        return other

    def save(self, folder: Path | str) -> None:
        """Copies the finished run and the parameters to a folder, for `HCM.load`."""
        save_detector(Path(folder), self._found(), self.get_params())

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The detector that `save` wrote: the same scores and explanations. The folder stays where it is."""
        parameters, fitted = load_detector(Path(folder).absolute())
        detector = cls(**parameters)
        detector._fitted = fitted
        return detector

    @property
    def config(self) -> Config:
        """The configuration that the parameters make, before data say more."""
        return self._make_config()

    def __getstate__(self) -> dict[str, Any]:
        if self._fitted is not None:
            raise TypeError("a fitted HCM is not pickled: save(folder) writes it and HCM.load(folder) reads it")
        return self.get_params()

    def __setstate__(self, parameters: dict[str, Any]) -> None:
        self.__init__(**parameters)  # type: ignore[misc]

    @naming_python_options()
    def _check(self) -> None:
        check_options(self.options)
        check_contamination(self.contamination)
        check_place(self.run_dir)
        if not (self.callback is None or callable(self.callback)):
            raise ValueError(f"callback={self.callback!r} is not legal: a function of a Step, or None")
        if self.verbose not in (None, 0, 1, 2, 3):
            raise ValueError(f"verbose={self.verbose!r} is not legal: 0, 1, which 2 and 3 are too, or None")
        self._make_config()

    def _make_config(
        self, graph: GraphConfig | None = None, what: str = "", columns: Mapping[str, str] | None = None
    ) -> Config:
        keywords = {name: getattr(self, name) for name in KEYS}
        named = {f"graph.{name}": value for name, value in (columns or {}).items()}
        return make_config(keywords, self._defaults(), {**(self.options or {}), **named}, graph, what)

    def _configure(self, given: givens.Input, said: Mapping[str, str | None]) -> tuple[Config, dict[str, str]]:
        """The configuration to read `given` with, and the columns of its tables; what fit was told goes first."""
        options = dotted(self.options or {})
        known = {name: value if value is not None else options.get(f"graph.{name}") for name, value in said.items()}
        columns = givens.column_options(given, known)
        return self._make_config(given.section, given.what, columns), columns

    def _folder(self) -> Path:
        """Where the run goes: the folder that was named, or a temporary one that goes away with the detector."""
        if self.run_dir is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="hcm-scale-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        folder = Path(self.run_dir or self._temporary or "").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[tuple[Path, Path]]:
        """The folder of the run, and one in it for what is in memory, until the run has a graph of its own."""
        folder = self._folder()
        try:
            yield folder, folder / _GIVEN
        finally:
            shutil.rmtree(folder / _GIVEN, ignore_errors=True)

    def _read_back(self, folder: Path, graph: Graph | None, columns: dict[str, str]) -> Fitted:
        source = graph or Graph.open(folder / "graph", verify=False)
        return Fitted(folder, pipeline.read_scores(folder), source.fingerprint, columns, self.contamination)

    @naming_python_options()
    def _scored(self, data: Any) -> Fitted:
        """The fitted run where `data` are None or those of the fit, else what `apply` makes of them."""
        found = self._found()
        if data is None:
            return found
        given = givens.read_input(data)
        config, _ = self._configure(given, found.columns if given.tables is not None else {})
        with tempfile.TemporaryDirectory(prefix="hcm-scale-") as scratch:
            read = given.read or givens.from_section
            if read(Path(scratch) / "graph", config.graph).fingerprint == found.fingerprint:
                return found
        return self.apply(data)._found()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Shows bars and log lines, or does not, as `verbose` says."""
        draws = console.is_interactive() if self.verbose is None else bool(self.verbose)
        with console.showing_progress(draws, self.callback), log_lines() if draws else contextlib.nullcontext():
            yield


@contextlib.contextmanager
def log_lines() -> Iterator[None]:
    """Writes what the stages log to stderr, unless somebody has said where it goes."""
    log, handler = logging.getLogger("hcm_scale"), logging.StreamHandler()
    level = log.level
    if log.hasHandlers():
        yield
        return
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
