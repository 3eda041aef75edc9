"""Runs the forward so that an image's answer never depends on its neighbours, and all cores have work.

CPU libraries round differently for different batch sizes, but not for different places in a batch of one size
nor for different numbers of threads (measured: DeiT-Tiny, batch 1 against 8: 1.4e-6, places: 0). So on a CPU
every forward has the same number of images, the micro-batch, filled up with zeros, or one that was proved to give the
same bits (`batch_sizes`). Several run at once in lanes, as recorded graphs, so that they do not wait for each other's
Python. On a GPU there is one lane and the whole batch goes at once, by a captured graph where there is one.
"""

import functools
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..models.accounting import resident_bytes
from ..models.bundle.golden import check_golden, golden_images
from ..models.onnx.session import GraphSession
from .device import usable_cores

if TYPE_CHECKING:
    from ..models.serving.cuda_graph import Capture, CudaGraphForward
    from ..models.serving.torchscript import TorchScriptForward

# Below so many multiply-accumulates an image, so many images: the smaller a model, the more calls cost beside numbers.
# A ViTAE of 49 M: 1, 4, 8 take 4.7, 9.2, 16.2 ms of one thread (`lanes.json`). 4 gain most of what 8 do, and a lone
# image waits half as long.
MICRO_BATCHES = ((10_000_000, 8), (100_000_000, 4))


@dataclass(frozen=True)
class LanePlan:
    """How batches are cut.

    Args:
        micro_batch: images of one forward; 0 = the whole batch.
        lanes: forwards at once.
        threads: of each.
        seconds: of a forward by its number of images, where another than the micro-batch gives the same bits.
        refused: a number of images that gives other bits; 0 = none.
    """

    micro_batch: int
    lanes: int
    threads: int
    seconds: Mapping[int, float] = field(default_factory=dict, hash=False)
    refused: int = 0

    def __str__(self) -> str:
        if not self.micro_batch:
            return "whole batch"
        sizes = " or ".join(map(str, sorted(self.seconds or [self.micro_batch])))
        refused = f" (not {self.refused}: other bits)" if self.refused else ""
        return f"{self.lanes} lanes x {self.threads} threads x micro-batch {sizes}{refused}"

    @functools.lru_cache(maxsize=256)  # noqa: B019 (a few plans live as long as the process)
    def cut(self, count: int) -> tuple[int, ...]:
        """Cut a batch into forwards so that the last lane ends as early as possible, by as little work as that takes.

        Args:
            count: images, at least 1.

        Returns:
            The sizes of the forwards, largest first; the last one is filled up where they hold more than the batch.
        """
        if len(self.seconds) < 2:
            return (self.micro_batch,) * math.ceil(count / self.micro_batch)
        return min(_cuts(count, sorted(self.seconds, reverse=True)), key=self._cost)

    def _cost(self, sizes: Sequence[int]) -> tuple[float, float]:
        """When the last lane ends, where each takes the next forward when it is free; and the work of all."""
        ends = [0.0] * self.lanes
        for size in sizes:
            heapq.heapreplace(ends, ends[0] + self.seconds[size])
        return round(max(ends), 9), round(sum(self.seconds[size] for size in sizes), 9)


