"""The parts of a transform whose numbers are settled: each makes some of the features of any block of rows.

| part    | what it does with a row                                                          | made by        |
|---------|----------------------------------------------------------------------------------|----------------|
| Singles | moves and stretches columns one by one, or follows a curve                       | auto_fit.py    |
| Rotated | projects a group of columns on components                                        | auto_fit.py    |
| Plain   | rescales all columns, then projects them if asked, then moves and stretches them | transform.py   |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hcm_scale.base.threads import in_slices
from hcm_scale.features.pca import Components
from hcm_scale.features.rescale import AttributeRows, block_rows, blocks, rescale_block
from hcm_scale.graph.store import Attributes, SparseRows

Curve = tuple[NDArray[np.float32], NDArray[np.float32]]  # rising values, and the score of each


@dataclass(frozen=True, eq=False)
class Singles:
    """Columns kept one by one: (value, cut to `low` .. `high`, - centre) * factor, or a curve; 0 at gaps."""

    columns: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    factor: NDArray[np.float64]
    curves: dict[int, Curve]  # by place among `columns`
    gaps: dict[int, list[int]]  # of a flag's place: the places of the columns whose gaps it flags

    @property
    def width(self) -> int:
        return len(self.columns)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        """The features of a block of rows, (rows, width)."""
        raw = block[:, self.columns]
        values = np.asarray(raw.toarray() if sparse.issparse(raw) else raw, np.float64)
        out = (np.clip(values, self.low, self.high) - self.centre) * self.factor
        _follow(self.curves, values, out)
        for flag, places in self.gaps.items():
            out[np.ix_(np.flatnonzero(values[:, flag]), np.array(places))] = 0.0
        return out


@dataclass(frozen=True, eq=False)
class Rotated:
    """A group of columns reduced to principal components, each times its `factor`."""

    columns: NDArray[np.int64]
    how: str  # what is done with values first
    ends: NDArray[np.float64]  # of columns of two values: the one beside 0
    components: Components
    factor: NDArray[np.float64]

    @property
    def width(self) -> int:
        return len(self.factor)

    @property
    def explained(self) -> list[float]:
        """Each component's share of the variance."""
        shares = self.components.variances / (self.components.total_variance or 1.0)
        return [round(float(share), 6) for share in shares]

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        values = group_values(self.how, self.ends)(block[:, self.columns])
        return self.components.project(values) * self.factor


@dataclass(frozen=True, eq=False)
class Plain:
    """All columns rescaled (rescale.py) or along curves, reduced where there are components, then moved, stretched."""

    scale: str
    centre: NDArray[np.float64]
    divisor: NDArray[np.float64]  # infinite for a constant column, which becomes 0
    curves: dict[int, Curve] = field(default_factory=dict)
    components: Components | None = None

    @property
    def width(self) -> int:
        return len(self.divisor)

    def apply(self, block: AttributeRows) -> NDArray[np.float64]:
        out = rescale_block(block, self.scale)
        if self.curves:
            values = out.toarray() if sparse.issparse(out) else out
            _follow(self.curves, values, out := np.empty(values.shape, np.float32))
        if self.components is not None:
            out = self.components.project(out)
        dense = np.asarray(out.toarray() if sparse.issparse(out) else out, np.float32)
        return (dense - self.centre) / self.divisor


Part = Singles | Rotated | Plain


def _follow(curves: Mapping[int, Curve], values: NDArray[Any], out: NDArray[Any]) -> None:
    for place, (knots, scores) in curves.items():
        out[:, place] = np.interp(values[:, place], knots, scores)


def group_values(how: str, ends: NDArray[np.float64]) -> Callable[[AttributeRows], AttributeRows]:
    """What is done with the values of a group: a function of blocks that keeps 0 at 0 and sparse sparse."""

    def presence(values: NDArray[Any], columns: Any) -> NDArray[Any]:
        return np.clip(values / ends[columns], 0.0, 1.0)  # a share stands for a gap, and stays a share

    def log1p(values: NDArray[Any], columns: Any) -> NDArray[Any]:
        return np.copysign(np.log1p(np.abs(values)), values)  # rows outside the sample may be negative

    valuewise = {"presence": presence, "log1p": log1p, "as they are": lambda values, columns: values}[how]

    def whole(block: AttributeRows) -> AttributeRows:
        if sparse.issparse(block):
            data = valuewise(block.data, block.indices)
            return sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
        return valuewise(block, slice(None))

    return whole


def apply_parts(parts: tuple[Part, ...], x: Attributes) -> NDArray[np.float32]:
    """The features (n, q) of all rows, block by block; where each column is for itself, a small block a thread."""
    out = np.empty((x.shape[0], sum(part.width for part in parts)), np.float32)

    def fill(which: slice, block: AttributeRows) -> None:
        out[which] = np.concatenate([out[which, :0], *(part.apply(block) for part in parts)], axis=1)

    if not isinstance(x, SparseRows) and all(isinstance(part, Singles) for part in parts):
        in_slices(len(out), lambda which: fill(which, x[which]), size=block_rows(x.shape[1]) // 16)
    else:
        for which, block in blocks(x):
            fill(which, block)
    return out
