"""Shadows: models that see a share of the images that others answered, as bulk work that no client waits for.

An image that is chosen is answered as any other; its answer only brings the whole distribution along. Once its request
is answered, it is queued for the shadow behind all that clients wait for, or dropped where there is no room.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from ...inference.results import TopClasses
from ...loaders.headers.info import ImageInfo
from ...models.intervals import share_interval
from ..config.settings import Settings
from ..config.shadows import parse_shadows
from ..errors import ServiceError
from ..http.body_budget import BodyBudget
from ..repository.served_model import ServedModel
from ..scheduler.request import BULK_DELAY_SECONDS, Outcome, Request
from ..scheduler.scheduler import Scheduler
from ..telemetry.metrics import SHADOW_OUTCOMES, Metrics
from .lifecycle import ModelLifecycle

logger = logging.getLogger("milkweed.shadows")

GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 are spread evenly, however many: 0.05 is 5 % of few images and of many, and nobody who sends
images in turns has always the same one chosen."""

BUDGET_SHARE = 0.25
"""Shadows hold images only while these and all bodies together are at most this share of the bodies' limit."""

_Image = tuple[int, bytes, ImageInfo]  # as the scheduler takes it


def divergence(p: bytes, q: bytes) -> float:
    """KL(p || q) in nats of two distributions, the bytes of float32 values. A probability of q counts as float32's
    least normal number at least: one that was rounded to 0 would make it infinite."""
    of_p, of_q = (np.frombuffer(values, np.float32).astype(np.float64) for values in (p, q))
    seen = of_p > 0
    ratio = of_p[seen] / np.maximum(of_q[seen], np.finfo(np.float32).tiny)
    return max(0.0, float(np.sum(of_p[seen] * np.log(ratio))))


def agreement(same: int, images: int) -> tuple[float, float, float]:
    """Return the share of equal answers and the ends of its 95 % interval; 0 to 1 where there are no images."""
    return (same / images, *share_interval(same, images)) if images else (0.0, 0.0, 1.0)


class Evidence:
    """What was seen of one shadow since both models were loaded. Belongs to the event loop.

    Args:
        names, keys: of the model that clients get, and of the shadow.
        off: why nothing is compared, if so.
    """

    def __init__(self, names: tuple[str, str], keys: tuple[str, ...], off: str | None, metrics: Metrics) -> None:
        self.names, self.keys, self.off, self._metrics = names, keys, off, metrics
        self.phase = 0.0  # of the choice of images
        self._since, self._kl, self._outcomes = datetime.now(UTC), 0.0, Counter[str]()
        metrics.forget_shadow(*names)
        for outcome in SHADOW_OUTCOMES if off is None else ():
            metrics.shadow_images.labels(*names, outcome)  # from 0

    @property
    def images(self) -> int:
        """How many were compared. One that only the shadow failed is a disagreement."""
        return self._outcomes.total() - self._outcomes["dropped"]

    def add(self, answer: TopClasses, seen: Outcome | None) -> None:
        """Take in an answer, and what the shadow made of the image; None: it was dropped."""
        outcome = "dropped" if seen is None else "failed"
        if isinstance(seen, TopClasses):
            outcome, kl = "other", divergence(answer.distribution, seen.distribution)
            if seen.best == answer.best:
                outcome = "same"
            self._kl += kl
            self._metrics.shadow_kl.labels(*self.names).observe(kl)
            self._metrics.shadow_seconds.labels(*self.names).observe(seen.forward_seconds - answer.forward_seconds)
        self._outcomes[outcome] += 1
        self._metrics.shadow_images.labels(*self.names, outcome).inc()

    def describe(self) -> dict[str, Any]:
        """What /v1/models says about it."""
        answered = self.images - self._outcomes["failed"]
        return {
            "of": self.names[0],
            "images": self.images,
            "agreement": agreement(self._outcomes["same"], self.images) if self.images else None,
            "kl": self._kl / answered if answered else None,
            "since": self._since.isoformat(timespec="seconds"),
            "off": self.off,
        }

    def check(self, least: float, images: int) -> None:
        """Raises ServiceError `not_yet`, with the figures, until so many images were compared and the lower end of the
        agreement's interval is `least`; `conflict` where nothing is compared."""
        if self.off is not None:
            raise ServiceError("conflict", self.off)
        share, low, high = agreement(self._outcomes["same"], self.images)
        if self.images < images or low < least:
            seen = f"{share:.4f}, its 95 % interval {low:.4f} to {high:.4f}, over {self.images} images"
            raise ServiceError("not_yet", f"the agreement is {seen}: asked for is {least:g} over {images}")


