"""The forward as one CUDA graph for each batch bucket, captured at load: a batch costs one launch, not hundreds.

What is captured reads and writes the same memory each time. Graphs of all buckets read the beginning of one input and
share one memory pool, since only one of them runs at a time.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.tuning.tuner import batch_buckets, bucket_of
from ..errors import first_line

__all__ = ["Capture", "Captured", "CudaCapture", "GraphedForward", "batch_buckets"]

logger = logging.getLogger("milkweed.graphs")

WARM_UPS = 3
"""Forwards before a capture: libraries choose, allocate and compile in their first calls."""

TOLERANCE = 1e-2
"""Relative error that a replay may have against the forward it was captured from; equal bits are usual."""

ForwardFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Captured:
    """A forward at one batch size: `replay` computes `result` from what lies in `images`."""

    images: Tensor
    result: Tensor
    replay: Callable[[], None]


class Capture(Protocol):
    """Captures a forward on its input; raises RuntimeError where that is not possible."""

    def __call__(self, forward: ForwardFunction, images: Tensor) -> Captured: ...


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
        # thread_local: a scrape of the metrics asks CUDA for its memory meanwhile, and must not spoil the capture.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            result = forward(images)
        return Captured(images, result, graph.replay)


class GraphedForward:
    """Runs batches of any size by replaying the nearest bucket above; larger ones in parts.

    Where a capture fails, every batch runs `forward` as it is, and `reason` says why.

    Args:
        forward: float32 images (B, C, H, W) on the device -> a row an image; touches no host memory.
        image_shape: (C, H, W).
        batch_sizes: the buckets.
        capture: makes a graph; CUDA's when None.
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
        """Images of one replay at most."""
        return self.batch_sizes[-1]

    def __call__(self, images: Tensor) -> Tensor:
        """Rows of float32 images (n, C, H, W), n >= 1, from the host or the device; on the device, the caller's own."""
        with torch.inference_mode():
            rows = [self._run(part) for part in images.split(self.largest)]
            return rows[0] if len(rows) == 1 else torch.cat(rows)

    @property
    def summary(self) -> str:
        """In a few words."""
        if self.reason is not None:
            return f"no CUDA graphs ({self.reason})"
        return f"CUDA graphs for batches of {', '.join(map(str, self.batch_sizes))}"

    def as_json(self) -> dict[str, Any]:
        """Plain data: the batch sizes that are captured, or why none is."""
        return {"batch_sizes": sorted(self._graphs), "reason": self.reason}

    def padding(self, count: int) -> int:
        """Places that are computed for nothing in a batch of `count` images."""
        if not self._graphs:
            return 0
        last = count % self.largest
        return bucket_of(last, self.batch_sizes) - last if last else 0

    def _run(self, images: Tensor) -> Tensor:
        count = len(images)
        if not self._graphs:
            # A fresh result each time, but the input's place is used again: what reads it is already in the stream.
            return self._forward(self._input.fill(images))
        graph = self._graphs[bucket_of(count, self.batch_sizes)]
        # Behind the images lie those of an earlier batch: rows do not see each other, and theirs are dropped.
        self._input.fill(images)
        graph.replay()
        return graph.result[:count].clone()

    def _capture_all(self, capture: Capture) -> None:
        """The largest bucket first: the smaller ones find room in what it leaves in the pool."""
        for size in reversed(self.batch_sizes):
            try:
                self._graphs[size] = self._checked(capture, self._input.images[:size])
            except RuntimeError as error:
                self._graphs.clear()
                self.reason = f"batch {size}: {first_line(error)}"
                logger.warning("no CUDA graphs, the forward is launched piece by piece: %s", self.reason)
                return

    def _checked(self, capture: Capture, images: Tensor) -> Captured:
        """A captured forward that gives what the forward gives, on noise.

        Raises:
            RuntimeError: it cannot be captured, or gives something else.
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
    """Where the images of a forward lie on the device, and a page-locked place on the host before it."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.images = torch.zeros(shape, device=device)
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._host = torch.empty(shape, pin_memory=True)
            self._host_is_free = torch.cuda.Event()

    def fill(self, images: Tensor) -> Tensor:
        """Copy images to the beginning; that part of the input. Returns while the copy is under way."""
        place = self.images[: len(images)]
        if not self._cuda or images.is_cuda or images.is_pinned():
            return place.copy_(images, non_blocking=True)
        self._host_is_free.synchronize()
        host = self._host[: len(images)].copy_(images)
        place.copy_(host, non_blocking=True)
        self._host_is_free.record()
        return place
