"""From encoded bytes to classes: load, forward, top-k. Server, `evaluate` and `classify` share it."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..loaders.base import Loader, LoadResult
from ..loaders.errors import InputError
from ..loaders.guard import DEFAULT_LIMITS, Limits
from ..loaders.info import ImageInfo
from ..loaders.select import create_loader
from ..loaders.spec import PreprocessSpec
from ..models.accounting import dense_equivalent_bytes, macs, resident_bytes
from ..models.config import BundleConfig
from ..models.fused.report import FusionReport
from .device import resolve_device, resolve_dtype, usable_cores, use_device
from .errors import ServiceError, internal_error
from .forward import GPU_BATCH_SIZE, ForwardOptions, serving_form
from .lanes import LanePlan, Lanes, batches, plan_lanes

if TYPE_CHECKING:
    from ..models.graphs import GraphedForward

logger = logging.getLogger("milkweed.pipeline")

# Images decoded and held at once by `classify`; the engine brings batches of its own size.
CLASSIFY_BATCH = 32

DEFAULT_FORWARD = ForwardOptions()


@dataclass(frozen=True, slots=True)
class Predictions:
    """The best classes of one image, best first: indices and softmax probabilities (float32 values)."""

    index: tuple[int, ...]
    score: tuple[float, ...]


Outcome = Predictions | InputError | ServiceError


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch: an outcome an item, same order; when each stage ended; what it cost.

    `started`, `decoded`, `forwarded`, `finished` are perf_counter seconds; `cpu_seconds` is by stage.
    """

    outcomes: list[Outcome]
    started: float
    decoded: float
    forwarded: float
    finished: float
    cpu_seconds: dict[str, float]
    padding: int


class Pipeline:
    """A loader and a model, joined. Called by one thread at a time, which then owns the device.

    Args:
        model: takes normalised images of `dtype`, returns logits.
        num_classes: of the model.
        size: side of the model's input, px.
        loader: bytes to pixels.
        plan: how batches are cut.
        dense_bytes: what the parameters would take with every layer dense, in `dtype`.
        fusion: what became of the model where it was fused.
        graph_batch_sizes: batch buckets that `warm_up` captures the forward for; none on a CPU.
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
        self._graph_batch_sizes = tuple(graph_batch_sizes)
        self._size = size
        self._lanes = Lanes(model, plan, device=device, dtype=dtype)

    @property
    def default_batch_size(self) -> int:
        """Images of a batch that keep the device busy; more only adds waiting."""
        if self.device.type != "cpu":
            return GPU_BATCH_SIZE
        return max(8, self.plan.lanes * self.plan.micro_batch)

    def warm_up(self, batch_sizes: Sequence[int] = (1,)) -> None:
        """Capture the forward where that is wanted, and run it on blank images: no request pays for first calls."""
        if self._graph_batch_sizes and self.graphs is None:
            self.graphs = self._lanes.capture(self._size, self._graph_batch_sizes)
        for count in sorted(set(batch_sizes)):
            self._lanes.run(torch.zeros(count, 3, self._size, self._size))

    def classify(self, images: Sequence[bytes], top_k: int = 5) -> list[Outcome]:
        """Predictions or an error for each image, in order.

        Args:
            images: encoded.
            top_k: classes an answer; 1..num_classes.
        """
        if not 1 <= top_k <= self.num_classes:
            raise ValueError(f"top_k is {top_k}: expected 1..{self.num_classes}")
        outcomes: list[Outcome] = []
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
        started = time.perf_counter()
        outcomes, loaded = self._load(images, infos)
        decoded = time.perf_counter()
        padding, cpu_forward = 0, 0.0
        forwarded = decoded
        cpu_postprocess = time.thread_time()
        if loaded.ok:
            forward = self._lanes.run(loaded.pixels)
            padding, cpu_forward = forward.padding, forward.cpu_seconds
            forwarded, cpu_postprocess = time.perf_counter(), time.thread_time()
            answers = self._answers(forward.probabilities, [top_k[place] for place in loaded.ok])
            for place, answer in zip(loaded.ok, answers, strict=True):
                outcomes[place] = answer
        cpu_seconds = {
            "decode": sum(loaded.cpu_seconds.values()),
            "forward": cpu_forward,
            "postprocess": time.thread_time() - cpu_postprocess,
        }
        done = [internal_error() if outcome is None else outcome for outcome in outcomes]
        return BatchResult(done, started, decoded, forwarded, time.perf_counter(), cpu_seconds, padding)

    def close(self) -> None:
        """End the pipeline's threads."""
        self._lanes.close()
        self.loader.close()

    def _load(
        self, images: Sequence[bytes], infos: Sequence[ImageInfo | None]
    ) -> tuple[list[Outcome | None], LoadResult]:
        """Pixels of the images that decode, and the errors of the others in their places."""
        try:
            loaded = self.loader.load(images, infos)
        except Exception:
            logger.exception("loader %s failed on a batch of %d: one by one", self.loader.name, len(images))
            loaded = self._load_one_by_one(images, infos)
        outcomes: list[Outcome | None] = [None] * len(images)
        for place, error in loaded.errors.items():
            outcomes[place] = error
        return outcomes, loaded

    def _load_one_by_one(self, images: Sequence[bytes], infos: Sequence[ImageInfo | None]) -> LoadResult:
        """A loader that raises must not take neighbours with it: only images that raise have no result."""
        pixels: list[Tensor] = []
        ok: list[int] = []
        errors: dict[int, InputError] = {}
        for place, (image, info) in enumerate(zip(images, infos, strict=True)):
            try:
                one = self.loader.load([image], [info])
            except Exception:
                logger.exception("loader %s failed on an image of %d bytes", self.loader.name, len(image))
                continue
            if one.ok:
                pixels.append(one.pixels)
                ok.append(place)
            else:
                errors[place] = one.errors[0]
        stacked = torch.cat(pixels) if pixels else torch.empty(0, 3, self._size, self._size)
        return LoadResult(pixels=stacked, ok=ok, errors=errors)

    def _answers(self, probabilities: Tensor, top_k: list[int]) -> list[Outcome]:
        """Each row's best classes; rows of one k together, so that ties break as they do alone."""
        answers: list[Outcome | None] = [None] * len(top_k)
        for k in set(top_k):
            rows = [row for row, wanted in enumerate(top_k) if wanted == k]
            part = probabilities if len(rows) == len(top_k) else probabilities[rows]
            scores, indices = part.topk(k)
            # One copy to the host each; numpy prints float32 in its shortest exact form.
            for row, index, score in zip(rows, indices.tolist(), scores.cpu().numpy(), strict=True):
                answers[row] = _predictions(index, score)
        return [internal_error() if answer is None else answer for answer in answers]


