"""Batches from page-locked host memory to a GPU, copied by a stream of their own while the GPU works on the one before.

The host runs ahead of the GPU: when it asks for batch t + 1 the GPU is still busy with batch t, and the copy needs only
the bus. Memory on the device: the batch at work and the one on its way.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from hcm_scale.sampling.batches import MiniBatch


def to_gpu(batches: Iterable[MiniBatch], device: torch.device | str) -> Iterator[MiniBatch]:
    """The same batches on `device`; they should be pinned, or copies wait for the host."""
    side = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(side):
            sent = batch.to(device, non_blocking=True)
        main = torch.cuda.current_stream(device)
        main.wait_stream(side)

        def keep(tensor: Tensor, main: torch.cuda.Stream = main) -> Tensor:
            tensor.record_stream(main)  # its memory belongs to the side stream, which must not reuse it too early
            return tensor

        yield sent.map(keep)
