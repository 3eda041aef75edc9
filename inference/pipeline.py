"""From encoded bytes to classes: load, forward, top-k. Server, `evaluate` and `classify` share it."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..loaders.base import Loader
from ..loaders.headers.info import ImageInfo
from ..models.accounting import resident_bytes
from ..models.bundle.golden import check_golden, golden_images
from ..models.serving.fused.report import FusionReport
from ..server.errors import internal_error
from .backend import BackendChoice
from .decode_stage import DecodedBatch, DecodeStage
from .forward import Forward, LanePlan, batches
from .model_form import GPU_BATCH_SIZE
from .results import BatchResult, ForwardStats, ImageResult, Predictions

if TYPE_CHECKING:
    from ..models.serving.cuda_graph import GraphedForward
    from ..models.serving.torchscript import TracedForward

logger = logging.getLogger("milkweed.pipeline")

# Images decoded and held at once by `classify`; the engine brings batches of its own size.
CLASSIFY_BATCH = 32


class Pipeline:
    """A loader and a model, joined: `run` is `load`, then `finish`.

    `load` may run on one thread while `finish` runs on another, which owns the device; each by one thread at a time.

    Args:
        model: takes normalised images of `dtype`, returns logits.
        num_classes: of the model.
        size: side of the model's input, px.
        loader: bytes to pixels.
        plan: how batches are cut.
        dense_bytes: what the parameters would take with every layer dense, in `dtype`.
        fusion: what became of the model where it was fused.
        graph_batch_sizes: batch buckets that `warm_up` captures the forward for; none on a CPU.
        cpu_graphs: whether `warm_up` records the forward, where it runs in micro-batches.
        max_batch_size: images of one forward at most; 0 = as many as keep the device busy.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        size: int,
        loader: Loader,
        plan: LanePlan,
        device: torch.device,
        dtype: torch.dtype,
        dense_bytes: int = 0,
        fusion: FusionReport | None = None,
        graph_batch_sizes: Sequence[int] = (),
        cpu_graphs: bool = False,
        max_batch_size: int = 0,
    ) -> None:
        self.num_classes = num_classes
        self.loader = loader
        self.plan = plan
        self.device = device
        self.dtype = dtype
        self.dense_bytes = dense_bytes
        self.resident_bytes = resident_bytes(model)
        self.fusion = fusion
        self.graphs: GraphedForward | None = None
        self.traced: TracedForward | None = None
        self.engine = BackendChoice()
        self.warm_seconds: dict[int, float] = {}  # of a forward by its images, once warm
        self._graph_batch_sizes = tuple(graph_batch_sizes)
        self._cpu_graphs = cpu_graphs and bool(plan.micro_batch)
        self._size, self._max_batch_size = size, max_batch_size
        self._load_stage = DecodeStage(loader, device, size)
        self.lanes = Forward(model, plan, device=device, dtype=dtype)

    @property
    def graph(self) -> "GraphedForward | TracedForward | None":
        """What the forward was captured or recorded as; None where it runs as it is."""
        return self.traced if self.graphs is None else self.graphs

    @property
    def max_batch_size(self) -> int:
        """Images of one forward at most."""
        return self._max_batch_size or self.default_batch_size

    @property
    def default_batch_size(self) -> int:
        """Images of a batch that keep the device busy; more only adds waiting."""
        if self.device.type != "cpu":
            return GPU_BATCH_SIZE
        return max(8, self.plan.lanes * self.plan.micro_batch)

    def warm_up(self, batch_sizes: Sequence[int] = (1,)) -> None:
        """Capture or record the forward where wanted, and run it on blank images: no request pays for first calls."""
        self.loader.warm_up(max(batch_sizes))
        if self._graph_batch_sizes and self.graphs is None:
            self.graphs = self.lanes.capture(self._size, self._graph_batch_sizes)
        if self._cpu_graphs and self.traced is None:
            self.traced = self.lanes.trace(self._size)
        self._time({*batch_sizes, *(self._graph_batch_sizes if self.graphs is not None else ())})

    def compute_in(self, lanes: Forward, engine: BackendChoice, weight_bytes: int) -> None:
        """Compute in other lanes from now on; the ones before are let go, and the model with them.

        Args:
            weight_bytes: that the new ones keep in memory.
        """
        self.lanes.close()
        self.lanes, self.engine, self.traced, self.resident_bytes = lanes, engine, None, weight_bytes
        self._time(set(self.warm_seconds))

    def blank(self, count: int) -> Tensor:
        """Images of zeros."""
        return torch.zeros(count, 3, self._size, self._size)

    def check_golden(self, record: Mapping[str, Any]) -> None:
        """Hold the forward, as it serves, against what the bundle remembers; raises BundleError."""
        if record:
            answers = self.lanes.run(golden_images(self._size)).probabilities.float().cpu()
            check_golden(record, answers, self.dtype)

    def classify(self, images: Sequence[bytes], top_k: int = 5) -> list[ImageResult]:
        """Predictions or an error for each image, in order.

        Args:
            images: encoded.
            top_k: classes an answer; 1..num_classes.
        """
        if not 1 <= top_k <= self.num_classes:
            raise ValueError(f"top_k is {top_k}: expected 1..{self.num_classes}")
        outcomes: list[ImageResult] = []
        for places in batches(len(images), CLASSIFY_BATCH):
            part = images[places.start : places.stop]
            outcomes += self.run(part, [None] * len(part), [top_k] * len(part)).outcomes
        return outcomes

    def run(self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], top_k: Sequence[int]) -> BatchResult:
        """One batch.

        Args:
            images: encoded.
            infos: what the header guard found, where it ran already.
            top_k: classes of each answer; 1..num_classes.

        Returns:
            An outcome for each image; one image that fails is an error in its own place.
        """
        return self.finish([self.load(images, infos)], [top_k])[0]

    def load(
        self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], sources: Sequence[str | None] | None = None
    ) -> DecodedBatch:
        """The first half of a batch: its images decoded, see `DecodeStage.run`."""
        return self._load_stage.run(images, infos, sources)

    def finish(self, batches: Sequence[DecodedBatch], top_k: Sequence[Sequence[int]]) -> list[BatchResult]:
        """The second half of one batch or several, in one forward.

        Args:
            top_k: for each batch, classes of each answer; 1..num_classes.

        Returns:
            A result for each batch, the forward's own account in the first.
        """
        launched = time.perf_counter()
        count = sum(len(batch.ok) for batch in batches)
        answers: list[ImageResult] = []
        padding, cpu_forward, forwarded = 0, 0.0, launched
        cpu_postprocess = time.thread_time()
        if count:
            forward = self.lanes.run(self._pixels(batches))
            padding, cpu_forward = forward.padding, forward.cpu_seconds
            forwarded, cpu_postprocess = time.perf_counter(), time.thread_time()
            wanted = [ks[place] for batch, ks in zip(batches, top_k, strict=True) for place in batch.ok]
            answers = self._answers(forward.probabilities, wanted)
        rest = iter(answers)
        outcomes = [_completed(batch, rest) for batch in batches]
        spent = {"forward": cpu_forward, "postprocess": time.thread_time() - cpu_postprocess}
        finished = time.perf_counter()
        account = ForwardStats(
            images=sum(len(batch.outcomes) for batch in batches),
            computed=count,
            padding=padding,
            busy_seconds=finished - launched,
        )
        return [
            BatchResult(
                outcomes=outcomes[place],
                started=batch.started,
                decoded=batch.decoded,
                launched=launched,
                forwarded=forwarded,
                finished=finished,
                cpu_seconds={"decode": batch.cpu_seconds, **({} if place else spent)},
                decoders=batch.decoders,
                forward=None if place else account,
            )
            for place, batch in enumerate(batches)
        ]

    def close(self) -> None:
        """End the pipeline's threads."""
        self.lanes.close()
        self.loader.close()

    def _time(self, batch_sizes: set[int]) -> None:
        for count in sorted(batch_sizes):
            blank = self.blank(count)
            self.lanes.run(blank)
            started = time.perf_counter()
            self.lanes.run(blank)
            self.warm_seconds[count] = time.perf_counter() - started

    def _pixels(self, batches: Sequence[DecodedBatch]) -> Tensor:
        """Those of all batches, there for what the device is asked next."""
        for batch in batches:
            if batch.ready is not None:
                torch.cuda.current_stream(self.device).wait_event(batch.ready)
        parts = [batch.pixels for batch in batches if batch.ok]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _answers(self, probabilities: Tensor, top_k: list[int]) -> list[ImageResult]:
        """Each row's best classes; rows of one k together, so that ties break as they do alone."""
        answers: list[ImageResult | None] = [None] * len(top_k)
        for k in set(top_k):
            rows = [row for row, wanted in enumerate(top_k) if wanted == k]
            part = probabilities if len(rows) == len(top_k) else probabilities[rows]
            scores, indices = part.topk(k)
            # One copy to the host each.
            for row, index, score in zip(rows, indices.tolist(), scores.cpu().numpy(), strict=True):
                answers[row] = _predictions(index, score)
        return [internal_error() if answer is None else answer for answer in answers]


def _completed(batch: DecodedBatch, answers: Iterator[ImageResult]) -> list[ImageResult]:
    """The errors of a batch, and the next answers in the places that have pixels; what has neither is our fault."""
    outcomes = list(batch.outcomes)
    for place in batch.ok:
        outcomes[place] = next(answers)
    return [internal_error() if outcome is None else outcome for outcome in outcomes]


def _predictions(index: list[int], score: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> ImageResult:
    """Predictions of a row."""
    if not math.isfinite(score[0]):
        logger.error("the model gave probabilities that are not finite numbers")
        return internal_error()
    return Predictions(tuple(index), score.tobytes())


def decoded_by(infos: Sequence[ImageInfo | None], decoders: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    """Decoder and format of the images that were decoded, where the guard told."""
    for info, decoder in zip(infos, decoders, strict=bool(decoders)):
        if info is not None and decoder is not None:
            yield "sandbox" if info.cropped else decoder, info.format
