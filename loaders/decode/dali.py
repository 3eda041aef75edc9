"""The DALI loader: JPEGs in batches through one graph, everything else beside them through the fast CPU loader.

DALI loses a whole batch, and the pipeline with it, to one body it cannot decode. So only bodies whose header, size
and end were looked at go there. Where a batch fails all the same, the graph is built anew, the fast loader, which is
strict and tells each body's error, finds the bad ones, and the others go through the graph again: their pixels are
those of a batch without the bad ones, to the bit. Whoever keeps sending such bodies is decoded by the fast loader.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

import torch
from PIL import Image

from ..base import LoaderHealth, LoadResult
from ..errors import InputError
from ..headers.validate import DEFAULT_LIMITS, ImageInfo, Limits, validate
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .batch import Stopwatch
from .cpu import CpuLoader
from .dali_graph import LARGE_PIXELS, DaliError, DaliGraph, Resample
from .dali_route import Slot, batches_of, slot_of, worth_it
from .dali_rows import Rows
from .quarantine import Quarantine
from .turbo import check_jpeg

logger = logging.getLogger("milkweed.loaders.dali")

MAX_BATCH = 64
MAX_BATCH_PIXELS = 128_000_000
"""Source pixels of one run: 384 MB of levels."""

MOST_FAILED_BUILDS = 2
"""In a row: after these, only a restart of the process can help."""


@dataclass
class DaliCounts:
    """What went where, in images."""

    dali: int = 0
    cpu: int = 0
    retried: int = 0
    suspect: int = 0


class DaliLoader:
    """See the module. `load` may be called from several threads: they take turns on the graph.

    Args:
        num_threads: of DALI's pool, and as many of the fast loader's.
        device: where DALI decodes and where the pixels are.
        max_batch, max_batch_pixels: of one run of the graph.
        min_pixels: smaller images are the fast loader's, unless a batch has at least `min_batch` for DALI.
        strict: read each JPEG's coded data on the CPU first and refuse damaged ones, as the other loaders do. It costs
            half of a decode; without it, DALI answers some damaged pictures with what it made of them.
        sandbox: the one that the fast loader uses; with None it makes its own.
        hw_decoder_load, resample, dtype, channels_last, device_id: as `DaliGraph`.

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
        device_id: int = 0,
        max_batch: int = MAX_BATCH,
        max_batch_pixels: int = MAX_BATCH_PIXELS,
        min_pixels: int = 0,
        min_batch: int = 1,
        strict: bool = True,
        hw_decoder_load: float = 0.0,
        resample: Resample = "exact",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.spec, self.limits, self.counts = spec, limits, DaliCounts()
        self._max_batch, self._max_pixels = max_batch, max_batch_pixels
        self._min_pixels, self._min_batch = min_pixels, min_batch
        self._strict = strict
        self._graph = DaliGraph(
            spec,
            batch_size=max_batch,
            num_threads=num_threads,
            device=device,
            device_id=device_id,
            hw_decoder_load=hw_decoder_load,
            resample=resample,
            dtype=dtype,
            channels_last=channels_last,
        )
        self._suspects = Quarantine()
        self._lock = threading.Lock()
        self._cpu = CpuLoader(spec, limits, num_threads, pin_memory=device == "gpu", sandbox=sandbox)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="milkweed-beside-dali")
        engine = f", hardware share {hw_decoder_load:g}" if device == "gpu" else ""
        self.description = (
            f"dali: one-scan JPEGs on the {device}{engine}, {resample} resize, {'strict' if strict else 'lenient'}, "
            f"{num_threads} threads; others: "
            f"{self._cpu.description}"
        )

    @property
    def health(self) -> LoaderHealth:
        """See `Loader.health`."""
        counts, graph = self.counts, self._graph
        trouble = graph.trouble if graph.failed_builds >= MOST_FAILED_BUILDS else None
        return LoaderHealth(graph.rebuilds, counts.retried, counts.suspect, len(self._suspects), trouble)

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """See `Loader.load`; pixels are of the graph's dtype and on its device."""
        infos = [None] * len(items) if infos is None else infos
        sources = [None] * len(items) if sources is None else sources
        if not len(infos) == len(sources) == len(items):
            raise ValueError(f"{len(infos)} infos, {len(sources)} sources for {len(items)} items: expected one each")
        rows, watch = Rows(), Stopwatch()
        known, slots, others = self._sorted(items, infos, rows, watch)
        eligible = [slot.index for slot in slots]
        slots, set_aside = self._set_aside(slots, sources)
        others = sorted(others + set_aside)
        beside = self._submit(items, known, others)
        failed = self._through_dali(self._checked(slots, rows, watch), rows, watch)
        self._recover(items, known, failed, rows, watch)
        if beside is not None:
            rows.add_loaded(others, beside.result(), watch)
        for index in eligible:
            self._suspects.saw(sources[index], failures=int(index in rows.errors))
        with self._lock:
            self.counts.cpu += len(others)
        return rows.gathered(len(items), self.spec.size, self._graph, watch)

    def warm_up(self, batch_size: int) -> None:
        """Decode made pictures: a full batch of small ones and one large one, so that buffers have their size."""
        small, large = _made_jpeg(500, 375), _made_jpeg(4000, LARGE_PIXELS // 4000)
        for bodies in ([small] * min(batch_size, self._max_batch), [large]):
            self.load(bodies)
        self.counts = DaliCounts()

    def close(self) -> None:
        """Give threads and memory back."""
        self._beside.shutdown()
        self._cpu.close()
        with self._lock:
            self._graph.close()

    def _sorted(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None],
        rows: Rows,
        watch: Stopwatch,
    ) -> tuple[dict[int, ImageInfo], list[Slot], list[int]]:
        """The headers by index; what DALI can take; the indexes of what it cannot. Refusals go to `rows`."""
        known: dict[int, ImageInfo] = {}
        slots: list[Slot] = []
        others: list[int] = []
        for index, (body, info) in enumerate(zip(items, infos, strict=True)):
            try:
                with watch.stage("inspect"):
                    known[index] = validate(body, self.limits) if info is None else info
                    slot = slot_of(self.spec, index, body, known[index])
            except InputError as error:
                rows.errors[index] = error
                continue
            if slot is None:
                others.append(index)
            else:
                slots.append(slot)
        return known, slots, others

    def _set_aside(self, slots: list[Slot], sources: Sequence[str | None]) -> tuple[list[Slot], list[int]]:
        """What DALI gets, and the indexes of what it could take and does not: of suspects, or too small."""
        trusted = [slot for slot in slots if not self._suspects.holds(sources[slot.index])]
        with self._lock:
            self.counts.suspect += len(slots) - len(trusted)
        kept = worth_it(trusted, self._min_pixels, self._min_batch)
        taken = {slot.index for slot in kept}
        return kept, [slot.index for slot in slots if slot.index not in taken]

    def _submit(
        self, items: Sequence[bytes], known: dict[int, ImageInfo], indexes: list[int]
    ) -> "Future[LoadResult] | None":
        if not indexes:
            return None
        return self._beside.submit(self._cpu.load, [items[at] for at in indexes], [known[at] for at in indexes])

    def _checked(self, slots: list[Slot], rows: Rows, watch: Stopwatch) -> list[Slot]:
        """Those whose coded data is whole; the errors of the others go to `rows`."""
        if not self._strict:
            return slots
        found = self._cpu.spread(_damage, slots)
        watch.add("check", sum(seconds for _, seconds in found))
        rows.errors.update(
            {slot.index: error for slot, (error, _) in zip(slots, found, strict=True) if error is not None}
        )
        return [slot for slot, (error, _) in zip(slots, found, strict=True) if error is None]

    def _through_dali(self, slots: list[Slot], rows: Rows, watch: Stopwatch) -> list[list[Slot]]:
        """Decode what DALI takes into `rows`; the batches that it lost."""
        return [
            batch
            for batch in batches_of(slots, self._max_batch, self._max_pixels)
            if not self._decoded(batch, rows, watch)
        ]

    def _decoded(self, batch: list[Slot], rows: Rows, watch: Stopwatch) -> bool:
        """Run one batch; False where it was lost."""
        try:
            with self._lock, watch.stage("decode"):
                pixels = self._graph.run([slot.body for slot in batch], [slot.region for slot in batch])
                self.counts.dali += len(batch)
        except DaliError as error:
            logger.warning("a batch of %d JPEGs was lost in DALI and is decoded again: %s", len(batch), error)
            return False
        rows.add(batch, pixels)
        return True

    def _recover(
        self,
        items: Sequence[bytes],
        known: dict[int, ImageInfo],
        failed: list[list[Slot]],
        rows: Rows,
        watch: Stopwatch,
    ) -> None:
        """Answer what was in lost batches: the bad by their errors, the good from DALI again if it takes them now."""
        for batch in failed:
            indexes = [slot.index for slot in batch]
            found = self._cpu.load([items[at] for at in indexes], [known[at] for at in indexes])
            good = [batch[place] for place in found.ok]
            with self._lock:
                self.counts.retried += len(batch)
            # where the fast loader finds nothing wrong, DALI would fail at the same body again
            if found.errors and good and self._decoded(good, rows, watch):
                found.pixels, found.ok = found.pixels[:0], []
            rows.add_loaded(indexes, found, watch)


def _damage(slot: Slot) -> tuple[InputError | None, float]:
    """What is wrong with a JPEG's coded data, and the CPU seconds that finding it took."""
    start = time.thread_time()
    error = None
    try:
        check_jpeg(slot.body, slot.info)
    except InputError as found:
        error = found
    return error, time.thread_time() - start


def _made_jpeg(width: int, height: int) -> bytes:
    body = BytesIO()
    Image.effect_noise((width // 4, height // 4), 60).resize((width, height)).convert("RGB").save(body, "JPEG")
    return body.getvalue()
