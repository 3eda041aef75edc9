"""FetchedImages: puts images that came by URL in their places, before anything is queued."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from ...loaders.decode.npy import count_images, split_images
from ..config.fetch_hosts import read_fetch_hosts
from ..config.settings import Settings
from ..errors import ServiceError
from ..fetch.fetcher import Fetcher, fetch_failed
from ..fetch.url import FetchTarget
from ..http.parser_threads import ParserThreads
from ..http.payload import ImageUrl
from ..repository.served_model import ServedModel
from .caller import Caller, CheckedImage, check_image

FETCHES_OF_REQUEST = 8
"""At a time, of one request: the others of `FETCHES` are for others."""

SHARE_OF_TIME = 0.5
"""Fetches may take this share of the time that a request has left: a slow host must not cost the other images their
answers."""


class FetchedImages:
    """Belongs to the event loop."""

    def __init__(self, settings: Settings, parsers: ParserThreads) -> None:
        self._fetcher, self._parsers = Fetcher(read_fetch_hosts(settings.fetch_hosts)), parsers

    async def fetch(self, images: list[CheckedImage], model: ServedModel, caller: Caller, left: float) -> None:
        """Put images, each with a checked header, or their errors in the place of URLs.

        Args:
            caller: the bodies are added to the lease of its request.
            left: seconds until nobody wants the answer any more.

        Raises:
            ClientDisconnected: nobody waits for them any more.
        """
        urls = [(place, image.url) for place, image in enumerate(images) if isinstance(image, ImageUrl)]
        targets = [(place, target) for place, url in urls if (target := self._fetcher.target_of(url)) is not None]
        if not targets:
            return
        began, waiter = time.perf_counter(), asyncio.get_running_loop().create_future()
        for place, _ in targets:
            images[place] = fetch_failed(model.limits.max_bytes)  # until it is there
        work = asyncio.create_task(self._fetch_all(images, targets, model, caller, SHARE_OF_TIME * left))
        work.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
        try:
            await caller.wait(waiter)
        finally:
            work.cancel()
            await asyncio.wait((work,))
        work.result()
        caller.context.note_fetch(time.perf_counter() - began)

    def close(self) -> None:
        """Fetch no more."""
        self._fetcher.close()

    async def _fetch_all(
        self,
        images: list[CheckedImage],
        targets: list[tuple[int, FetchTarget]],
        model: ServedModel,
        caller: Caller,
        seconds: float,
    ) -> None:
        waiting = iter(targets)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in targets[:FETCHES_OF_REQUEST]:
                    group.create_task(self._fetch_some(images, waiting, model, caller))

    async def _fetch_some(
        self, images: list[CheckedImage], waiting: Iterator[tuple[int, FetchTarget]], model: ServedModel, caller: Caller
    ) -> None:
        """Fetch what no other task has begun, one after the other."""
        for place, target in waiting:
            body = await self._fetcher.fetch(target, model.limits.max_bytes, caller.lease)
            size = len(body) if isinstance(body, bytes) else 0
            images[place] = await self._parsers.run(partial(_checked, body, model), size)


def _checked(body: bytes | ServiceError, model: ServedModel) -> CheckedImage:
    """An image with a checked header. A URL has one place in the answer: an array there is not n images."""
    if isinstance(body, bytes):
        count = count_images(body)
        if count > 1:
            return ServiceError("bad_request", f"an array of {count} images: a URL stands for one")
        [body] = split_images(body)
    return check_image(body, model)
