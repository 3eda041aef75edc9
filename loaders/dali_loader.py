"""The DALI loader: JPEGs in batches through one graph, everything else beside them through the fast CPU loader.

DALI loses a whole batch, and the pipeline with it, to one body it cannot decode. So only bodies whose header, size
and end were looked at go there, and where a batch fails all the same, the graph is built anew and the fast loader
answers the batch: the right pixels for its good bodies and the usual error for the bad one.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .base import LoadResult
from .batch import Stopwatch
from .cpu_loader import CpuLoader
from .dali_graph import DaliError, DaliGraph, Region, Resample
from .errors import InputError
from .guard import DEFAULT_LIMITS, ImageInfo, Limits, inspect
from .headers.jpeg import has_whole_scan
from .orientation import TURNS, stored_geometry, upright_levels
from .spec import PreprocessSpec, geometry

logger = logging.getLogger("milkweed.loaders.dali")

MAX_BATCH = 64
MAX_BATCH_PIXELS = 128_000_000
"""Source pixels of one run: 384 MB of levels."""


@dataclass
class DaliCounts:
    """What went where, in images, and how often the graph was built anew."""

    dali: int = 0
    cpu: int = 0
    retried: int = 0
    rebuilds: int = 0


@dataclass(frozen=True)
class _Slot:
    """An image of a request that DALI is to decode."""

    index: int
    body: bytes
    info: ImageInfo
    region: Region
    orientation: int


class DaliLoader:
    """See the module. `load` may be called from several threads: they take turns on the graph.

    Args:
        num_threads: of DALI's pool, and as many of the fast loader's.
        device: where DALI decodes and where the pixels are.
        max_batch, max_batch_pixels: of one run of the graph.
        hw_decoder_load, resample: as `DaliGraph`.

    Raises:
        LoaderError: DALI is not installed, or cannot build the graph here.
    """

    name = "dali"

    def __init__(
        self,
        spec: PreprocessSpec,
        limits: Limits = DEFAULT_LIMITS,
        num_threads: int = 1,
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        max_batch: int = MAX_BATCH,
        max_batch_pixels: int = MAX_BATCH_PIXELS,
        hw_decoder_load: float = 0.0,
        resample: Resample = "exact",
    ) -> None:
        self.spec, self.limits, self.counts = spec, limits, DaliCounts()
        self._max_batch, self._max_pixels = max_batch, max_batch_pixels
        self._graph = DaliGraph(
            spec,
            batch_size=max_batch,
            num_threads=num_threads,
            device=device,
            hw_decoder_load=hw_decoder_load,
            resample=resample,
        )
        self._lock = threading.Lock()
        self._cpu = CpuLoader(spec, limits, num_threads)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="milkweed-beside-dali")
        self.description = (
            f"dali: one-scan JPEGs on the {device}, {resample} resize, {num_threads} threads; others: "
            f"{self._cpu.description}"
        )

    def load(self, items: Sequence[bytes], infos: Sequence[ImageInfo | None] | None = None) -> LoadResult:
        """See `Loader.load`; pixels are on the graph's device."""
        infos = [None] * len(items) if infos is None else infos
        if len(infos) != len(items):
            raise ValueError(f"{len(infos)} infos for {len(items)} items: expected one each")
        watch, errors, slots, others = Stopwatch(), {}, [], []
        known: dict[int, ImageInfo] = {}
        for index, (body, info) in enumerate(zip(items, infos, strict=True)):
            try:
                with watch.stage("inspect"):
                    known[index] = inspect(body, self.limits) if info is None else info
                    slot = self._slot(index, body, known[index])
            except InputError as error:
                errors[index] = error
                continue
            if slot is None:
                others.append(index)
            else:
                slots.append(slot)
        beside = self._submit(items, known, others)
        rows, failed = self._through_dali(slots, watch)
        retried = self._submit(items, known, failed)
        self._count(len(rows), len(others), len(failed))
        for indexes, future in ((others, beside), (failed, retried)):
            if future is not None:
                _merge(indexes, future.result(), rows, errors, watch)
        return self._gathered(len(items), rows, errors, watch)

    def close(self) -> None:
        """Give threads back."""
        self._beside.shutdown()
        self._cpu.close()

    def _slot(self, index: int, body: bytes, info: ImageInfo) -> _Slot | None:
        """The image as DALI is to see it; None where the fast loader does it better or alone can."""
        if info.format != "JPEG" or not info.turbo or info.progressive or not has_whole_scan(body):
            return None
        orientation = info.orientation if self.spec.orientation == "apply" else 1
        turned = orientation >= 5
        upright = geometry(self.spec, *((info.height, info.width) if turned else (info.width, info.height)))
        if upright.left < 0 or upright.top < 0:  # padded with black, which a region cannot say
            return None
        region = Region.of(stored_geometry(upright, orientation), info.width, info.height, TURNS[orientation].transpose)
        return _Slot(index, body, info, region, orientation)

    def _submit(
        self, items: Sequence[bytes], known: dict[int, ImageInfo], indexes: list[int]
    ) -> "Future[LoadResult] | None":
        if not indexes:
            return None
        return self._beside.submit(self._cpu.load, [items[at] for at in indexes], [known[at] for at in indexes])

    def _through_dali(self, slots: list[_Slot], watch: Stopwatch) -> tuple[dict[int, Tensor], list[int]]:
        """Pixels by index of what DALI decoded, and the indexes of batches that failed."""
        rows: dict[int, Tensor] = {}
        failed: list[int] = []
        for batch in self._batches(slots):
            try:
                with self._lock, watch.stage("decode"):
                    pixels = self._graph.run([slot.body for slot in batch], [slot.region for slot in batch])
            except DaliError as error:
                logger.warning("a batch of %d JPEGs failed in DALI, the CPU loader answers it: %s", len(batch), error)
                failed += [slot.index for slot in batch]
                continue
            for slot, row in zip(batch, pixels, strict=True):
                rows[slot.index] = upright_levels(row.permute(1, 2, 0), slot.orientation).permute(2, 0, 1)
        return rows, failed

    def _batches(self, slots: list[_Slot]) -> Iterator[list[_Slot]]:
        """Within the limits of a run; an image larger than the limit of pixels goes alone."""
        batch: list[_Slot] = []
        pixels = 0
        for slot in slots:
            if batch and (len(batch) == self._max_batch or pixels + slot.info.pixels > self._max_pixels):
                yield batch
                batch, pixels = [], 0
            batch.append(slot)
            pixels += slot.info.pixels
        if batch:
            yield batch

    def _gathered(
        self, count: int, rows: dict[int, Tensor], errors: dict[int, InputError], watch: Stopwatch
    ) -> LoadResult:
        ok = [index for index in range(count) if index not in errors]
        device = self._graph.torch_device
        pixels = torch.empty(len(ok), 3, self.spec.size, self.spec.size, device=device)
        for place, index in enumerate(ok):
            pixels[place].copy_(rows[index])
        return LoadResult(pixels, ok, dict(sorted(errors.items())), watch.cpu_seconds)

    def _count(self, dali: int, cpu: int, retried: int) -> None:
        with self._lock:
            self.counts = DaliCounts(
                self.counts.dali + dali,
                self.counts.cpu + cpu,
                self.counts.retried + retried,
                self._graph.rebuilds,
            )


def _merge(
    indexes: list[int], found: LoadResult, rows: dict[int, Tensor], errors: dict[int, InputError], watch: Stopwatch
) -> None:
    """Put what the fast loader answered back to where it belongs."""
    rows.update({indexes[place]: row for place, row in zip(found.ok, found.pixels, strict=True)})
    errors.update({indexes[place]: error for place, error in found.errors.items()})
    for stage, spent in found.cpu_seconds.items():
        watch.cpu_seconds[stage] = watch.cpu_seconds.get(stage, 0.0) + spent
