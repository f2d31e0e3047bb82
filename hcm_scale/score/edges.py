"""Predicted hop of every edge: its mean and variance over the parameter samples, by one pass over the edges for each.

A sample is an embedding z (n, width) and a pair head: |z_u - z_v| -> Linear -> ReLU -> Linear -> C logits (z_u - z_v
on a directed graph). The predicted hop is the expected class under softmax, or the likeliest one. Mean and sum of
squared deviations are updated by Welford's rule and stored as float32; the variance divides by the number of samples.

Each chunk of edges, listed from the CSR, is computed by one thread, 64 edges at a time from the rows of z to the
moments, in the nearest cache of its core, whatever the number of threads. Memory: one embedding, 8 bytes per edge (in
files of a folder, if one is given), and per thread the ends of a chunk of edges. On a CUDA device the ends and moments
of the edges stay there, 16 bytes per edge (device.py).

On disk (`save_hops`, `open_hops`) an edge takes 4 bytes. Its variance is a float16. Its mean, from 1 to below 256, is
the first 16 bits of a float32 after those that all such numbers share, 3 of the exponent and 13 of the mantissa: code =
(bits - bits of 1) / 2^10, rounded, good to 1 / 16,384 of the number; 65,535 is NaN.
"""

import math
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numba
import numpy as np
from numpy.typing import NDArray

from hcm_scale.base import files
from hcm_scale.base.jit import (
    NARROW_COLUMNS,
    TILE_COLUMNS,
    TILE_DEPTH,
    TILE_ROWS,
    kernel,
    narrow_tile,
    prefetch,
    relu_tile,
)
from hcm_scale.base.names import MODEL_SIZES, Hop
from hcm_scale.base.npy import Rule, nameless_array, open_array, save_converted
from hcm_scale.base.threads import run_in_slices, share_parts
from hcm_scale.score.edge_index import EdgeIndex, PairHead, check_finite

if TYPE_CHECKING:  # finished runs are read without torch
    import torch

MEAN_FILE, VAR_FILE = "edges_mean.npy", "edges_var.npy"
_ONE_BITS, _DROPPED_BITS, _NOT_SCORED = 0x3F800000, 10, 65_535
_MOST_HOPS = MODEL_SIZES["num_classes"][1]
_MEAN: Rule = (
    lambda codes: (codes <= encoded_mean(np.array([_MOST_HOPS], np.float32))) | (codes == _NOT_SCORED),
    f"legal are codes of hops from 1 to {_MOST_HOPS}, and {_NOT_SCORED} for none",
)
_VARIANCE: Rule = (lambda found: ~(found < 0), "legal are numbers of 0 or more, and NaN for none")
CPU_CHUNK_EDGES = 1 << 14  # 5 ms of one core, of which Python takes a hundredth
CUDA_CHUNK_EDGES = 1 << 18  # 400 MB


class EdgeHops(NamedTuple):
    """Mean and population variance of each edge's predicted hop, f32 (m,); NaN where the edge is not scored."""

    mean: NDArray[np.float32]
    var: NDArray[np.float32]


def save_hops(hops: EdgeHops, folder: Path) -> None:
    """Writes both numbers of all edges, rounded, as two files."""
    save_converted(folder / MEAN_FILE, hops.mean, encoded_mean)
    save_converted(folder / VAR_FILE, hops.var, lambda var: var.astype(np.float16))
    for name in (MEAN_FILE, VAR_FILE):
        files.sync_file(folder / name)


class LazyHops:
    """Numbers of edges as they are stored: a part is decoded when it is indexed, all of it where an array is needed."""

    dtype = np.dtype(np.float32)

    def __init__(self, codes: NDArray[Any], decode: Callable[[Any], Any]) -> None:
        self._codes, self._decode, self.shape = codes, decode, codes.shape

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, which: Any) -> Any:
        return self._decode(self._codes[which])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        out = np.empty(self.shape, dtype or np.float32)
        run_in_slices(len(out), lambda chunk: np.copyto(out[chunk], self[chunk]))
        return out


def open_hops(folder: Path, num_edges: int | None) -> EdgeHops:
    """What such files hold, of so many edges, as `LazyHops` numbers; FolderError where they differ."""
    codes = open_array(folder / MEAN_FILE, np.uint16, (num_edges,), legal=_MEAN)
    spread = open_array(folder / VAR_FILE, np.float16, codes.shape, legal=_VARIANCE)
    return EdgeHops(*cast(Any, (LazyHops(codes, decoded_mean), LazyHops(spread, lambda var: var.astype(np.float32)))))


