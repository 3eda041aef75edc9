"""The DALI loader: JPEGs go in batches through one graph, everything else meanwhile through the fast CPU loader.

One body that DALI cannot decode costs it the whole batch and the pipeline. So it only gets bodies whose header, size
and end were checked. If a batch fails all the same, the graph is built again, the fast loader finds the bad bodies
(it is strict and has an error for each), and the good ones go through the graph once more: their pixels have the same
bits as in a batch without the bad ones. A source that keeps sending such bodies is left to the fast loader.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Literal

from PIL import Image

from ..base import LoaderHealth, LoadResult
from ..errors import InputError, without_frames
from ..headers.info import ImageInfo
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..headers.validate import validate
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .batch import Stopwatch
from .cpu import CpuLoader
from .dali_graph import DEFAULT_DALI, LARGE_PIXELS, DaliError, DaliGraph, DaliOptions
from .dali_route import Slot, batches_of, slot_of, worth_it
from .dali_rows import DaliRows
from .quarantine import Quarantine
from .turbo import sound_jpeg

logger = logging.getLogger("milkweed.loaders.dali")

MOST_FAILED_BUILDS = 2
"""After so many failed builds in a row, only a restart of the process can help."""


@dataclass
class DaliCounts:
    """How many images each path has decoded."""

    dali: int = 0
    cpu: int = 0
    retried: int = 0
    quarantined: int = 0


class DaliLoader:
    """Decodes with DALI, and what DALI does not take with a `CpuLoader`. Several threads may call `load`, in turns.

    Args:
        num_threads: threads of DALI's pool; the fast loader has as many of its own.
        device: where DALI decodes and where the pixels are: "cpu", or "gpu" for `device_id`.
        sandbox: the one that the fast loader uses; with None it makes its own.

    Raises:
        LoaderError: DALI is not installed, or cannot build the graph here.
    """

    name = "dali"

    def __init__(
        self,
        spec: PreprocessSpec,
        limits: ImageLimits = DEFAULT_LIMITS,
        num_threads: int = 1,
        options: DaliOptions = DEFAULT_DALI,
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        device_id: int = 0,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.spec, self.limits, self.options, self.counts = spec, limits, options, DaliCounts()
        self.graph = DaliGraph(spec, options, num_threads, device=device, device_id=device_id)
        self._quarantine = Quarantine()
        self._lock = threading.Lock()
        self._cpu = CpuLoader(spec, limits, num_threads, pin_memory=device == "gpu", sandbox=sandbox)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="milkweed-beside-dali")
        share = f", hardware share {options.hw_decoder_load:g}" if device == "gpu" else ""
        self.description = (
            f"dali: one-scan JPEGs on the {device}{share}, {options.resample} resize, "
            f"{'strict' if options.strict else 'lenient'}, {num_threads} threads; others: {self._cpu.description}"
        )

    @property
    def health(self) -> LoaderHealth:
        """See `Loader.health`."""
        counts, graph = self.counts, self.graph
        error = graph.error if graph.failed_builds >= MOST_FAILED_BUILDS else None
        return LoaderHealth(graph.rebuilds, counts.retried, counts.quarantined, len(self._quarantine), error)

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """See `Loader.load`; the pixels have the graph's dtype and are on its device."""
        infos = [None] * len(items) if infos is None else infos
        sources = [None] * len(items) if sources is None else sources
        if not len(infos) == len(sources) == len(items):
            raise ValueError(f"{len(infos)} infos, {len(sources)} sources for {len(items)} items: expected one each")
        rows, watch = DaliRows(), Stopwatch()
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
            self._quarantine.saw(sources[index], failures=int(index in rows.errors))
        with self._lock:
            self.counts.cpu += len(others)
        return rows.gathered(len(items), self.spec.size, self.graph, watch)

    def warm_up(self, batch_size: int) -> None:
        """Decode generated pictures, a full batch of small ones and a large one, so that buffers get their size now."""
        small, large = _made_jpeg(500, 375), _made_jpeg(4000, LARGE_PIXELS // 4000)
        for bodies in ([small] * min(batch_size, self.options.max_batch), [large]):
            self.load(bodies)
        self.counts = DaliCounts()

    def close(self) -> None:
        """End the threads and free the memory."""
        self._beside.shutdown()
        self._cpu.close()
        with self._lock:
            self.graph.close()

    def _sorted(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None],
        rows: DaliRows,
        watch: Stopwatch,
    ) -> tuple[dict[int, ImageInfo], list[Slot], list[int]]:
        """Return the headers by index, what DALI can take, and the indexes of the rest. Refusals go to `rows`."""
        known: dict[int, ImageInfo] = {}
        slots: list[Slot] = []
        others: list[int] = []
        for index, (body, info) in enumerate(zip(items, infos, strict=True)):
            try:
                with watch.stage("inspect"):
                    known[index] = validate(body, self.limits) if info is None else info
                    slot = slot_of(self.spec, index, body, known[index])
            except InputError as error:
                rows.errors[index] = without_frames(error)
                continue
            if slot is None:
                others.append(index)
            else:
                slots.append(slot)
        return known, slots, others

    def _set_aside(self, slots: list[Slot], sources: Sequence[str | None]) -> tuple[list[Slot], list[int]]:
        """Split into what DALI gets, and the indexes of what is from a source in quarantine or too small for it."""
        trusted = [slot for slot in slots if not self._quarantine.holds(sources[slot.index])]
        with self._lock:
            self.counts.quarantined += len(slots) - len(trusted)
        kept = worth_it(trusted, self.options.min_pixels, self.options.min_batch)
        kept_indexes = {slot.index for slot in kept}
        return kept, [slot.index for slot in slots if slot.index not in kept_indexes]

    def _submit(
        self, items: Sequence[bytes], known: dict[int, ImageInfo], indexes: list[int]
    ) -> "Future[LoadResult] | None":
        if not indexes:
            return None
        return self._beside.submit(self._cpu.load, [items[at] for at in indexes], [known[at] for at in indexes])

    def _checked(self, slots: list[Slot], rows: DaliRows, watch: Stopwatch) -> list[Slot]:
        """Return the JPEGs whose coded data is whole, without junk; the errors of the others go to `rows`."""
        if not self.options.strict:
            return slots
        checked = self._cpu.spread(_sound, slots)
        watch.add("check", sum(seconds for _, seconds in checked))
        rows.errors |= {
            slot.index: made for slot, (made, _) in zip(slots, checked, strict=True) if isinstance(made, InputError)
        }
        return [made for made, _ in checked if isinstance(made, Slot)]

    def _through_dali(self, slots: list[Slot], rows: DaliRows, watch: Stopwatch) -> list[list[Slot]]:
        """Decode with DALI into `rows`, and return the batches that it lost."""
        return [
            batch
            for batch in batches_of(slots, self.options.max_batch, self.options.max_batch_pixels)
            if not self._decoded(batch, rows, watch)
        ]

    def _decoded(self, batch: list[Slot], rows: DaliRows, watch: Stopwatch) -> bool:
        """Run one batch; return False if it was lost."""
        try:
            with self._lock, watch.stage("decode"):
                pixels = self.graph.run([slot.body for slot in batch], [slot.region for slot in batch])
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
        rows: DaliRows,
        watch: Stopwatch,
    ) -> None:
        """Decode lost batches again: bad images get their errors, good ones come from DALI if it takes them now."""
        for batch in failed:
            indexes = [slot.index for slot in batch]
            loaded = self._cpu.load([items[at] for at in indexes], [known[at] for at in indexes])
            good = [batch[place] for place in loaded.ok]
            with self._lock:
                self.counts.retried += len(batch)
            # If the fast loader finds nothing wrong, DALI would fail at the same body again.
            if loaded.errors and good and self._decoded(good, rows, watch):
                loaded.pixels, loaded.ok = loaded.pixels[:0], []
            rows.add_loaded(indexes, loaded, watch)


def _sound(slot: Slot) -> tuple[Slot | InputError, float]:
    """Return the JPEG, or what is wrong with its coded data, and the CPU seconds that this took to find."""
    start = time.thread_time()
    made: Slot | InputError
    try:
        made = replace(slot, body=sound_jpeg(slot.body, slot.info))
    except InputError as error:
        made = without_frames(error)
    return made, time.thread_time() - start


def _made_jpeg(width: int, height: int) -> bytes:
    body = BytesIO()
    Image.effect_noise((width // 4, height // 4), 60).resize((width, height)).convert("RGB").save(body, "JPEG")
    return body.getvalue()
