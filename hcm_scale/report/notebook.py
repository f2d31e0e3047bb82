"""The ranked list as a piece of HTML that a notebook shows: the first rows, and the report's pictures of all scores.

Its style is its own and holds within one element, so that it changes nothing else of the notebook; it has no script.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hcm_scale.graph.store import Graph
from hcm_scale.report import digest, page, ranking, sections
from hcm_scale.report.listing import found_text
from hcm_scale.report.write import FOUND, json_safe

_PICTURED = 3  # charts


def fragment(
    graph: Graph, table: pa.Table, edge_mean: NDArray[np.float32], found: Mapping[str, Any], count: int
) -> str:
    """The first `count` rows of a ranked table, and how its scores and the predicted hops of edges are spread."""
    by = table.schema.metadata[b"rank_by"].decode()
    y, kind = (table[name].to_numpy() if name in table.column_names else None for name in ("y", "kind"))
    values = {by: table[by].to_numpy()}
    report = json_safe(
        {
            "ranked_by": by,
            "scores": [by],
            "table": ranking.values(table.slice(0, count), [by]),
            "distributions": {by: digest.distribution(values[by], y)},
            "accuracy": None if y is None else digest.accuracy(y, values, kind),
            "edges": {"hops": digest.hop_distribution(edge_mean), "purified": None},
            "labels": None,
        }
    )
    charts = [*sections.score_charts(report), *sections.graph_charts(report)][:_PICTURED]
    return (
        page.templates()
        .get_template("notebook.html")
        .render(
            graph=graph,
            found=found_text({name: found[name] for name in FOUND if found.get(name) is not None}),
            **_rows(sections.ranking(report)),
            charts=charts,
        )
    )


def _rows(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a narrow table has room for, and its rows."""
    columns = [column for column in shown["columns"] if not column.get("minor") or column["kind"] == "score"]
    return {"columns": columns, "rows": list(zip(*(shown["values"][column["key"]] for column in columns), strict=True))}
