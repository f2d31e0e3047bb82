"""Figures of a fitted detector, `found.plot`: each a matplotlib `Figure` that a notebook shows and `savefig` writes.

There is no global state and no window. matplotlib is an extra (`plots`), imported when drawing.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from hcm_scale.base.text import clip
from hcm_scale.score.table import kinds_of, ranked_by


def _figure(num_panels: int = 1, num_bars: int = 0) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'hcm-scale[plots]'") from error

    class Shown(Figure):
        def _repr_png_(self) -> bytes:  # without pyplot a notebook would show a line of text
            self.savefig(stream := io.BytesIO(), format="png")
            return stream.getvalue()

    figure = Shown(figsize=(6.4 * num_panels, max(3.8, 1.4 + 0.24 * num_bars)), layout="constrained")
    return figure, figure.subplots(1, num_panels, squeeze=False)[0]


def _name_bars(axes: Any, names: list[Any]) -> None:
    axes.set_yticks(range(len(names)), [clip(name, 28) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


@dataclass(frozen=True)
class Plots:
    """The figures of a fitted detector."""

    _results: Any

    def trace(self) -> Any:
        """Loss and accuracy of each encoder over the steps of its chain; a point is a mean over some steps."""
        (figure, panels), trace = _figure(2), self._results.trace_
        for view in pc.unique(trace["view"]).to_pylist():
            rows = trace.filter(pc.equal(trace["view"], view)).to_pydict()
            accuracy = np.nanmean(np.array(rows["accuracy"], float), axis=1)
            for axes, values in zip(panels, (rows["loss"], accuracy), strict=True):
                axes.plot(rows["step"], values, ".-", label=f"encoder of the {view} graph")
        for axes, name in zip(panels, ("loss", "accuracy, mean over the hop classes"), strict=True):
            axes.set(xlabel="step", ylabel=name)
        panels[0].legend(frameon=False)
        return figure

    def list(self, count: int = 20) -> Any:
        """Scores of the first nodes, coloured by the strongest kind of evidence; * marks those that are flagged."""
        table = self._results.table.slice(0, count)
        figure, (axes,) = _figure(num_bars=len(table))
        scores, kinds = table[ranked_by(table)].to_numpy(), np.array(table["evidence"].to_pylist())
        for kind in dict.fromkeys(kinds.tolist()):
            axes.barh(np.flatnonzero(kinds == kind), scores[kinds == kind], label=kinds_of(table)[kind].full_title)
        _name_bars(axes, [f"{row['id']}{' *' * row['flagged']}" for row in table.to_pylist()])
        axes.set(xlabel=f"score{', * flagged' * any(table['flagged'].to_pylist())}")
        axes.legend(frameon=False, loc="lower right")
        return figure

    def node(self, node: Any) -> Any:
        """Predicted hops to the neighbours of a node, the farthest 20, and the attributes in which it differs."""
        about = self._results.explain(node).data
        near, unlike = [one for one in about["neighbors"] if one["hop"] is not None][:20], about["differences"]
        figure, (hops, attributes) = _figure(2, num_bars=len(near))
        values, spread = [one["hop"] for one in near], [one["std"] for one in near]
        hops.errorbar(values, range(len(near)), xerr=spread, fmt="o", capsize=3)
        hops.axvline(1.0, color="0.6", linestyle="--")
        attributes.barh(range(len(unlike)), [difference["deviations"] for difference in unlike], color="C1")
        _name_bars(hops, [one["id"] for one in near])
        _name_bars(attributes, [difference["column"] for difference in unlike])
        title = f"{clip(about['id'], 28)}, rank {about['rank']:,} of {about['num_nodes']:,}"
        hops.set(title=title, xlabel="predicted hop of the edge, which is 1, and its deviation")
        attributes.set(title="attributes", xlabel="deviations from the mean of the neighbours")
        return figure

    def calibration(self) -> Any:
        """The p-values in order, against those of nodes of which none is odd; flagged nodes in another colour."""
        figure, (axes,) = _figure()
        p, flagged = (self._results.table[name].to_numpy() for name in ("p", "flagged"))
        order, even = np.argsort(p, kind="stable"), (np.arange(len(p)) + 0.5) / len(p)
        axes.loglog(even, even, color="0.6", linestyle="--", label="if no node were odd")
        for chosen, name in ((~flagged[order], "nodes"), (flagged[order], "flagged nodes")):
            axes.loglog(even[chosen], p[order][chosen], ".", label=f"{chosen.sum():,} {name}")
        axes.set(xlabel="share of nodes with as small a p", ylabel="p")
        axes.legend(frameon=False)
        return figure