def encoded_mean(mean: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The codes of hops from 1 to below 256, and of NaN.

    >>> encoded_mean(np.array([1.0, 1.5, np.nan], np.float32)).tolist()
    [0, 4096, 65535]
    """
    bits = np.ascontiguousarray(mean, np.float32).view(np.int32)
    half = 1 << (_DROPPED_BITS - 1)
    codes = np.clip((bits - (_ONE_BITS - half)) >> _DROPPED_BITS, 0, _NOT_SCORED - 1)
    return np.where(np.isnan(mean), _NOT_SCORED, codes).astype(np.uint16)


def decoded_mean(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    mean = ((codes.astype(np.int32) << _DROPPED_BITS) + _ONE_BITS).view(np.float32)
    return np.where(codes == _NOT_SCORED, np.float32(np.nan), mean)


OnSample = Callable[[int, EdgeHops], object]


def predict_edges(
    edges: EdgeIndex,
    samples: Iterable[tuple["torch.Tensor", PairHead]],
    *,
    hop: Hop = "expected",
    chunk_edges: int | None = None,
    folder: Path | None = None,
    device: "torch.device | str" = "cpu",
    precision: str = "auto",
    on_edges: Callable[[int], object] = lambda num_edges: None,
    begun: tuple[int, EdgeHops] | None = None,
    on_sample: OnSample = lambda num_samples, moments: None,
) -> EdgeHops:
    """Mean and variance of the predicted hop of every edge over the samples, an iterable of (z, head).

    `samples` is consumed once, lazily, and each z is no longer used when the next is requested: all may share one
    buffer. With `folder` the result is in two files without names there, else it is held in memory. `chunk_edges`
    (16,384 on a CPU, 262,144 on CUDA) changes speed and memory only. `precision="bfloat16"` is for CUDA devices and
    accurate to 1e-2; "auto" is float32 elsewhere. `on_edges` is called during the work with the number of edges
    predicted under one sample since the last call. `on_sample` is called with the number of samples so far and the
    moments, mean and squared deviations: on a CPU after each sample, else after the last. On a CPU `begun` continues
    from what `on_sample` was given.
    """
    import torch

    device = torch.device(device)
    moments, count, expected = new_moments(edges.num_edges, folder), 0, hop == "expected"
    mean, m2 = moments
    if begun is not None:
        count, (mean[:], m2[:]) = begun
    if device.type == "cuda":
        from hcm_scale.score.device import predict_on_device  # imports Triton

        chunk = chunk_edges or CUDA_CHUNK_EDGES
        count = predict_on_device(
            edges,
            samples,
            mean,
            m2,
            chunk=chunk,
            device=device,
            expected=expected,
            precision=precision,
            on_edges=on_edges,
        )
        on_sample(count, moments)
    else:
        chunk = min(chunk_edges or CPU_CHUNK_EDGES, max(edges.num_edges, 1))
        watched: Any = {"on_edges": on_edges, "on_sample": on_sample}
        with torch.no_grad():
            count = _predict_on_cpu(edges, samples, moments, count, chunk, expected, **watched)
    run_in_slices(len(m2), lambda rows: np.divide(m2[rows], np.float32(count), out=m2[rows]))
    return moments


def new_moments(num_edges: int, folder: Path | None) -> EdgeHops:
    """Two uninitialised numbers per edge, in memory or in files without names in a folder."""
    if folder is None or not num_edges:  # an empty file cannot be mapped
        return EdgeHops(np.empty(num_edges, np.float32), np.empty(num_edges, np.float32))
    mean, var = (nameless_array(num_edges, np.float32, folder) for _ in range(2))
    return EdgeHops(mean, var)


def _predict_on_cpu(
    edges: EdgeIndex,
    samples: Iterable[tuple["torch.Tensor", PairHead]],
    moments: EdgeHops,
    count: int,
    chunk: int,
    expected: bool,
    *,
    on_edges: Callable[[int], object],
    on_sample: OnSample,
) -> int:
    """Updates the moments of every edge with every sample; returns the number of samples, `count` of them earlier."""
    starts = range(0, edges.num_edges, chunk)
    num_threads, one_at_a_time = max(1, min(numba.get_num_threads(), len(starts))), threading.Lock()

    def predict(_: int, first: int) -> None:
        pairs = edges.edges(first, min(first + chunk, edges.num_edges))
        check_finite(update_moments(pairs, edges.directed, rows, layers, expected, count, tuple(moments)), count)
        with one_at_a_time:
            on_edges(len(pairs[0]))

    for z, head in samples:
        count += 1
        rows, layers = np.ascontiguousarray(z.numpy(force=True)), _layers(head)
        share_parts(num_threads, starts, predict)
        on_sample(count, moments)
    return count


def _layers(head: PairHead) -> tuple[Any, ...]:
    """Weights and biases for `update_moments`, with zeros to fill its tiles, and the number of classes."""
    weight0, bias0, weight1, bias1 = (np.asarray(part.numpy(force=True), np.float32) for part in head)
    (width, hidden), num_classes = weight0.shape, len(bias1)
    more = -width % TILE_DEPTH, -hidden % TILE_COLUMNS, -num_classes % NARROW_COLUMNS
    first = np.pad(weight0, ((0, more[0]), (0, more[1]))), np.pad(bias0, (0, more[1]))
    return *first, np.pad(weight1, ((0, more[1]), (0, more[2]))), np.pad(bias1, (0, more[2])), num_classes


_AHEAD = 8  # edges between prefetching a row and reading it
_LINE = 16  # floats
_BLOCK = 64  # edges that are computed together, a multiple of TILE_ROWS: 48 KB for a head of 64 x 64
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_LOWEST = -700.0  # e to this power is nothing beside 1, and no subnormal number
_SERIES = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_BIAS, _MANTISSA_BITS = np.int64(1023), np.int64(52)


@kernel(allocates=False)
def _pair_inputs(pairs, first, size, signed, z, out):
    """out[i] = |z[left] - z[right]| of pair first + i for i < size, without the absolute value where `signed`."""
    left, right, _ = pairs
    width = z.shape[1]
    last = len(right) - 1
    for i in range(size):
        ahead = np.int64(right[min(first + i + _AHEAD, last)]) * width
        for k in range(0, width, _LINE):
            prefetch(z, ahead + k)
        a, b, row = z[left[first + i]], z[right[first + i]], out[i]
        if signed:
            for k in range(width):
                row[k] = a[k] - b[k]
        else:
            for k in range(width):
                row[k] = abs(a[k] - b[k])


@kernel(inline="always")
def _exp(x):
    """e^x for x <= 0 as 2^n times a series, in vector operations where numpy's is a function call."""
    x = max(x, _LOWEST)
    n = np.floor(x * _LOG2_E + 0.5)
    r = x - n * _LN_2_HIGH - n * _LN_2_LOW
    total = 0.0
    for coefficient in _SERIES:
        total = total * r + coefficient
    power = np.int64((np.int64(n) + _BIAS) << _MANTISSA_BITS)
    return total * power.view(np.float64)


@kernel(allocates=False)
def _expected_hops(logits, size, top, total, out):
    """out[i] = sum over classes of (c + 1) * softmax(logits[:, i])[c], in float64, for i < size."""
    for i in range(size):
        top[i] = logits[0, i]
        total[i] = 0.0
        out[i] = 0.0
    for c in range(1, len(logits)):
        for i in range(size):
            top[i] = max(top[i], logits[c, i])
    for c in range(len(logits)):
        for i in range(size):
            p = _exp(np.float64(logits[c, i] - top[i]))
            total[i] += p
            out[i] += p * (c + 1)
    for i in range(size):
        out[i] /= total[i]


@kernel(allocates=False)
def _likeliest_hops(logits, size, out):
    """out[i] = 1 + the class with the largest of logits[:, i], the first of equals, for i < size."""
    for i in range(size):
        best = 0
        for c in range(1, len(logits)):
            if logits[c, i] > logits[best, i]:
                best = c
        out[i] = best + 1


@kernel
def update_moments(pairs, signed, z, layers, expected, count, moments):
    """Welford's step of every pair with the hop that its rows of z predict; whether all predictions are finite.

    `pairs` are left ends, right ends and numbers of edges, `layers` those of the head (see `_layers`), `moments` mean
    and squared deviations; `count` includes this sample. Arithmetic is float64 from the logits on, so that a step adds
    one float32 rounding to each moment. Where a logit is not finite, which argmax would hide, both become NaN.
    """
    weight0, bias0, weight1, bias1, num_classes = layers
    mean, m2 = moments
    inputs, hidden = np.zeros((_BLOCK, len(weight0)), np.float32), np.empty((_BLOCK, len(bias0)), np.float32)
    outputs, logits = np.empty((_BLOCK, len(bias1)), np.float32), np.empty((num_classes, _BLOCK), np.float32)
    top, total, hops = np.empty(_BLOCK, np.float32), np.empty(_BLOCK), np.empty(_BLOCK)
    sum_of_all = 0.0
    for first in range(0, len(pairs[0]), _BLOCK):
        size = min(_BLOCK, len(pairs[0]) - first)
        _pair_inputs(pairs, first, size, signed, z, inputs)
        for i in range(0, size, TILE_ROWS):
            for k in range(0, len(bias0), TILE_COLUMNS):
                relu_tile(inputs, i, weight0, bias0, k, hidden)
            for k in range(0, len(bias1), NARROW_COLUMNS):
                narrow_tile(hidden, i, weight1, bias1, k, outputs)
        for c in range(num_classes):
            for i in range(size):
                logits[c, i] = outputs[i, c]
        if expected:
            _expected_hops(logits, size, top, total, hops)
        else:
            _likeliest_hops(logits, size, hops)
        for i in range(size):
            hop, e = hops[i], pairs[2][first + i]
            for c in range(num_classes):
                hop += 0.0 * logits[c, i]
            old = np.float64(mean[e]) if count > 1 else 0.0
            spread = np.float64(m2[e]) if count > 1 else 0.0
            new = old + (hop - old) / count
            mean[e] = new
            m2[e] = spread + (hop - old) * (hop - new)
            sum_of_all += new
    return np.isfinite(sum_of_all)