class Shadows:
    """The shadows of one service. Belongs to the event loop."""

    def __init__(
        self, settings: Settings, scheduler: Scheduler, lifecycle: ModelLifecycle, budget: BodyBudget, metrics: Metrics
    ) -> None:
        self._settings, self._scheduler, self._lifecycle = settings, scheduler, lifecycle
        self._budget, self._metrics, self._pairs = budget, metrics, parse_shadows(settings.shadow)
        self._known: dict[str, Evidence] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def sample(self, request: Request, model: ServedModel, images: Sequence[_Image]) -> None:
        """Choose from the images of a request that is about to be queued. Only the version that answers by default has
        shadows. A crop is its model's own, and seen by those that preprocess alike."""
        for shadow, (of, share) in () if self._closed else self._pairs.items():
            if of != model.name or (evidence := self._evidence(shadow)).off or evidence.keys[0] != model.key:
                continue
            alike = self._lifecycle.index[shadow].spec == model.spec
            for image in images:
                evidence.phase = (evidence.phase + GOLDEN) % 1
                if evidence.phase < share and (alike or not image[2].cropped):
                    offer = partial(self._offer, evidence, image, request.caller)
                    request.sampled.setdefault(image[0], []).append(offer)

    def evidence(self, model: ServedModel) -> Evidence | None:
        """What was seen of a shadow; None of other models, and of versions that do not answer by default."""
        is_shadow = model.name in self._pairs and self._lifecycle.index.get(model.name) is model
        return self._evidence(model.name) if is_shadow else None

    def close(self) -> None:
        """Drop what waits, and take nothing more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _evidence(self, shadow: str) -> Evidence:
        """The evidence of a shadow; new once one of both models was loaded anew."""
        of, index, known, off = self._pairs[shadow][0], self._lifecycle.index, self._known.get(shadow), None
        model, other = index.get(of), index.get(shadow)
        keys = ("" if model is None else model.key, "" if other is None else other.key)
        if known is None or known.keys != keys:
            try:
                if model is None or other is None:
                    raise ValueError(f"no model {of if model is None else shadow} is served")
                model.check_shadow(other)
            except ValueError as error:
                off = str(error)
                logger.warning("shadow %s is off: %s", shadow, off)
            known = self._known[shadow] = Evidence((of, shadow), keys, off, self._metrics)
        return known

    def _offer(self, evidence: Evidence, image: _Image, caller: str | None, answer: TopClasses) -> None:
        """Let the shadow see an image that is answered, if there is memory for it, after the answer is written."""
        size = len(image[1]) + 2 * len(answer.distribution)
        if self._closed or self._budget.total + size > BUDGET_SHARE * self._budget.limit:
            evidence.add(answer, None)
            return
        self._budget.add(size)
        task = asyncio.get_running_loop().create_task(self._see(evidence, image, caller, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._budget.add(-size))

    async def _see(self, evidence: Evidence, image: _Image, caller: str | None, answer: TopClasses) -> None:
        """Have the image classified, unless the queue refuses it or others go before it for too long."""
        shadow = self._lifecycle.index.get(evidence.names[1])
        if shadow is None or self._evidence(shadow.name) is not evidence:
            return
        seconds = self._settings.of(shadow.name).timeout_ms / 1e3
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        deadline = time.perf_counter() + seconds
        request = Request(shadow.key, 1, deadline, waiter, 1, caller, "bulk", shadow=True)
        with self._lifecycle.leases.lease(shadow.key), suppress(ServiceError, TimeoutError):
            try:
                self._scheduler.submit(request, [(0, *image[1:])])
                await asyncio.wait((waiter,), timeout=BULK_DELAY_SECONDS)
                if waiter.done() or not self._scheduler.drop(request):
                    await asyncio.wait_for(waiter, seconds)
            finally:
                self._scheduler.drop(request)
        if self._evidence(shadow.name) is evidence:
            evidence.add(answer, request.outcomes[0])