def _predictions(index: list[int], score: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> Outcome:
    """Predictions of a row. A score is the double that prints as the float32 does: 0.93, not 0.930000007."""
    values = tuple(float(str(value)) for value in score)
    if not math.isfinite(values[0]):
        logger.error("the model gave probabilities that are not finite numbers")
        return internal_error()
    return Predictions(tuple(index), values)


def build_pipeline(
    model: nn.Module,
    config: BundleConfig,
    *,
    device: str = "auto",
    dtype: str = "float32",
    loader: str = "auto",
    decode_threads: int = 0,
    lanes: int = 0,
    threads_per_lane: int = 0,
    micro_batch: int = 0,
    max_batch_size: int = 0,
    forward: ForwardOptions = DEFAULT_FORWARD,
    limits: Limits = DEFAULT_LIMITS,
) -> Pipeline:
    """The pipeline of a bundle as `load_bundle` gives it; arguments are the settings of the same names."""
    where = resolve_device(device)
    use_device(where)
    numbers = resolve_dtype(dtype, where)
    spec = PreprocessSpec.from_dict(config.preprocess)
    cost = macs(model, spec.size).total
    dense_bytes = dense_equivalent_bytes(model) * numbers.itemsize // torch.float32.itemsize
    form = serving_form(
        model,
        device=where,
        dtype=numbers,
        size=spec.size,
        max_batch_size=max_batch_size or GPU_BATCH_SIZE,
        options=forward,
    )
    return Pipeline(
        form.model,
        num_classes=config.num_classes,
        size=spec.size,
        loader=create_loader(
            loader,
            spec,
            limits,
            num_threads=decode_threads or usable_cores(),
            device="gpu" if where.type == "cuda" else "cpu",
        ),
        plan=plan_lanes(where, cost, micro_batch=micro_batch, lanes=lanes, threads=threads_per_lane),
        device=where,
        dtype=numbers,
        dense_bytes=dense_bytes,
        fusion=form.report,
        graph_batch_sizes=form.graph_batch_sizes,
    )


def formats_of(infos: Sequence[ImageInfo | None], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The formats of the images that were decoded, where the guard told."""
    for info, outcome in zip(infos, outcomes, strict=True):
        if info is not None and isinstance(outcome, Predictions):
            yield info.format
