"""The pair head on a CPU, but for its one large product: jitted functions only.

Of a chunk of edges `pair_inputs` makes the input of that product, and `update_moments` does all that follows it: relu,
logits, the predicted hop and Welford's step. Every edge is computed by itself, so nothing here depends on the threads.
"""

import math

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch

_AHEAD = 8  # edges between asking for a row and reading it
_LINE = 16  # floats
_BLOCK = 64  # edges whose logits are turned into hops together, one vector operation after the other
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_LOWEST = -700.0  # e to this power is nothing beside 1, and no subnormal number
_SERIES = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_BIAS, _MANTISSA_BITS = np.int64(1023), np.int64(52)


@kernel(allocates=False)
def pair_inputs(part, z, left, right, signed, out):
    """out[i] = |z[left[i]] - z[right[i]]|, without the absolute value where `signed`."""
    width = z.shape[1]
    last = len(right) - 1
    for i in range(part[0], part[1]):
        ahead = np.int64(right[min(i + _AHEAD, last)]) * width
        for k in range(0, width, _LINE):
            prefetch(z, ahead + k)
        a, b, row = z[left[i]], z[right[i]], out[i]
        if signed:
            for k in range(width):
                row[k] = a[k] - b[k]
        else:
            for k in range(width):
                row[k] = abs(a[k] - b[k])


@kernel(allocates=False, fastmath={"contract", "reassoc", "nsz"})
def _class_logits(hidden, weight, bias, out):
    """out[c, i] = relu(hidden[i]) . weight[c] + bias[c]; a NaN stays one."""
    for i in range(len(hidden)):
        row = hidden[i]
        for c in range(len(bias)):
            total = np.float32(0.0)
            of_class = weight[c]
            for k in range(len(row)):
                total += (row[k] if not row[k] < 0 else np.float32(0.0)) * of_class[k]
            out[c, i] = total + bias[c]


@kernel(inline="always")
def _exp(x):
    """E to the power of x <= 0, in vector operations where numpy's is a call: 2^n times a series of what is left."""
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
def update_moments(part, hidden, head, number, expected, count, moments):
    """Welford's step of edge number[i] with the hop that the hidden layer of pair i predicts.

    `head` are weight, (C, hidden), and bias of the last layer, `moments` mean and squared deviations; `count` includes
    this sample. Arithmetic is float64 from the logits on, so that a step adds one float32 rounding to each moment, no
    more. Where a logit is not finite, which argmax would hide, both become NaN.
    """
    weight, bias = head
    mean, m2 = moments
    logits = np.empty((len(bias), _BLOCK), np.float32)
    top, total, hops = np.empty(_BLOCK, np.float32), np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(part[0], part[1], _BLOCK):
        size = min(_BLOCK, part[1] - first)
        _class_logits(hidden[first : first + size], weight, bias, logits)
        if expected:
            _expected_hops(logits, size, top, total, hops)
        else:
            _likeliest_hops(logits, size, hops)
        for i in range(size):
            hop, e = hops[i], number[first + i]
            for c in range(len(bias)):
                hop += 0.0 * logits[c, i]
            old = np.float64(mean[e]) if count > 1 else 0.0
            spread = np.float64(m2[e]) if count > 1 else 0.0
            new = old + (hop - old) / count
            mean[e] = new
            m2[e] = spread + (hop - old) * (hop - new)
