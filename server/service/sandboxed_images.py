"""SandboxedImages: images of rare formats wait here for the sandbox's processes, before they are queued.

They are decoded first, so that no batch waits for one of them, and what is queued is the crop that the model sees:
small, and of a known size.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.core import GaugeMetricFamily, Metric

from ...inference.device import usable_cores
from ...loaders.errors import DecoderLostError, InputError, LoaderError, without_frames
from ...loaders.headers.info import ImageInfo
from ...loaders.preprocess.spec import PreprocessSpec
from ...loaders.sandbox.sandbox import Sandbox
from ..config.settings import Settings, image_limits
from ..errors import ServiceError, internal_error
from ..http.body_budget import BodyBudget
from ..http.parser_threads import KeptThreads
from ..telemetry.families import counter
from .caller import Caller, CheckedImage

logger = logging.getLogger("milkweed.sandbox")

MOST_CHILDREN = 4

FIRST_GUESS_SECONDS = 0.02
"""What an image takes, before any was seen."""

GAIN = 1 / 8


@dataclass(slots=True, eq=False)
class _Request:
    caller: str | None
    waiting: deque[tuple[int, bytes, ImageInfo]]  # images that no child has yet, each with its place
    spec: PreprocessSpec
    waiter: "asyncio.Future[None]"
    images: int  # not done
    bytes: int  # of these
    results: dict[int, CheckedImage] = field(default_factory=dict)


@dataclass(slots=True)
class _Load:
    """What waits for the sandbox or is in it, of one caller or of all."""

    requests: int = 0
    images: int = 0
    bytes: int = 0


class SandboxedImages:
    """The queue in front of the sandbox. Belongs to the event loop.

    Callers take turns, and so do the requests of one caller, an image each. An image that a child has keeps its place,
    and counts as held, until the child is done with it, however long somebody waits for it.
    """

    def __init__(self, settings: Settings, budget: BodyBudget) -> None:
        self._sandbox, self._budget = Sandbox(image_limits(settings)), budget
        # A request that waits keeps a connection, which cannot be evicted as it is we who owe something.
        self._limits = (settings.max_connections // 8, settings.max_queue_images, settings.max_held_bytes // 2)
        self._children = min(MOST_CHILDREN, usable_cores())
        self._threads = KeptThreads(self._children, "milkweed-sandbox")
        self._requests: list[_Request] = []  # in the order of their turns
        self._load, self._loads = _Load(), dict[str | None, _Load]()  # of all, and of each caller
        self._running = 0
        self._seconds = FIRST_GUESS_SECONDS

    async def decode(
        self, images: list[CheckedImage], spec: PreprocessSpec, caller: Caller, left: float
    ) -> list[CheckedImage]:
        """The images, those of rare formats as crops, or with the error of each that could not be decoded.

        Args:
            caller: the crops are added to the lease of its request.
            left: seconds until nobody wants the answer any more.

        Raises:
            ServiceError: `overloaded` where too much waits, they would be late, or bodies hold too much memory.
            ClientDisconnected: nobody waits for them any more.
        """
        rare = deque((i, *image) for i, image in enumerate(images) if isinstance(image, tuple) and image[1].sandboxed)
        if not rare:
            return images
        size, waiter = sum(len(data) for _, data, _ in rare), asyncio.get_running_loop().create_future()
        request = _Request(caller.context.caller, rare, spec, waiter, len(rare), size)
        self._admit(request, left)
        caller.lease.take(3 * spec.size**2 * len(rare))
        self._requests.append(request)
        self._count(request.caller, 1, request.images, request.bytes)
        self._start()
        try:
            await caller.wait(waiter)
        finally:
            self._requests.remove(request)
            self._count(request.caller, -1, -request.images, -request.bytes)
            rare.clear()  # what a child has may keep the request for a while
        return [request.results.get(place, image) for place, image in enumerate(images)]

    def collect(self) -> Iterator[Metric]:
        """Its series, for the registry."""
        images, deaths = dict(self._sandbox.images), dict(self._sandbox.deaths)
        yield counter("sandbox_images", "Images of rare formats by what became of them.", outcome=images)
        yield counter("sandbox_deaths", "Processes of the sandbox that were ended, by why.", reason=deaths)
        text = "Images that wait for the sandbox, or are in it."
        value = self._running + sum(len(request.waiting) for request in list(self._requests))
        yield GaugeMetricFamily("milkweed_sandbox_waiting_images", text, value=value)

    def close(self) -> None:
        """End the processes."""
        self._threads.close()
        self._sandbox.close()

    def _count(self, caller: str | None, requests: int, images: int, size: int) -> None:
        of_caller = self._loads.setdefault(caller, _Load())
        for load in (self._load, of_caller):
            load.requests, load.images, load.bytes = load.requests + requests, load.images + images, load.bytes + size
        if not of_caller.requests:
            del self._loads[caller]

    def _admit(self, new: _Request, left: float) -> None:
        """Raises ServiceError `overloaded` where more would wait than may, or it would be late. Where nothing waits,
        whatever comes is tried, so that an estimate that is too high is put right."""
        if not self._requests:
            return
        seconds, text = self._seconds / self._children, ""
        of_caller = self._loads.get(new.caller, _Load())
        for whose, load, share in (("", self._load, 1), (" of one caller", of_caller, 2)):
            counts = load.requests + 1, load.images + new.images, load.bytes + new.bytes
            for name, count, limit in zip(("requests", "images", "bytes"), counts, self._limits, strict=True):
                if count > limit // share:
                    text = f"{count} {name}{whose} would wait for the sandbox: the limit is {limit // share}"
        if not text and (wait := (new.images + self._turns_before(new)) * seconds) > left:
            text = f"the images before these and they themselves would take the sandbox {wait * 1e3:.0f} ms"
            text += f", {left * 1e3:.0f} ms are left"
        if text:
            retry = max(1, min(60, math.ceil(seconds * self._load.images)))
            raise ServiceError("overloaded", text, retry_after_seconds=retry)

    def _turns_before(self, new: _Request) -> int:
        """How many images are decoded before the last of these: each other caller, and each other request of its own,
        has as many turns as it has."""
        turns = [load.images for caller, load in self._loads.items() if caller != new.caller]
        turns += [request.images for request in self._requests if request.caller == new.caller]
        return sum(min(images, new.images) for images in turns)

    def _start(self) -> None:
        """Give children that are free the images whose turn it is."""
        while self._running < self._children:
            request = next((queued for queued in self._requests if queued.waiting), None)
            if request is None:
                return
            place, data, info = request.waiting.popleft()
            try:
                thread = self._threads.start(partial(self._crop, data, info, request.spec))
            except ServiceError as error:
                thread = asyncio.get_running_loop().create_future()
                thread.set_result((error, self._seconds))
            self._running += 1
            self._budget.add(len(data))  # the child's copy; ours is in the lease, for as long as somebody waits
            thread.add_done_callback(partial(self._done, request, place, len(data)))

    def _done(
        self, request: _Request, place: int, size: int, thread: "asyncio.Future[tuple[CheckedImage, float]]"
    ) -> None:
        self._running -= 1
        self._budget.add(-size)
        error = thread.exception()
        if error is not None:
            logger.error("the sandbox failed", exc_info=error)
        request.results[place], seconds = (internal_error(), self._seconds) if error else thread.result()
        self._seconds += GAIN * (seconds - self._seconds)
        request.images, request.bytes = request.images - 1, request.bytes - size
        if request in self._requests:  # else all of it is counted no longer
            self._count(request.caller, 0, -1, -size)
        if not request.images and not request.waiter.done():
            request.waiter.set_result(None)
        caller = request.caller
        self._requests.sort(key=lambda queued: (queued.caller == caller) + (queued is request))  # both to the end
        self._start()

    def _crop(self, data: bytes, info: ImageInfo, spec: PreprocessSpec) -> tuple[CheckedImage, float]:
        """One image on a thread: its crop or its error, and what it took, s."""
        began = time.perf_counter()
        try:
            result: CheckedImage = self._sandbox.crop(data, info, spec)
        except (DecoderLostError, LoaderError, MemoryError, OSError) as error:
            text = str(error) or "there is no memory to decode the image"
            result = ServiceError("overloaded", text, retry_after_seconds=1)
        except InputError as error:
            result = without_frames(error)
        return result, time.perf_counter() - began
