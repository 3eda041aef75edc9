"""Runs the forward so that an image's answer never depends on its neighbours, and all cores have work.

CPU libraries round differently for different batch sizes, but not for different places in a batch of one size
nor for different numbers of threads (measured: DeiT-Tiny, batch 1 against 8: 1.4e-6, places: 0; MKL where it is
strict, see `device`). So on a CPU every forward has the same number of images, the micro-batch, filled up with
zeros, or one that was proved to give the same bits (`batch_sizes`). Several run at once in lanes. `torch_forward`
does the same with a torch module.
"""

import functools
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..loaders.thread_clock import thread_cpu_seconds
from ..loaders.thread_pool import ThreadPool
from ..models.bundle.config import OutputMeaning
from ..models.bundle.golden import check_golden, golden_images, sigmoid, softmax
from .device import CPU, Device, usable_cores
from .results import ForwardResult

if TYPE_CHECKING:
    from torch.cuda import Event

    from ..models.serving.cuda_graph import CudaGraphForward
    from ..models.serving.fused.report import FusionReport
    from ..models.serving.torchscript import TorchScriptForward

WARM_UP_SECONDS = 0.1
"""A start waits no longer for a larger batch to be measured."""

# Below so many multiply-accumulates an image, so many images: the smaller a model, the more calls cost beside numbers.
# A ViTAE of 49 M: 1, 4, 8 take 4.7, 9.2, 16.2 ms of one thread; with 4 a lone image waits half as long as with 8.
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
        most_threads: that may compute an image of our kernels together, while they have nothing else to do; 0 = all.
    """

    micro_batch: int
    lanes: int
    threads: int
    seconds: Mapping[int, float] = field(default_factory=dict, hash=False)
    refused: int = 0
    most_threads: int = 0

    def __str__(self) -> str:
        if not self.micro_batch:
            return "whole batch"
        sizes = " or ".join(map(str, sorted(self.seconds or [self.micro_batch])))
        refused = f" (not {self.refused}: other bits)" if self.refused else ""
        together = f", {self.most_threads} threads an image where idle" if self.most_threads > self.threads else ""
        return f"{self.lanes} lanes x {self.threads} threads x micro-batch {sizes}{refused}{together}"

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
    first, *smaller = sizes
    most = math.ceil(count / first)
    for times in range(most, -1, -1) if smaller else [most]:
        left = count - times * first
        for tail in _cuts(left, smaller) if left > 0 else [()]:
            yield (first,) * times + tail


def plan_lanes(
    device: Device, macs: int, *, micro_batch: int = 0, lanes: int = 0, threads: int = 0, cores: int = 0
) -> LanePlan:
    """The plan for a model on a device. The micro-batch follows from the model alone: it decides last bits.

    Args:
        macs: multiply-accumulates of one image.
        micro_batch, lanes, threads: values that the user chose; 0 = choose.
        cores: that may be used; 0 = all.
    """
    if device.type != "cpu":
        return LanePlan(0, 1, 0)
    cores, most = cores or usable_cores(), threads
    threads = threads or (max(1, cores // lanes) if lanes else max(1, cores // 4))
    lanes = lanes or max(1, cores // threads)
    micro_batch = micro_batch or next((images for below, images in MICRO_BATCHES if macs < below), 1)
    return LanePlan(micro_batch, lanes, threads, most_threads=most)


class Session(Protocol):
    """Normalised float32 images (n, 3, S, S) -> (n, embedding_width + num_classes), logits last; threads share it."""

    computes_elsewhere: bool
    """Whether threads of a runtime compute while the one that calls waits."""

    def __call__(self, images: NDArray[np.float32], /) -> NDArray[np.float32]: ...


class Forward:
    """A model on a CPU, ready to run by a runtime: arrays in and out, without torch.

    It is called by one thread at a time.

    Args:
        session: computes the logits.
        plan: how batches are cut.
        dtype: the number type that it computes in.
        size: side of the model's input, px.
        weight_bytes: what the weights take in memory.
        output_meaning: see `BundleConfig.output_meaning`.
        embedding_width: values in front of the outputs, the embedding; 0 where the session gives outputs alone.
    """

    device: Device = CPU
    cuda_graphs: "CudaGraphForward | None" = None
    traced: "TorchScriptForward | None" = None
    fusion: "FusionReport | None" = None
    computes_elsewhere = False
    takes_uint8 = False  # `Uint8Images`, which are normalised while they are read
    _helpers = ThreadPool("milkweed-lane")  # all models share them; the calling thread is a lane itself

    def __init__(
        self,
        session: Session,
        plan: LanePlan,
        *,
        dtype: str,
        size: int,
        weight_bytes: int = 0,
        output_meaning: OutputMeaning = "softmax",
        embedding_width: int = 0,
    ) -> None:
        self._session, self.computes_elsewhere = session, session.computes_elsewhere
        self._prepare(plan, dtype, size, output_meaning, embedding_width)
        self.resident_bytes = weight_bytes

    def _prepare(self, plan: LanePlan, dtype: str, size: int, output_meaning: OutputMeaning, width: int) -> None:
        self.plan, self.dtype, self.size, self.output_meaning = plan, dtype, size, output_meaning
        self.embedding_width = width
        self.warm_seconds: dict[int, float] = {}
        """Time of a forward by its number of images, as `warm_up` measured it."""

    @property
    def graph(self) -> "CudaGraphForward | TorchScriptForward | None":
        """What the forward was captured or recorded as, if it was."""
        return self.traced if self.cuda_graphs is None else self.cuda_graphs

    def blank(self, count: int) -> NDArray[np.float32]:
        """A batch of `count` images of zeros."""
        return np.zeros((count, 3, self.size, self.size), np.float32)

    def warm_up(self, batch_sizes: Iterable[int]) -> None:
        """Run blank batches of these sizes, and of those that are captured, and note how long each takes; of one that
        would take more than WARM_UP_SECONDS the time is that of the forwards that it is cut into."""
        for count in sorted({*batch_sizes, *(self.cuda_graphs.batch_sizes if self.cuda_graphs is not None else ())}):
            expected = self._expected_seconds(count)
            if 2 * expected > WARM_UP_SECONDS:
                self.warm_seconds[count] = expected
                continue
            blank = self.blank(count)
            self.run(blank)
            started = time.perf_counter()
            self.run(blank)
            self.warm_seconds[count] = time.perf_counter() - started

    def _expected_seconds(self, count: int) -> float:
        """The time of a batch by that of the smallest one; 0 where none was measured, or where all is one forward."""
        if not self.warm_seconds or not self.plan.micro_batch:
            return 0.0
        first = min(self.warm_seconds)
        turns, least = (math.ceil(len(self.plan.cut(size)) / self.plan.lanes) for size in (count, first))
        return self.warm_seconds[first] * turns / least

    def run(self, pixels: Any) -> ForwardResult:
        """Probabilities of normalised float32 images (n, 3, S, S), n >= 1."""
        result = self._run(pixels)
        if self.output_meaning == "softmax":
            return result
        outputs = self.on_host(result.probabilities)
        if self.output_meaning == "sigmoid":
            return replace(result, probabilities=sigmoid(outputs))
        pooled = result.embeddings if self.output_meaning == "pooled" and self.embedding_width else outputs
        return replace(result, probabilities=softmax(outputs), embeddings=pooled)

    def _run(self, pixels: Any) -> ForwardResult:
        """What `run` returns, but with logits but for "softmax": golden records hold the softmax of those."""
        return self._run_in_lanes(np.asarray(pixels))

    def _run_in_lanes(self, pixels: Any) -> ForwardResult:
        sizes = self.plan.cut(len(pixels))
        starts = list(itertools.accumulate(sizes, initial=0))
        chunks = [pixels[start:end] for start, end in itertools.pairwise(starts)]
        results: list[Any] = [None] * len(chunks)
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
        return self._result(self.joined(results), sum(sizes) - len(pixels), cpu_seconds)

    def _result(self, outputs: Any, padding: int, cpu_seconds: float) -> ForwardResult:
        width = self.embedding_width
        return ForwardResult(outputs[:, width:], padding, cpu_seconds, outputs[:, :width])

    def joined(self, parts: Sequence[Any], ready: Iterable["Event"] = ()) -> Any:
        """One batch of several, or the probabilities of one.

        Args:
            ready: when pixels on a GPU are there.
        """
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def best(self, probabilities: Any, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k best classes of each row and their probabilities, best first."""
        # The bits of floats that are not negative are ordered as these. With its class behind it each is one integer to
        # sort, and of equal ones the first class comes first, without a stable sort, which is slow on all classes.
        keys = (0x7FFFFFFF - probabilities.view(np.int32)).astype(np.int64) << 32 | np.arange(probabilities.shape[1])
        keys = np.sort(np.partition(keys, k - 1, 1)[:, :k])
        classes = keys & 0xFFFFFFFF
        return classes, np.take_along_axis(probabilities, classes, 1)

    def check_golden(
        self,
        record: Mapping[str, Any],
        bound: str | None = None,
        check: Callable[[Mapping[str, Any], NDArray[np.float32], str], None] = check_golden,
    ) -> None:
        """Compare the softmax of the logits with what a bundle recorded for its golden images; raises BundleError.

        Args:
            bound: the number type whose tolerance holds, where it is not the forward's: int8 for a quantised graph.
            check: what compares them.
        """
        if record:
            answers = self.on_host(self._run(golden_images(self.size)).probabilities)
            check(record, answers if self.output_meaning == "softmax" else softmax(answers), bound or self.dtype)

    def close(self) -> None:
        """Let go of what a collector alone would free: here nothing."""

    def on_host(self, values: Any) -> NDArray[np.float32]:
        """Probabilities or embeddings as an array."""
        return cast("NDArray[np.float32]", values)

    def _run_lane(self, chunks: Sequence[Any], sizes: Sequence[int], results: list[Any], turns: Iterator[int]) -> float:
        """Be one lane: run chunks until none is left; the CPU seconds this thread used."""
        started, width = thread_cpu_seconds(), self.embedding_width
        for turn in turns:
            images, missing = chunks[turn], sizes[turn] - len(chunks[turn])
            if missing:
                images = np.concatenate([images, np.zeros((missing, *images.shape[1:]), np.float32)])
            lanes = self.plan.lanes
            outputs = self._outputs(images, min(lanes, len(chunks) - (turn if turn >= lanes else 0)))
            outputs = outputs[: len(chunks[turn])]
            scores = softmax(outputs[:, width:]) if self.output_meaning == "softmax" else outputs[:, width:]
            results[turn] = np.concatenate([outputs[:, :width], scores], 1) if width else scores
        return thread_cpu_seconds() - started

    def _outputs(self, images: Any, at_once: int) -> Any:
        """What the session gives while so many forwards of the batch run."""
        return self._session(images)
