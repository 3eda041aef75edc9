"""Images of rare formats on their way into the queue: decoded by the sandbox's processes, a few at a time.

They are decoded before they are queued, so that no batch waits for one of them, and what is queued is the crop that the
model sees: small, and of a known size.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from prometheus_client.core import GaugeMetricFamily, Metric

from ...inference.device import usable_cores
from ...loaders.errors import InputError
from ...loaders.headers.info import ImageInfo
from ...loaders.headers.limits import Limits
from ...loaders.preprocess.spec import PreprocessSpec
from ...loaders.sandbox.sandbox import Sandbox
from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..telemetry.families import counter
from .submit import CheckedImage

MOST_CHILDREN = 4

FIRST_GUESS_SECONDS = 0.02
"""What an image takes, before any was seen."""

GAIN = 1 / 8


class SandboxedImages:
    """Decodes images in the sandbox, on the event loop. `limits` are those of one image."""

    def __init__(self, limits: Limits) -> None:
        self._sandbox = Sandbox(limits)
        self._children = min(MOST_CHILDREN, usable_cores())
        self._threads = ThreadPoolExecutor(self._children, "milkweed-sandbox")
        self._waiting = 0
        self._seconds = FIRST_GUESS_SECONDS

    async def decode(
        self, images: list[CheckedImage], spec: PreprocessSpec, hold: BudgetLease, seconds_left: float
    ) -> list[CheckedImage]:
        """The images, those of rare formats as crops, or with the error of each that could not be decoded.

        Args:
            hold: what the request holds of the body budget; the crops are added to it.
            seconds_left: until nobody wants the answer any more.

        Raises:
            ServiceError: `overloaded` where they cannot be decoded in time, or bodies hold too much memory.
        """
        rare = {place: image for place, image in enumerate(images) if isinstance(image, tuple) and image[1].sandboxed}
        if not rare:
            return images
        wait = (self._waiting + len(rare)) * self._seconds / self._children
        if wait > seconds_left:
            text = f"the images before these and they themselves would take the sandbox {wait * 1e3:.0f} ms"
            raise ServiceError("overloaded", f"{text}, {seconds_left * 1e3:.0f} ms are left", retry_after_seconds=1)
        decoded, loop, crop_bytes = list(images), asyncio.get_running_loop(), 3 * spec.size**2
        self._waiting += len(rare)
        try:
            hold.take(crop_bytes * len(rare))
            made = [loop.run_in_executor(self._threads, partial(self._crop, *image, spec)) for image in rare.values()]
            for place, (result, seconds) in zip(rare, await asyncio.gather(*made), strict=True):
                decoded[place] = result
                self._seconds += GAIN * (seconds - self._seconds)
        finally:
            self._waiting -= len(rare)
        return decoded

    def collect(self) -> Iterator[Metric]:
        """Its series, for the registry."""
        images, deaths = dict(self._sandbox.images), dict(self._sandbox.deaths)
        yield counter("sandbox_images", "Images of rare formats by what became of them.", outcome=images)
        yield counter("sandbox_deaths", "Processes of the sandbox that were ended, by why.", reason=deaths)
        text = "Images that wait for the sandbox, or are in it."
        yield GaugeMetricFamily("milkweed_sandbox_waiting_images", text, value=self._waiting)

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sandbox.close()

    def _crop(self, data: bytes, info: ImageInfo, spec: PreprocessSpec) -> tuple[CheckedImage, float]:
        """One image on a thread: its crop or its error, and what it took, s."""
        began = time.perf_counter()
        try:
            result: CheckedImage = self._sandbox.crop(data, info, spec)
        except InputError as error:
            result = error.with_traceback(None)
        return result, time.perf_counter() - began
