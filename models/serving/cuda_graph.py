"""Runs the forward as a CUDA graph for each batch bucket, captured at load: a batch is one launch, not hundreds.

A CUDA graph reads and writes the same memory each time. The graphs of all buckets read the beginning of one input and
share one memory pool, since only one of them runs at a time.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.tuning.tuner import batch_buckets as batch_buckets
from ...kernels.tuning.tuner import bucket_of
from ..errors import first_line

logger = logging.getLogger("milkweed.graphs")

WARM_UPS = 3
"""Number of forwards before a capture: libraries choose, allocate and compile in their first calls."""

TOLERANCE = 1e-2
"""Largest relative error of a replay against the forward it was captured from; usually the bits are equal."""

ForwardFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Captured:
    """A captured forward of one batch size: `replay` computes `result` from the content of `images`."""

    images: Tensor
    result: Tensor
    replay: Callable[[], None]


Capture = Callable[[ForwardFunction, Tensor], Captured]
"""Captures a forward on its input; raises RuntimeError where that is not possible."""


class CudaCapture:
    """Captures CUDA graphs that share one pool, on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: ForwardFunction, images: Tensor) -> Captured:
        self._stream.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                forward(images)
        torch.cuda.synchronize(images.device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: a metrics scrape in another thread may ask CUDA for its memory without spoiling the capture.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            result = forward(images)
        return Captured(images, result, graph.replay)


class CudaGraphForward:
    """Runs batches of any size by replaying the nearest bucket above; larger ones in parts.

    Where a capture fails, every batch runs `forward` as it is, and `reason` says why.

    Args:
        forward: float32 images (B, C, H, W) on the device -> one row an image; it must not touch host memory.
        image_shape: (C, H, W).
        batch_sizes: the batch buckets.
        capture: captures a forward; a `CudaCapture` when None.
    """

    def __init__(
        self,
        forward: ForwardFunction,
        *,
        device: torch.device,
        image_shape: tuple[int, int, int],
        batch_sizes: Iterable[int],
        capture: Capture | None = None,
    ) -> None:
        self.batch_sizes = tuple(sorted(set(batch_sizes)))
        if not self.batch_sizes or self.batch_sizes[0] < 1:
            raise ValueError(f"batch sizes {self.batch_sizes}: expected at least one, all above 0")
        self.reason: str | None = None
        self._forward = forward
        self._graphs: dict[int, Captured] = {}
        with torch.inference_mode():
            shape = (self.batch_sizes[-1], *image_shape)
            self._input = Input(shape, device)
            self._capture_all(capture or CudaCapture(device))
        if self.reason is None:
            logger.info(self.summary)

    @property
    def largest(self) -> int:
        """The most images of one replay."""
        return self.batch_sizes[-1]

    def __call__(self, images: Tensor) -> Tensor:
        """Rows (n, ...) on the device, in fresh memory, of float32 images (n, C, H, W), n >= 1, on host or device."""
        with torch.inference_mode():
            rows = [self._run(part) for part in images.split(self.largest)]
            return rows[0] if len(rows) == 1 else torch.cat(rows)

    @property
    def summary(self) -> str:
        """One line for logs and the model list."""
        if self.reason is not None:
            return f"no CUDA graphs ({self.reason})"
        return f"CUDA graphs for batches of {', '.join(map(str, self.batch_sizes))}"

    def as_json(self) -> dict[str, Any]:
        """Plain data: the captured batch sizes, or the reason why there are none."""
        return {"batch_sizes": sorted(self._graphs), "reason": self.reason}

    def padding(self, count: int) -> int:
        """How many rows are computed for nothing in a batch of `count` images."""
        if not self._graphs:
            return 0
        last = count % self.largest
        return bucket_of(last, self.batch_sizes) - last if last else 0

    def _run(self, images: Tensor) -> Tensor:
        count = len(images)
        if not self._graphs:
            # The input is used again: what still reads it is ahead in the same stream. The result is fresh.
            return self._forward(self._input.fill(images))
        graph = self._graphs[bucket_of(count, self.batch_sizes)]
        # Behind these images lie some of an earlier batch: rows do not affect each other, and those are dropped.
        self._input.fill(images)
        graph.replay()
        return graph.result[:count].clone()

    def _capture_all(self, capture: Capture) -> None:
        """Capture the largest bucket first: the smaller ones find room in what it leaves in the pool."""
        for size in reversed(self.batch_sizes):
            try:
                self._graphs[size] = self._checked(capture, self._input.images[:size])
            except RuntimeError as error:
                self._graphs.clear()
                self.reason = f"batch {size}: {first_line(error)}"
                logger.warning("no CUDA graphs, the forward is launched piece by piece: %s", self.reason)
                return

    def _checked(self, capture: Capture, images: Tensor) -> Captured:
        """Capture the forward, and compare a replay with it on noise.

        Raises:
            RuntimeError: it cannot be captured, or the replay gives something else.
        """
        captured = capture(self._forward, images)
        images.normal_()
        want = self._forward(images)
        captured.replay()
        error = (captured.result.double() - want.double()).norm() / want.double().norm()
        images.zero_()
        if not float(error) <= TOLERANCE:
            raise RuntimeError(f"the replay is off by {float(error):.1e}")
        return captured


class Input:
    """The input of a forward on the device, filled through page-locked memory on the host."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.images = torch.zeros(shape, device=device)
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._host = torch.empty(shape, pin_memory=True)
            self._host_is_free = torch.cuda.Event()

    def fill(self, images: Tensor) -> Tensor:
        """Copy images to the beginning of the input and return that part, while the copy may still be under way."""
        place = self.images[: len(images)]
        if not self._cuda or images.is_cuda or images.is_pinned():
            return place.copy_(images, non_blocking=True)
        self._host_is_free.synchronize()
        host = self._host[: len(images)].copy_(images)
        place.copy_(host, non_blocking=True)
        self._host_is_free.record()
        return place
