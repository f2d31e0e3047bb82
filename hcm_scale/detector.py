"""The Python face: `HCM().fit(data)`, then `scores`, `strangest` and `explain`.

    from hcm_scale import HCM
    found = HCM({"purify.ratio": 0.1}, seed=0).fit(data)     # a Graph, or a torch_geometric Data
    found.strangest(10)

It runs the same stages as the command line, in `run_dir` where one is given (and then skips what did not change),
else in a temporary folder that goes away with the detector.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale import pipeline
from hcm_scale.config import Config
from hcm_scale.graph import Graph
from hcm_scale.ingest.readers import read_data
from hcm_scale.options import with_options


class HCM:
    """Hop-count based anomaly detector.

    `options` maps keys of the configuration to values, as on the command line: `{"hops.classes": 3}`, or as sections:
    `{"hops": {"classes": 3}}`.
    """

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        *,
        seed: int = 0,
        device: str = "auto",
        run_dir: Path | str | None = None,
    ) -> None:
        self.config = with_options(Config(), {"seed": seed, "world.device": device, **(options or {})})
        self.run_dir = Path(run_dir or tempfile.mkdtemp(prefix="hcm-scale-"))
        if run_dir is None:
            weakref.finalize(self, shutil.rmtree, self.run_dir, ignore_errors=True)
        self._table: pa.Table | None = None

    def fit(self, data: Any) -> "HCM":
        """Scores every node of `data`, a `Graph` or a torch_geometric `Data` with `edge_index` and `x`."""
        self._table = None
        graph = data if isinstance(data, Graph) else read_data(self.run_dir / "given", data)
        self.config.run_dir = str(self.run_dir)
        pipeline.run(self.config, until="score", graph=graph)
        self._table = pipeline.read_scores(self.run_dir)
        return self

    @property
    def table(self) -> pa.Table:
        """One row a node, strangest first; the columns of scores.parquet."""
        if self._table is None:
            raise ValueError("fit(data) comes first")
        return self._table

    @property
    def scores(self) -> NDArray[np.float64]:
        """The score of every node, (n,), in node order; larger is stranger."""
        out = np.empty(self.table.num_rows)
        out[self.table["node"].to_numpy()] = self.table[self.config.score.rank_by].to_numpy()
        return out

    def strangest(self, count: int = 10) -> list[dict[str, Any]]:
        """The first rows of the ranked table."""
        return self.table.slice(0, count).to_pylist()

    def explain(self, node: int | str) -> str:
        """Why a node, named by the user's own id, is where it is."""
        if self._table is None:
            raise ValueError("fit(data) comes first")
        self.config.node = str(node)
        return pipeline.explain(self.config)
