"""The inner loops of mini-batches: plan and draw neighbours, give nodes their positions, weigh, transpose, gather rows.

Every kernel is serial and lets go of the GIL: batches are prepared side by side by plain threads, each with scratch of
its own. None of them enters numba's thread pool, which the model uses at the same time and which, where it is the
`workqueue` pool, aborts the process when two threads enter it at once.

What a batch touches at random in large arrays decides the speed, so each such read happens once: `plan` reads `indptr`
for all targets into small arrays that the later passes walk in order, `weigh` reads `scale` once per node, and
`relabel` and `gather` ask for their cache lines in advance.
"""

import numpy as np

from hcm_scale.base.jit import kernel
from hcm_scale.base.prefetch import prefetch
from hcm_scale.base.rng import below, bits, mix

_FIRST_MARKS = 1024
_AHEAD = 16  # entries between asking for a cache line and reading it


@kernel(nogil=True)
def plan(indptr, targets, fan_out, begins, degrees, starts):
    """Where each target's neighbours begin in the graph, how many it has, and where its entries start in the block.

    A row has one self loop and at most `fan_out` neighbours. Returns the number of entries; `starts`, of 32 bits, is
    good only where that number is below 2^31.
    """
    num_entries = 0
    starts[0] = 0
    for i in range(len(targets)):
        u = targets[i]
        begins[i] = indptr[u]
        degrees[i] = indptr[u + 1] - indptr[u]
        num_entries += 1 + min(degrees[i], fan_out)
        starts[i + 1] = num_entries
    return num_entries


@kernel(nogil=True)
def draw(indices, targets, begins, degrees, starts, key, out):
    """For each target: the target itself, then a uniform draw of its neighbours without replacement.

    `starts` says how many. All of them are copied in order; of more than half, the rest is drawn and left out. The key
    is (seed, step, layer).
    """
    seed, step, layer = key
    taken = np.zeros(_FIRST_MARKS, np.uint8)
    for i in range(len(targets)):
        begin, degree, entry = begins[i], degrees[i], starts[i]
        count = starts[i + 1] - entry - 1
        out[entry] = targets[i]
        row = out[entry + 1 : entry + 1 + count]
        if count == degree:
            for k in range(count):
                row[k] = indices[begin + k]
            continue
        if degree > len(taken):
            taken = np.zeros(2 * degree, np.uint8)
        state = bits(seed, step, layer, targets[i])
        if 2 * count <= degree:
            choose(state, degree, count, taken, row)
            for k in range(count):
                taken[row[k]] = 0
                row[k] = indices[begin + row[k]]
        else:
            choose(state, degree, degree - count, taken, row)  # the marks count; the row is written again below
            k = 0
            for j in range(degree):
                if not taken[j]:
                    row[k] = indices[begin + j]
                    k += 1
                taken[j] = 0


@kernel(nogil=True, inline="always")
def choose(state, bound, count, taken, out):
    """`count` different numbers below `bound`, every subset equally likely, marked in `taken` (Floyd's algorithm)."""
    for k in range(count):
        top = bound - count + k
        pick = below(mix(state, k), top + 1)
        if taken[pick]:
            pick = top
        taken[pick] = 1
        out[k] = pick


@kernel(nogil=True)
def relabel(entries, position, base, nodes, count, out):
    """Positions of the entries in `nodes`; new ones are appended there in order of appearance. Returns the new count.

    `position[v] - base` is v's position, or negative where v is not in this batch yet. Written without a branch:
    whether a node is new is a coin toss, and a wrong guess would stall the reads that follow. `nodes` needs one
    spare slot.
    """
    last = len(entries) - 1
    for e in range(len(entries)):
        prefetch(position, entries[min(e + _AHEAD, last)])
        v = entries[e]
        known = position[v] - base
        is_new = known < 0
        place = count if is_new else known
        nodes[count] = v
        position[v] = base + place
        out[e] = place
        count += 1 if is_new else 0
    return count


@kernel(nogil=True)
def weigh(scale, nodes, degrees, starts, indices, out):
    """The whole graph's GCN weights scale[u] * scale[v], those of neighbours times degree / drawn."""
    scales = np.empty(len(nodes), np.float32)
    for i in range(len(nodes)):
        scales[i] = scale[nodes[i]]
    for i in range(len(degrees)):
        start, end = starts[i], starts[i + 1]
        own = scales[i]
        out[start] = own * own
        boosted = own * np.float32(degrees[i] / max(end - start - 1, 1))
        for e in range(start + 1, end):
            out[e] = boosted * scales[indices[e]]


@kernel(nogil=True)
def weigh_edges(graph, weights, begins, degrees, starts, entries, out):
    """Multiplies the weights of drawn neighbours by those of their edges, found by binary search in the graph's rows.

    `graph` are the CSR's indices and `entries` the nodes that were drawn, self loops first.
    """
    for i in range(len(begins)):
        first = starts[i] + 1
        takes_all = starts[i + 1] - first == degrees[i]  # in the order of the row
        for e in range(first, starts[i + 1]):
            at, end = begins[i], begins[i] + degrees[i]
            if takes_all:
                at += e - first
            else:
                while at < end:
                    middle = (at + end) // 2
                    if graph[middle] < entries[e]:
                        at = middle + 1
                    else:
                        end = middle
            out[e] *= weights[at]


@kernel(nogil=True)
def transpose(indptr, indices, weights, t_indptr, t_indices, t_weights):
    """The CSR of the transpose by counting; entries of a row come in the order of their old rows."""
    num_rows, num_columns = len(indptr) - 1, len(t_indptr) - 1
    t_indptr[:] = 0
    for e in range(len(indices)):
        t_indptr[indices[e] + 1] += 1
    for j in range(num_columns):
        t_indptr[j + 1] += t_indptr[j]
    free = t_indptr[:-1].copy()
    for i in range(num_rows):
        for e in range(indptr[i], indptr[i + 1]):
            slot = free[indices[e]]
            free[indices[e]] += 1
            t_indices[slot] = i
            t_weights[slot] = weights[e]


@kernel(nogil=True)
def gather(x, nodes, out):
    """out[i] = x[nodes[i]]."""
    width, last = x.shape[1], len(nodes) - 1
    for i in range(len(nodes)):
        place = nodes[min(i + _AHEAD, last)] * width
        prefetch(x, place)
        prefetch(x, place + width - 1)
        row = x[nodes[i]]
        for k in range(width):
            out[i, k] = row[k]