def _cuts(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to compute so many images in forwards of these sizes, those with most of the first size first."""
    first, *rest = sizes
    most = math.ceil(count / first)
    for times in range(most, -1, -1) if rest else [most]:
        left = count - times * first
        for tail in _cuts(left, rest) if left > 0 else [()]:
            yield (first,) * times + tail


def plan_lanes(
    device: torch.device, macs: int, *, micro_batch: int = 0, lanes: int = 0, threads: int = 0, cores: int = 0
) -> LanePlan:
    """The plan for a model on a device. The micro-batch follows from the model alone: it decides last bits.

    Args:
        macs: multiply-accumulates of one image.
        micro_batch, lanes, threads: values that the user chose; 0 = choose.
        cores: that may be used; 0 = all.
    """
    if device.type != "cpu":
        return LanePlan(0, 1, 0)
    cores = cores or usable_cores()
    threads = threads or (max(1, cores // lanes) if lanes else max(1, cores // 4))
    lanes = lanes or max(1, cores // threads)
    micro_batch = micro_batch or next((images for below, images in MICRO_BATCHES if macs < below), 1)
    return LanePlan(micro_batch, lanes, threads)


@dataclass(frozen=True)
class ForwardResult:
    """What one call of `Forward.run` gives.

    Args:
        probabilities: (n, num_classes), float32 on the device.
        padding: places of the forward that were filled up with zeros.
        cpu_seconds: CPU time of all lanes.
    """

    probabilities: Tensor
    padding: int
    cpu_seconds: float


class Forward:
    """A model on its device, ready to run: its graphs are captured or recorded here, so that serving never pays for it.

    It is called by one thread at a time.

    Args:
        model: takes normalised images, of `dtype` unless it is a session on a graph, and returns logits.
        plan: how batches are cut.
        size: side of the model's input, px.
        graph_batch_sizes: batch sizes to capture CUDA graphs for; none on a CPU.
        cpu_graphs: record the forward as a TorchScript graph where it runs in micro-batches.
        weight_bytes: what the weights take in memory, where the model's tensors do not tell.
        capture: makes a CUDA graph; tests bring their own.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: LanePlan,
        *,
        device: torch.device,
        dtype: torch.dtype,
        size: int,
        graph_batch_sizes: Sequence[int] = (),
        cpu_graphs: bool = False,
        weight_bytes: int | None = None,
        capture: "Capture | None" = None,
    ) -> None:
        self.plan, self.device, self.dtype, self.size = plan, device, dtype, size
        self.resident_bytes = resident_bytes(model) if weight_bytes is None else weight_bytes
        self.warm_seconds: dict[int, float] = {}
        """Time of a forward by its number of images, as `warm_up` measured it."""
        self.cuda_graphs: CudaGraphForward | None = None
        self.traced: TorchScriptForward | None = None
        graph = isinstance(model, GraphSession)
        self._input_dtype = torch.float32 if graph else dtype
        # Where a lane waits for a runtime's own threads, its wall time has to stand for their CPU time.
        self._clock = time.perf_counter if graph and model.computes_elsewhere else time.thread_time
        self._probabilities = _Probabilities(model.to(device))
        self._compute: Callable[[Tensor], Tensor] = self._probabilities
        # The calling thread is a lane itself: a single image changes no thread.
        self._helpers = ThreadPoolExecutor(max(1, plan.lanes - 1), thread_name_prefix="milkweed-lane")
        if graph_batch_sizes:
            self.cuda_graphs = self._captured(graph_batch_sizes, capture)
        elif cpu_graphs and plan.micro_batch:
            self.traced = self._compute = self._traced()

    @property
    def graph(self) -> "CudaGraphForward | TorchScriptForward | None":
        """What the forward was captured or recorded as; None where it runs as it is."""
        return self.traced if self.cuda_graphs is None else self.cuda_graphs

    def blank(self, count: int) -> Tensor:
        """A batch of `count` images of zeros."""
        return torch.zeros(count, 3, self.size, self.size)

    def warm_up(self, batch_sizes: Iterable[int]) -> None:
        """Run blank batches of these sizes, and of those that are captured, and note how long each takes."""
        for count in sorted({*batch_sizes, *(self.cuda_graphs.batch_sizes if self.cuda_graphs is not None else ())}):
            blank = self.blank(count)
            self.run(blank)
            started = time.perf_counter()
            self.run(blank)
            self.warm_seconds[count] = time.perf_counter() - started

    def run(self, pixels: Tensor) -> ForwardResult:
        """Probabilities of normalised float32 images (n, 3, S, S), n >= 1."""
        if not self.plan.micro_batch:
            return self._run_whole(pixels)
        sizes = self.plan.cut(len(pixels))
        chunks = pixels.split([*sizes[:-1], len(pixels) - sum(sizes[:-1])])
        results: list[Tensor | None] = [None] * len(chunks)
        turns = iter(range(len(chunks)))  # shared: a lane takes the next chunk when it is free
        helpers = [
            self._helpers.submit(self._run_lane, chunks, sizes, results, turns)
            for _ in range(min(self.plan.lanes, len(chunks)) - 1)
        ]
        try:
            cpu_seconds = self._run_lane(chunks, sizes, results, turns)
        finally:
            wait(helpers)
        cpu_seconds += sum(helper.result() for helper in helpers)
        parts = [part for part in results if part is not None]
        probabilities = parts[0] if len(parts) == 1 else torch.cat(parts)
        return ForwardResult(probabilities, sum(sizes) - len(pixels), cpu_seconds)

    def check_golden(self, record: Mapping[str, Any], bound: torch.dtype | None = None) -> None:
        """Compare the answers with those that a bundle recorded for its golden images; raises BundleError.

        Args:
            bound: the number type whose tolerance holds, where it is not the forward's: int8 for a quantised graph.
        """
        if record:
            check_golden(record, self.run(golden_images(self.size)).probabilities.float().cpu(), bound or self.dtype)

    def close(self) -> None:
        """End the helper threads."""
        self._helpers.shutdown(wait=True)

    def _captured(self, batch_sizes: Sequence[int], capture: "Capture | None") -> "CudaGraphForward":
        # Imported here: a machine without a GPU pays for none of it, not even in memory.
        from ..models.serving.cuda_graph import CudaGraphForward

        shape = (3, self.size, self.size)
        return CudaGraphForward(
            self._on_device, device=self.device, image_shape=shape, batch_sizes=batch_sizes, capture=capture
        )

    def _traced(self) -> "TorchScriptForward":
        from ..models.serving.torchscript import TorchScriptForward

        return TorchScriptForward(self._probabilities, (self.plan.micro_batch, 3, self.size, self.size), self.dtype)

    def _on_device(self, images: Tensor) -> Tensor:
        """Normalised float32 images (n, 3, S, S) on the device -> (n, num_classes), float32."""
        return cast(Tensor, self._probabilities(images.to(self.dtype)))

    def _run_whole(self, pixels: Tensor) -> ForwardResult:
        started = time.thread_time()
        with torch.inference_mode():
            if self.cuda_graphs is not None:
                probabilities, padding = self.cuda_graphs(pixels), self.cuda_graphs.padding(len(pixels))
            else:
                probabilities, padding = self._on_device(pixels.to(self.device, non_blocking=True)), 0
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # so that the stage's time is the work's, not the launch's
        return ForwardResult(probabilities, padding, time.thread_time() - started)

    def _run_lane(
        self, chunks: Sequence[Tensor], sizes: Sequence[int], results: list[Tensor | None], turns: Iterator[int]
    ) -> float:
        """Be one lane: run chunks until none is left; the CPU seconds this thread used."""
        started = self._clock()
        if torch.get_num_threads() != self.plan.threads:
            torch.set_num_threads(self.plan.threads)  # a property of the calling thread
        with torch.inference_mode():
            for turn in turns:
                chunk = chunks[turn]
                images = _filled_up(chunk, sizes[turn]).to(self._input_dtype)
                results[turn] = self._compute(images)[: len(chunk)]
        return self._clock() - started


class _Probabilities(nn.Module):
    """Images of the model's type to probabilities in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.model(images)).float().softmax(-1)


def _filled_up(chunk: Tensor, size: int) -> Tensor:
    """The chunk with zero images added up to `size`."""
    missing = size - len(chunk)
    if not missing:
        return chunk
    return torch.cat([chunk, chunk.new_zeros((missing, *chunk.shape[1:]))])


def batches(count: int, size: int) -> Iterator[range]:
    """Cut `count` places into ranges of at most `size`."""
    for start in itertools.count(0, size):
        if start >= count:
            return
        yield range(start, min(start + size, count))
