"""Gradient of a step on a GPU, recorded once as a CUDA graph and replayed: one launch instead of a hundred.

A small batch keeps a GPU busy for less time than Python needs to launch its kernels one by one. Batches that live in
the same tensors at every step (`is_static`) make a step the same kernels on the same memory: after a few ordinary steps
the next is recorded, and later ones replay the recording. Other batches are always run in the ordinary way. A replay
overwrites the outputs of the one before, hence the one copy of loss and counts; the gradient has been used by then.
Memory: what a step needs, held for as long as the recorder lives.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hcm_scale.base.threads import torch_threads
from hcm_scale.posterior.loop import Measured, measure

_WARM_UP_STEPS = 3  # compile kernels, make library handles and settle the allocator, none of which can be recorded


@contextlib.contextmanager
def training_settings(device: torch.device | str, num_threads: int | None = None) -> Iterator[None]:
    """Within the block a GPU is the current one, with products in TF32: the noise of a batch far exceeds its rounding.

    On the CPU torch works with `num_threads` threads, if given.
    """
    if torch.device(device).type != "cuda":
        with torch_threads(num_threads):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class Recorder:
    """Measures batches as `loop.measure` does; holds one recording, of one model and one set of batch tensors."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._gave_up = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Any = None
        self._gradient = self._numbers = torch.empty(0)
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Measured:
        if not getattr(batch, "is_static", False) or batch.hop.device.type != "cuda":
            return measure(model, batch)
        self._num_seen += 1
        if self._num_seen <= _WARM_UP_STEPS:
            return self._on_side_stream(model, batch)
        if self._graph is None and not self._gave_up:
            self._record(model, batch)
        if self._graph is None:
            return measure(model, batch)
        assert batch.hop.data_ptr() == self._batch.hop.data_ptr(), "a static batch in other memory than before"
        self._graph.replay()
        numbers = self._numbers.clone()
        num_classes = (len(numbers) - 1) // 2
        return Measured(self._gradient, numbers[0], numbers[1 : 1 + num_classes], numbers[1 + num_classes :])

    def _on_side_stream(self, model: nn.Module, batch: Any) -> Measured:
        """One ordinary step on a side stream: autograd binds to the stream that it first ran on."""
        main = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            measured = measure(model, batch)
        main.wait_stream(self._stream)
        for tensor in measured:
            tensor.record_stream(main)
        return measured

    def _record(self, model: nn.Module, batch: Any) -> None:
        """Records one step; if that fails, warns, and all steps are run in the ordinary way, which is only slower."""
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may go on using the device meanwhile: the readers of pairs, a process group's watchdog
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                measured = measure(model, batch)
                numbers: list[Tensor] = [measured.loss.reshape(1), measured.correct, measured.seen]
                self._gradient, self._numbers = measured.gradient, torch.cat(numbers)
        except RuntimeError as error:
            warnings.warn(f"steps are not recorded, and so slower: {error}", stacklevel=4)
            self._gave_up = True
            return
        self._graph, self._batch = graph, batch
