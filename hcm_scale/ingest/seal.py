"""The last step of every reader: the summary, the ids, the manifest."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hcm_scale.base.mapped import open_npy
from hcm_scale.graph import store
from hcm_scale.graph.build import EdgeCounts
from hcm_scale.ingest.attributes import FeatureCounts, write_degree
from hcm_scale.ingest.policy import IngestSummary, Policy
from hcm_scale.ingest.told import ColumnLine, as_json


def seal(
    folder: Path,
    origin: str,
    policy: Policy,
    edges: EdgeCounts,
    features: FeatureCounts,
    *,
    ids: pa.Array | None = None,
    told: Sequence[ColumnLine] = (),
    edge_types: Sequence[str] | None = None,
    weights: str | None = None,
    **counts: Any,
) -> IngestSummary:
    """Finishes a folder that holds the CSR and the attributes; `counts` are the other fields of the summary.

    `told` says what became of the columns of the user's tables, `edge_types` are the names of the bits of edge_types,
    `weights` is what the user calls the weights.
    """
    if not features.num_columns:
        features = write_degree(folder, policy.directed)
    if ids is not None:
        for name, array in store.id_arrays(ids):
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    edge_fields = asdict(edges)
    edge_fields["edge_rows"] += counts.get("unknown_edges", 0)
    summary = IngestSummary(
        origin=origin,
        num_nodes=open_npy(folder / "indptr.npy").shape[0] - 1,
        num_attributes=features.num_columns,
        imputed_values=features.imputed,
        nonfinite_values=features.nonfinite,
        **edge_fields,
        **counts,
    )
    details = {"counts": asdict(summary), "policy": asdict(policy), "columns": list(features.details)}
    details["told"] = as_json(told)
    named: dict[str, Any] = {} if edge_types is None else {"edge_types": list(edge_types)}
    named |= {} if weights is None else {"weights": weights}
    store.finish(
        folder,
        num_columns=features.num_columns,
        columns=features.columns,
        directed=policy.directed,
        info={"ingest": details} | named,
    )
    return summary
